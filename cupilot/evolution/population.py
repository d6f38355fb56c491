"""What a method sees (members) and what it answers (proposals, reasons to stop). Pure data."""

from __future__ import annotations

from enum import StrEnum

from cupilot.evaluation import Verdict
from cupilot.strategy import Strategy
from cupilot.value import Value


class Operator(StrEnum):
    """How a proposal's strategy comes about. Each is a short pipeline (:mod:`cupilot.evolution.pipeline`)."""

    INITIAL = "initial"
    """The SCE Manager's own idea, or a pool entry; the kernel is written from scratch."""
    CROSSOVER = "crossover"
    """Two parents' strategies combined; the kernel is translated anew from the first parent's."""


class Member(Value):
    """A candidate with everything that selection looks at."""

    candidate: str
    """Candidate id."""
    ordinal: int
    """Number within the job, from 0; breaks ties, so that selection never depends on ids or arrival."""
    generation: int
    strategy: Strategy
    kernel_hash: str | None
    verdict: Verdict
    speedup: float | None
    """Median speedup over eager; None unless the verdict counts."""
    utilisation: float
    """0 to 1, in the zone's own resource."""
    fitness: float | None
    """None for a member that does not count."""
    floor_share: float | None = None
    """Floor time over kernel time; None where it is unknown."""


class Proposal(Value):
    """A wish for a new candidate."""

    operator: Operator
    parents: tuple[str, ...] = ()
    """Candidate ids: none for ``initial``, two for ``crossover``, the fitter first."""


class StopReason(StrEnum):
    """Why a method wants no further generation."""

    NEAR_FLOOR = "near_floor"
    """The best kernel is so close to the physical floor that nothing is left to pay for."""
    GENERATIONS = "generations"
    """All generations that were asked for are done."""
