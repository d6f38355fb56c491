"""Selection that methods share: ranking, elitism, tournament, the stop near the floor. Pure; members without a fitness
never win.

Ties go to the member with the smaller ordinal, so that a result never depends on ids or on order of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from cupilot.domain.evolution.population import Member
from cupilot.domain.roofline import NEAR_FLOOR


def ranked(population: Sequence[Member]) -> list[Member]:
    """Return the members that count, best first."""
    counting = [member for member in population if member.fitness is not None]
    alike = all(member.counted for member in counting)  # else those with counters would be ahead by having them

    def value(member: Member) -> float:
        chosen = member.fitness if alike or member.bare is None else member.bare
        assert chosen is not None
        return chosen

    return sorted(counting, key=lambda member: (-value(member), member.ordinal))


def elite(population: Sequence[Member], count: int) -> list[Member]:
    """Return the ``count`` best members that count, best first; fewer where there are no more."""
    return ranked(population)[:count]


def tournament(population: Sequence[Member], size: int, rng: Random) -> Member | None:
    """Return the best of ``size`` members drawn without replacement from those that count; None where none counts."""
    field = ranked(population)
    if not field:
        return None
    return field[min(rng.sample(range(len(field)), min(size, len(field))))]


def near_floor(population: Sequence[Member]) -> bool:
    """Return whether a member that counts is so close to the physical floor that nothing is left to pay for."""
    return any(member.floor_share is not None and member.floor_share >= NEAR_FLOOR for member in ranked(population))
