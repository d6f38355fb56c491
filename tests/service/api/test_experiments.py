"""Experiments over REST: planned, made whole or not at all, followed, cancelled; another team's does not exist."""

from __future__ import annotations

import io
import uuid
import zipfile
from collections import Counter
from typing import Any

import pytest

from tests.service.api.world import SOURCE, Team, World

pytestmark = pytest.mark.service

PROBLEMS = [{"name": f"double {number}", "source": SOURCE + f"# {number}\n"} for number in range(2)]


def matrix(**changes: Any) -> dict[str, Any]:
    """Two switches, two problems, two seeds: sixteen jobs."""
    return {
        "name": "switches",
        "target": "cpu",
        "method": {"name": "sce", "population": 4, "generations": 2},
        "switches": {"pool": [True, False], "roofline_guidance": [True, False]},
        "problems": PROBLEMS,
        "seeds": [0, 1],
        "budgets": {"candidates": 12, "wall_seconds": 600, "cost_usd": 3},
        **changes,
    }


def make(team: Team, **changes: Any) -> dict[str, Any]:
    response = team.http.post("/v1/experiments", json=matrix(**changes))
    assert response.status_code == 202, response.text
    body: dict[str, Any] = response.json()
    return body


def test_a_plan_says_what_it_would_cost_and_makes_nothing(team: Team) -> None:
    response = team.http.post("/v1/experiments/plan", json=matrix(total={"candidates": 100}))
    assert response.status_code == 200, response.text
    plan = response.json()
    assert plan["jobs"] == 16
    assert plan["reference"] == plan["arms"][0]["name"] == "sce pool=on roofline_guidance=on"
    assert plan["budgets"]["candidates"] == 6  # a sixteenth of the total
    assert plan["at_most"] == {"candidates": 96, "wall_seconds": 9600.0, "cost_usd": 0.0}
    assert any("too few" in note for note in plan["notes"])
    assert team.http.get("/v1/experiments").json()["items"] == []
    assert team.http.get("/v1/jobs").json()["items"] == []


def test_all_jobs_are_made_matched_and_interleaved(team: Team) -> None:
    experiment = make(team)
    assert (experiment["state"], experiment["jobs"], experiment["finished"]) == ("queued", 16, 0)
    page = team.http.get(f"/v1/experiments/{experiment['id']}/jobs", params={"limit": 10}).json()
    rest = team.http.get(
        f"/v1/experiments/{experiment['id']}/jobs", params={"after": page["next_after"], "limit": 10}
    ).json()
    assert rest["next_after"] is None
    jobs = page["items"] + rest["items"]
    assert [job["position"] for job in jobs] == list(range(16))
    blocks = [jobs[start : start + 4] for start in range(0, 16, 4)]
    for block in blocks:
        assert len({(job["job"]["problem"]["id"], job["seed"]) for job in block}) == 1
        assert len({job["arm"] for job in block}) == 4
    assert len({block[0]["arm"] for block in blocks}) > 1
    full = [team.http.get(f"/v1/jobs/{job['job']['id']}").json() for job in jobs]
    assert len({(str(job["budgets"]), job["target"], job["priority"]) for job in full}) == 1
    assert Counter(job["method"]["pool"] for job in full) == {True: 8, False: 8}
    arm = jobs[0]["arm"]
    only = team.http.get(f"/v1/experiments/{experiment['id']}/jobs", params={"arm": arm}).json()["items"]
    assert [job["arm"] for job in only] == [arm] * 4


def test_a_repeated_key_makes_no_second_experiment(team: Team) -> None:
    key = {"Idempotency-Key": "once"}
    first = team.http.post("/v1/experiments", json=matrix(), headers=key)
    again = team.http.post("/v1/experiments", json=matrix(), headers=key)
    assert first.headers["Location"] == again.headers["Location"] == f"/v1/experiments/{first.json()['id']}"
    assert again.headers["Idempotent-Replayed"] == "true"
    assert len(team.http.get("/v1/jobs", params={"limit": 200}).json()["items"]) == 16
    other = team.http.post("/v1/experiments", json=matrix(name="another"), headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_mismatch")


def test_cancel_ends_every_job(team: Team) -> None:
    experiment = make(team, seeds=[0])
    path = f"/v1/experiments/{experiment['id']}"
    cancelled = team.http.post(f"{path}/cancel")
    assert cancelled.status_code == 202
    assert (cancelled.json()["state"], cancelled.json()["finished"]) == ("cancelled", 8)
    assert cancelled.json()["finished_at"]
    assert team.http.post(f"{path}/cancel").status_code == 202
    states = {job["state"] for job in team.http.get("/v1/jobs").json()["items"]}
    assert states == {"cancelled"}


def test_an_experiment_whose_jobs_have_ended_is_not_cancelled(team: Team) -> None:
    experiment = make(team, seeds=[0])
    for item in team.http.get(f"/v1/experiments/{experiment['id']}/jobs").json()["items"]:
        team.http.post(f"/v1/jobs/{item['job']['id']}/cancel")
    refused = team.http.post(f"/v1/experiments/{experiment['id']}/cancel")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert team.http.get(f"/v1/experiments/{experiment['id']}").json()["state"] == "finished"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/jobs"),
        ("POST", "/cancel"),
        ("GET", "/report"),
        ("GET", "/report/tables/arms"),
        ("GET", "/report/figures/speedups"),
        ("GET", "/report/download"),
    ],
)
def test_another_teams_experiment_does_not_exist(team: Team, stranger: Team, method: str, path: str) -> None:
    experiment = make(team, seeds=[0])
    response = stranger.http.request(method, f"/v1/experiments/{experiment['id']}{path}")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
    assert stranger.http.get("/v1/experiments").json()["items"] == []


