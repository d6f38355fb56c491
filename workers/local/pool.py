"""A strategy pool in memory: what the first problems of a run taught, for the later ones.

Filters and scores are those of :mod:`cupilot.storage.pool.search`, whose sums the database computes; similarity is the
share of common operators instead of an embedding, so that a GPU box needs neither Chroma nor the embedder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import log

from cupilot.domain.pool import FAILURE_GAIN, PoolEntry, PoolMatch, operators, related_classes
from cupilot.domain.problem import ProblemFacts
from cupilot.storage.pool.ranking import OTHER_DEVICE, Group, Ranked, pick, scored


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


class LocalPool:
    """Entries of one run, of one target and one policy."""

    def __init__(self) -> None:
        self._entries: dict[str, PoolEntry] = {}

    def add(self, entry: PoolEntry) -> None:
        """Add an entry; one of the same id is replaced."""
        if entry.informative:
            self._entries[entry.id] = entry

    def retrieve(self, facts: ProblemFacts, device_class: str, limit: int = 8) -> list[PoolMatch]:
        """Return at most ``limit`` entries of the same operator family: the promising first, then some to avoid.

        Where nothing counts in it, of the families with the same shape of computation too.
        """
        wanted = set(operators(facts))
        family = [entry for entry in self._entries.values() if entry.op_class == facts.op_class]
        if not any(entry.speedup for entry in family):
            related = related_classes(facts.op_class)
            family = [entry for entry in self._entries.values() if entry.op_class in related]
        ranked = rank([_neighbour(entry, wanted) for entry in family], device_class, limit)
        return [
            PoolMatch(entry=self._entries[match.id], similarity=match.similarity, score=match.score) for match in ranked
        ]


def _neighbour(entry: PoolEntry, wanted: set[str]) -> Neighbour:
    own = set(entry.operators)
    return Neighbour(
        id=entry.id,
        signature=entry.strategy.signature(),
        similarity=len(own & wanted) / max(len(own | wanted), 1),
        device_class=entry.device_class,
        gain=log(entry.speedup) if entry.speedup else None,
    )


def rank(neighbours: Iterable[Neighbour], device_class: str, limit: int) -> list[Ranked]:
    """Rank entries in memory."""
    return pick(scored(grouped(neighbours, device_class)), limit)


def grouped(neighbours: Iterable[Neighbour], device_class: str) -> list[Group]:
    """Group entries by strategy."""
    by_strategy: dict[str, list[Neighbour]] = defaultdict(list)
    for neighbour in neighbours:
        by_strategy[neighbour.signature].append(neighbour)
    groups = []
    for key, members in by_strategy.items():
        best = min(members, key=_representative)
        weights = [near.similarity * (1.0 if near.device_class == device_class else OTHER_DEVICE) for near in members]
        gains = [FAILURE_GAIN if near.gain is None else near.gain for near in members]
        pairs = list(zip(weights, gains, strict=True))
        groups.append(
            Group(
                key=key,
                id=best.id,
                similarity=best.similarity,
                counted=any(near.gain is not None for near in members),
                weight=sum(sorted(weights)),
                total=sum(sorted(w * g for w, g in pairs)),
                squares=sum(sorted(w * g * g for w, g in pairs)),
            )
        )
    return groups


def _representative(near: Neighbour) -> tuple[bool, float, str]:
    """Order entries of one strategy: those that count first, of the largest similar gain; then the most similar."""
    return (near.gain is None, -near.similarity * (1.0 if near.gain is None else near.gain), near.id)
