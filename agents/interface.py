"""What the four agents are asked and what they answer, whoever plays them (playbook or language model).

Every call is pure in its arguments and its seed, so that a repeated step gives the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from cupilot.errors import CupilotError
from cupilot.evaluation import Evaluation
from cupilot.hardware import Device
from cupilot.kernel import Kernel
from cupilot.pool import PoolMatch
from cupilot.problem import Problem, ProblemFacts, Target
from cupilot.roofline import Placement
from cupilot.strategy import Strategy
from cupilot.value import Value


class AgentError(CupilotError):
    """An agent cannot do what it was asked; the candidate or the job ends with this code."""

    code = "agent_error"
    status = 422


class NoTemplate(AgentError):
    """The playbook knows no template for this operator."""

    code = "no_template"


class Briefing(Value):
    """What every agent may know about a job."""

    problem: Problem
    facts: ProblemFacts
    target: Target
    device: Device
    placement: Placement | None
    """None where roofline guidance is switched off."""


class Attempt(Value):
    """A candidate as agents see it."""

    strategy: Strategy
    kernel: Kernel | None = None
    evaluation: Evaluation | None = None


class StrategySource(StrEnum):
    """Where an initial strategy came from."""

    IDEA = "idea"
    """The Manager's own."""
    POOL = "pool"
    """An entry of the strategy pool, perhaps adapted."""


class InitialStrategy(Value):
    """A strategy of the first generation."""

    strategy: Strategy
    source: StrategySource
    pool_entry: str | None = None
    """Id of the entry it came from."""


class Advice(Value):
    """One ranked piece of a diagnosis."""

    technique: str
    """Catalogue id."""
    reason: str
    expected: str
    """What should change if it works, with the metric named."""


class Diagnosis(Value):
    """A digested profile: what holds a kernel back. Raw counters stay in the database."""

    severity: str
    """``none``, ``minor``, ``major`` or ``critical``."""
    cause: str
    evidence: str
    """The metrics that say so, with their values."""
    advice: tuple[Advice, ...]


class Revision(Value):
    """A mended kernel, with the strategy it now follows (a technique that cannot work may be dropped)."""

    strategy: Strategy
    kernel: Kernel
    note: str
    """What was changed and why."""


class Alignment(Value):
    """The strategy as the code really follows it."""

    strategy: Strategy
    struck: tuple[str, ...] = ()
    """Techniques claimed but not found in the code or the binary."""
    fidelity: float
    """Share of the claimed techniques that were found, 0 to 1."""


class RooflineProphet(Protocol):
    """Turns measurements into a diagnosis."""

    def diagnose(self, briefing: Briefing, attempt: Attempt) -> Diagnosis:
        """Why the kernel is not faster, and what to try."""
        ...


class SceManager(Protocol):
    """Writes and combines strategies."""

    def initial_strategies(
        self, briefing: Briefing, pool: Sequence[PoolMatch], count: int, seed: int
    ) -> list[InitialStrategy]:
        """Up to ``count`` strategies with different signatures; fewer where there are no more ideas.

        Raises :class:`NoTemplate` or another :class:`AgentError` where the problem cannot be worked on at all.
        """
        ...

    def crossover(
        self, briefing: Briefing, first: Attempt, second: Attempt, taken: Sequence[Strategy], seed: int
    ) -> Strategy:
        """One strategy from two parents' (the fitter first); ``taken`` are those the job already has."""
        ...


class StrategyTranslator(Protocol):
    """Writes kernels for strategies, and strategies for kernels."""

    def translate(self, briefing: Briefing, strategy: Strategy, parent: Kernel | None, seed: int) -> Kernel:
        """A kernel that follows the strategy; ``parent`` is the code to start from, if there is any."""
        ...

    def align(self, briefing: Briefing, attempt: Attempt) -> Alignment:
        """The strategy rewritten to what the code does, checked against the build report."""
        ...


class KernelRevisor(Protocol):
    """Mends kernels."""

    def revise(self, briefing: Briefing, history: Sequence[Attempt], seed: int) -> Revision | None:
        """A mended kernel for the last attempt of this candidate's history; None where it gives up."""
        ...


@dataclass(frozen=True)
class Agents:
    """One player for each role."""

    prophet: RooflineProphet
    manager: SceManager
    translator: StrategyTranslator
    revisor: KernelRevisor
