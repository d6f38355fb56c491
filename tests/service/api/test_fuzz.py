"""Whatever is sent, the service answers with its envelope and never with a 500."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cupilot.schemas import ErrorEnvelope
from tests.service.api.world import Team, job_request

pytestmark = pytest.mark.service

JSON = {"Content-Type": "application/json"}
PATHS = [
    ("problem",),
    ("problem", "source"),
    ("problem", "name"),
    ("problem", "id"),
    ("problem", "policy"),
    ("problem", "size"),
    ("target",),
    ("agents",),
    ("method",),
    ("method", "population"),
    ("method", "utilisation_weight"),
    ("budgets",),
    ("budgets", "candidates"),
    ("budgets", "wall_seconds"),
    ("seed",),
    ("priority",),
    ("labels",),
    ("labels", "key"),
    ("extra",),
]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=8,
)
fuzz = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def _mutated(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    body = copy.deepcopy(job_request(method={}, budgets={}, labels={}))
    place: Any = body
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return body


@fuzz
@given(path=st.sampled_from(PATHS), value=values)
def test_a_submission_with_any_field_replaced(team: Team, path: tuple[str, ...], value: Any) -> None:
    response = team.http.post("/v1/jobs", content=json.dumps(_mutated(path, value)), headers=JSON)
    assert response.status_code in (202, 422), response.text
    if response.status_code == 422:
        ErrorEnvelope.model_validate_json(response.content, extra="forbid")
    else:
        assert team.http.get(response.headers["Location"]).json()["labels"] is not None


@fuzz
@given(data=st.binary(max_size=200))
def test_a_submission_of_any_bytes(team: Team, data: bytes) -> None:
    response = team.http.post("/v1/jobs", content=data, headers=JSON)
    assert response.status_code == 422
    ErrorEnvelope.model_validate_json(response.content, extra="forbid")


@fuzz
@given(
    route=st.sampled_from(["/v1/jobs", "/v1/problems", "/v1/jobs/{}", "/v1/jobs/{}/events", "/v1/problems/{}"]),
    segment=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    name=st.sampled_from(["cursor", "limit", "state", "target", "problem", "label", "after", "wait", "x"]),
    value=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
)
def test_a_question_with_any_path_and_parameter(team: Team, route: str, segment: str, name: str, value: str) -> None:
    from urllib.parse import quote

    response = team.http.get(route.replace("{}", quote(segment, safe="")), params={name: value})
    assert response.status_code in (200, 404, 422), response.text


@fuzz
@given(name=st.sampled_from(["Idempotency-Key", "X-Request-ID", "Content-Type"]), value=st.binary(max_size=300))
def test_a_submission_with_any_header(team: Team, name: str, value: bytes) -> None:
    if any(byte < 32 or byte == 127 for byte in value) or value.strip() != value:
        return  # HTTP itself refuses these; the client does not send them
    headers = {"Content-Type": b"application/json", name: value}
    response = team.http.post("/v1/jobs", content=json.dumps(job_request()), headers=headers)
    assert response.status_code in (202, 422), response.text
