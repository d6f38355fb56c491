"""The schema's history (Alembic). ``python -m migrations`` brings a database to the newest revision.

Needs no ini file and works from an installed wheel; the database is the one of ``CUPILOT_DATABASE_URL``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from cupilot.domain.errors import Busy, Conflict, Unavailable
from cupilot.storage.db.engine import LOCK_NOT_AVAILABLE, make_engine

logger = logging.getLogger(__name__)

MIGRATION_LOCK = 0x6375_7069_0000_0002
"""Key of the advisory lock that keeps two migrations apart (the scheduler's ends in 1)."""
WAIT_SECONDS = 120.0
"""Time to wait for another migration, or for a table that is in use."""
LOCK_SECONDS = 2
"""Longest wait for a table at a time: whoever wants the table meanwhile, if only to read it, waits behind it."""
PAUSE_SECONDS = 3.0
"""Between two attempts at a table, in which the others have their turn."""


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the database to ``revision``; nothing happens where it is there already, or at one of a newer release.

    Raises :class:`Busy` where a table stays in use, by a backup for instance, :class:`Unavailable` where there is no
    server.
    """

    def run(config: Config) -> None:
        if (newer := _unknown_revision(config)) is not None:
            logger.info("the schema is newer than this release, at revision %s: nothing to do", newer)
            return
        command.upgrade(config, revision)

    _with_patience(url, run)


def downgrade(url: str, revision: str) -> None:
    """Take the database back to ``revision``, or to ``base`` (nothing).

    Raises :class:`Conflict` where this release does not know the revision that the database is at, and :class:`Busy` as
    :func:`upgrade` does.
    """

    def run(config: Config) -> None:
        if (newer := _unknown_revision(config)) is not None:
            raise Conflict(
                f"the schema is at revision {newer}, which this release does not know",
                hint="run the downgrade with the newer release, which has that migration",
            )
        command.downgrade(config, revision)

    _with_patience(url, run)


def new_revision(url: str, message: str) -> None:
    """Write a new revision from what the tables have and the database at ``url`` has not; read it before you use it."""
    with _connected(url) as config:
        command.revision(config, message, autogenerate=True)


def _with_patience(url: str, run: Callable[[Config], None]) -> None:
    """Run a migration, all of it or nothing, until no table that it changes is in use."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            with _connected(url) as config:
                run(config)
            return
        except OperationalError as error:
            code = getattr(error.orig, "pgcode", None)
            if code is None:
                raise Unavailable("the database does not answer", hint=str(error.orig).strip()) from error
            if code != LOCK_NOT_AVAILABLE:
                raise
            if time.monotonic() > deadline:
                raise Busy(
                    "a table that the migration changes is in use, or another migration runs; nothing was changed",
                    hint="let a backup or a long transaction end, then try again: SELECT * FROM pg_stat_activity",
                ) from error
        logger.info("a table that the migration changes is in use; trying again in %.0f s", PAUSE_SECONDS)
        time.sleep(PAUSE_SECONDS)


@contextmanager
def _connected(url: str) -> Iterator[Config]:
    """An Alembic configuration over one transaction that holds the migration lock."""
    engine = make_engine(url, pool_size=1)
    try:
        with engine.begin() as connection:
            _lock(connection)
            config = Config()
            config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
            config.attributes["connection"] = connection
            yield config
    finally:
        engine.dispose()


def _unknown_revision(config: Config) -> str | None:
    """Return the database's revision where no migration of this release has it."""
    current = MigrationContext.configure(config.attributes["connection"]).get_current_revision()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    return None if current in known else current


def _lock(connection: Connection) -> None:
    connection.execute(
        text(f"SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '{WAIT_SECONDS * 1_000:.0f}ms'")
    )
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
    connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
