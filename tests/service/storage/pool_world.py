"""A pool in a real Postgres, for the tests of retrieval: entries are rows, teams have names."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cupilot.domain.errors import Unavailable
from cupilot.domain.pool import PoolAnswer, PoolEntry, PoolMatch, Sharing, question_of
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.roofline import Zone
from cupilot.domain.strategy import Strategy
from cupilot.storage.db.engine import Database
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.pool.index import StrategyPool
from cupilot.storage.pool.rows import remember
from cupilot.storage.pool.search import search
from tests.unit.storage.references import facts
from workers.indexing import index_references

NAMESPACE = uuid.UUID(int=7)


def key_of(name: str) -> str:
    return str(uuid.uuid5(NAMESPACE, name))


@dataclass
class PoolWorld:
    database: Database
    pool: StrategyPool
    names: dict[str, str] = field(default_factory=dict)
    """Id to the name that the test gave it."""

    def team(self, name: str) -> uuid.UUID:
        with self.database.transaction() as session:
            return ensure_team(session, name).id

    def add(self, *entries: PoolEntry, sharing: Sharing | None = None) -> None:
        teams = {entry.team: str(self.team(entry.team)) for entry in entries}
        with self.database.transaction() as session:
            for entry in entries:
                key = key_of(entry.id)
                self.names[key] = entry.id
                remember(session, entry.model_copy(update={"id": key, "team": teams[entry.team]}), sharing)
        with suppress(Unavailable):
            index_references(self.database, self.pool)

    def ask(
        self,
        reference: str = "softmax",
        *,
        team: str = "blue",
        policy: NumericsPolicy = NumericsPolicy.FP32,
        target: Target = Target.CUDA,
        zone: Zone = Zone.MEMORY,
        limit: int = 8,
        half_life_days: float = 1e6,
        applicable: Callable[[Strategy], str | None] | None = None,
        without_problem: str | None = None,
    ) -> PoolAnswer:
        question = question_of(
            facts(reference, policy), reference, target=target, zone=zone, device_class="sm_90", limit=limit
        ).model_copy(update={"without_problem": without_problem})
        owner = self.team(team)
        with self.database.transaction() as session:
            return search(session, self.pool, owner, question, half_life_days=half_life_days, applicable=applicable)

    def find(self, reference: str = "softmax", **options: object) -> list[PoolMatch]:
        return list(self.ask(reference, **options).matches)  # type: ignore[arg-type]

    def ids(self, matches: Sequence[PoolMatch]) -> list[str]:
        return [self.names[match.entry.id] for match in matches]
