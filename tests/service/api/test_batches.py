"""Batches over REST: what is refused, with which code, and that nothing of it is an internal error."""

from __future__ import annotations

import json
import uuid
from typing import Any

import httpx
import pytest

from cupilot.domain.batches.results import ResultHeader, write_header
from cupilot.storage.queue.batches import get_batch
from cupilot.storage.queue.drains import SERVICE, begin_drain, end_drain
from tests.service.api.world import Team, World

pytestmark = pytest.mark.service


@pytest.fixture
def operator(world: World) -> httpx.Client:
    return world.cluster_admin().http


@pytest.fixture
def batch(operator: httpx.Client) -> str:
    """A batch that no scheduler exports."""
    answer = operator.post("/v1/batches", json={"target": "cpu"})
    assert answer.status_code == 202, answer.text
    assert answer.headers["Location"] == f"/v1/batches/{answer.json()['id']}"
    return str(answer.json()["id"])


def refused(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"target": "cuda"}, 422),
        ({"arch": "sm_90"}, 422),
        ({"target": "cuda", "arch": "hopper"}, 422),
        ({"limit": 0}, 422),
        ({"limit": 10**6}, 422),
        ({"lease_hours": 0}, 422),
        ({"lease_hours": 1e6}, 422),
        ({"job": str(uuid.uuid4())}, 404),
        ({"target": "cuda", "arch": "sm_90"}, 202),
    ],
)
def test_a_request_says_what_can_be_exported(operator: httpx.Client, changes: dict[str, Any], status: int) -> None:
    assert operator.post("/v1/batches", json={"target": "cpu", **changes}).status_code == status


def test_a_teams_admin_may_do_nothing_of_it(team: Team, batch: str) -> None:
    requests = [
        ("POST", "/v1/batches"),
        ("GET", "/v1/batches"),
        *(("GET", f"/v1/batches/{batch}{part}") for part in ("", "/steps", "/file")),
        *(("POST", f"/v1/batches/{batch}/{verb}") for verb in ("results", "cancel")),
    ]
    for method, path in requests:
        answer = team.http.request(method, path, json={"target": "cpu"})
        assert refused(answer) == (403, "cluster_admin_only"), path


def test_a_batch_is_exported_before_it_has_a_file_or_results(operator: httpx.Client, batch: str) -> None:
    header = ResultHeader(batch=uuid.UUID(batch), manifest="0" * 64, signature="0" * 64)
    assert refused(operator.get(f"/v1/batches/{batch}/file")) == (409, "batch_not_ready")
    answer = operator.post(f"/v1/batches/{batch}/results", content=write_header(header))
    assert refused(answer) == (409, "batch_not_ready")


def test_what_is_no_result_of_this_batch_is_refused(operator: httpx.Client, batch: str) -> None:
    path = f"/v1/batches/{batch}/results"
    other = ResultHeader(batch=uuid.uuid4(), manifest="0" * 64, signature="0" * 64)
    for body in (b"dear judge", b"\xff\xfe", b"\x00", write_header(other).encode(), b"0" * 64 + b" " + b"[" * 10_000):
        assert refused(operator.post(path, content=body)) == (422, "invalid_result_file")
    foreign = operator.post(f"/v1/batches/{uuid.uuid4()}/results", content=write_header(other))
    assert refused(foreign) == (404, "foreign_batch")


def test_a_batch_is_cancelled_once(operator: httpx.Client, batch: str) -> None:
    for _ in range(2):
        answer = operator.post(f"/v1/batches/{batch}/cancel")
        assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
    assert refused(operator.get(f"/v1/batches/{batch}/file")) == (409, "batch_not_ready")
    listed = operator.get("/v1/batches").json()["items"]
    assert batch in [item["id"] for item in listed]


def test_a_drained_service_exports_nothing(world: World, operator: httpx.Client) -> None:
    with world.database.transaction() as session:
        begin_drain(session, SERVICE, "upgrade")
    assert refused(operator.post("/v1/batches", json={"target": "cpu"})) == (409, "batch_not_ready")
    with world.database.transaction() as session:
        end_drain(session, SERVICE)


def test_the_signing_key_is_in_no_answer(world: World, operator: httpx.Client, batch: str) -> None:
    with world.database.transaction() as session:
        key = get_batch(session, uuid.UUID(batch)).key
    answers = [operator.get(f"/v1/batches/{batch}"), operator.get("/v1/batches"), operator.get("/v1/audit")]
    assert not [answer for answer in answers if key.hex() in answer.text or "key" in json.loads(answer.text)]
