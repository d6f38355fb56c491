"""Clients that hold connections, heads and bodies back; floods of one team; forms of other sites; forged addresses."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any
from uuid import UUID

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import event

from api.app import create_app
from api.middleware import BodyLimit
from api.pages.visits import COOKIE
from api.serving import server_config
from api.turns import TURNS, Crowded, Turns
from cupilot.settings import Settings
from tests.service.api.world import Team, World, job_request

pytestmark = pytest.mark.service

SOON = 20.0
"""Far beyond the deadlines that the tests set."""


@contextmanager
def serving(world: World, **changes: Any) -> Iterator[int]:
    """The API as ``python -m api`` serves it; its port."""
    with served(world, **changes) as (port, _):
        yield port


@contextmanager
def served(
    world: World, *, head_seconds: float = 10.0, body_seconds: float = 30.0, **changes: object
) -> Iterator[tuple[int, FastAPI]]:
    """The same, with the application."""
    url = world.database.engine.url.render_as_string(hide_password=False)
    settings = Settings(database_url=SecretStr(url), **changes)  # type: ignore[arg-type]
    app = create_app(settings)
    for middleware in app.user_middleware:
        if middleware.cls is BodyLimit:
            middleware.kwargs["seconds"] = body_seconds
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(server_config(app, settings, head_seconds=head_seconds))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield listener.getsockname()[1], app
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def opened(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=SOON)
    connection.settimeout(SOON)
    return connection


def ends(connection: socket.socket) -> bytes:
    """Return the bytes that the server sends until it closes the connection, which it must."""
    received = b""
    try:
        while more := connection.recv(4_096):
            received += more
    except ConnectionResetError:
        pass
    return received


@pytest.mark.parametrize("head", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_a_head_that_is_held_back_is_not_waited_for(world: World, head: bytes) -> None:
    with serving(world, head_seconds=0.3) as port, closing(opened(port)) as slow:
        slow.sendall(head)
        assert ends(slow) == b""


def test_a_second_head_on_a_connection_has_a_deadline_too(world: World) -> None:
    with serving(world, head_seconds=0.3) as port, closing(opened(port)) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in slow.recv(4_096)
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        assert b"HTTP" not in ends(slow)


def test_a_request_that_takes_longer_than_a_head_may_is_answered(world: World, team: Team) -> None:
    """A stream of events outlives the deadline of heads and of bodies."""
    with serving(world, head_seconds=0.2, body_seconds=0.2) as port:
        headers = {"Authorization": f"Bearer {team.key}"}
        address = f"http://127.0.0.1:{port}/v1/events?wait=1"
        assert httpx.get(address, headers=headers, timeout=SOON).status_code == 200


def test_a_body_that_is_held_back_is_refused_in_time(world: World, team: Team) -> None:
    with serving(world, body_seconds=0.3) as port, closing(opened(port)) as slow:
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {team.key}\r\n"
        slow.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
        answer = ends(slow)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"body_too_slow" in answer


def test_an_address_has_so_many_connections_and_others_are_served(world: World) -> None:
    with serving(world, connections_per_address=3) as port:
        held = [opened(port) for _ in range(3)]
        try:
            with closing(opened(port)) as one_more:
                assert ends(one_more) == b""
            with closing(socket.create_connection(("127.0.0.1", port), SOON, ("127.0.0.2", 0))) as other:
                other.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert b"200 OK" in other.recv(4_096)
        finally:
            for connection in held:
                connection.close()
    with serving(world, connections_per_address=3, trusted_proxies="127.0.0.1") as port:
        held = [opened(port) for _ in range(3)]
        try:
            assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200, "a proxy carries many clients"
        finally:
            for connection in held:
                connection.close()


TRICKLING = 200
BODIES = ("/v1/jobs", "/v1/pool/import", f"/v1/batches/{UUID(int=1)}/results", "/ui/submit", "/ui/jobs/bulk")
"""Routes with a body: one that FastAPI parses, lines, forms."""


def test_trickling_heads_and_bodies_take_nothing_that_others_need(world: World, team: Team) -> None:
    """Neither a turn nor a connection to the database nor a statement; how long others take is the benchmark's."""
    with served(world, head_seconds=300.0, body_seconds=300.0) as (port, app), ExitStack() as stack:
        statements: list[str] = []
        event.listen(app.state.database.engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
        key = {"Authorization": f"Bearer {team.key}"}
        client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=key, trust_env=False))

        def cost() -> int:
            assert client.get("/v1/jobs").status_code == 200
            before = len(statements)
            assert client.get("/v1/jobs").status_code == 200
            return len(statements) - before

        alone = cost()
        key_lines = f"Authorization: Bearer {team.key}\r\nCookie: {COOKIE}={team.key}\r\n"
        heads = [f"POST {path} HTTP/1.1\r\nHost: x\r\n{key_lines}" for path in BODIES]
        slow = []
        for number in range(TRICKLING):
            own = (f"127.0.0.{2 + number % 4}", 0)
            slow.append(stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), SOON, own))))
            head = heads[number // 2 % len(heads)]
            body = f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
            slow[-1].sendall((body if number % 2 else head).encode())
        asked = len(statements)
        for _ in range(3):
            for connection in slow:
                connection.sendall(b"x")
            assert cost() == alone
        assert len(statements) == asked + 2 * 3 * alone, "only the other client's requests have asked anything"
        assert app.state.turns._free == TURNS
        assert app.state.database.engine.pool.checkedout() == 0
        for connection in slow:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)


