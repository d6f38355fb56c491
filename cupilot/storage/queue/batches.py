"""Rows of batches: made by a request, filled by the exporter, resolved by results, by a cancel or by the lease's end.

A batch is a worker that takes long: its steps are running steps with a long lease, and whatever settles them goes by
the same rules (:mod:`cupilot.storage.queue.steps`). What a batch asks and what follows from results is not here.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, undefer

from cupilot.domain.batches.errors import ForeignBatch
from cupilot.domain.batches.manifest import BatchEntry
from cupilot.domain.errors import NotFound
from cupilot.domain.problem import Target
from cupilot.domain.states import BatchOutcome, BatchState, StepState
from cupilot.storage.db.engine import notify
from cupilot.storage.db.tables.batches import Batch, BatchObject, BatchStep
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import move_batch

KEY_BYTES = 32
BATCHES_KEPT = timedelta(days=90)


def owner_of(batch_id: uuid.UUID) -> str:
    """Return the name under which a batch holds its steps."""
    return f"batch:{batch_id}"


def add_batch(
    session: Session,
    *,
    target: Target,
    device_class: str,
    limit: int,
    lease_seconds: float,
    job_id: uuid.UUID | None,
    author: str,
) -> Batch:
    """Ask for an export, which the scheduler carries out; NotFound for an unknown job."""
    if job_id is not None and session.get(Job, job_id) is None:
        raise NotFound(f"there is no job {job_id}", where="body.job")
    row = Batch(
        id=uuid.uuid4(),
        target=target,
        device_class=device_class,
        step_limit=limit,
        lease_seconds=lease_seconds,
        job_id=job_id,
        author=author,
        key=secrets.token_bytes(KEY_BYTES),
    )
    session.add(row)
    session.flush()
    notify(session)
    return row


def get_batch(session: Session, batch_id: uuid.UUID) -> Batch:
    """Return a batch with its manifest and key; raises :class:`ForeignBatch`."""
    query = select(Batch).where(Batch.id == batch_id).options(undefer(Batch.manifest), undefer(Batch.key))
    row = session.scalars(query.execution_options(populate_existing=True)).one_or_none()
    if row is None:
        raise ForeignBatch(
            f"this service has no batch {batch_id}",
            hint="import results where the batch was exported; cupilot batch list shows what this service has",
        )
    return row


def lock_batch(session: Session, batch_id: uuid.UUID) -> Batch:
    """Return the row of a batch, locked."""
    return session.get_one(Batch, batch_id, with_for_update={"key_share": True}, populate_existing=True)


def unended(session: Session) -> Sequence[Batch]:
    """Return the batches that something may have to be done about, oldest first."""
    return session.scalars(select(Batch).where(Batch.ended_at.is_(None)).order_by(Batch.created_at)).all()


def add_step(session: Session, batch: Batch, position: int, entry: BatchEntry, objects: Mapping[str, str]) -> None:
    """Add a step that was just claimed for the batch, and the objects that its question needs."""
    session.add(BatchStep(batch_id=batch.id, step_id=entry.step, position=position, entry=entry))
    rows = [{"batch_id": batch.id, "hash": name, "body": body} for name, body in objects.items()]
    session.execute(insert(BatchObject).values(rows).on_conflict_do_nothing())
    session.flush()


def count_steps(session: Session, batch: Batch) -> int:
    """Return how many steps a batch has."""
    return session.execute(select(func.count()).where(BatchStep.batch_id == batch.id)).scalar_one()


def object_bytes(session: Session, batch: Batch) -> int:
    """Return the size of a batch's objects."""
    size = func.coalesce(func.sum(func.octet_length(BatchObject.body)), 0)
    return int(session.execute(select(size).where(BatchObject.batch_id == batch.id)).scalar_one())


def entries(session: Session, batch: Batch) -> Sequence[BatchEntry]:
    """Return the steps of a batch, in its order."""
    query = select(BatchStep.entry).where(BatchStep.batch_id == batch.id).order_by(BatchStep.position)
    return session.scalars(query).all()


def objects(session: Session, batch: Batch) -> Mapping[str, str]:
    """Return the objects of a batch by their hashes; empty once it has ended."""
    rows = session.execute(select(BatchObject.hash, BatchObject.body).where(BatchObject.batch_id == batch.id))
    return {name: body for name, body in rows}  # noqa: C416 - rows are no pairs to mypy


