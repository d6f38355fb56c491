"""Rate limits on a real Redis, and without one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from pydantic import SecretStr
from redis import Redis

from api.app import create_app
from api.limits import FILES, KEYED, OPEN
from api.pages.routes import ROUTERS
from api.pages.visits import COOKIE, PageRoute, asset, visitor
from api.rate_limiter import Limiter
from cupilot.embedded.servers import Running
from cupilot.settings import Settings
from tests.service.api.world import Team, World, live

pytestmark = pytest.mark.service

NO_REDIS = "redis://:hunter2@127.0.0.1:1/0"


@contextmanager
def _serving(world: World, redis_url: str, **limits: int) -> Iterator[str]:
    """With its lifespan, so that connections to Redis are closed."""
    url = world.database.engine.url.render_as_string(hide_password=False)
    app: FastAPI = create_app(Settings(database_url=SecretStr(url), redis_url=SecretStr(redis_url), **limits))  # type: ignore[arg-type]
    with live(app, lifespan="on") as address:
        yield address


@pytest.fixture(params=["redis", "no redis"])
def redis_url(request: pytest.FixtureRequest, valkey: Running) -> str:
    return valkey.url if request.param == "redis" else NO_REDIS


def _forget_all(valkey: Running) -> None:
    with Redis.from_url(valkey.url) as broker:
        broker.flushall()


def _get(url: str, key: str | None, path: str | None = None) -> httpx.Response:
    path = path or ("/v1/me" if key else "/v1/version")
    return _sent(url, path, f"Bearer {key}" if key else None)


def _sent(url: str, path: str, authorization: str | None) -> httpx.Response:
    headers = {"Authorization": authorization} if authorization else {}
    # Unverified: loading certificates takes longer than the request.
    return httpx.get(url + path, headers=headers, verify=False, timeout=60)


def test_a_key_has_its_limit_whatever_others_do(world: World, team: Team, stranger: Team, redis_url: str) -> None:
    with _serving(world, redis_url, rate_limit_key=5, rate_limit_address=0) as url:
        answers = [_get(url, team.key) for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429]
        assert answers[0].headers["RateLimit-Policy"] == '"key";q=5;w=60'
        assert answers[0].headers["RateLimit"].startswith('"key";r=4;t=')
        refused = answers[-1]
        assert refused.json()["error"]["code"] == "rate_limited"
        assert refused.json()["error"]["request_id"] == refused.headers["X-Request-ID"]
        assert 1 <= int(refused.headers["Retry-After"]) <= 12
        assert refused.headers["RateLimit"].startswith('"key";r=0;t=')
        assert _get(url, stranger.key).status_code == 200
        assert _get(url, None).status_code == 200
        assert "RateLimit" not in _get(url, None).headers
        for probe in ("/healthz", "/readyz", "/metrics"):
            assert _get(url, team.key, probe).status_code == 200
        assert 'rate_limited_total{scope="key"} 1.0' in _get(url, None, "/metrics").text


def test_an_address_without_a_key_and_one_that_guesses_keys_have_theirs(
    world: World, team: Team, valkey: Running
) -> None:
    _forget_all(valkey)
    with _serving(world, valkey.url, rate_limit_key=100, rate_limit_address=4) as url:
        assert [_get(url, None).status_code for _ in range(5)] == [200] * 4 + [429]
        assert _get(url, team.key).status_code == 200
        guesses = [_get(url, f"cpk_0000000{number}_" + "x" * 40, "/v1/jobs").status_code for number in range(5)]
        assert guesses == [401] * 4 + [429]
        assert _get(url, "cpk_00000009_" + "x" * 40, "/v1/jobs").status_code == 429, "from that address, for a while"
        assert _get(url, team.key).status_code == 200, "wrong keys lock out wrong keys only"


def test_a_key_is_the_same_one_however_its_header_is_written(world: World, team: Team, redis_url: str) -> None:
    ways = ("Bearer {}", "Bearer   {}", "bearer {}", "BEARER  {}", "bEaReR \t{}")
    with _serving(world, redis_url, rate_limit_key=3, rate_limit_address=0) as url:
        answers = [_sent(url, "/v1/me", way.format(team.key)) for way in ways]
        assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 2
        assert {answer.headers["RateLimit-Policy"] for answer in answers} == {'"key";q=3;w=60'}


@pytest.mark.parametrize("path", ["/v1/version", "/v1/jobs", "/ui/login"])
def test_what_is_no_key_counts_by_address(world: World, valkey: Running, path: str) -> None:
    _forget_all(valkey)
    made_up = ("{}", "Bearer {}", "Basic {}", "Bearer cpk_{}", "Bearer cpk_12345678_{}")
    with _serving(world, valkey.url, rate_limit_key=100, rate_limit_address=4) as url:
        answers = [_sent(url, path, way.format(number)) for number, way in enumerate(made_up)]
        assert [answer.status_code == 429 for answer in answers] == [False] * 4 + [True]
        assert {answer.headers["RateLimit-Policy"] for answer in answers} == {'"address";q=4;w=60'}


@pytest.mark.parametrize("path", ["/v1/version", "/ui/login"])
def test_a_made_up_key_counts_by_address_where_nobody_looks_at_it(world: World, valkey: Running, path: str) -> None:
    _forget_all(valkey)
    with _serving(world, valkey.url, rate_limit_key=100, rate_limit_address=4) as url:
        codes = [_get(url, f"cpk_0000000{number}_" + "x" * 40, path).status_code for number in range(5)]
        assert codes == [200] * 4 + [429]


def test_every_route_that_asks_for_no_key_is_known_as_open(world: World) -> None:
    paths = httpx.get(world.url + "/openapi.json", verify=False, timeout=60).json()["paths"]
    no_key = {path for path, methods in paths.items() for method in methods.values() if not method.get("security")}
    pages = [route for router in ROUTERS for route in router.routes if isinstance(route, PageRoute)]
    open_pages = {page.path for page in pages if not _asks(page.dependant, visitor)}
    known = {path for path in no_key if path.startswith(KEYED)} | open_pages - {f"{FILES}{{digest}}/{{name}}"}
    assert known == OPEN


def _asks(dependant: Dependant, call: object) -> bool:
    return dependant.call is call or any(_asks(needed, call) for needed in dependant.dependencies)


def _page(url: str, key: str, path: str = "/ui") -> httpx.Response:
    return httpx.get(url + path, cookies={COOKIE: key}, verify=False, timeout=60)


def test_a_page_counts_by_its_cookies_key_and_is_refused_with_a_page(
    world: World, team: Team, stranger: Team, valkey: Running
) -> None:
    _forget_all(valkey)
    with _serving(world, valkey.url, rate_limit_key=3, rate_limit_address=2) as url:
        answers = [_page(url, team.key) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200] * 3 + [429]
        refused = answers[-1]
        assert refused.headers["Content-Type"].startswith("text/html")
        assert refused.headers["RateLimit-Policy"] == '"key";q=3;w=60'
        assert 1 <= int(refused.headers["Retry-After"]) <= 20
        assert "too many requests from this API key: 3 a minute" in refused.text
        assert "/static/" in refused.text
        assert _get(url, team.key).status_code == 429, "a key has one limit for pages and REST"
        assert _page(url, stranger.key).status_code == 200, "of another key behind the same proxy"
        files = {_page(url, "", asset("style.css")[1]).status_code for _ in range(4)}
        assert files == {200}


def test_guessing_keys_in_the_cookie_is_limited_by_address(world: World, team: Team, valkey: Running) -> None:
    _forget_all(valkey)
    with _serving(world, valkey.url, rate_limit_key=100, rate_limit_address=4) as url:
        codes = [_page(url, f"cpk_0000000{number}_" + "x" * 40).status_code for number in range(5)]
        assert codes == [303] * 4 + [429]
        assert _page(url, team.key).status_code == 200, "wrong keys lock out wrong keys only"
        assert [_page(url, "none").status_code for _ in range(5)] == [303] * 4 + [429]
        codes = [_page(url, f"cpk_0000000{number}_" + "x" * 40, "/ui/login").status_code for number in range(2)]
        assert codes == [429] * 2, "nobody looks at the cookie there"


def test_two_replicas_share_a_limit_through_redis(world: World, team: Team, valkey: Running) -> None:
    with (
        _serving(world, valkey.url, rate_limit_key=4) as one,
        _serving(world, valkey.url, rate_limit_key=4) as other,
    ):
        codes = [_get(url, team.key).status_code for url in (one, other, one, other, one)]
        assert codes == [200] * 4 + [429]


def test_a_redis_that_is_away_is_not_asked_for_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def count(*_: object, **__: object) -> None:
        nonlocal asked
        asked += 1
        raise ConnectionError

    async def run() -> list[bool]:
        limiter = Limiter(NO_REDIS)
        monkeypatch.setattr(limiter, "_script", count)
        standings = [await limiter.take("k", 3) for _ in range(4)]
        assert (await limiter.take("k", 3, cost=0)).allowed is False
        await limiter.close()
        return [standing.allowed for standing in standings]

    assert asyncio.run(run()) == [True, True, True, False]
    assert asked == 1
