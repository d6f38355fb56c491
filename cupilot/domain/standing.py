"""Standing of a technique with a team, from the results of kernels with it. Pure.

A technique that the catalogue does not know is *novel*. Results promote it, and then the SCE Manager is offered it like
a catalogued one; or they show that it hurts, and then it is not shown. Nothing is decided once and for all: a standing
is reckoned anew from the strategy pool's entries whenever it is asked for.

The effect is a contrast within places (a problem on a class of device), so that a technique is not praised for a
problem that is easy to gain on: the mean gain of the team's kernels with it, less that of those without it. Places are
combined as random effects (DerSimonian and Laird, "Meta-analysis in clinical trials", Controlled Clinical Trials 7,
1986) and shrunk towards no effect by one imaginary place. It is a comparison of what was tried, not an experiment: for
a winner, attribution measures what a technique is worth by taking it away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt

from cupilot.domain.counted import counted
from cupilot.domain.value import Value, Vocabulary

WITHIN_FLOOR, BETWEEN_FLOOR = 0.15**2, 0.1**2
"""Least variances of ln speedup: of kernels of one place (15 %), and of the effect between places (10 %)."""

PROMOTED_WINS, PROMOTED_PROBLEMS = 3, 2
"""Kernels that count, and different problems that they count on, before a technique can be promoted."""

DEMOTED_TRIES = 3
"""Evaluations before a technique can be demoted."""

CERTAINTY = 1.96
"""Standard deviations each side of a 95 % interval."""


class Standing(Vocabulary):
    """Standing of a technique."""

    CATALOGUED = "catalogued"
    """In the built-in catalogue."""
    NOVEL = "novel"
    """Invented; not proven yet."""
    PROMOTED = "promoted"
    """Invented, proven by results, and offered to the SCE Manager like a catalogued one."""
    DEMOTED = "demoted"
    """Invented, and shown by results to hurt: offered to nobody."""


@dataclass(frozen=True)
class GainSums:
    """Gains (ln of the speedup, :data:`cupilot.domain.pool.FAILURE_GAIN` for a failure) of some kernels, as sums."""

    count: int
    total: float
    squares: float

    @property
    def mean(self) -> float:
        """Mean gain; of something, not of nothing."""
        return self.total / self.count

    @property
    def spread(self) -> float:
        """Sum of the squared distances from the mean."""
        return max(self.squares - self.count * self.mean**2, 0.0)

    def minus(self, part: GainSums) -> GainSums:
        """Return the counts without those of a part."""
        return GainSums(self.count - part.count, self.total - part.total, self.squares - part.squares)


@dataclass(frozen=True)
class Place:
    """The team's kernels for one problem on one class of device, with and without the technique."""

    used: GainSums
    without: GainSums


class Effect(Value):
    """Speedup of kernels with a technique over those without it, on the same problems."""

    places: int
    """Problems, each on one class of device, where both were tried."""
    gain: float
    """Mean difference of ln speedup, shrunk towards none."""
    deviation: float
    """Its standard deviation."""

    @property
    def factor(self) -> float:
        """The same as a factor: 1.2 means 20 % faster with it."""
        return exp(self.gain)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the factor."""
        return exp(self.gain - CERTAINTY * self.deviation), exp(self.gain + CERTAINTY * self.deviation)


class Record(Value):
    """Results of kernels with a technique."""

    tries: int = 0
    """Evaluations, by this cluster."""
    wins: int = 0
    """Those of them whose kernel counts: audited or reproduced."""
    problems: int = 0
    """Different problems that it won on."""
    families: tuple[str, ...] = ()
    """Their operator classes."""
    failures: dict[str, int] = {}
    """The others, by kind."""
    effect: Effect | None = None
    """None where no problem was tried with it and without it."""

    @property
    def standing(self) -> Standing:
        """Standing of an invented technique.

        Promoted with :data:`PROMOTED_WINS` wins on :data:`PROMOTED_PROBLEMS` problems and an effect that is positive
        by more than its standard deviation; demoted after :data:`DEMOTED_TRIES` tries with one that is as negative.
        """
        if self.effect is None:
            return Standing.NOVEL
        gain, deviation = self.effect.gain, self.effect.deviation
        if self.wins >= PROMOTED_WINS and self.problems >= PROMOTED_PROBLEMS and gain > deviation:
            return Standing.PROMOTED
        if self.tries >= DEMOTED_TRIES and gain < -deviation:
            return Standing.DEMOTED
        return Standing.NOVEL

    def words(self) -> str:
        """Describe it for a person or a model."""
        count = "counts" if self.tries == 1 else "count"
        text = f"{self.wins} of {counted(self.tries, 'kernel')} {count}, on {counted(self.problems, 'problem')}"
        text += f" ({', '.join(self.families)})" if self.families else ""
        if self.effect is not None:
            low, high = self.effect.interval
            text += f"; {self.effect.factor:.2f}x against kernels without it (95 % interval {low:.2f} to {high:.2f})"
        return text


class LearnedTechnique(Value):
    """An invented technique as agents are offered it."""

    id: str
    meaning: str
    """Description in the words of the model or person that invented it: data, never an instruction."""
    record: Record


def effect_of(places: Sequence[Place]) -> Effect | None:
    """Return the effect over places; those without a kernel on either side say nothing."""
    both = [place for place in places if place.used.count and place.without.count]
    if not both:
        return None
    kernels = sum(place.used.count + place.without.count for place in both)
    spread = sum(place.used.spread + place.without.spread for place in both)
    within = max(spread / kernels, WITHIN_FLOOR)
    gaps = [place.used.mean - place.without.mean for place in both]
    errors = [within / place.used.count + within / place.without.count for place in both]
    between = _between(gaps, errors)
    weights = [1 / (between + error) for error in errors]
    prior = 1 / (between + 2 * within)  # a place with one kernel on each side, equally fast
    precision = sum(weights) + prior
    gain = sum(weight * gap for weight, gap in zip(weights, gaps, strict=True)) / precision
    return Effect(places=len(both), gain=gain, deviation=sqrt(1 / precision))


def _between(gaps: Sequence[float], errors: Sequence[float]) -> float:
    """Return the variance of the true effect between places, by moments."""
    weights = [1 / error for error in errors]
    total = sum(weights)
    mean = sum(weight * gap for weight, gap in zip(weights, gaps, strict=True)) / total
    heterogeneity = sum(weight * (gap - mean) ** 2 for weight, gap in zip(weights, gaps, strict=True))
    scale = total - sum(weight**2 for weight in weights) / total
    return max((heterogeneity - (len(gaps) - 1)) / scale if scale > 0 else 0.0, BETWEEN_FLOOR)
