"""Elect the scheduler in charge, whose connection holds an advisory lock; and wake it.

The lock goes with the connection: when process, machine or database dies, it is free again without anybody's help.
"""

from __future__ import annotations

import select
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from cupilot.domain.errors import Unavailable
from cupilot.storage.db.engine import CHANNEL, Database
from cupilot.storage.queue.cluster import SCHEDULER_LOCK


class Leadership:
    """One connection that holds the lock, or tries to."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None

    def acquire(self) -> bool:
        """Return whether this process is in charge now; connects where it has to. Raises :class:`Unavailable`."""
        if self._connection is not None:
            return True
        connection = self._connect()
        acquired = False
        try:
            lock = text("SELECT pg_try_advisory_lock(:key)")
            acquired = bool(connection.execute(lock, {"key": SCHEDULER_LOCK}).scalar_one())
            if acquired:
                connection.execute(text(f"LISTEN {CHANNEL}"))
                self._connection = connection
        except DBAPIError as error:
            raise Unavailable("the database does not answer") from error
        finally:
            if not acquired:
                connection.close()
        return acquired

    def wait(self, seconds: float) -> None:
        """Return when something may be ready, at the latest after ``seconds``; :class:`Unavailable` when not in charge.

        Every wait also asks the server for a sign of life, so that a lost connection, and with it the lock, is noticed.
        """
        assert self._connection is not None
        try:
            raw: Any = self._connection.connection.dbapi_connection  # psycopg2's
            if not raw.notifies:
                select.select([raw], [], [], seconds)
            self._connection.execute(text("SELECT 1"))
            raw.poll()
            raw.notifies.clear()
        except (DBAPIError, OSError, ValueError) as error:
            self.release()
            raise Unavailable("the scheduler's connection is lost") from error

    def release(self) -> None:
        """Release the lock, so that another process takes charge."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(DBAPIError):
                connection.close()

    def _connect(self) -> Connection:
        """Return a connection of its own: closing it ends the session, and the lock with it."""
        try:
            connection = self._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            connection.detach()
            return connection
        except DBAPIError as error:
            raise Unavailable("the database does not answer") from error
