"""Read events in order, without gaps that fill later: for pages, streams and webhooks alike.

An event's id is taken before its transaction commits, so ids become visible out of order. Readers stop at
:func:`settled`: nobody can add an id up to there any more (``migrations/versions/0005``, docs/decisions/0007).
"""

from __future__ import annotations

import select as waiting
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Select, func, select, text, true
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from cupilot.domain.errors import Unavailable
from cupilot.domain.states import JobState
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Event, Job

CHANNEL = "cupilot_events"
"""Notified by the trigger on events, once a transaction. Only shortens a wait."""
WINDOW = 10_000
"""Ids among which a team's next events are looked for whoever's the others are: some milliseconds. Those of a team that
has fewer there are then found job by job, some microseconds each, whatever other teams have. Left to itself Postgres
takes it that a team's events lie evenly, and reads all that others had before a team's first one to get there."""
FINAL_KINDS = frozenset(f"job.{state.value}" for state in JobState if state.final)


def last_settled_id(session: Session) -> int:
    """Return an id up to which no event can be added any more. Ask before reading events, not in the same query."""
    return int(session.execute(select(func.events_settled())).scalar_one())


def events_after(
    session: Session, after: int, up_to: int, limit: int, *, team: UUID | None = None, job: UUID | None = None
) -> Sequence[tuple[Event, UUID]]:
    """Return events with ids in (after, up_to] in order, each with its team's id; of one team or job where given."""
    query = select(Event, Job.team_id).join(Job, Job.id == Event.job_id).order_by(Event.id)
    if team is not None:
        query = query.where(Job.team_id == team)
    if job is not None:
        query = query.where(Event.job_id == job)
    near = up_to if team is None or job is not None else min(up_to, after + WINDOW)
    rows = _rows(session, query.where(Event.id > after, Event.id <= near).limit(limit))
    if team is not None and near < up_to and len(rows) < limit:
        rows += _rows(session, query.where(Event.id.in_(_ids_by_job(team, near, up_to, limit - len(rows)))))
    return rows


def _ids_by_job(team: UUID, after: int, up_to: int, limit: int) -> Select[int]:
    """Select ids of the team's next events by the index on each job's; the limits keep the planner to that index."""
    own = (
        select(Event.id)
        .where(Event.job_id == Job.id, Event.id > after, Event.id <= up_to)
        .order_by(Event.id)
        .limit(limit)
        .lateral()
    )
    return (
        select(own.c.id).select_from(Job).join(own, true()).where(Job.team_id == team).order_by(own.c.id).limit(limit)
    )


def _rows(session: Session, query: Select[Event, UUID]) -> list[tuple[Event, UUID]]:
    return [(event, owner) for event, owner in session.execute(query)]


def nothing_follows(session: Session, job: UUID, after: int) -> bool:
    """Return whether the job is final and its last event's id is at most ``after``."""
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
