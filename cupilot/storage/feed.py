"""Events in their order, without gaps that are filled later: for pages, streams and webhooks alike.

An event's id is taken before its transaction commits, so ids become visible out of order. Readers stop at
:func:`settled`: nobody can add an id up to there any more (``migrations/versions/0005``, docs/decisions/0007).
"""

from __future__ import annotations

import select as waiting
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from cupilot.errors import Unavailable
from cupilot.storage.database import Database
from cupilot.storage.states import JobState
from cupilot.storage.tables import Event, Job

CHANNEL = "cupilot_events"
"""Notified by the trigger on events, once a transaction. Only shortens a wait."""
FINAL_KINDS = frozenset(f"job.{state.value}" for state in JobState if state.final)


def settled(session: Session) -> int:
    """An id up to which no event can be added any more. Ask before reading events, not in the same query."""
    return int(session.execute(select(func.events_settled())).scalar_one())


def events_after(
    session: Session, after: int, up_to: int, limit: int, *, team: UUID | None = None, job: UUID | None = None
) -> Sequence[tuple[Event, UUID]]:
    """Events with ids in (after, up_to] in order, each with the id of its team; of one team or job where given."""
    query = (
        select(Event, Job.team_id)
        .join(Job, Job.id == Event.job_id)
        .where(Event.id > after, Event.id <= up_to)
        .order_by(Event.id)
        .limit(limit)
    )
    if team is not None:
        query = query.where(Job.team_id == team)
    if job is not None:
        query = query.where(Event.job_id == job)
    return [(event, owner) for event, owner in session.execute(query)]


def nothing_follows(session: Session, job: UUID, after: int) -> bool:
    """Whether the job is final and its last event's id is at most ``after``."""
    final = select(Job.id).where(Job.id == job, Job.finished_at.is_not(None)).exists()
    later = select(Event.id).where(Event.job_id == job, Event.id > after).exists()
    return bool(session.execute(select(final & ~later)).scalar_one())


class Listener:
    """A connection of its own that notices at once when events have been committed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None

    def wait(self, seconds: float) -> None:
        """Return when there may be new events, at the latest after ``seconds``; raises :class:`Unavailable`.

        The first call returns at once: whatever came before it was not listened to.
        """
        try:
            if self._connection is None:
                self._connect()
                return
            raw: Any = self._connection.connection.dbapi_connection  # psycopg2's
            if not raw.notifies:
                waiting.select([raw], [], [], seconds)
            raw.poll()
            raw.notifies.clear()
        except (DBAPIError, OSError, ValueError) as error:
            self.close()
            raise Unavailable("the connection that listens for events is lost") from error
        except Exception as error:  # psycopg2's own, which SQLAlchemy does not wrap here
            self.close()
            raise Unavailable(f"the connection that listens for events is lost ({type(error).__name__})") from error

    def close(self) -> None:
        """Close the connection; the next wait opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(DBAPIError):
                connection.close()

    def _connect(self) -> None:
        connection = self._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        connection.detach()
        connection.execute(text(f"LISTEN {CHANNEL}"))
        self._connection = connection
