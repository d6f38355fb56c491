"""Connections and transactions: one short transaction a request or a step, committed at the edge.

Knows no table. A session is never held across a model call or an evaluation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from sqlalchemy import Engine, Executable, Result, create_engine, event, text
from sqlalchemy.exc import DBAPIError, DisconnectionError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, sessionmaker

from cupilot.domain.errors import Busy, Unavailable
from cupilot.settings import Settings
from cupilot.settings import settings as environment_settings
from cupilot.storage.db.json_columns import to_json

CONNECTIONS = 5
"""That a process keeps where it does not say otherwise; it may open as many again while they are busy."""
STATEMENT_TIMEOUT_MS = 30_000
LOCK_TIMEOUT_MS = 10_000
TCP_USER_TIMEOUT_MS = 30_000
"""Wait for a server's acknowledgement of what was sent: keepalives tell of a silent host only where nothing was."""
KEEPALIVES = {"idle": 15, "interval": 5, "count": 3}
"""Of both ends: a server that has lost a scheduler without a word would keep its lock, and nobody be in charge."""
IDLE_IN_TRANSACTION_TIMEOUT_MS = 60_000
"""Above the relay's worst case: a batch of messages published to a broker that answers slowly."""

CHANNEL = "cupilot_work"
"""Postgres notification channel: something may be ready for the scheduler. Only shortens a wait."""

FRESH_SECONDS = 1.0
"""A pooled connection that was used so recently is taken without asking the server first: that costs as much as a
statement. One that died meanwhile fails its transaction, as one that dies in a transaction does."""

LOCK_NOT_AVAILABLE = "55P03"
"""Postgres' code of a lock that was not had within :data:`LOCK_TIMEOUT_MS`."""
READ_ONLY = "25006"
"""Postgres' code of a write to a server that takes none: a standby, or one that is being restored or moved."""

_NOTIFY = text(f"SELECT pg_notify('{CHANNEL}', '')")
_SETTINGS = "settings"
"""Key of the settings in a session's ``info``."""
_NOTIFIED = "notified"
"""Key of whether the session's transaction wakes the scheduler already."""
_USED = "used"
"""Key of when a connection went back to its pool, in its record's ``info``."""


def make_engine(url: str, *, pool_size: int = CONNECTIONS) -> Engine:
    """Make an engine whose connections give up rather than wait for ever, and notice a dead server."""
    timeouts = (
        f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout={LOCK_TIMEOUT_MS}"
        f" -c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_TIMEOUT_MS} -c timezone=UTC"
        f" -c tcp_user_timeout={TCP_USER_TIMEOUT_MS}"
    )
    timeouts += "".join(f" -c tcp_keepalives_{name}={value}" for name, value in KEEPALIVES.items())
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=10,
        pool_recycle=1_800,
        json_serializer=to_json,
        connect_args={
            "options": timeouts,
            "connect_timeout": 5,
            **{f"keepalives_{name}": value for name, value in KEEPALIVES.items()},
            "tcp_user_timeout": TCP_USER_TIMEOUT_MS,
            "application_name": "cupilot",
        },
    )
    event.listen(engine, "checkout", _ping_idle)
    event.listen(engine, "checkin", _note_use)
    return engine


def _note_use(connection: Any, record: Any) -> None:
    if connection is not None and connection.autocommit:  # of Database.reading
        connection.autocommit = False
    record.info[_USED] = time.monotonic()


def _ping_idle(connection: Any, record: Any, _proxy: Any) -> None:
    """Ask the server of a connection that was idle for a sign of life; the pool replaces one that gives none."""
    used = record.info.get(_USED)
    if used is None or time.monotonic() - used < FRESH_SECONDS:
        return
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        connection.rollback()
    except Exception as error:  # the driver's own
        raise DisconnectionError from error


class Database:
    """An engine and the sessions made from it."""

    def __init__(self, url: str, *, settings: Settings | None = None, pool_size: int = CONNECTIONS) -> None:
        """Make the engine; repositories go by ``settings``, or by the environment's where none are given."""
        self.engine = make_engine(url, pool_size=pool_size)
        self._sessions = sessionmaker(
            self.engine, expire_on_commit=False, info={_SETTINGS: settings or environment_settings()}
        )

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Yield a session for a few queries, each of which is a transaction of its own.

        That saves the statements that begin and end one, a third of what a short look costs. Raises as
        :meth:`transaction` does.
        """
        with self.transaction() as session:
            # Not SQLAlchemy's isolation level: to set it and to set it back is a statement each.
            raw: Any = session.connection().connection.dbapi_connection
            raw.autocommit = True
            yield session

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Yield a session whose transaction commits at the end and rolls back on any exception.

        Raises :class:`Unavailable` where the server cannot be reached, gave up waiting or takes no writes,
        :class:`Busy` where it gave up waiting for a lock.
        """
        with self._sessions() as session:
            try:
                with session.begin():
                    yield session
            except (OperationalError, PoolTimeout) as error:
                if _code(error) == LOCK_NOT_AVAILABLE:
                    raise Busy("others are changing the same things", hint="send fewer requests at once") from error
                raise Unavailable("the database does not answer", hint="try again in a moment") from error
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise Unavailable(
                        "the connection to the database was lost", hint="try again in a moment"
                    ) from error
                if _code(error) == READ_ONLY:
                    raise Unavailable("the database is read-only", hint="try again in a moment") from error
                raise

    def ready(self) -> None:
        """Raise :class:`Unavailable` unless the server answers."""
        with self.transaction() as session:
            session.execute(text("SELECT 1"))

    def forget(self) -> None:
        """Drop all connections without closing them, in a forked child: they are the parent's."""
        self.engine.dispose(close=False)

    def close(self) -> None:
        """Close all idle connections."""
        self.engine.dispose()


def _code(error: Exception) -> str | None:
    """Return Postgres' code of an error, None of one that has none."""
    code: str | None = getattr(getattr(error, "orig", None), "pgcode", None)
    return code


def settings_of(session: Session) -> Settings:
    """Return the settings of the database that a session was made from."""
    settings: Settings = session.info[_SETTINGS]
    return settings


@cache
def database() -> Database:
    """Return the database of this process, as its environment's settings say."""
    settings = environment_settings()
    return Database(settings.database_url.get_secret_value(), settings=settings)


def rows(session: Session, query: Executable, values: Mapping[str, Any]) -> Result[Any]:
    """Return the rows of a query of columns, without the ORM's part in it, which takes as long as all of the rest.

    What the session has not written yet is written first. For queries that are made once and asked with every request.
    """
    session.flush()
    return session.connection().execute(query, values)


def notify(session: Session) -> None:
    """Wake the scheduler when this transaction commits."""
    if not session.info.get(_NOTIFIED):
        session.info[_NOTIFIED] = True
        rows(session, _NOTIFY, {})
