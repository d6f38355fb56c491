"""Real servers for the service tests: one Postgres and one Valkey a session, one migrated database a module."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
import redis
from pydantic import SecretStr
from sqlalchemy import NullPool, create_engine, make_url, text

from cupilot.embedded.servers import Running, start_postgres, start_valkey
from cupilot.settings import Settings
from cupilot.storage.base import Base
from cupilot.storage.database import Database
from migrations import upgrade
from tests.service.receiver import Receiver, receiving


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start_postgres(tmp_path_factory.mktemp("postgres"))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start_valkey(tmp_path_factory.mktemp("valkey"))
    yield running
    running.stop()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Somebody who receives webhooks on this machine."""
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def empty_database_url(postgres: Running) -> Iterator[str]:
    """A database of its own, without any table."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    engine = create_engine(postgres.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)  # the server may restart
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} STRATEGY wal_log"))
    yield make_url(postgres.url).set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(scope="module")
def database_url(empty_database_url: str) -> str:
    """A database of its own at the newest revision."""
    upgrade(empty_database_url)
    return empty_database_url


@pytest.fixture
def settings(database_url: str, valkey: Running) -> Settings:
    """Short times, so that recovery is quick."""
    return Settings(
        database_url=SecretStr(database_url),
        redis_url=SecretStr(valkey.url),
        lease_seconds=2.0,
        heartbeat_seconds=0.5,
        scheduler_tick_seconds=0.1,
        redispatch_seconds=1.0,
    )


@pytest.fixture
def database(database_url: str, valkey: Running) -> Iterator[Database]:
    """Emptied before each test, like the broker."""
    tables = ", ".join(table.name for table in Base.metadata.sorted_tables)
    opened = Database(database_url)
    with opened.transaction() as session:
        session.execute(text(f"TRUNCATE {tables}"))
    with redis.Redis.from_url(valkey.url) as broker:
        broker.flushall()
    yield opened
    opened.close()
