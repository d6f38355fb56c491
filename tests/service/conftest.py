"""Real servers for the service tests: one Postgres and one Valkey a session, one migrated database a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from pydantic import SecretStr
from sqlalchemy import make_url

from cupilot.embedded.servers import Running, start_postgres, start_valkey
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from migrations import upgrade
from tests.service.databases import do_not_sync, empty, new_database
from tests.service.receiver import Receiver, receiving


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start_postgres(tmp_path_factory.mktemp("postgres"))
    do_not_sync(running.url)
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


@pytest.fixture(scope="session")
def migrated(postgres: Running) -> Iterator[str]:
    """Name of a database at the newest revision. A copy of it is made in a tenth of the time that migrations take."""
    with new_database(postgres.url) as url:
        upgrade(url)
        yield str(make_url(url).database)


@pytest.fixture(scope="module")
def empty_database_url(postgres: Running) -> Iterator[str]:
    """A database of its own, without any table."""
    with new_database(postgres.url) as url:
        yield url


@pytest.fixture(scope="module")
def database_url(postgres: Running, migrated: str) -> Iterator[str]:
    """A database of its own at the newest revision."""
    with new_database(postgres.url, migrated) as url:
        yield url


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


@pytest.fixture(scope="module")
def module_database(database_url: str) -> Database:
    """Compiles each statement once a module."""
    return Database(database_url)


@pytest.fixture
def database(module_database: Database, valkey: Running) -> Iterator[Database]:
    """Emptied before each test, like the broker."""
    empty(module_database)
    with redis.Redis.from_url(valkey.url) as broker:
        broker.flushall()
    yield module_database
    module_database.close()
