"""Export: claim a batch's steps one by one, note what each asks, then open the batch.

Each step is claimed in a transaction of its own, together with its row in the batch, so that a scheduler that dies
leaves nothing half done: the next one goes on where this one was.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

import cupilot
from cupilot.domain.batches.files import MAX_BYTES, MAX_OBJECT_BYTES
from cupilot.domain.batches.manifest import BatchEntry, Manifest, version_of
from cupilot.domain.errors import Unavailable
from cupilot.domain.problem import Target
from cupilot.domain.states import BatchState
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database, notify
from cupilot.storage.db.tables.batches import Batch
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.queue.batches import (
    add_step,
    count_steps,
    end_batch,
    entries,
    lock_batch,
    object_bytes,
    open_batch,
    owner_of,
)
from cupilot.storage.queue.dispatch import exportable
from cupilot.storage.queue.steps import UNPLACED, Claim, claim_step
from workers.batches.judges import Asked, AskingJudge, batch_tools
from workers.handlers.registry import HANDLERS
from workers.steps import finish_step

logger = logging.getLogger(__name__)

CHUNK = 20
"""Steps that are looked for at a time."""
LARGEST = MAX_BYTES // 2
"""Bytes of objects after which a batch takes no further steps; what a box reads at most is twice that."""


class TooLarge(Exception):
    """A step needs an object that no batch can hold."""


class Exporter:
    """Fills batches that were asked for; a scheduler has one."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._tools = batch_tools(settings, database, AskingJudge())
        self._passed: dict[uuid.UUID, set[uuid.UUID]] = {}
        """Steps that could not be claimed for a batch that is being exported."""

    def export(self, batch: Batch, deadline: float) -> None:
        """Claim steps for a batch until ``deadline``, by :func:`time.monotonic`; open it when there are no more."""
        while time.monotonic() < deadline:
            steps = self._next_steps(batch)
            if not steps:
                self._open(batch)
                return
            for step in steps:
                if time.monotonic() >= deadline:
                    return
                if not self._take(batch, step):
                    self._passed.setdefault(batch.id, set()).add(step)

    def _next_steps(self, batch: Batch) -> Sequence[uuid.UUID]:
        passed = self._passed.get(batch.id, set())
        with self._database.transaction() as session:
            wanted = min(batch.step_limit - count_steps(session, batch), CHUNK)
            if wanted <= 0 or object_bytes(session, batch) >= LARGEST:
                return []
            steps: list[uuid.UUID] = []
            for queue in _queues(batch):
                found = exportable(session, queue, wanted + len(passed), batch.job_id)
                steps += [step for step in found if step not in passed]
        return steps[:wanted]

    def _take(self, batch: Batch, step_id: uuid.UUID) -> bool:
        """Claim a step for the batch; False where it cannot be had, or not be exported."""
        try:
            with self._database.transaction() as session:
                return self._claim(session, batch, step_id)
        except Unavailable:
            raise
        except Exception:  # one step that cannot be exported must not hold up the others
            logger.exception("step not exported step=%s batch=%s", step_id, batch.id)
            return False

    def _claim(self, session: Session, batch: Batch, step_id: uuid.UUID) -> bool:
        row = lock_batch(session, batch.id)
        if row.state is not BatchState.EXPORTING:
            return False
        attempt = session.scalar(select(Step.attempt).where(Step.id == step_id))
        lease = timedelta(seconds=row.lease_seconds)
        owner = owner_of(row.id)
        claim = attempt is not None and claim_step(session, step_id, attempt, owner, lease, batch=row.id)
        if not claim:
            return False
        handler = HANDLERS[claim.kind]
        try:
            result = handler.work(handler.load(session, claim), self._tools, lambda: False)
        except Asked as asked:
            self._add(session, row, claim, asked)
        else:  # what it wanted to know follows from what is known
            finish_step(session, claim, result)
        notify(session)
        return True

    def _add(self, session: Session, batch: Batch, claim: Claim, asked: Asked) -> None:
        if max(len(body.encode()) for body in asked.objects.values()) > MAX_OBJECT_BYTES:
            raise TooLarge(f"step {claim.step_id} needs an object that is too large for a batch")
        entry = BatchEntry(
            step=claim.step_id,
            job=claim.job_id,
            key=claim.key,
            kind=claim.kind,
            attempt=claim.attempt,
            avoids=session.scalar(select(Step.avoids).where(Step.id == claim.step_id)),
            question=asked.question,
        )
        add_step(session, batch, count_steps(session, batch), entry, asked.objects)

    def _open(self, batch: Batch) -> None:
        self._passed.pop(batch.id, None)
        with self._database.transaction() as session:
            row = lock_batch(session, batch.id)
            if row.state is not BatchState.EXPORTING:
                return
            steps = entries(session, row)
            if not steps:
                end_batch(session, row, BatchState.EMPTY)
                return
            now = session.execute(select(func.now())).scalar_one()
            expires_at = now + timedelta(seconds=row.lease_seconds)
            manifest = Manifest(
                version=version_of(steps),
                batch=row.id,
                target=row.target,
                device_class=row.device_class,
                exported_at=now,
                expires_at=expires_at,
                software=cupilot.__version__,
                sweep=self._settings.sweep_points,
                compile_baseline=self._settings.compile_baseline,
                autotune=self._settings.max_autotune,
                steps=tuple(steps),
            )
            open_batch(session, row, manifest.model_dump_json(), expires_at)
        logger.info("batch exported steps=%d batch=%s", len(steps), batch.id)


def _queues(batch: Batch) -> list[str]:
    """Return the queue of the batch's class of devices, and where first steps wait that have no class yet."""
    return list(dict.fromkeys([f"gpu.{batch.device_class}", UNPLACED[Target(batch.target)]]))
