"""Bring the pool's vector index up to date with Postgres, in batches; idempotent and safe to run concurrently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.pool import PoolReference
from cupilot.storage.pool.references import Reference, forget_index, mark_indexed, unindexed
from cupilot.storage.pool.rows import read_old
from workers.tools import Tools

if TYPE_CHECKING:
    from cupilot.storage.pool.index import StrategyPool

BATCH = 200


def index_pool(tools: Tools) -> int:
    """Index what is not indexed yet; return the number of descriptions. Raises Unavailable."""
    return index_references(tools.database, tools.pool())


def rebuild_pool(tools: Tools) -> int:
    """Make the index anew from Postgres; return the number of descriptions. Raises Unavailable."""
    tools.pool().clear()
    return index_pool(tools)


def index_references(database: Database, pool: StrategyPool) -> int:
    """Index every description that is not indexed yet; return their number. An empty index is made anew.

    Raises :class:`cupilot.domain.errors.Unavailable`.
    """
    if pool.count() == 0:
        with database.transaction() as session:
            forget_index(session)
    left = True
    while left:
        with database.transaction() as session:
            left = read_old(session, BATCH) == BATCH
    done = 0
    while True:
        with database.transaction() as session:
            rows = unindexed(session, BATCH)
            references = [_reference(row) for row in rows]
        if not references:
            return done
        pool.add(references)
        with database.transaction() as session:
            mark_indexed(session, [reference.id for reference in references])
        done += len(references)


def _reference(row: PoolReference) -> Reference:
    return Reference(row.scope, row.target, row.policy, row.op_class, row.zone, row.text)
