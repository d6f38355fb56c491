"""Ranks what the strategy pool found: similarity of the problem times what the strategy gained. Pure.

A strategy (one signature) is scored over all its neighbours: ``sum(w * s * g) / (PRIOR + sum(w))`` with similarity
``s``, gain ``g`` (ln of the speedup, :data:`FAILURE_GAIN` for a failure) and weight ``w`` (1 on the job's own class of
device, :data:`OTHER_DEVICE` elsewhere). The prior pulls a strategy that was seen once towards no gain at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

FAILURE_GAIN = -0.7
"""A failure is as bad as a kernel of half the baseline's speed (ln 0.5)."""

PRIOR = 1.0
"""Imaginary evaluations without gain that every strategy starts with."""

OTHER_DEVICE = 0.5
"""A gain on another class of device is a hint, not evidence."""

WARNINGS = 4
"""Every fourth place goes to a strategy that only ever failed, so that the SCE Manager can avoid it."""


@dataclass(frozen=True)
class Neighbour:
    """An entry near the problem, without its body."""

    id: str
    signature: str
    similarity: float
    """0 to 1."""
    device_class: str
    gain: float | None
    """ln of the speedup; None for an entry that does not count."""


@dataclass(frozen=True)
class Ranked:
    """The entry that stands for a strategy, and the strategy's score."""

    id: str
    similarity: float
    score: float


def rank(neighbours: Iterable[Neighbour], device_class: str, limit: int) -> list[Ranked]:
    """At most ``limit`` strategies: those that ever counted, best first, then failures, the most certain first."""
    groups: dict[str, list[Neighbour]] = defaultdict(list)
    for one in neighbours:
        groups[one.signature].append(one)
    winners: list[Ranked] = []
    losers: list[Ranked] = []
    for group in groups.values():
        ranked = _strategy(group, device_class)
        (winners if any(one.gain is not None for one in group) else losers).append(ranked)
    winners.sort(key=lambda one: (-one.score, one.id))
    losers.sort(key=lambda one: (one.score, one.id))
    warnings = min(len(losers), max(limit // WARNINGS, limit - len(winners)))
    return winners[: limit - warnings] + losers[:warnings]


def _strategy(group: list[Neighbour], device_class: str) -> Ranked:
    weights = [1.0 if one.device_class == device_class else OTHER_DEVICE for one in group]
    gains = [FAILURE_GAIN if one.gain is None else one.gain for one in group]
    total = sum(w * one.similarity * g for w, one, g in zip(weights, group, gains, strict=True))
    best = min(group, key=_representative)
    return Ranked(id=best.id, similarity=best.similarity, score=total / (PRIOR + sum(weights)))


def _representative(one: Neighbour) -> tuple[bool, float, str]:
    """The entry shown for a strategy: one that counts, of the largest similar gain; else the most similar."""
    return (one.gain is None, -one.similarity * (1.0 if one.gain is None else one.gain), one.id)
