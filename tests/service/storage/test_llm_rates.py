"""Rate limits that all workers share, in a real Postgres."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import update

from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.models import LlmRate
from cupilot.storage.models import rates as llm_rates

pytestmark = pytest.mark.service


def take(database: Database, *, tokens: int = 10, requests: int = 5, per_minute: int = 1_000) -> float:
    with database.transaction() as session:
        return llm_rates.take(session, "m", requests_per_minute=requests, tokens_per_minute=per_minute, tokens=tokens)


def later(database: Database, seconds: float) -> None:
    """As if so much time had passed."""
    past = timedelta(seconds=seconds)
    with database.transaction() as session:
        session.execute(
            update(LlmRate).values(updated_at=LlmRate.updated_at - past, blocked_until=LlmRate.blocked_until - past)
        )


def test_many_workers_at_once_get_no_more_than_the_limit(database: Database) -> None:
    with ThreadPoolExecutor(4) as workers:
        waits = list(workers.map(lambda _: take(database), range(12)))
    assert waits.count(0.0) == 5
    assert all(0 < wait <= 12.0 for wait in waits if wait)
    later(database, 24.0)
    assert [take(database) == 0.0 for _ in range(3)] == [True, True, False]


def test_tokens_are_limited_and_corrected_to_what_was_used(database: Database) -> None:
    assert take(database, tokens=900) == 0.0
    assert take(database, tokens=900) > 0.0
    with database.transaction() as session:
        llm_rates.settle(session, "m", taken=900, used=50)
    assert take(database, tokens=900) == 0.0


def test_a_call_larger_than_the_bucket_is_let_through_alone(database: Database) -> None:
    assert take(database, tokens=50_000) == 0.0
    assert take(database, tokens=500) > 0.0


def test_a_clock_set_back_prolongs_no_pause(database: Database) -> None:
    take(database)
    with database.transaction() as session:
        llm_rates.back_off(session, "m", 30.0)
    later(database, -3_600.0)
    assert 0.0 < take(database) <= 31.0


def test_what_the_provider_asked_one_worker_all_obey(database: Database) -> None:
    with database.transaction() as session:
        llm_rates.back_off(session, "m", 30.0)
        llm_rates.back_off(session, "m", 5.0)
    assert 20.0 < take(database) <= 30.0
    later(database, 31.0)
    assert take(database) == 0.0
