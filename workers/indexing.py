"""Brings the pool's index up to date with Postgres, in batches; idempotent, and harmless when two do it at once."""

from __future__ import annotations

from cupilot.pool import PoolEntry
from cupilot.storage.pool_rows import forget_index, mark_indexed, unindexed
from workers.tools import Tools

BATCH = 200


def index_pool(tools: Tools) -> int:
    """Index every entry that is not yet; how many. Raises :class:`cupilot.errors.Unavailable`.

    An index that has nothing at all was lost or replaced, and is made anew.
    """
    if tools.pool().count() == 0:
        with tools.database.transaction() as session:
            forget_index(session)
    done = 0
    while True:
        with tools.database.transaction() as session:
            rows = unindexed(session, BATCH)
        if not rows:
            return done
        tools.pool().add([PoolEntry.model_validate(row.body) for row in rows])
        with tools.database.transaction() as session:
            mark_indexed(session, rows)
        done += len(rows)


def rebuild_pool(tools: Tools) -> int:
    """Make the index anew from Postgres; how many entries it has now. Raises :class:`cupilot.errors.Unavailable`."""
    tools.pool().clear()
    return index_pool(tools)
