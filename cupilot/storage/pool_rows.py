"""The strategy pool's truth: one row an evaluation, with the columns that it is searched by."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from math import log
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from cupilot.attribution import Credit
from cupilot.pool import PoolEntry, Sharing
from cupilot.storage.pool_references import drop_unused, ensure_reference, reference_of
from cupilot.storage.pool_tables import PoolReference, PoolRow
from cupilot.value import in_utc


def remember(session: Session, entry: PoolEntry, sharing: Sharing | None = None) -> None:
    """Keep what was learned from an evaluation, or correct it; ``sharing`` stays as it is where none is given."""
    key = uuid.UUID(entry.id)
    if sharing is None:
        known = session.scalars(select(PoolRow.sharing).where(PoolRow.id == key)).one_or_none()
        sharing = Sharing(known) if known else Sharing.PRIVATE
    values = {"team_id": uuid.UUID(entry.team), **_columns(session, entry, sharing)}
    row = insert(PoolRow).values(id=key, **values)
    session.execute(row.on_conflict_do_update(index_elements=["id"], set_=values))


def recall(session: Session, evaluation_id: uuid.UUID) -> PoolEntry:
    """What was learned from an evaluation."""
    return PoolEntry.model_validate(session.get_one(PoolRow, evaluation_id, populate_existing=True).body)


def credit_entry(session: Session, evaluation_id: uuid.UUID, credits: Sequence[Credit]) -> None:
    """Keep what the techniques of an entry's strategy are worth."""
    entry = recall(session, evaluation_id)
    remember(session, entry.model_copy(update={"credits": tuple(credits)}))


def share(session: Session, rows: Sequence[PoolRow], sharing: Sharing) -> None:
    """Show entries to all teams, or withdraw them."""
    for row in rows:
        remember(session, PoolEntry.model_validate(row.body), sharing)
    drop_unused(session)


def read_old(session: Session, limit: int) -> int:
    """Make the columns of entries that were written before there were any; how many were left."""
    rows = session.scalars(select(PoolRow).where(PoolRow.reference_id.is_(None)).limit(limit)).all()
    for row in rows:
        remember(session, PoolEntry.model_validate(row.body), Sharing(row.sharing))
    return len(rows)


def anything_unindexed(session: Session) -> bool:
    """Whether the vector index lacks something."""
    unread = select(PoolRow.id).where(PoolRow.reference_id.is_(None)).exists()
    unindexed = select(PoolReference.id).where(PoolReference.indexed_at.is_(None)).exists()
    return session.execute(select(unread | unindexed)).scalar_one()


def _columns(session: Session, entry: PoolEntry, sharing: Sharing) -> dict[str, Any]:
    counts = entry.verdict.counts and entry.speedup is not None and entry.speedup > 0
    shared = None if sharing is Sharing.PRIVATE else ensure_reference(session, reference_of(entry, sharing))
    return {
        "body": entry.model_dump(mode="json"),
        "sharing": sharing.value,
        "reference_id": ensure_reference(session, reference_of(entry)),
        "shared_reference_id": shared,
        "problem_hash": entry.problem_hash[:64],
        "signature": entry.strategy.signature(),
        "techniques": list(entry.strategy.ids()),
        "device_class": entry.device_class[:64],
        "gain": log(entry.speedup) if counts and entry.speedup else None,
        "failure": entry.failure.value if entry.failure else None,
        "imported": not entry.evidence,
        "measured_at": in_utc(datetime.fromisoformat(entry.created_at)),
    }
