"""Rules for every request: authentication, one error envelope, bounds on what is taken in."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from cupilot.schemas import ErrorEnvelope
from tests.service.api.world import Team, World, evolved, job_request

pytestmark = pytest.mark.service

LIMIT = 1_048_576
JSON = {"Content-Type": "application/json"}


def _envelope(response: httpx.Response, status: int, code: str) -> ErrorEnvelope:
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/json"
    body = ErrorEnvelope.model_validate_json(response.content, extra="forbid")
    assert body.error.code == code
    assert body.error.request_id == response.headers["X-Request-ID"]
    return body


# --- authentication ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer x",
        "Basic dTpw",
        "Bearer cpk_00000000_" + "x" * 43,
        "Bearer cpk_" + "0" * 5000,
        "Bearer cpk_\u00e9\u00e9\u00e9\u00e9_" + "x" * 43,
        "Bearer cpk_a%b_cde_" + "x" * 43,
    ],
)
def test_without_a_valid_key_nothing_is_shown(world: World, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization.encode("latin-1")}
    http = httpx.Client(base_url=world.url, headers=headers)
    with http:
        for method, path in [
            ("GET", "/v1/jobs"),
            ("POST", "/v1/jobs"),
            ("GET", "/v1/jobs/00000000-0000-0000-0000-000000000000"),
            ("GET", "/v1/jobs/00000000-0000-0000-0000-000000000000/events"),
            ("GET", "/v1/problems"),
            ("GET", "/v1/cluster"),
        ]:
            response = http.request(method, path, json=job_request() if method == "POST" else None)
            _envelope(response, 401, "unauthorized")
            assert response.headers["WWW-Authenticate"] == "Bearer"


def test_the_start_of_a_key_is_not_the_key(world: World, team: Team) -> None:
    for key in (team.key[:-1], team.key + "x", team.key.upper()):
        with httpx.Client(base_url=world.url, headers={"Authorization": f"Bearer {key}"}) as http:
            _envelope(http.get("/v1/jobs"), 401, "unauthorized")


def test_a_revoked_key_is_refused(world: World) -> None:
    team = world.team()
    assert team.http.get("/v1/jobs").status_code == 200
    with world.database.transaction() as session:
        session.execute(text("UPDATE api_keys SET revoked_at = now() WHERE team_id = :team"), {"team": team.id})
    _envelope(team.http.get("/v1/jobs"), 401, "unauthorized")


def test_a_wrong_key_is_told_before_a_wrong_body(world: World) -> None:
    with httpx.Client(base_url=world.url) as http:
        _envelope(http.post("/v1/jobs", json={"nonsense": 1}), 401, "unauthorized")


# --- bodies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"a": "\xff"}',
        b'{"target": NaN}',
        b'{"seed": Infinity}',
        b'{"seed": -Infinity}',
        b'{"seed": 1e999}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b'{"labels": {"a": "\\u0000"}}',
        b'{"labels": {"\\u0000": "a"}}',
        b'{"labels": {"a": "\\ud800"}}',
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"target": "cpu", "target": "cuda"}',
        b'{"problem": [], "target": {}, "method": 1, "budgets": "x", "labels": null}',
    ],
)
def test_a_body_that_is_no_request_is_refused(team: Team, body: bytes) -> None:
    envelope = _envelope(team.http.post("/v1/jobs", content=body, headers=JSON), 422, "invalid_input")
    assert envelope.error.details
    assert all(detail.where.startswith("body") for detail in envelope.error.details)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("budgets", "wall_seconds"), "1e999"),
        (("budgets", "cost_usd"), "NaN"),
        (("method", "utilisation_weight"), "1e400"),
    ],
)
def test_numbers_that_are_not_finite_are_refused_in_every_field(team: Team, path: tuple[str, str], value: str) -> None:
    body = json.dumps(job_request(**{path[0]: {path[1]: "HERE"}})).replace('"HERE"', value)
    _envelope(team.http.post("/v1/jobs", content=body, headers=JSON), 422, "invalid_input")


def test_a_nul_in_the_source_is_refused(team: Team) -> None:
    response = team.http.post("/v1/jobs", json=job_request(problem={"source": "x = 1\0"}))
    _envelope(response, 422, "invalid_input")


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None]
)
def test_a_body_of_another_type_is_refused_with_a_hint(team: Team, content_type: str | None) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    response = team.http.post("/v1/jobs", content=json.dumps(job_request()).encode(), headers=headers)
    envelope = _envelope(response, 422, "invalid_input")
    assert "application/json" in envelope.error.message


def test_the_list_of_what_is_wrong_is_bounded(team: Team) -> None:
    body = job_request() | {f"unknown{n}": 1 for n in range(1000)}
    envelope = _envelope(team.http.post("/v1/jobs", json=body), 422, "invalid_input")
    assert len(envelope.error.details) == 20
    assert "999 more" in envelope.error.message


def test_long_and_hostile_field_names_are_shortened(team: Team) -> None:
    response = team.http.post("/v1/jobs", json=job_request() | {"x" * 100_000: 1})
    _envelope(response, 422, "invalid_input")
    assert len(response.content) < 5_000


def test_a_body_of_50_mb_is_refused(team: Team) -> None:
    body = b'{"problem": {"source": "' + b"#" * 50_000_000 + b'"}}'
    _envelope(team.http.post("/v1/jobs", content=body, headers=JSON), 413, "body_too_large")
    assert team.submit()["state"] == "queued"


def test_a_declared_50_mb_are_refused_before_any_of_them_is_sent(world: World, team: Team) -> None:
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {team.key}\r\nContent-Length: 50000000\r\n\r\n"
    host, port = world.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(head.encode())
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"body_too_large" in answer


def test_a_chunked_body_is_refused_once_it_is_too_large(team: Team) -> None:
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(5_000):
            sent += 10_000
            yield b"#" * 10_000

    _envelope(team.http.post("/v1/jobs", content=chunks(), headers=JSON), 413, "body_too_large")
    assert team.submit()["state"] == "queued"


@pytest.mark.parametrize(("size", "status"), [(LIMIT, 422), (LIMIT + 1, 413)])
def test_the_limit_is_exact(team: Team, size: int, status: int) -> None:
    def chunked() -> Iterator[bytes]:
        yield b" " * (size // 2)
        yield b" " * (size - size // 2)

    assert team.http.post("/v1/jobs", content=b" " * size, headers=JSON).status_code == status
    assert team.http.post("/v1/jobs", content=chunked(), headers=JSON).status_code == status


def test_a_body_where_none_belongs_is_bounded_too(team: Team) -> None:
    response = team.http.request("GET", "/v1/jobs", content=b"x" * (LIMIT + 1))
    _envelope(response, 413, "body_too_large")


# --- routes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v2/jobs", "/v1/jobs/x/y/z", "/v1/jobs/", "/%00", "/v1/../etc/passwd"]
)
def test_a_route_that_does_not_exist(team: Team, path: str) -> None:
    _envelope(team.http.get(path), 404, "route_not_found")


@pytest.mark.parametrize(("method", "path"), [("DELETE", "/v1/jobs"), ("PUT", "/healthz"), ("PATCH", "/v1/problems")])
def test_a_method_that_a_route_does_not_know(team: Team, method: str, path: str) -> None:
    response = team.http.request(method, path)
    _envelope(response, 405, "method_not_allowed")
    assert response.headers["Allow"]


def test_a_request_id_is_taken_over_when_it_is_a_decent_one(team: Team) -> None:
    given = team.http.get("/healthz", headers={"X-Request-ID": "trace-1.2:3_4"})
    assert given.headers["X-Request-ID"] == "trace-1.2:3_4"
    for hostile in ("x" * 129, "a b", "<script>", 'a"b'):
        answer = team.http.get("/healthz", headers={"X-Request-ID": hostile})
        assert answer.headers["X-Request-ID"] != hostile
        assert len(answer.headers["X-Request-ID"]) == 32


def test_a_bug_is_a_plain_500_with_the_details_in_the_log_only(
    team: Team, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr("cupilot.storage.jobs.job_views.list_jobs", broken)
    with caplog.at_level(logging.ERROR, "cupilot.api"):
        response = team.http.get("/v1/jobs")
    envelope = _envelope(response, 500, "internal_error")
    assert "hunter2" not in response.text
    assert "RuntimeError" not in response.text
    assert "hunter2" in caplog.text
    assert envelope.error.request_id in caplog.text


def test_what_was_not_committed_is_not_answered(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    def violate(session: Any, *_: Any, **__: Any) -> Any:
        # A deferred check fails at commit only: the answer must not have left by then.
        session.execute(text("CREATE TEMP TABLE late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)"))
        session.execute(text("INSERT INTO late VALUES (1), (1)"))
        return views.cluster_view_before(session)

    from api.routes import service as views

    views.cluster_view_before = views.cluster_view  # type: ignore[attr-defined]
    monkeypatch.setattr("api.routes.service.cluster_view", violate)
    try:
        _envelope(team.http.get("/v1/cluster"), 500, "internal_error")
    finally:
        del views.cluster_view_before  # type: ignore[attr-defined]


def test_no_filter_of_a_list_breaks_on_the_character_that_no_column_takes(world: World, team: Team) -> None:
    with world.database.transaction() as session:
        job = evolved(session, team.id).id
    asked = 0
    for path, operations in team.http.get("/openapi.json").json()["paths"].items():
        url = path.replace("{job}", str(job)).replace("{candidate}", "0")
        if "{" in url or url.endswith("/stream"):
            continue
        for parameter in operations.get("get", {}).get("parameters", []):
            if parameter["in"] == "query":
                answer = team.http.get(url, params={parameter["name"]: "a\0b"})
                assert answer.status_code < 500, (url, parameter["name"])
                asked += 1
    assert asked > 50
