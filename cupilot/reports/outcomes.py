"""Outcomes of an experiment's jobs: the numbers that every table and figure is made of."""

from __future__ import annotations

from cupilot.domain.evaluation import Interval, Verdict
from cupilot.domain.value import Value, Vocabulary


class OutcomeState(Vocabulary):
    """OutcomeState of a job in comparisons."""

    OPEN = "open"
    """Not final yet."""
    SOLVED = "solved"
    """Final, with a proven kernel."""
    UNSOLVED = "unsolved"
    """Final, and no kernel of it is proven."""
    LOST = "lost"
    """Cancelled, or failed through no fault of its arm: says nothing about it."""


class JobOutcome(Value):
    """Outcome of a job: its standing and all its counts."""

    job: str
    position: int
    """Place in the order of work, from 0."""
    arm: str
    problem: str
    """The problem's name within the experiment."""
    seed: int
    state: str
    reason: str | None = None
    standing: OutcomeState
    speedup: Interval | None = None
    """Of the best kernel over PyTorch eager, as measured last; None unless it is proven."""
    verdict: Verdict | None = None
    """Of the best kernel."""
    judged: int = 0
    """Candidates that were written or refused for good: what validity is a share of."""
    valid: int = 0
    """Of these, how many count (``audited`` or ``reproduced``)."""
    failures: dict[str, int] = {}
    """The rest by kind of failure, e.g. ``wrong_value``."""
    best_by_generation: tuple[float | None, ...] = ()
    """Highest median speedup up to and with each generation, whatever the verdict; None while there is none."""
    cost_usd: float = 0.0
    """Charged for answers."""
    reserved_usd: float = 0.0
    """Worst cost of calls whose true cost is not known, on their way or lost; not in ``cost_usd``."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    gpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    device_class: str | None = None
    device: str | None = None
    """Model name of what it was measured on."""
    load_average: float | None = None
    """Of the machine when the problem was prepared."""
