"""Credit of a technique in a winner's strategy: the same kernel without it, measured by the same judge.

Says how much; making the kernel without the technique is the agents' business, measuring it the judge's.
"""

from __future__ import annotations

from math import exp, hypot, log

from cupilot.domain.evaluation import FailureKind, Interval
from cupilot.domain.value import Value, Vocabulary

MAX_EXTRA_EVALUATIONS = 12
"""As many as a strategy may have techniques."""
MAX_UNASKED_EVALUATIONS = 3
"""Of a job that says nothing about attribution."""
UNASKED_SHARE = 0.1
"""Of such a job's GPU time so far, what attribution may take as far as that can be told beforehand."""


class AblationWay(Vocabulary):
    """Way in which the kernel without the technique was made; neither calls a model."""

    PLAYBOOK = "playbook"
    """Rendered by the templates that rendered the winner."""
    TUNABLES = "tunables"
    """The winner's own source, with the technique's tunable at its neutral value."""


class CreditOutcome(Vocabulary):
    """Outcome of a measurement without a technique."""

    MEASURED = "measured"
    """The kernel without it counts, and was timed."""
    SAME_CODE = "same_code"
    """The code is the same without it: the technique does nothing here."""
    BROKEN = "broken"
    """The kernel without it does not pass the judge."""
    NOT_SEPARABLE = "not_separable"
    """It cannot be taken away without writing another kernel."""
    NOT_MEASURED = "not_measured"
    """The measurement could not be made."""


class Credit(Value):
    """Share of a technique in a winner's speed, with the evidence."""

    technique: str
    removed: tuple[str, ...] = ()
    """Techniques that had to go with it, because they require it; the credit is theirs together."""
    outcome: CreditOutcome
    way: AblationWay | None = None
    factor: Interval | None = None
    """Speed of the winner over the speed without the technique, with its 95 % interval: 1.2 means 20 % faster by it."""
    speedup_without: Interval | None = None
    """Over eager, of the kernel without it."""
    failure: FailureKind | None = None
    """Why the kernel without it does not count."""
    note: str | None = None


def credit_factor(winner: Interval, without: Interval) -> Interval:
    """Return how many times as fast the winner is, from both speedups over the same baseline.

    The interval of a ratio from the intervals of its parts, in logarithms, by the method of variance estimates
    recovery (MOVER; Zou and Donner, Statistics in Medicine 27, 2008): each side's distances from the medians add as
    independent errors do.
    """
    centre = log(winner.median) - log(without.median)
    below = hypot(log(winner.median / winner.low), log(without.high / without.median))
    above = hypot(log(winner.high / winner.median), log(without.median / without.low))
    return Interval(low=exp(centre - below), median=exp(centre), high=exp(centre + above))
