"""Both clients do what is defined once: the waiting one, and the one in an event loop."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import pytest

from cupilot.client import (
    ApiError,
    AsyncClient,
    Client,
    ConflictError,
    NotFoundError,
    RejectedError,
    UnexpectedAnswerError,
    UnreachableError,
)
from cupilot.client.definitions import ResultMethod, StreamMethod, call
from cupilot.client.protocol import Call
from cupilot.schemas import EventView, VersionView
from tests.unit.client.scripted import Answer, Script, serve

T = TypeVar("T")
PROBLEM = {"id": "softmax", "name": "softmax", "builtin": True}


def _error(status: int, code: str, headers: dict[str, str] | None = None) -> Answer:
    body = {"error": {"code": code, "message": "m", "request_id": "r-7"}}
    return Answer(status, json.dumps(body).encode(), headers or {})


def _page(*ids: str, following: str | None) -> Answer:
    page = {"items": [{**PROBLEM, "id": name} for name in ids], "next_cursor": following}
    return Answer(body=json.dumps(page).encode())


class Things(Client):
    """A client of a later day."""

    @call
    def make(self) -> Call[VersionView]:
        return Call(VersionView, "POST", "/v1/things")

    @call
    def drop(self, thing: str) -> Call[None]:
        return Call(type(None), "DELETE", f"/v1/things/{thing}")


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that either client would have made."""
    made: list[float] = []

    async def note(seconds: float) -> None:
        made.append(seconds)

    monkeypatch.setattr("cupilot.client.clients.time.sleep", made.append)
    monkeypatch.setattr("cupilot.client.clients.asyncio.sleep", note)
    return made


