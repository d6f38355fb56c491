"""Contract of a candidate's stages that ask agents: what a stage reads of its candidate, and what it settles.

The stages are in :mod:`agents.stages`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from agents.interface import Agents, Alignment, Attempt, Briefing
from cupilot.domain.evolution.agentic import AgentLimits
from cupilot.domain.evolution.notes import Notes
from cupilot.domain.evolution.pipeline import Done, Outcome
from cupilot.domain.evolution.population import Operator
from cupilot.domain.kernel import Kernel
from cupilot.domain.states import StrategyOrigin
from cupilot.domain.strategy import Strategy


@dataclass(frozen=True)
class Proposed:
    """Proposal of a candidate, and the notes on it."""

    method: str
    operator: Operator
    generation: int
    notes: Notes
    limits: AgentLimits | None = None
    """Budget of a candidate that is worked on with tools, where the method has such."""
    repeats: int = 0
    """See :class:`cupilot.domain.evolution.pipeline.Next`."""


class CandidateReader(Protocol):
    """A candidate and its relatives, read from wherever they are kept."""

    @property
    def proposed(self) -> Proposed:
        """Return the candidate's proposal."""

    def strategy(self) -> Strategy:
        """Return the strategy that the candidate follows."""

    def measured(self) -> Attempt:
        """Return the measured kernel that the candidate is, as it was written, without name and insight."""

    def trials(self) -> list[Attempt]:
        """Return the measured kernels, oldest first, each with its strategy and the note on what a repair changed."""

    def parent_trials(self) -> list[Attempt]:
        """Return the same of the fitter parent."""

    def lineage(self, limit: int) -> list[Attempt]:
        """Return the trials of the ``limit`` youngest ancestors, the oldest ancestor first."""

    def parents(self) -> list[Attempt]:
        """Return the parents as they were measured, the fitter first."""

    def attempts(self, ids: Sequence[str]) -> list[Attempt]:
        """Return other candidates of the job as they were measured, in the order of ``ids``."""

    def tried(self) -> list[Strategy]:
        """Return every strategy of the job so far."""

    def outcomes(self) -> Mapping[str, str]:
        """Return what the job's strategies came to, by signature: a speedup (``1.57x``) or a failure's kind."""


@dataclass(frozen=True)
class Settled:
    """Result of a stage: its outcome, and what the candidate gets from it.

    A strategy or a kernel that the job already has is not kept: the outcome is then a duplicate. ``notes`` are kept
    in either case.
    """

    outcome: Outcome = field(default_factory=Done)
    strategy: Strategy | None = None
    """Strategy that the candidate follows from now on."""
    origin: StrategyOrigin | None = None
    """Origin of that strategy."""
    kernel: Kernel | None = None
    repair: str | None = None
    """Changes of the Revisor in the kernel; None for a kernel that is no revision."""
    kernel_notes: Mapping[str, Any] = field(default_factory=dict)
    """Changed notes that hold once this kernel is the candidate's, as does ``strategy``."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Changed fields of :class:`cupilot.domain.evolution.notes.Notes`."""
    alignment: Alignment | None = None


class AgentStage(Protocol):
    """One stage, as a view of its candidate."""

    @classmethod
    def read(cls, candidate: CandidateReader) -> Self:
        """Return what the stage may know of a candidate."""

    def run(self, agents: Agents, briefing: Briefing, seed: int) -> Settled:
        """Ask the agents; raises :class:`AgentError` where they cannot do it."""
