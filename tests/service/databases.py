"""Databases of their own for tests: made as copies, and emptied, quickly."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import NullPool, create_engine, make_url, text

from cupilot.storage.db.base import Base
from cupilot.storage.db.engine import Database


def do_not_sync(server: str) -> None:
    """Let a server leave its files to the kernel: they outlive its processes, killed ones too, and no power is cut."""
    engine = create_engine(server, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        for setting in ("fsync", "full_page_writes"):
            connection.execute(text(f"ALTER SYSTEM SET {setting} = off"))
        connection.execute(text("SELECT pg_reload_conf()"))


@contextmanager
def new_database(server: str, template: str = "template1") -> Iterator[str]:
    """The URL of a new database on a server, a copy of another one."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT", poolclass=NullPool)  # the server may restart
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY wal_log"))
    yield make_url(server).set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


def empty(database: Database) -> None:
    """Empty all tables, as TRUNCATE does, which takes 0.2 s for so many tables, however few rows there are."""
    tables = [table.name for table in Base.metadata.sorted_tables]
    with database.transaction() as session:
        session.execute(text(f"LOCK TABLE {', '.join(tables)}"))  # waits for whoever still writes, as TRUNCATE does
        session.execute(text("SET LOCAL session_replication_role = replica"))  # no foreign keys, no triggers
        session.execute(text("; ".join(f"DELETE FROM {table}" for table in tables)))
