"""Webhooks end to end: real receivers, real kills, real names that change their mind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from sqlalchemy import select, text

from cupilot.errors import Conflict
from cupilot.settings import Settings
from cupilot.storage import webhooks as storage
from cupilot.storage.database import Database
from cupilot.storage.tables import Team
from cupilot.storage.transitions import record_event
from cupilot.storage.webhook_tables import WebhookAttempt, WebhookDelivery, WebhookEndpoint
from cupilot.webhooks import MAX_ATTEMPTS, networks, verify
from tests.service.processes import ROOT, wait_until
from tests.service.rig import Rig
from workers.webhooks import sender
from workers.webhooks.deliverer import Deliverer

pytestmark = pytest.mark.service

LOCAL = networks("127.0.0.0/8")
Answer = Callable[[BaseHTTPRequestHandler, bytes], None]


class Receiver:
    """An HTTP server that keeps what it is sent."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.status = 200
        self.hold = threading.Event()
        self.hold.set()
        self.url = ""

    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.got]


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            receiver.hold.wait(30)
            self.send_response(receiver.status)
            if 300 <= receiver.status < 400:
                self.send_header("Location", "http://169.254.169.254/")
            self.end_headers()
            self.wfile.write(b"thanks\x1b[31m" + b"x" * 5_000)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}/hook?x=1"
    try:
        yield receiver
    finally:
        receiver.hold.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


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
    _make_due(database)
    receiver.status = 302
    _run_until(deliverer, attempts(2), "the second attempt was answered with a redirect, which is not followed")
    _make_due(database)
    receiver.status = 204
    _run_until(deliverer, _finished(database, 1), "the third attempt")
    assert len(set(receiver.ids())) == 1
    assert len(receiver.ids()) == 3
    with database.transaction() as session:
        log = session.query(WebhookAttempt).order_by(WebhookAttempt.number).all()
        assert [(one.outcome, one.status) for one in log] == [("http_error", 500), ("redirect", 302), ("ok", 204)]
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
    from datetime import timedelta

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


@pytest.mark.parametrize(
    ("first", "second"), [("127.0.0.1", "8.8.8.8"), ("8.8.8.8", "127.0.0.1"), ("169.254.169.254", "1.1.1.1")]
)
def test_a_name_with_a_private_address_among_others_is_not_called(
    monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443)) for address in (first, second)]
    monkeypatch.setattr(sender.socket, "getaddrinfo", lambda *_, **__: entries)
    monkeypatch.setattr(sender.socket, "create_connection", lambda *_, **__: pytest.fail("connected"))
    assert sender.post("https://evil.example/", b"{}", {}, seconds=2).outcome == "refused_address"


def test_a_name_is_looked_up_once_and_the_checked_address_is_called(
    monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    """DNS rebinding: the second answer would be another one, and nobody asks for it."""
    port = int(receiver.url.split(":")[2].split("/")[0])
    answers = iter(["127.0.0.1", "10.0.0.1"])
    real = socket.getaddrinfo

    def lookup(host: str, *rest: Any, **named: Any) -> Any:
        return real(next(answers) if host == "rebind.example" else host, *rest, **named)

    monkeypatch.setattr(sender.socket, "getaddrinfo", lookup)
    result = sender.post(f"http://rebind.example:{port}/hook", b"{}", {}, seconds=5, allowed=LOCAL)
    assert (result.outcome, result.status) == ("ok", 200)
    assert receiver.got[0][0]["host"] == f"rebind.example:{port}"
    assert next(answers) == "10.0.0.1"


def test_nothing_is_sent_to_this_machine_unless_it_is_allowed(receiver: Receiver) -> None:
    for url in (receiver.url, receiver.url.replace("http:", "https:"), receiver.url.replace("127.0.0.1", "localhost")):
        assert sender.post(url, b"{}", {}, seconds=2).outcome == "refused_address"
    assert not receiver.got


def test_a_receiver_that_trickles_or_says_nothing_or_nonsense_is_cut_off() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    ended = threading.Event()

    def trickle() -> None:
        silent, _ = listener.accept()
        slow, _ = listener.accept()
        slow.recv(1)
        slow.sendall(b"HTTP/1.1 200 OK\r\n")
        while not ended.wait(0.02):
            try:
                slow.sendall(b"X-A: b\r\n")
            except OSError:
                break
        rude, _ = listener.accept()
        rude.sendall(b"nonsense\r\n\r\n")
        for one in (silent, slow, rude):
            one.close()

    thread = threading.Thread(target=trickle)
    thread.start()
    outcomes = [sender.post(url, b"{}", {}, seconds=0.5, allowed=LOCAL).outcome for _ in range(2)]
    ended.set()
    outcomes.append(sender.post(url, b"{}", {}, seconds=5, allowed=LOCAL).outcome)
    thread.join()
    listener.close()
    assert outcomes == ["timeout", "timeout", "connection_error"]
    assert sender.post(url, b"{}", {}, seconds=2, allowed=LOCAL).outcome == "connection_error"
