"""Metrics are answered in time, whatever the database does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from api.metrics import CachedSnapshot, DatabaseCollector, Metrics
from api.middleware import RequestContext
from cupilot.domain.errors import Unavailable
from cupilot.storage.operations.metrics import ModelCalls, Totals


class _Database:
    """A database whose transactions begin at once."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        yield


def snapshot(read: Any, seconds: float = 0.0) -> CachedSnapshot[str]:
    return CachedSnapshot(_Database(), read, seconds, patience=0.05)  # type: ignore[arg-type]


def get_until(found: CachedSnapshot[str], wanted: str) -> None:
    while found.get() != wanted:
        time.sleep(0.01)


def test_a_database_that_hangs_holds_no_answer_up_and_is_asked_once() -> None:
    answered, asked = threading.Event(), []

    def read(_session: object) -> str:
        asked.append(1)
        answered.wait()
        return "numbers"

    found = snapshot(read)
    assert [found.get(), found.get()] == [None, None]
    assert len(asked) == 1
    age = found.age
    answered.set()
    get_until(found, "numbers")
    assert found.age < age


def test_the_last_answer_is_shown_with_its_age_while_the_next_one_does_not_come() -> None:
    answers = iter(["first"])

    def read(_session: object) -> str:
        try:
            return next(answers)
        except StopIteration:
            raise Unavailable("the database does not answer") from None

    found = snapshot(read)
    get_until(found, "first")
    read_at = found.read_at
    while not found.failures:
        assert found.get() == "first"
    assert found.read_at == read_at


def test_what_takes_long_is_asked_for_seldom() -> None:
    asked: list[float] = []

    def read(_session: object) -> str:
        asked.append(time.monotonic())
        time.sleep(0.02)
        return "sums"

    found: CachedSnapshot[str] = CachedSnapshot(_Database(), read, 0.0, share=10, patience=1.0)  # type: ignore[arg-type]
    while len(asked) < 2:
        found.get()
    assert asked[1] - asked[0] >= 0.2


def test_a_fault_of_ours_is_counted_and_the_next_look_is_made() -> None:
    answers: list[Exception | str] = [ValueError("ours"), "numbers"]

    def read(_session: object) -> str:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    found = snapshot(read)
    get_until(found, "numbers")
    assert found.failures == 1


def test_a_counter_that_falls_in_the_database_stays_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost call that is answered late is lost no more; Prometheus would take all lost ones for new ones."""
    ended = iter([{"lost": 5}, {"lost": 4, "answered": 1}, {"lost": 6, "answered": 1}])
    nothing = Totals({}, 0, {}, {}, {}, {}, 0, {})

    def read(_session: object) -> Totals:
        return replace(nothing, models={"m": ModelCalls(next(ended), 0, 0.0, 0, 0)})

    monkeypatch.setattr("api.metrics.TOTALS_SHARE", 0)
    monkeypatch.setattr("api.metrics.totals", read)
    monkeypatch.setattr("api.metrics.open_work", lambda _session: None)
    collector = DatabaseCollector(_Database(), 0.0)  # type: ignore[arg-type]
    shown = []
    for _ in range(3):
        samples = [sample for family in collector.collect() for sample in family.samples]
        calls = [sample for sample in samples if sample.name == "cupilot_llm_calls_total"]
        shown.append({sample.labels["state"]: sample.value for sample in calls})
    assert shown == [{"lost": 5}, {"lost": 5, "answered": 1}, {"lost": 6, "answered": 1}]


class _Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_wait_for_events_is_no_time_of_an_answer_and_is_not_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr("api.metrics.time", clock)
    monkeypatch.setattr("api.middleware.time", clock)
    metrics = Metrics(_Database(), 5.0)  # type: ignore[arg-type]
    in_flight: list[float | None] = []

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        in_flight.append(_value(metrics, "cupilot_http_requests_in_flight"))
        with metrics.waiting(scope):
            clock.now += 30.0
            in_flight.append(_value(metrics, "cupilot_http_requests_in_flight"))
        clock.now += 0.25
        in_flight.append(_value(metrics, "cupilot_http_requests_in_flight"))
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(_message: Message) -> None:
        pass

    scope = {"type": "http", "method": "GET", "path": "/v1/jobs/1/events", "headers": []}
    asyncio.run(RequestContext(app, metrics)(scope, send, send))  # type: ignore[arg-type]
    labels = {"method": "GET", "route": "other", "status": "200"}
    assert _value(metrics, "cupilot_http_request_duration_seconds_sum", labels) == 0.25
    assert in_flight == [1, 0, 1]


def _value(metrics: Metrics, name: str, labels: dict[str, str] | None = None) -> float | None:
    counted = [metrics.in_flight, metrics.requests]
    samples = [sample for metric in counted for family in metric.collect() for sample in family.samples]
    return next((sample.value for sample in samples if sample.name == name and sample.labels == (labels or {})), None)
