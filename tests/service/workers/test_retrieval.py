"""Searches of the strategy pool by steps, with a vector index that is slow to answer."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import closing

import pytest
from sqlalchemy import text

from cupilot.domain.errors import Unavailable
from cupilot.domain.states import JobState
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from tests.service.doubles import MemoryPool
from tests.service.rig import Rig
from workers.tools import POOL_SECONDS, make_tools

pytestmark = pytest.mark.service

OPEN = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
)


class WatchedPool(MemoryPool):
    """Notes how many transactions are open, and idle, while it is asked."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self.idle: list[int] = []

    def nearest(self, text: str, scopes: Sequence[str], **place: object) -> dict[str, float]:
        with self._database.transaction() as session:
            self.idle.append(session.execute(OPEN).scalar_one())
        return super().nearest(text, scopes, **place)


def test_no_transaction_is_open_while_the_index_is_asked(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings)
    rig.pool = pool = WatchedPool(database)
    job = rig.submit()
    rig.run()
    assert rig.job(job).state is JobState.SUCCEEDED
    assert pool.idle
    assert set(pool.idle) == {0}


def test_a_worker_waits_for_a_hanging_index_once(database: Database, settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        tools = make_tools(settings.model_copy(update={"chroma_url": url}), database, None)
        began = time.monotonic()
        with closing(tools.pool()) as pool:
            for _ in range(10):
                with pytest.raises(Unavailable):
                    pool.count()
        assert time.monotonic() - began < 3 * POOL_SECONDS