def named_objects(session: Session, batch_id: uuid.UUID, names: Iterable[str]) -> Mapping[str, str]:
    """Return those objects of a batch, by hash."""
    named = (BatchObject.batch_id == batch_id) & BatchObject.hash.in_(list(names))
    rows = session.execute(select(BatchObject.hash, BatchObject.body).where(named))
    return {name: body for name, body in rows}  # noqa: C416 - as above


def open_batch(session: Session, batch: Batch, manifest: str, expires_at: datetime) -> None:
    """Open a locked batch whose steps are all there, and begin its lease as the manifest says."""
    move_batch(session, batch, BatchState.OPEN, values={"manifest": manifest, "expires_at": expires_at})
    session.execute(
        update(Step)
        .where(Step.batch_id == batch.id, Step.state == StepState.RUNNING)
        .values(lease_expires_at=expires_at)
        .execution_options(synchronize_session=False)
    )


def lock_steps(session: Session, batch: Batch, steps: Iterable[uuid.UUID]) -> Mapping[uuid.UUID, BatchStep]:
    """Return those of these steps that the batch has, locked."""
    query = select(BatchStep).where(BatchStep.batch_id == batch.id, BatchStep.step_id.in_(list(steps)))
    ordered = query.order_by(BatchStep.step_id).with_for_update().execution_options(populate_existing=True)
    return {row.step_id: row for row in session.scalars(ordered)}


def next_received(session: Session) -> tuple[Batch, BatchStep] | None:
    """Return the next result that waits to be settled, with its record."""
    query = (
        select(Batch, BatchStep)
        .join(BatchStep, BatchStep.batch_id == Batch.id)
        .where(BatchStep.outcome == BatchOutcome.RECEIVED)
        .order_by(Batch.created_at, BatchStep.position)
        .limit(1)
        .options(undefer(BatchStep.record))
    )
    row = session.execute(query).one_or_none()
    return None if row is None else (row[0], row[1])


def conclude(
    session: Session,
    batch_id: uuid.UUID,
    step_id: uuid.UUID,
    outcome: BatchOutcome,
    *,
    detail: str | None = None,
) -> None:
    """Write what came of a step that the batch held, or of the result that had come for it."""
    values = {"outcome": outcome, "detail": detail, "record": None, "settled_at": func.now()}
    session.execute(
        update(BatchStep)
        .where(BatchStep.batch_id == batch_id, BatchStep.step_id == step_id)
        .values(**values)
        .execution_options(synchronize_session=False)
    )


def unresolved(session: Session, batch: Batch, limit: int) -> Sequence[BatchStep]:
    """Return steps without an outcome, of which some may not be the batch's any more."""
    query = select(BatchStep).where(BatchStep.batch_id == batch.id, BatchStep.outcome.is_(None))
    return session.scalars(query.order_by(BatchStep.position).limit(limit)).all()


def lost(session: Session, batch: Batch) -> Sequence[uuid.UUID]:
    """Return steps without an outcome that the batch does not hold any more: their jobs have ended."""
    query = (
        select(BatchStep.step_id)
        .join(Step, Step.id == BatchStep.step_id)
        .where(BatchStep.batch_id == batch.id, BatchStep.outcome.is_(None))
        .where((Step.state != StepState.RUNNING) | Step.batch_id.is_distinct_from(batch.id))
    )
    return session.scalars(query).all()


def is_resolved(session: Session, batch: Batch) -> bool:
    """Return whether every step has an outcome, and no result waits to be settled."""
    open_outcome = BatchStep.outcome.is_(None) | (BatchStep.outcome == BatchOutcome.RECEIVED)
    query = select(BatchStep.step_id).where(BatchStep.batch_id == batch.id, open_outcome)
    return not session.execute(select(query.exists())).scalar_one()


def prune_batches(session: Session) -> None:
    """Remove batches that ended long ago; results of theirs are foreign from then on."""
    session.execute(delete(Batch).where(Batch.ended_at < func.now() - BATCHES_KEPT))


def end_batch(session: Session, batch: Batch, state: BatchState) -> None:
    """End a locked batch whose steps all have an outcome, in this state; its file can be fetched no more."""
    if batch.state is not state:
        move_batch(session, batch, state)
    batch.ended_at = func.now()
    session.execute(delete(BatchObject).where(BatchObject.batch_id == batch.id))
    session.flush()