def test_a_client_with_too_many_requests_is_refused_and_others_are_not() -> None:
    async def run() -> None:
        turns, release = Turns(turns=2, each=3), asyncio.Event()

        async def request(client: str) -> str:
            try:
                async with turns.take(client):
                    await release.wait()
                    return "served"
            except Crowded:
                return "refused"

        flood = [asyncio.create_task(request("flood")) for _ in range(6)]
        other = asyncio.create_task(request("other"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        release.set()
        assert sorted(await asyncio.gather(*flood)) == ["refused"] * 3 + ["served"] * 3
        assert await other == "served"

    asyncio.run(run())


def test_requests_of_clients_take_turns() -> None:
    """However many of one client's wait, another one's first is the next but one."""

    async def run() -> list[str]:
        turns, order, first = Turns(turns=1, each=50), [], asyncio.Event()

        async def request(client: str) -> None:
            async with turns.take(client):
                await first.wait()
                order.append(client)

        flood = [asyncio.create_task(request("flood")) for _ in range(20)]
        await asyncio.sleep(0)
        others = [asyncio.create_task(request(name)) for name in ("one", "other")]
        await asyncio.sleep(0)
        flood[5].cancel()
        first.set()
        await asyncio.gather(*flood, *others, return_exceptions=True)
        async with turns.take("flood"):  # none was lost
            return order

    order = asyncio.run(run())
    assert len(order) == 21
    assert order[:4] == ["flood", "flood", "one", "other"]


def test_one_teams_flood_is_answered_429_and_no_503(world: World, team: Team, stranger: Team) -> None:
    with serving(world, head_seconds=60, rate_limit_key=0, rate_limit_address=0, connections_per_address=0) as port:
        address, headers = f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {team.key}"}

        def submit(_: int) -> httpx.Response:
            return client.post(f"{address}/v1/jobs", json=job_request(), headers=headers)

        unlimited = httpx.Limits(max_connections=None)
        with httpx.Client(limits=unlimited, timeout=120) as client, ThreadPoolExecutor(300) as crowd:
            flood = [crowd.submit(submit, number) for number in range(400)]
            other = httpx.get(f"{address}/v1/jobs", headers={"Authorization": f"Bearer {stranger.key}"}, timeout=120)
            answers = [item.result() for item in flood]
        assert other.status_code == 200
        assert {answer.status_code for answer in answers} <= {202, 429}
        assert 202 in {answer.status_code for answer in answers}
        assert all("Retry-After" in answer.headers for answer in answers if answer.status_code == 429)


@pytest.mark.parametrize("path", ["/ui/login", "/ui/logout"])
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 303),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://cupilot.example"}, 303),  # a proxy changed the host
        ({}, 303),
    ],
)
def test_another_site_signs_nobody_in_or_out(
    world: World, team: Team, path: str, headers: dict[str, str], code: int
) -> None:
    answer = httpx.post(world.url + path, data={"key": team.key}, headers=headers)
    assert answer.status_code == code
    assert ("set-cookie" in answer.headers) is (code == 303)


def test_a_forged_address_counts_only_from_a_proxy(world: World) -> None:
    def codes(**changes: object) -> list[int]:
        with serving(world, rate_limit_address=2, redis_url=SecretStr("redis://127.0.0.1:1/0"), **changes) as port:
            url = f"http://127.0.0.1:{port}/v1/version"
            return [httpx.get(url, headers={"X-Forwarded-For": f"10.0.0.{number}"}).status_code for number in range(4)]

    assert codes() == [200, 200, 429, 429]
    assert codes(trusted_proxies="127.0.0.1") == [200] * 4
