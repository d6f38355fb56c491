"""Event streams over real connections: complete, in order, resumed without loss, ended with the job, bounded."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import text

from api.app import create_app
from cupilot.cli.following import updates
from cupilot.client import AsyncClient, Client, RateLimitedError
from cupilot.domain.states import JobState
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.transitions import lock_job, move_job, record_event
from tests.service.api.world import Story, Team, World, evolved, live
from tests.service.processes import wait_until

pytestmark = pytest.mark.service


@pytest.fixture
def client(world: World, team: Team) -> Iterator[Client]:
    with Client(world.url, team.key, retries=2) as client:
        yield client


def _open_job(world: World, team: Team) -> uuid.UUID:
    with world.database.transaction() as session:
        return Story(session, team.id).prepare().job.id


def _happen(database: Database, job: uuid.UUID, *kinds: str, data: dict[str, Any] | None = None) -> None:
    with database.transaction() as session:
        for kind in kinds:
            record_event(session, job, kind, data=data)


def _end(database: Database, job: uuid.UUID) -> None:
    with database.transaction() as session:
        move_job(session, lock_job(session, job), JobState.FAILED, reason="no_valid_kernel")
        record_event(session, job, "job.epilogue")


def test_a_stream_tells_what_was_what_happens_and_ends_with_the_job(world: World, team: Team, client: Client) -> None:
    job = _open_job(world, team)
    seen: list[int] = []
    kinds: list[str] = []
    for event in client.stream_events(job):
        seen.append(event.id)
        kinds.append(event.kind)
        if event.kind == "job.evolving":
            _happen(world.database, job, "live.1")
        if event.kind == "live.1":
            _end(world.database, job)
    assert kinds[-3:] == ["live.1", "job.failed", "job.epilogue"]
    assert seen == [event.id for event in client.all_events(job)]
    assert list(client.stream_events(job, after=seen[-1])) == [], "204: nothing follows"
    assert [event.id for event in client.stream_events(job, after=seen[-3])] == seen[-2:]


def test_a_broken_connection_goes_on_where_it_was(world: World, team: Team) -> None:
    job = _open_job(world, team)
    short = Settings(
        database_url=SecretStr(world.database.engine.url.render_as_string(hide_password=False)), stream_seconds=0.05
    )
    app = create_app(short)
    cut = 'cupilot_event_streams_dropped_total{reason="age"}'
    with live(app) as url, Client(url, team.key) as client:
        seen = []
        for event in client.stream_events(job):
            seen.append(event.id)
            assert len(seen) < 2000, "no connection was cut by its age"
            if event.kind == "job.evolving" or event.kind.startswith("live."):
                if cut in httpx.get(f"{url}/metrics", timeout=60).text:
                    _end(world.database, job)
                else:
                    _happen(world.database, job, f"live.{len(seen)}")
        assert seen == [event.id for event in client.all_events(job)]
    app.state.database.close()


def test_the_wire_format_is_that_of_event_sources(world: World, team: Team) -> None:
    with world.database.transaction() as session:
        job = evolved(session, team.id).id
    response = team.http.get(f"/v1/jobs/{job}/events/stream")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-accel-buffering"] == "no"
    blocks = response.text.strip().split("\n\n")
    assert blocks[0].startswith("retry: ")
    assert blocks[-1] == "event: end\ndata: {}"
    for block in blocks[1:-1]:
        first, second = block.split("\n")
        assert json.loads(second.removeprefix("data: "))["id"] == int(first.removeprefix("id: "))
    last = blocks[-2].split("\n")[0].removeprefix("id: ")
    again = team.http.get(f"/v1/jobs/{job}/events/stream", headers={"Last-Event-ID": last})
    assert (again.status_code, again.content) == (204, b"")


def test_a_text_with_the_line_breaks_of_unicode_is_one_line(world: World, team: Team, client: Client) -> None:
    job, message = _open_job(world, team), "line 3: \u2028 x \u2029 y \x85 z"
    _happen(world.database, job, "live.1", data={"message": message})
    _end(world.database, job)
    response = team.http.get(f"/v1/jobs/{job}/events/stream")
    assert response.text.splitlines() == response.text.removesuffix("\n").split("\n")
    assert message in [event.data.get("message") for event in client.stream_events(job)]


def test_a_team_sees_its_own_jobs_only(world: World, team: Team, stranger: Team) -> None:
    mine, theirs = _open_job(world, team), _open_job(world, stranger)
    assert stranger.http.get(f"/v1/jobs/{mine}/events/stream").status_code == 404
    assert httpx.get(f"{world.url}/v1/events/stream", timeout=60).status_code == 401
    page = team.http.get("/v1/events", params={"limit": 2}).json()
    assert len(page["items"]) == 2
    assert {item["job"] for item in page["items"]} == {str(mine)}

    async def follow() -> list[str]:
        async with AsyncClient(world.url, team.key) as client:
            kinds = []
            async for event in client.stream_team_events(after=page["next_after"]):
                kinds.append(event.kind)
                if event.kind == "job.evolving":
                    await asyncio.to_thread(_happen, world.database, theirs, "hidden")
                    await asyncio.to_thread(_happen, world.database, mine, "shown")
                if event.kind == "shown":
                    return kinds
        return []

    kinds = asyncio.run(follow())
    assert kinds[-1] == "shown"
    assert "hidden" not in kinds


def test_a_client_that_does_not_read_is_served_again_or_dropped(
    world: World, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its buffers in the kernel fill, then its buffer here; nothing else is held for it, and others go on."""
    monkeypatch.setattr("api.streams.BUFFER", 5)
    monkeypatch.setattr("api.event_stream.SEND_SECONDS", 0.2)
    job = _open_job(world, team)
    app = create_app(Settings(database_url=SecretStr(world.database.engine.url.render_as_string(hide_password=False))))
    with live(app) as url, Client(url, team.key) as reader:
        address = httpx.URL(url)
        sleeper = socket.create_connection((address.host, address.port or 80))
        sleeper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        path = f"/v1/jobs/{job}/events/stream"
        sleeper.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {team.key}\r\n\r\n".encode())
        wait_until(lambda: app.state.hub.size == 1, "the sleeper's stream")
        wrote = 0
        while app.state.hub.size:
            _happen(world.database, job, *["big"] * 20, data={"text": "x" * 20_000})
            wrote += 20
            assert wrote < 5_000
        _end(world.database, job)
        kinds = [event.kind for event in reader.stream_events(job)]
        assert kinds.count("big") == wrote
        assert 'dropped_total{reason="slow"} 1.0' in httpx.get(f"{url}/metrics", timeout=60).text
        sleeper.close()
    app.state.database.close()


