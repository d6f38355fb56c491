"""Batches as the REST boundary shows them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from cupilot.domain.states import BatchOutcome
from cupilot.schemas import BatchCounts, BatchPage, BatchStepPage, BatchStepView, BatchView
from cupilot.storage.db.cursor import cut, decode_cursor, decode_key, encode_cursor, encode_key
from cupilot.storage.db.tables.batches import Batch, BatchStep
from cupilot.storage.queue.batches import get_batch


def batch_view(session: Session, batch_id: uuid.UUID) -> BatchView:
    """Return a batch; raises :class:`cupilot.domain.batches.errors.ForeignBatch`."""
    row = get_batch(session, batch_id)
    return _view(row, _counts(session, [row.id]).get(row.id, {}))


def list_batches(session: Session, *, cursor: str | None, limit: int) -> BatchPage:
    """Return a page of all batches, newest first."""
    order = (Batch.created_at, Batch.id)
    query = select(Batch).order_by(*(column.desc() for column in order)).limit(limit + 1)
    if cursor:
        query = query.where(tuple_(*order) < decode_cursor(cursor))
    page, following = cut(session.scalars(query).all(), limit, lambda row: encode_cursor(row.created_at, row.id))
    counts = _counts(session, [row.id for row in page])
    return BatchPage(items=[_view(row, counts.get(row.id, {})) for row in page], next_cursor=following)


def list_batch_steps(
    session: Session, batch_id: uuid.UUID, *, outcome: BatchOutcome | None, cursor: str | None, limit: int
) -> BatchStepPage:
    """Return a page of a batch's steps, in its order; of one outcome where given."""
    batch = get_batch(session, batch_id)
    query = select(BatchStep).where(BatchStep.batch_id == batch.id).order_by(BatchStep.position).limit(limit + 1)
    if outcome is not None:
        query = query.where(BatchStep.outcome == outcome)
    if cursor:
        query = query.where(BatchStep.position > decode_key(cursor, "batch steps", int)[0])
    rows = session.scalars(query).all()
    page, following = cut(rows, limit, lambda row: encode_key("batch steps", row.position))
    return BatchStepPage(items=[_step(row) for row in page], next_cursor=following)


def _counts(session: Session, batches: Sequence[uuid.UUID]) -> Mapping[uuid.UUID, Mapping[str, int]]:
    query = select(BatchStep.batch_id, BatchStep.outcome, func.count()).where(BatchStep.batch_id.in_(batches))
    counts: dict[uuid.UUID, dict[str, int]] = {}
    for batch, outcome, count in session.execute(query.group_by(BatchStep.batch_id, BatchStep.outcome)):
        counts.setdefault(batch, {})[outcome.value if outcome else "waiting"] = count
    return counts


def _view(row: Batch, counts: Mapping[str, int]) -> BatchView:
    return BatchView(
        id=row.id,
        state=row.state.value,
        target=row.target,
        device_class=row.device_class,
        job=row.job_id,
        author=row.author,
        steps=sum(counts.values()),
        counts=BatchCounts(**counts),
        created_at=row.created_at,
        expires_at=row.expires_at,
        ended_at=row.ended_at,
    )


def _step(row: BatchStep) -> BatchStepView:
    return BatchStepView(
        step=row.step_id,
        job=row.entry.job,
        key=row.entry.key,
        kind=row.entry.kind.value,
        attempt=row.entry.attempt,
        outcome=row.outcome.value if row.outcome else None,
        detail=row.detail,
        seconds=row.seconds,
        device=row.device,
        settled_at=row.settled_at,
    )