def test_lists_go_on_by_cursor(team: Team) -> None:
    made = [make(team, name=f"number {number}", seeds=[0])["id"] for number in range(3)]
    first = team.http.get("/v1/experiments", params={"limit": 2}).json()
    second = team.http.get("/v1/experiments", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [item["id"] for item in first["items"] + second["items"]] == made[::-1]
    assert second["next_cursor"] is None


@pytest.mark.parametrize(
    ("changes", "status", "code", "where"),
    [
        ({"switches": {"luck": [True]}}, 422, "invalid_input", "luck"),
        ({"arms": [{"name": "a", "method": {"name": "nothing"}}]}, 422, "invalid_input", "body.arms.0.method"),
        ({"seeds": [1, 1]}, 422, "invalid_input", "body.seeds"),
        ({"problems": [PROBLEMS[0], PROBLEMS[0]]}, 422, "invalid_input", "body.problems"),
        ({"reference": "none"}, 422, "invalid_input", "body.reference"),
        ({"agents": "llm"}, 422, "agents_unavailable", "body.agents"),
        (
            {"arms": [{"name": "free", "method": {"name": "evoengineer-free"}}], "switches": {}},
            422,
            "method_needs_model",
            "",
        ),
        ({"total": {"candidates": 15}}, 422, "invalid_input", "body.total.candidates"),
        ({"seeds": list(range(100))}, 422, "invalid_input", "body"),
        ({"target": "cuda"}, 422, "invalid_input", "body.device_class"),
        ({"device_class": "sm_90"}, 422, "invalid_input", "body.device_class"),
        ({"problems": [{"id": str(uuid.uuid4())}]}, 422, "invalid_input", "body.problem.id"),
    ],
)
def test_what_cannot_be_an_experiment_is_refused(
    team: Team, changes: dict[str, Any], status: int, code: str, where: str
) -> None:
    for route in ("/v1/experiments", "/v1/experiments/plan"):
        response = team.http.post(route, json=matrix(**changes))
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert error["code"] == code
        assert where in (error["where"] or "")
        assert error["hint"] or error["details"] is not None
    assert team.http.get("/v1/jobs").json()["items"] == []


def test_a_named_class_of_gpus_holds_for_every_job(world: World, team: Team) -> None:
    from sqlalchemy import select

    from cupilot.storage.db.tables.jobs import Job
    from cupilot.storage.db.tables.queue import Step

    experiment = make(team, target="cuda", device_class="sm_90", seeds=[0])
    with world.database.transaction() as session:
        query = select(Step.queue).join(Job, Job.id == Step.job_id).where(Job.experiment_id == experiment["id"])
        assert set(session.scalars(query)) == {"gpu.sm_90"}


def test_a_report_can_be_had_while_nothing_is_measured_yet(team: Team) -> None:
    experiment = make(team, seeds=[0])
    path = f"/v1/experiments/{experiment['id']}/report"
    report = team.http.get(path).json()
    assert [arm["too_few"] for arm in report["arms"]] == [True] * 4
    assert {comparison["claim"] for comparison in report["comparisons"]} == {"too few pairs to say"}
    assert any("8 of 8 jobs still open" in note for note in report["notes"])
    table = team.http.get(f"{path}/tables/jobs")
    assert table.headers["content-type"].startswith("text/csv")
    assert len(table.text.splitlines()) == 9
    for form, kind, start in (("svg", "image/svg+xml", b"<?xml"), ("png", "image/png", b"\x89PNG")):
        figure = team.http.get(f"{path}/figures/convergence", params={"format": form})
        assert figure.headers["content-type"].startswith(kind)
        assert figure.headers["x-content-type-options"] == "nosniff"
        assert figure.content.startswith(start)
    names = zipfile.ZipFile(io.BytesIO(team.http.get(f"{path}/download").content)).namelist()
    assert {"report.json", "REPORT.md", "jobs.csv", "convergence.svg"} <= set(names)
    assert team.http.get(f"{path}/figures/nothing").status_code == 404
