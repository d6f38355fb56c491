"""The strategy pool's truth: one row an evaluation. The index over them is :mod:`cupilot.storage.pool`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from cupilot.attribution import Credit
from cupilot.pool import PoolEntry
from cupilot.storage.pool_tables import PoolRow


def remember(session: Session, entry: PoolEntry) -> None:
    """Keep what was learned from an evaluation, or correct it; it is (again) not indexed yet."""
    values = {"team_id": uuid.UUID(entry.team), "body": entry.model_dump(mode="json"), "indexed_at": None}
    row = insert(PoolRow).values(id=uuid.UUID(entry.id), **values)
    session.execute(row.on_conflict_do_update(index_elements=["id"], set_=values))


def recall(session: Session, evaluation_id: uuid.UUID) -> PoolEntry:
    """What was learned from an evaluation."""
    return PoolEntry.model_validate(session.get_one(PoolRow, evaluation_id).body)


def credit_entry(session: Session, evaluation_id: uuid.UUID, credits: Sequence[Credit]) -> None:
    """Keep what the techniques of an entry's strategy are worth."""
    entry = recall(session, evaluation_id)
    remember(session, entry.model_copy(update={"credits": tuple(credits)}))


def unindexed(session: Session, limit: int) -> Sequence[PoolRow]:
    """The oldest entries that the index does not have, or has in a former version."""
    query = select(PoolRow).where(PoolRow.indexed_at.is_(None)).order_by(PoolRow.created_at, PoolRow.id)
    return session.scalars(query.limit(limit)).all()


def anything_unindexed(session: Session) -> bool:
    """Whether there is something to index."""
    return session.execute(select(select(PoolRow.id).where(PoolRow.indexed_at.is_(None)).exists())).scalar_one()


def mark_indexed(session: Session, rows: Sequence[PoolRow]) -> None:
    """Note that the index has these versions; an entry that was corrected meanwhile stays to be indexed."""
    for row in sorted(rows, key=lambda one: one.id):
        session.execute(
            update(PoolRow)
            .where(PoolRow.id == row.id, PoolRow.body == row.body)
            .values(indexed_at=func.now())
            .execution_options(synchronize_session=False)
        )


def forget_index(session: Session) -> None:
    """Have everything indexed again: for a rebuilt or lost Chroma."""
    session.execute(update(PoolRow).values(indexed_at=None).execution_options(synchronize_session=False))
