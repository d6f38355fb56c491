"""A strategy pool in memory, for the local driver: what the first problems of a run taught, for the later ones.

Same filters, scores and warnings as :mod:`cupilot.storage.pool`; similarity is the share of common operators instead of
an embedding, so that a GPU box needs neither Chroma nor the embedder.
"""

from __future__ import annotations

from math import log

from cupilot.pool import PoolEntry, PoolMatch, operators
from cupilot.problem import ProblemFacts
from cupilot.storage.pool_ranking import Neighbour, rank


class LocalPool:
    """Entries of one run, of one target and one policy."""

    def __init__(self) -> None:
        self._entries: dict[str, PoolEntry] = {}

    def add(self, entry: PoolEntry) -> None:
        """Remember an entry; one of the same id is replaced."""
        if entry.informative:
            self._entries[entry.id] = entry

    def retrieve(self, facts: ProblemFacts, device_class: str, limit: int = 8) -> list[PoolMatch]:
        """At most ``limit`` entries of the same operator family: the promising ones first, then some to avoid."""
        wanted = set(operators(facts))
        family = [entry for entry in self._entries.values() if entry.op_class == facts.op_class]
        ranked = rank([_neighbour(entry, wanted) for entry in family], device_class, limit)
        return [PoolMatch(entry=self._entries[one.id], similarity=one.similarity, score=one.score) for one in ranked]


def _neighbour(entry: PoolEntry, wanted: set[str]) -> Neighbour:
    own = set(entry.operators)
    return Neighbour(
        id=entry.id,
        signature=entry.strategy.signature(),
        similarity=len(own & wanted) / max(len(own | wanted), 1),
        device_class=entry.device_class,
        gain=log(entry.speedup) if entry.speedup else None,
    )
