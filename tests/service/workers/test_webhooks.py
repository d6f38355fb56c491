"""Webhooks from an event to its receiver: retries, endpoints that fail, real kills, several who deliver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text

from api.readiness import check
from cupilot.domain.errors import Conflict
from cupilot.domain.webhooks import MAX_ATTEMPTS, verify
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.people import Team
from cupilot.storage.db.tables.webhooks import WebhookAttempt, WebhookDelivery, WebhookEndpoint
from cupilot.storage.db.transitions import record_event
from cupilot.storage.webhooks import deliveries as storage
from tests.service.processes import ROOT, wait_until
from tests.service.receiver import Receiver, receiving
from tests.service.rig import Rig
from workers.webhooks.deliverer import Deliverer

pytestmark = pytest.mark.service


@pytest.fixture
def config(settings: Settings) -> Settings:
    return settings.model_copy(update={"webhook_networks": "127.0.0.0/8", "webhook_seconds": 5.0})


@pytest.fixture
def deliverer(config: Settings, database: Database) -> Iterator[Deliverer]:
    made = Deliverer(config, database)
    yield made
    made.finish()


@pytest.fixture
def job(database: Database, settings: Settings) -> uuid.UUID:
    return Rig(database, settings).submit()


def _endpoint(database: Database, url: str, *events: str) -> WebhookEndpoint:
    with database.transaction() as session:
        team = session.scalars(select(Team)).one()
        return storage.create_endpoint(session, team.id, url, events or ["hooked.*"], "")


def _happen(database: Database, job: uuid.UUID, *kinds: str, **data: Any) -> None:
    with database.transaction() as session:
        for kind in kinds:
            record_event(session, job, kind, data=data)


def _deliveries(database: Database) -> list[WebhookDelivery]:
    with database.transaction() as session:
        return list(session.scalars(select(WebhookDelivery).order_by(WebhookDelivery.event_id)))


def _run_until(deliverer: Deliverer, true: Callable[[], object], what: str) -> None:
    def looked() -> object:
        deliverer.round()
        return true()

    wait_until(looked, what)


def _make_due(database: Database) -> None:
    """As if the wait before the next attempt were over."""
    with database.transaction() as session:
        session.execute(text("UPDATE webhook_deliveries SET next_attempt_at = now() WHERE finished_at IS NULL"))


def _finished(database: Database, count: int) -> Callable[[], bool]:
    return lambda: sum(row.finished_at is not None for row in _deliveries(database)) == count


def test_events_that_are_wanted_arrive_signed_and_once(
    database: Database, job: uuid.UUID, deliverer: Deliverer, receiver: Receiver
) -> None:
    _happen(database, job, "hooked.before")
    endpoint = _endpoint(database, receiver.url)
    _happen(database, job, "hooked.one", "other.two", "hooked.three", ordinal=3)
    _run_until(deliverer, _finished(database, 2), "both are delivered")
    kinds = set()
    for headers, body in receiver.got:
        verify(endpoint.secret, headers, body)
        message = json.loads(body)
        kinds.add(message["type"])
        assert (message["data"]["job"], message["data"]["data"]) == (str(job), {"ordinal": 3})
        assert headers["content-type"] == "application/json"
    assert kinds == {"hooked.one", "hooked.three"}
    deliverer.round()
    assert len(receiver.got) == 2
    assert [row.outcome for row in _deliveries(database)] == ["delivered", "delivered"]


def test_that_nobody_delivers_is_seen_before_anything_is_due(
    database: Database, job: uuid.UUID, deliverer: Deliverer, receiver: Receiver
) -> None:
    def waits() -> tuple[float, str]:
        with database.transaction() as session:
            return storage.waiting_seconds(session), check(database).checks["webhooks"]

    _happen(database, job, "hooked.before")
    assert waits() == (0, "ok"), "without an endpoint nobody waits"
    _endpoint(database, receiver.url)
    _happen(database, job, "hooked.one")
    with database.transaction() as session:
        session.execute(text("UPDATE events SET created_at = created_at - interval '1 hour' WHERE kind = 'hooked.one'"))
        session.execute(text("UPDATE webhook_endpoints SET created_at = created_at - interval '2 hours'"))
    seconds, said = waits()
    assert seconds >= 3_600
    assert "python -m workers webhooks" in said
    _run_until(deliverer, _finished(database, 1), "it is delivered")
    assert waits() == (0, "ok")
    receiver.status = 500
    _happen(database, job, "hooked.two")
    _run_until(deliverer, lambda: len(receiver.got) == 2, "the second one is refused, and waits for its next attempt")
    assert waits() == (0, "ok")


def test_a_failure_is_tried_again_later_with_the_same_id_and_logged(
    database: Database, job: uuid.UUID, deliverer: Deliverer, receiver: Receiver
) -> None:
    endpoint = _endpoint(database, receiver.url)
    receiver.status = 500
    _happen(database, job, "hooked.one")

    def attempts(count: int) -> Callable[[], bool]:
        def recorded() -> bool:
            with database.transaction() as session:
                return session.query(WebhookAttempt).where(WebhookAttempt.outcome.is_not(None)).count() == count

        return recorded

    _run_until(deliverer, attempts(1), "the first attempt has failed")
    [row] = _deliveries(database)
    assert row.finished_at is None
    assert row.next_attempt_at > row.created_at
    deliverer.round()
    assert len(receiver.got) == 1, "not before its time"
    with database.transaction() as session:
        assert session.get_one(WebhookEndpoint, endpoint.id).failing_since is not None
        session.execute(text("UPDATE webhook_deliveries SET max_attempts = 3"))
        # As after a clock that was set back by an hour: no first wait is as long as that.
        session.execute(text("UPDATE webhook_deliveries SET next_attempt_at = now() + interval '1 hour'"))
    receiver.status = 302
    _run_until(deliverer, attempts(2), "the second attempt was answered with a redirect, which is not followed")
    _make_due(database)
    receiver.status = 204
    _run_until(deliverer, _finished(database, 1), "the third attempt")
    assert len(set(receiver.ids())) == 1
    assert len(receiver.ids()) == 3
    with database.transaction() as session:
        log = session.query(WebhookAttempt).order_by(WebhookAttempt.number).all()
        assert [(item.outcome, item.status) for item in log] == [("http_error", 500), ("redirect", 302), ("ok", 204)]
        assert log[0].excerpt is not None
        assert log[0].excerpt.startswith("thanks [31mxxx")
        assert len(log[0].excerpt) <= 1_024
        assert session.get_one(WebhookEndpoint, endpoint.id).failing_since is None


def test_a_delivery_whose_attempts_are_used_up_fails_and_can_be_sent_again(
    database: Database, job: uuid.UUID, deliverer: Deliverer, receiver: Receiver
) -> None:
    endpoint = _endpoint(database, receiver.url)
    receiver.status = 503
    _happen(database, job, "hooked.one")
    deliverer.round()
    with database.transaction() as session:
        row = session.query(WebhookDelivery).one()
        with pytest.raises(Conflict):
            storage.redeliver(session, endpoint, row.id)
        session.execute(text("UPDATE webhook_deliveries SET max_attempts = 1, attempts = least(attempts, 1)"))
    _run_until(deliverer, _finished(database, 1), "given up")
    assert _deliveries(database)[0].outcome == "failed"
    receiver.status = 200
    with database.transaction() as session:
        again = storage.redeliver(session, endpoint, row.id)
        assert again.max_attempts == again.attempts + MAX_ATTEMPTS
    _run_until(deliverer, _finished(database, 1), "delivered after all")
    assert _deliveries(database)[0].outcome == "delivered"
    assert len(set(receiver.ids())) == 1


def test_an_endpoint_that_fails_for_days_or_is_gone_is_disabled_and_asked_no_more(
    database: Database, job: uuid.UUID, deliverer: Deliverer, receiver: Receiver
) -> None:
    failing, gone = _endpoint(database, receiver.url), _endpoint(database, receiver.url)
    with database.transaction() as session:
        session.execute(
            text("UPDATE webhook_endpoints SET failing_since = now() - interval '4 days' WHERE id = :id"),
            {"id": failing.id},
        )
    receiver.status = 410
    _happen(database, job, "hooked.one")

    def reasons() -> dict[uuid.UUID, str | None]:
        with database.transaction() as session:
            return {row.id: row.disabled_reason for row in session.query(WebhookEndpoint)}

    _run_until(deliverer, lambda: all(reasons().values()), "both are disabled")
    assert set(reasons().values()) == {"gone"}
    _happen(database, job, "hooked.two")
    _make_due(database)
    deliverer.round()
    assert len(receiver.got) == 2
    with database.transaction() as session:
        row = session.get_one(WebhookEndpoint, gone.id)
        with pytest.raises(Conflict):
            storage.ping(session, row)
        storage.enable(row)
    receiver.status = 500
    with database.transaction() as session:
        session.execute(text("UPDATE webhook_endpoints SET failing_since = now() - interval '4 days' WHERE enabled"))
    _make_due(database)
    _run_until(deliverer, lambda: reasons()[gone.id] == "failing", "failing for days")


def test_a_slow_receiver_does_not_hold_up_the_others(
    database: Database, job: uuid.UUID, deliverer: Deliverer, receiver: Receiver
) -> None:
    with receiving() as slow:
        slow.hold.clear()
        _endpoint(database, slow.url, "hooked.*")
        _endpoint(database, receiver.url, "hooked.*")
        _happen(database, job, *["hooked.many"] * 40)
        _run_until(deliverer, lambda: len(set(receiver.ids())) == 40, "the quick one has everything")
        assert len(slow.got) == 4, "a few at a time"
        slow.hold.set()
        _run_until(deliverer, lambda: len(set(slow.ids())) == 40, "the slow one, too")


def test_what_a_killed_process_was_sending_is_sent_again(
    database: Database, job: uuid.UUID, config: Settings, deliverer: Deliverer, receiver: Receiver
) -> None:
    _endpoint(database, receiver.url)
    receiver.hold.clear()
    _happen(database, job, *["hooked.many"] * 6)
    environment = os.environ | {
        "CUPILOT_DATABASE_URL": config.database_url.get_secret_value(),
        "CUPILOT_WEBHOOK_NETWORKS": "127.0.0.0/8",
        # One lease for both processes: a longer one looks as if the clock had been set back, and is due at once.
        "CUPILOT_WEBHOOK_SECONDS": str(config.webhook_seconds),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "workers", "webhooks"], env=environment, cwd=ROOT, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: len(receiver.got) == 4, "four are under way")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    receiver.hold.set()
    deliverer.round()
    _make_due(database)  # as if the leases had ended
    _run_until(deliverer, _finished(database, 6), "everything is delivered")
    assert len(set(receiver.ids())) == 6
    assert len(receiver.ids()) >= 10, "the four again: at least once, and the receiver knows them by their ids"
    assert {row.attempts for row in _deliveries(database)} == {1, 2}


def test_two_deliverers_share_the_work(
    database: Database, job: uuid.UUID, config: Settings, deliverer: Deliverer, receiver: Receiver
) -> None:
    _endpoint(database, receiver.url)
    other = Deliverer(config, database)
    _happen(database, job, *["hooked.many"] * 30)

    def both() -> bool:
        other.round()
        return _finished(database, 30)()

    _run_until(deliverer, both, "all are delivered")
    other.finish()
    assert len(receiver.ids()) == len(set(receiver.ids())) == 30


def test_a_late_result_does_not_undo_a_success(database: Database, job: uuid.UUID, receiver: Receiver) -> None:
    _endpoint(database, receiver.url)
    _happen(database, job, "hooked.one")
    lease, after = timedelta(seconds=-1), timedelta(hours=1)
    taken = []
    for _ in range(2):  # the first one's lease ends at once
        with database.transaction() as session:
            storage.fan_out(session)
            taken += storage.claim(session, 1, 1, (), lease)
    good, bad = storage.Result("ok", 200, 5, None), storage.Result("timeout", None, 5, None)
    assert [attempt.number for attempt in taken] == [1, 2]
    for attempt, result in zip(taken, (good, bad), strict=True):
        with database.transaction() as session:
            storage.record(session, attempt, result, luck=0.5, disable_after=after)
    assert [(row.outcome, row.attempts) for row in _deliveries(database)] == [("delivered", 2)]


def test_a_webhook_gets_what_comes_after_it_also_when_the_clock_is_set_back(
    database: Database, job: uuid.UUID, receiver: Receiver
) -> None:
    _happen(database, job, "hooked.before")
    with database.transaction() as session:
        storage.fan_out(session)
    _happen(database, job, "hooked.earlier")
    _endpoint(database, receiver.url)
    _happen(database, job, "hooked.one")
    with database.transaction() as session:
        session.execute(text("UPDATE webhook_endpoints SET created_at = created_at + interval '2 hours'"))
        storage.fan_out(session)
    assert [row.kind for row in _deliveries(database)] == ["hooked.one"]


def test_a_webhook_is_deleted_while_a_result_is_recorded(
    database: Database, job: uuid.UUID, receiver: Receiver
) -> None:
    endpoint = _endpoint(database, receiver.url)
    _happen(database, job, "hooked.one")
    with database.transaction() as session:
        storage.fan_out(session)
        [attempt] = storage.claim(session, 1, 1, (), timedelta(minutes=1))

    def record() -> str | None:
        with database.transaction() as session:
            result = storage.Result("ok", 200, 5, None)
            return storage.record(session, attempt, result, luck=0.5, disable_after=timedelta(hours=1))

    def waits() -> bool:
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        with database.transaction() as session:
            return bool(session.execute(text(waiting)).scalar_one())

    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as session:
            storage.get_endpoint(session, endpoint.team_id, endpoint.id, lock=True)
            recorded = pool.submit(record)
            wait_until(waits, "the result waits for the endpoint")
            storage.delete_endpoint(session, endpoint.team_id, endpoint.id)
        assert recorded.result() is None
    assert _deliveries(database) == []