def test_streams_are_counted_and_limited(world: World, team: Team) -> None:
    limited = Settings(
        database_url=SecretStr(world.database.engine.url.render_as_string(hide_password=False)), streams_per_team=1
    )
    app = create_app(limited)
    job = _open_job(world, team)
    with live(app) as url, Client(url, team.key, retries=0) as client:
        first = client.stream_events(job)
        next(first)
        with pytest.raises(RateLimitedError) as caught:
            next(client.stream_events(job))
        assert caught.value.code == "too_many_streams"
        first.close()  # type: ignore[attr-defined]
        wait_until(lambda: app.state.hub.size == 0, "the place is free again")
        next(client.stream_events(job))
        _end(world.database, job)
        wait_until(lambda: app.state.hub.size == 0, "the stream of a job that has ended is over")
    app.state.database.close()


def test_requests_that_wait_for_events_are_counted_and_limited_as_streams_are(
    world: World, team: Team, stranger: Team
) -> None:
    limited = Settings(
        database_url=SecretStr(world.database.engine.url.render_as_string(hide_password=False)), streams_per_team=1
    )
    app = create_app(limited)
    job, other = _open_job(world, team), _open_job(world, stranger)
    with (
        live(app) as url,
        Client(url, team.key, retries=0) as client,
        Client(url, stranger.key) as elsewhere,
        ThreadPoolExecutor(1) as pool,
    ):
        last = [*client.all_events(job)][-1].id
        waiting = pool.submit(client.events, job, after=last, wait=30.0)
        wait_until(lambda: app.state.hub.size == 1, "a request waits")
        with pytest.raises(RateLimitedError) as caught:
            client.events(job, after=last, wait=30.0)
        assert caught.value.code == "too_many_streams"
        assert client.events(job, after=last).items == []
        assert elsewhere.events(other, after=10**9, wait=0.1).items == []
        _happen(world.database, job, "live")
        assert [event.kind for event in waiting.result().items] == ["live"]
        wait_until(lambda: app.state.hub.size == 0, "the place is free again")
        with pytest.raises(httpx.ReadTimeout):
            team.http.get(f"{url}/v1/jobs/{job}/events", params={"after": 10**9, "wait": 30}, timeout=0.5)
        wait_until(lambda: app.state.hub.size == 0, "the place of a client that has left is free again")
    app.state.database.close()


