"""Advance batches in each round of the scheduler: export, settle, release, end; each in bounded time."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime

from sqlalchemy import func, select

from cupilot.domain.errors import CupilotError
from cupilot.domain.states import BatchState
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database, notify
from cupilot.storage.db.tables.batches import Batch
from cupilot.storage.db.transitions import move_batch
from cupilot.storage.queue.batches import lock_batch, unended
from workers.batches.exporting import Exporter
from workers.batches.settling import close_lost, end_if_resolved, release_unresolved, settle_results

logger = logging.getLogger(__name__)

SLICE_SECONDS = 0.5
"""Time for batches in one round: everything else of the scheduler waits meanwhile."""
RELEASES = 50
"""Steps that are released in one round."""


class BatchKeeper:
    """Keeps all batches going; only the scheduler in charge has one at work."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._exporter = Exporter(settings, database)

    def work(self, seconds: float = SLICE_SECONDS) -> None:
        """Do what is due, for about so long."""
        with self._database.transaction() as session:
            batches = unended(session)
            now = session.execute(select(func.now())).scalar_one() if batches else datetime.now(UTC)
        if not batches:
            return
        deadline = time.monotonic() + seconds
        settle_results(self._settings, self._database, deadline)
        for batch in batches:
            try:
                self._advance(batch, now, deadline)
            except CupilotError:
                raise
            except Exception:  # one batch that cannot be handled must not hold up the others, or the scheduler
                logger.exception("batch not advanced batch=%s", batch.id)
        if time.monotonic() >= deadline:
            with self._database.transaction() as session:
                notify(session)  # there may be more: the next round begins at once

    def _advance(self, batch: Batch, now: datetime, deadline: float) -> None:
        if batch.state is BatchState.EXPORTING:
            self._exporter.export(batch, deadline)
            return
        if batch.state is BatchState.OPEN and batch.expires_at is not None and batch.expires_at < now:
            batch = self._expired(batch)
        if batch.state is BatchState.OPEN:
            close_lost(self._database, batch)
        else:
            release_unresolved(self._database, batch, RELEASES)
        end_if_resolved(self._database, batch)

    def _expired(self, batch: Batch) -> Batch:
        with self._database.transaction() as session:
            row = lock_batch(session, batch.id)
            if row.state is BatchState.OPEN:
                move_batch(session, row, BatchState.EXPIRED)
        return row
