"""A worker shows progress from its start, and registers once it can take steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cupilot.domain.errors import Unavailable
from cupilot.domain.states import WorkerKind
from cupilot.health import check
from cupilot.settings import Settings
from workers.presence import Presence, Worker


class _Database:
    """A database that is away, and notes that it was asked."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.asked.set()
        raise Unavailable("the database does not answer")
        yield


@pytest.fixture
def database() -> _Database:
    return _Database()


@pytest.fixture
def health(tmp_path: Path) -> Path:
    return tmp_path / "health"


@pytest.fixture
def presence(database: _Database, health: Path) -> Iterator[Presence]:
    settings = Settings(health_file=str(health), heartbeat_seconds=0.01)
    worker = Worker("agent-1", WorkerKind.AGENT, ["agents"], 1, None)
    presence = Presence(
        settings,
        database,  # type: ignore[arg-type]
        worker,
        end_process=lambda: None,
        close_intake=lambda _: None,
    )
    yield presence
    presence.end()


def test_a_broker_that_is_away_at_the_start_is_no_lack_of_progress(
    presence: Presence, database: _Database, health: Path
) -> None:
    presence.start()
    while not health.exists():
        time.sleep(0.01)
    first = health.read_text()
    while health.read_text() == first:
        time.sleep(0.01)
    assert check(str(health), 120.0)[0]
    assert not database.asked.is_set(), "it cannot take steps yet, so nobody may count on it"
    presence.begin()
    database.asked.wait()


def test_a_worker_that_ends_before_it_was_connected_leaves_no_sign(presence: Presence, health: Path) -> None:
    presence.start()
    while not health.exists():
        time.sleep(0.01)
    presence.end()
    assert not health.exists()