def test_many_streams_share_one_reader(world: World, team: Team) -> None:
    job = _open_job(world, team)
    count = 40

    async def follow() -> list[list[int]]:
        async with AsyncClient(world.url, team.key) as client:

            async def one() -> list[int]:
                return [event.id async for event in client.stream_events(job)]

            tasks = [asyncio.create_task(one()) for _ in range(count)]
            await asyncio.to_thread(_happen, world.database, job, *[f"live.{number}" for number in range(50)])
            await asyncio.to_thread(_end, world.database, job)
            return list(await asyncio.gather(*tasks))

    seen = asyncio.run(follow())
    with world.database.transaction() as session:
        ids = list(
            session.execute(text("SELECT id FROM events WHERE job_id = :job ORDER BY id"), {"job": job}).scalars()
        )
    assert seen == [ids] * count
    assert sum(thread.name == "events" for thread in threading.enumerate()) <= 1


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "polling"])
def test_watching_tells_every_event_once(
    world: World, team: Team, client: Client, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not streams:
        monkeypatch.setattr("cupilot.client.event_calls.path", lambda *_: "/a/proxy/that/knows/no/streams")
    job = _open_job(world, team)
    seen: list[int] = []
    states: list[str] = []
    for view, events in updates(client, job, silence=0.2):
        seen += [event.id for event in events]
        if not states:
            _happen(world.database, job, "live")
            _end(world.database, job)
        states.append(view.state)
    assert states[-1] == "failed"
    assert seen == [event.id for event in client.all_events(job)]


def test_a_stream_that_breaks_when_the_job_has_ended_leaves_no_event_out(
    world: World, team: Team, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _open_job(world, team)

    def breaking(*_: object, **__: object) -> Iterator[Any]:
        _end(world.database, job)
        raise RuntimeError("cut")
        yield

    monkeypatch.setattr(client, "stream_events", breaking)
    seen = [event.id for _, events in updates(client, job, silence=5.0) for event in events]
    assert seen == [event.id for event in client.all_events(job)]


def test_a_stream_ends_when_its_key_is_revoked(world: World, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream may live for minutes: it is looked again whether its reader may still read."""
    monkeypatch.setattr("api.event_stream.HEARTBEAT_SECONDS", 0.2)
    job = _open_job(world, team)
    with httpx.stream("GET", f"{world.url}/v1/jobs/{job}/events/stream", headers=team.http.headers, timeout=30) as one:
        lines = one.iter_lines()
        while "job.evolving" not in next(lines):
            pass
        assert team.http.delete(f"/v1/keys/{team.key[:12]}").status_code == 200
        end = time.monotonic() + 5
        left = []
        for line in lines:
            left.append(line)
            assert time.monotonic() < end, "it goes on"
        assert "event: reconnect" in left
    assert team.http.get(f"/v1/jobs/{job}/events/stream").status_code == 401
