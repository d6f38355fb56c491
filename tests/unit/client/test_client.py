"""The client where the service is away, busy, newer, or something else altogether."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cupilot.client import ApiError, Client
from cupilot.schemas import JobRequest
from tests.unit.client.scripted import Answer, serve

VERSION = Answer(body=b'{"version": "9.9", "api": "v1", "a field of the future": {"x": 1}}')
BUSY = Answer(503, json.dumps({"error": {"code": "unavailable", "message": "busy", "request_id": "r1"}}).encode())


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that the client would have made."""
    made: list[float] = []
    monkeypatch.setattr("cupilot.client.clients.time.sleep", made.append)
    return made


def _job_request() -> JobRequest:
    return JobRequest.model_validate({"problem": {"id": "softmax"}, "target": "cpu"})


def test_fields_of_a_newer_server_are_ignored() -> None:
    with serve(VERSION) as script, Client(script.url, "key") as client:
        assert client.version().version == "9.9"


def test_a_busy_server_is_asked_again_with_growing_pauses(pauses: list[float]) -> None:
    with serve(BUSY, BUSY, BUSY, VERSION) as script, Client(script.url, "key") as client:
        assert client.version().version == "9.9"
    assert len(script.asked) == 4
    assert len(pauses) == 3
    assert 0.1 <= pauses[0] <= 0.2
    assert 0.4 <= pauses[2] <= 0.8


def test_retry_after_is_followed_within_reason(pauses: list[float]) -> None:
    patient = [Answer(BUSY.status, BUSY.body, {"Retry-After": seconds}) for seconds in ("2", "3600")]
    with serve(*patient, VERSION) as script, Client(script.url, "key") as client:
        client.version()
    assert pauses == [2.0, 5.0]


def test_a_server_that_stays_busy_is_an_error_with_its_code() -> None:
    with serve(BUSY) as script, Client(script.url, "key", retries=2) as client:
        with pytest.raises(ApiError) as caught:
            client.version()
        assert len(script.asked) == 3
    assert (caught.value.code, caught.value.status, caught.value.request_id) == ("unavailable", 503, "r1")


def test_a_dropped_submission_is_repeated_under_the_same_key() -> None:
    refusal = Answer(422, json.dumps({"error": {"code": "invalid_input", "message": "no", "request_id": "r"}}).encode())
    with serve(Answer(drop=True), refusal) as script, Client(script.url, "key") as client:
        with pytest.raises(ApiError):
            client.submit(_job_request())
        with pytest.raises(ApiError):
            client.submit(_job_request())
    keys = [asked.headers["Idempotency-Key"] for asked in script.asked]
    assert keys[0] == keys[1]
    assert keys[2] != keys[0]
    assert script.asked[0].body == script.asked[1].body == b'{"problem":{"id":"softmax"},"target":"cpu"}'


def test_a_refusal_is_not_repeated_and_carries_everything() -> None:
    error = {"code": "invalid_problem", "message": "m", "hint": "h", "where": "w", "request_id": "r", "new": 1}
    with serve(Answer(422, json.dumps({"error": error}).encode())) as script, Client(script.url, "key") as client:
        with pytest.raises(ApiError) as caught:
            client.get("x")
        assert len(script.asked) == 1
    found = caught.value
    assert (found.code, found.message, found.hint, found.where, found.status, found.request_id) == (
        "invalid_problem",
        "m",
        "h",
        "w",
        422,
        "r",
    )


def test_no_server_is_an_error_that_says_where_it_was_looked_for() -> None:
    with Client("http://127.0.0.1:1", "key", retries=1) as client, pytest.raises(ApiError) as caught:
        client.version()
    assert (caught.value.code, caught.value.status) == ("unreachable", 0)
    assert "http://127.0.0.1:1" in caught.value.message


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, b"<html>a proxy's page</html>"),
        Answer(200, b"[]"),
        Answer(200, b""),
        Answer(404, b"<html>nginx</html>"),
        Answer(400, b'{"detail": "another service"}'),
        Answer(302, b"", {"Location": "/login"}),
    ],
)
def test_another_kind_of_server_is_recognised(answer: Answer) -> None:
    with serve(answer) as script, Client(script.url, "key") as client, pytest.raises(ApiError) as caught:
        client.version()
    assert caught.value.code == "unexpected_answer"


def test_ids_cannot_leave_their_place_in_the_path() -> None:
    with serve(Answer(404, BUSY.body)) as script, Client(script.url, "key") as client:
        with pytest.raises(ApiError):
            client.candidate("../../v1/jobs?x=1#", "a/b")
        assert script.asked[0].path == "/v1/jobs/..%2F..%2Fv1%2Fjobs%3Fx%3D1%23/candidates/a%2Fb"


def test_the_key_goes_along_and_no_key_sends_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv("CUPILOT_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    with serve(VERSION) as script:
        with Client(script.url, "cpk_secret") as client:
            client.version()
        with Client(script.url) as client:
            client.version()
    assert script.asked[0].headers["Authorization"] == "Bearer cpk_secret"
    assert "Authorization" not in script.asked[1].headers
