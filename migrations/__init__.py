"""The schema's history (Alembic). ``python -m migrations`` brings a database to the newest revision.

Needs no ini file and works from an installed wheel; the database is the one of ``CUPILOT_DATABASE_URL``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from cupilot.storage.db.engine import make_engine

MIGRATION_LOCK = 0x6375_7069_0000_0002
"""Key of the advisory lock that keeps two migrations apart (the scheduler's ends in 1)."""
WAIT_FOR_OTHERS = "120s"
"""Time to wait for another migration, or for a table that is in use."""


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the database to ``revision``; nothing happens where it is there already."""
    with _connected(url) as config:
        command.upgrade(config, revision)


def downgrade(url: str, revision: str) -> None:
    """Take the database back to ``revision``, or to ``base`` (nothing)."""
    with _connected(url) as config:
        command.downgrade(config, revision)


def new_revision(url: str, message: str) -> None:
    """Write a new revision from what the tables have and the database at ``url`` has not; read it before you use it."""
    with _connected(url) as config:
        command.revision(config, message, autogenerate=True)


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


def _lock(connection: Connection) -> None:
    connection.execute(text(f"SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '{WAIT_FOR_OTHERS}'"))
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
