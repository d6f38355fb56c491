"""Rank strategies by their gains on similar problems, discounted for uncertainty. Pure.

A group (a strategy, or a technique) has weighted observations: ln of the speedup, or
:data:`cupilot.domain.pool.FAILURE_GAIN` for a failure. Its mean is shrunk towards the neighbourhood's as in empirical
Bayes for normal means (Efron and Morris, "Data analysis using Stein's estimator", JASA 70, 1975), with both variances
estimated from the groups by moments; the neighbourhood's own mean is pulled towards no gain by :data:`PRIOR`. Groups
are ranked by the posterior mean less one posterior standard deviation, so that of two equal means the better proven one
comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

PRIOR = 1.0
"""Imaginary evaluations without gain that every neighbourhood starts with."""

OTHER_DEVICE = 0.5
"""A gain on another class of device is a hint, not evidence."""

IMPORTED = 0.25
"""So is, even more, what another cluster says that it measured."""

WITHIN_FLOOR, BETWEEN_FLOOR = 0.15**2, 0.1**2
"""Least variances of ln speedup: of one strategy over similar problems (15 %), and between strategies (10 %). With few
groups the moments would be nothing, and one evaluation would count as certainty."""

WARNINGS = 4
"""Every fourth place goes to a strategy that only ever failed, so that the SCE Manager can avoid it."""


@dataclass(frozen=True)
class Group:
    """Entries of one strategy, or with one technique, as weighted sums."""

    key: str
    id: str
    """The entry that stands for it."""
    similarity: float
    """That entry's."""
    counted: bool
    """True if any entry counts."""
    weight: float
    total: float
    """Weighted sum of the gains."""
    squares: float
    """Weighted sum of their squares."""

    @property
    def mean(self) -> float:
        """Weighted mean gain."""
        return self.total / self.weight if self.weight > 0 else 0.0


@dataclass(frozen=True)
class Ranked:
    """A group with its shrunken gain, and the score that it is ranked by."""

    id: str
    similarity: float
    score: float
    group: Group
    shrunk: float


def scored(groups: Iterable[Group]) -> list[Ranked]:
    """Return every group with its shrunken gain and score, best first; the order in which they come does not matter."""
    groups = sorted(groups, key=lambda group: (group.key, group.id))
    centre, within, between = _moments(groups)
    scores = []
    for group in groups:
        precision = group.weight / within + 1 / between
        shrunk = (group.total / within + centre / between) / precision
        score = shrunk - sqrt(1 / precision)
        scores.append(Ranked(group.id, group.similarity, score, group, shrunk))
    return sorted(scores, key=lambda entry: (-entry.score, entry.id))


def pick(ranked: Sequence[Ranked], limit: int) -> list[Ranked]:
    """Return at most ``limit``: those that ever counted, best first, then the most certain failures."""
    winners = [entry for entry in ranked if entry.group.counted]
    losers = sorted(
        (entry for entry in ranked if not entry.group.counted), key=lambda entry: (-entry.group.weight, entry.id)
    )
    warnings = min(len(losers), max(limit // WARNINGS, limit - len(winners)))
    return winners[: limit - warnings] + losers[:warnings]


def _moments(groups: Sequence[Group]) -> tuple[float, float, float]:
    """Return the neighbourhood's mean, and the variances within and between groups."""
    weight = sum(group.weight for group in groups)
    if weight <= 0:
        return 0.0, WITHIN_FLOOR, BETWEEN_FLOOR
    centre = sum(group.total for group in groups) / (weight + PRIOR)
    spread = sum(max(group.squares - group.weight * group.mean**2, 0.0) for group in groups)
    within = max(spread / weight, WITHIN_FLOOR)
    means = sum(group.weight * (group.mean - centre) ** 2 for group in groups) / weight
    between = max(means - within * len(groups) / weight, BETWEEN_FLOOR)
    return centre, within, between