def _awaited(script: Script, ask: Callable[[AsyncClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with AsyncClient(script.url, "key", retries=2) as client:
            return await ask(client)

    return asyncio.run(run())


def test_both_clients_have_every_method() -> None:
    defined = {
        name
        for base in Client.__mro__
        for name, item in vars(base).items()
        if isinstance(item, ResultMethod | StreamMethod) and not name.startswith("_")
    }
    assert {"submit", "wait", "follow", "best", "cluster", "all_jobs"} <= defined
    for name in defined:
        assert getattr(Client, name) is getattr(AsyncClient, name)
        assert inspect.getdoc(getattr(Client, name)), f"{name} says nothing"
    plain = {name for name, item in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    assert plain == {"close"}, "methods are defined with @call, @script or @stream, for both clients"


def test_a_call_is_repeated_in_an_event_loop_too(pauses: list[float]) -> None:
    with serve(_error(503, "unavailable"), Answer(drop=True), Answer(body=b'{"version": "9"}')) as script:
        assert _awaited(script, lambda client: client.version()).version == "9"
    assert len(script.asked) == 3
    assert len(pauses) == 2


@pytest.mark.parametrize("asynchronous", [False, True])
def test_all_pages_are_one_iteration(asynchronous: bool) -> None:
    async def collect(client: AsyncClient) -> list[str]:
        return [problem.id async for problem in client.all_problems()]

    with serve(_page("a", "b", following="two"), _page("c", following=None)) as script:
        if asynchronous:
            found = _awaited(script, collect)
        else:
            with Client(script.url, "key") as client:
                found = [problem.id for problem in client.all_problems()]
    assert found == ["a", "b", "c"]
    assert [asked.path for asked in script.asked] == ["/v1/problems?limit=200", "/v1/problems?cursor=two&limit=200"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (_error(404, "not_found"), NotFoundError),
        (_error(409, "conflict"), ConflictError),
        (_error(422, "invalid_input"), RejectedError),
    ],
)
def test_a_refusal_has_its_own_class_and_carries_code_and_request_id(answer: Answer, expected: type[ApiError]) -> None:
    with serve(answer) as script, pytest.raises(expected) as caught:
        _awaited(script, lambda client: client.get("x"))
    assert (caught.value.request_id, caught.value.status) == ("r-7", answer.status)
    assert len(script.asked) == 1


def test_what_must_not_be_done_twice_is_not_sent_twice(pauses: Sequence[float]) -> None:
    with serve(Answer(drop=True)) as script, Things(script.url, "key") as client:
        with pytest.raises(UnreachableError):
            client.make()
        assert len(script.asked) == 1
    with serve(_error(503, "unavailable")) as script, Things(script.url, "key") as client:
        with pytest.raises(ApiError):
            client.make()
        assert len(script.asked) == 1
    assert not pauses


def test_what_was_certainly_not_done_is_sent_again(pauses: list[float]) -> None:
    busy = _error(429, "rate_limited", {"Retry-After": "3"})
    with serve(busy, Answer(body=b'{"version": "9"}')) as script, Things(script.url, "key") as client:
        assert client.make().version == "9"
    assert pauses == [3.0]
    with Things("http://127.0.0.1:1", "key", retries=2) as client, pytest.raises(UnreachableError):
        client.make()
    assert len(pauses) == 3


def test_a_deletion_is_repeated_and_answers_nothing() -> None:
    with serve(Answer(drop=True), Answer(204, b"")) as script, Things(script.url, "key") as client:
        assert client.drop("x") is None
    assert [asked.method for asked in script.asked] == ["DELETE", "DELETE"]


def _job(state: str, *, final: bool) -> Answer:
    problem = {"id": JOB, "name": "softmax", "policy": "fp32", "hash": "h"}
    view: dict[str, Any] = {
        "id": JOB, "state": state, "final": final, "problem": problem, "target": "cpu", "agents": "playbook",
        "method": {}, "budgets": {}, "seed": 0, "priority": "normal", "labels": {}, "generation": 0,
        "generations": 1, "candidates": 0, "verdicts": {}, "candidate_states": {}, "wall_seconds": 0,
        "gpu_seconds": 0, "cost_usd": 0, "created_at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return Answer(body=json.dumps(view).encode())


NOTHING = Answer(body=b'{"items": [], "next_after": 0}')


def test_waiting_in_an_event_loop_tells_every_update(pauses: list[float]) -> None:
    told: list[str] = []
    answers = (_job("evolving", final=False), NOTHING, NOTHING, _job("succeeded", final=True), NOTHING)
    with serve(*answers) as script:
        final = _awaited(script, lambda client: client.wait(JOB, lambda view, _: told.append(view.state)))
    assert final.final
    assert told == ["evolving", "succeeded"]
    assert pauses == [0.5]


def test_a_job_is_waited_for_where_too_many_wait_already(pauses: list[float]) -> None:
    crowded = _error(429, "too_many_streams", {"Retry-After": "5"})
    answers = (_job("evolving", final=False), NOTHING, crowded, _job("succeeded", final=True), NOTHING)
    with serve(*answers) as script, Client(script.url, "key", retries=0) as client:
        assert client.wait(JOB).final
    assert pauses == [0.5, 5.0]


@pytest.mark.parametrize(("timeout", "paused", "waited"), [(1.0, 0.5, 0.5), (0.2, 0.2, 0.0)])
def test_no_wait_is_longer_than_the_time_that_is_left(
    timeout: float, paused: float, waited: float, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 0.0, timeout])
    monkeypatch.setattr("cupilot.client.jobs.time", SimpleNamespace(monotonic=lambda: next(clock)))
    evolving = _job("evolving", final=False)
    answers = (evolving, NOTHING, NOTHING, evolving, NOTHING)
    with serve(*answers) as script, Client(script.url, "key") as client, pytest.raises(TimeoutError):
        client.wait(JOB, timeout=timeout)
    assert pauses == [pytest.approx(paused)]
    assert float(parse_qs(urlsplit(script.asked[2].path).query)["wait"][0]) == pytest.approx(waited)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_text_with_the_line_breaks_of_unicode_is_one_event(asynchronous: bool, ending: str) -> None:
    message = "line 3: \u2028 x \u2029 y \x85 z"
    event = {"id": 7, "kind": "job.failed", "data": {"message": message}, "created_at": "2026-01-01T00:00:00Z"}
    lines = ["id: 7", f"data: {json.dumps(event, ensure_ascii=False)}", "", "event: end", "data: {}", "", ""]
    assert [seen.data["message"] for seen in _streamed(ending.join(lines), asynchronous)] == [message]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_event_that_does_not_fit_is_an_unexpected_answer(asynchronous: bool) -> None:
    with pytest.raises(UnexpectedAnswerError):
        _streamed('data: {"id": 7, "kind"\n\n', asynchronous)


def _streamed(body: str, asynchronous: bool) -> list[EventView]:
    async def collect(client: AsyncClient) -> list[EventView]:
        return [event async for event in client.stream_events(JOB)]

    with serve(Answer(body=body.encode(), headers={"Content-Type": "text/event-stream"})) as script:
        if asynchronous:
            return _awaited(script, collect)
        with Client(script.url, "key") as client:
            return list(client.stream_events(JOB))


JOB = "3f2b8c1e-0000-4000-8000-000000000001"
