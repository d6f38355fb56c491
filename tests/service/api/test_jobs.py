"""Submitting, following, listing and cancelling jobs."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from cupilot.domain.evaluation import Verdict
from cupilot.domain.job import AgentKind, Budgets
from cupilot.domain.problem import Problem
from cupilot.domain.states import JobState, WorkerKind
from cupilot.domain.value import digest
from cupilot.schemas import JobView
from cupilot.storage.db.tables.jobs import Candidate, Job, ProblemRow
from cupilot.storage.db.tables.people import Team as TeamRow
from cupilot.storage.queue.cluster import forget_worker, register_worker
from tests.service.api.world import SOURCE, Story, Team, World, audited, evolved, job_request

pytestmark = pytest.mark.service


def _error(response: Any) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert error["request_id"] == response.headers["X-Request-ID"]
    return error


def test_a_submission_is_accepted_and_can_be_followed(team: Team) -> None:
    response = team.http.post("/v1/jobs", json=job_request(seed=7, labels={"model": "llama"}))
    assert response.status_code == 202
    assert response.headers["Location"] == f"/v1/jobs/{response.json()['id']}"
    assert int(response.headers["Retry-After"]) >= 1
    job = JobView.model_validate_json(team.http.get(response.headers["Location"]).content)
    assert (job.state, job.final, job.seed, job.labels) == ("queued", False, 7, {"model": "llama"})
    assert job.problem.hash == Problem(name="x", source=SOURCE).content_hash()
    assert (job.generation, job.generations, job.candidates, job.verdicts) == (0, 4, 0, {})
    assert job.best is None
    assert job.budgets == Budgets()
    assert job.retry_after_seconds


def test_a_submission_makes_job_step_and_events_in_one_transaction(team: Team) -> None:
    job = team.submit()
    events = team.http.get(f"/v1/jobs/{job['id']}/events").json()
    assert [event["kind"] for event in events["items"]] == ["job.queued", "step.queued"]


def test_a_builtin_problem_is_submitted_by_name_at_the_size_that_suits_the_target(team: Team) -> None:
    small = team.submit(problem={"id": "softmax"}, target="cpu")["problem"]
    full = team.submit(problem={"id": "softmax"}, target="cuda")["problem"]
    chosen = team.submit(problem={"id": "softmax", "size": "full", "name": "mine"}, target="cpu")["problem"]
    assert small["name"] == full["name"] == "softmax"
    assert small["hash"] != full["hash"] == chosen["hash"]
    assert small["id"] == team.submit(problem={"id": small["id"]})["problem"]["id"]


def test_the_same_key_and_request_give_the_same_job(team: Team, stranger: Team) -> None:
    headers = {"Idempotency-Key": "monday"}
    first = team.http.post("/v1/jobs", json=job_request(), headers=headers)
    again = team.http.post("/v1/jobs", json=job_request(), headers=headers)
    assert first.status_code == again.status_code == 202
    assert first.json()["id"] == again.json()["id"]
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert len(team.http.get("/v1/jobs").json()["items"]) == 1
    others = stranger.http.post("/v1/jobs", json=job_request(), headers=headers)
    assert others.json()["id"] != first.json()["id"]


def test_a_default_that_is_spelled_out_is_the_same_request_and_none_is_part_of_what_is_kept(
    world: World, team: Team
) -> None:
    headers = {"Idempotency-Key": "monday"}
    first = team.http.post("/v1/jobs", json=job_request(), headers=headers).json()["id"]
    again = team.http.post("/v1/jobs", json=job_request(seed=0, priority="normal", labels={}), headers=headers)
    assert again.json()["id"] == first
    with world.database.transaction() as session:
        assert session.get_one(Job, uuid.UUID(first)).request_hash == digest(job_request())


def test_the_same_key_with_another_request_is_a_conflict(team: Team) -> None:
    headers = {"Idempotency-Key": "monday"}
    team.http.post("/v1/jobs", json=job_request(), headers=headers)
    response = team.http.post("/v1/jobs", json=job_request(seed=1), headers=headers)
    assert (response.status_code, _error(response)["code"]) == (422, "idempotency_mismatch")


def test_the_same_key_sent_at_once_from_many_threads_starts_one_job(team: Team) -> None:
    answers: list[tuple[int, str]] = []

    def send() -> None:
        response = team.http.post("/v1/jobs", json=job_request(), headers={"Idempotency-Key": "race"})
        answers.append((response.status_code, response.json()["id"]))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert len(set(answers)) == 1
    assert len(team.http.get("/v1/jobs").json()["items"]) == 1


@contextmanager
def _a_model(world: World) -> Iterator[None]:
    """There is an agent worker that has one."""
    worker = f"agent-{uuid.uuid4()}"
    with world.database.transaction() as session:
        register_worker(session, worker, WorkerKind.AGENT, queues=["agents.llm"], slots=1, version="1", device=None)
    yield
    with world.database.transaction() as session:
        forget_worker(session, worker)


@pytest.mark.parametrize("kind", ["llm", "hybrid"])
def test_agents_that_need_a_model_are_refused_while_no_worker_has_one(world: World, team: Team, kind: str) -> None:
    response = team.http.post("/v1/jobs", json=job_request(agents=kind))
    assert (response.status_code, _error(response)["code"]) == (422, "agents_unavailable")
    assert _error(response)["where"] == "body.agents"
    with _a_model(world):
        assert team.http.post("/v1/jobs", json=job_request(agents=kind)).status_code == 202


def test_a_key_is_answered_also_while_the_agent_workers_restart(world: World, team: Team) -> None:
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        story.job.agents = AgentKind.LLM
        story.candidate(story.generation(0), audited(1.5), best=True)
        old = story.end(JobState.CANCELLED, reason="cancel_requested").id
    asked: dict[str, dict[str, Any]] = {
        "/v1/jobs": job_request(agents="llm"),
        f"/v1/jobs/{old}/retry": {},
        f"/v1/jobs/{old}/candidates/0/fork": {},
    }

    def answers(path: str, **headers: str) -> httpx.Response:
        return team.http.post(path, json=asked[path], headers=headers)

    with _a_model(world):
        made = {path: answers(path, **{"Idempotency-Key": path}) for path in asked}
    assert {path: answer.status_code for path, answer in made.items()} == dict.fromkeys(asked, 202)
    for path, first in made.items():
        assert _error(answers(path))["code"] == "agents_unavailable"
        again = answers(path, **{"Idempotency-Key": path})
        assert (again.status_code, again.headers.get("Idempotent-Replayed")) == (202, "true"), again.text
        assert again.json()["id"] == first.json()["id"]
        other = team.http.post(path, json=asked[path] | {"seed": 7}, headers={"Idempotency-Key": path})
        assert _error(other)["code"] == "idempotency_mismatch"


def test_a_key_is_answered_whatever_has_become_of_what_was_asked_about(world: World, team: Team) -> None:
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        winner = story.candidate(story.generation(0), audited(1.5), best=True).id
        old = story.end(JobState.SUCCEEDED).id
    mine = str(team.submit()["problem"]["id"])
    file = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\n"
    asked: dict[str, Any] = {
        f"/v1/jobs/{old}/candidates/0/remeasure": {},
        "/v1/imports": {"problem": {"id": mine}, "target": "cpu", "source": file},
    }
    first = {path: team.http.post(path, json=asked[path], headers={"Idempotency-Key": path}) for path in asked}
    assert {path: answer.status_code for path, answer in first.items()} == dict.fromkeys(asked, 202), first
    with world.database.transaction() as session:
        session.execute(update(Candidate).where(Candidate.id == winner).values(verdict=Verdict.REJECTED, speedup=None))
        session.execute(update(ProblemRow).where(ProblemRow.id == uuid.UUID(mine)).values(source="no more Python("))
    for path, answer in first.items():
        again = team.http.post(path, json=asked[path], headers={"Idempotency-Key": path})
        assert (again.status_code, again.headers.get("Idempotent-Replayed")) == (202, "true"), again.text
        assert again.json()["id"] == answer.json()["id"]
    refused = team.http.post(f"/v1/jobs/{old}/candidates/0/remeasure", headers={"Idempotency-Key": "another"})
    assert _error(refused)["code"] == "not_proven"
    other = asked["/v1/imports"] | {"source": "not a file of that kind"}
    mismatch = team.http.post("/v1/imports", json=other, headers={"Idempotency-Key": "/v1/imports"})
    assert _error(mismatch)["code"] == "idempotency_mismatch"


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ("def broken(:\n", "problem.source:1"),
        ("x = 1\n", "problem.source"),
        (SOURCE.replace("def get_inputs", "def other"), "problem.source"),
        (SOURCE.replace("def forward", "def backward"), "problem.source:5"),
        ("#" * 300_000, "problem.source"),
        ("(" * 50_000, "problem.source:1"),
    ],
)
def test_a_file_that_cannot_be_a_problem_is_refused(team: Team, source: str, where: str) -> None:
    response = team.http.post("/v1/jobs", json=job_request(problem={"source": source}))
    assert (response.status_code, _error(response)["code"]) == (422, "invalid_problem")
    assert _error(response)["where"] == where


SEVERAL = 'ROWS = 4\nWORKLOADS = [{"name": "one", "values": {"ROWS": 8}}]\n' + SOURCE


def test_several_workloads_are_not_for_the_playbook(team: Team) -> None:
    response = team.http.post("/v1/jobs", json=job_request(problem={"source": SEVERAL}))
    assert (response.status_code, _error(response)["where"]) == (422, "body.agents")
    assert "several workloads" in _error(response)["message"]
    unknown = SEVERAL.replace('"ROWS": 8', '"COLUMNS": 8')
    response = team.http.post("/v1/jobs", json=job_request(problem={"source": unknown}))
    assert (_error(response)["code"], _error(response)["where"]) == ("invalid_problem", "problem.source:2")


def test_nor_do_experiments_forks_and_retries_give_them_to_the_playbook(world: World, team: Team) -> None:
    with world.database.transaction() as session:
        job = evolved(session, team.id, JobState.CANCELLED, Problem(name="several", source=SEVERAL)).id
    matrix = {"name": "several", "target": "cpu", "problems": [{"source": SEVERAL}], "seeds": [0]}
    for path, body in (
        ("/v1/experiments", matrix),
        (f"/v1/jobs/{job}/candidates/0/fork", {}),
        (f"/v1/jobs/{job}/retry", {}),
    ):
        response = team.http.post(path, json=body)
        assert response.status_code == 422, response.text
        assert "several workloads" in _error(response)["message"]


def test_a_file_is_never_run_by_the_api(team: Team, tmp_path: Any) -> None:
    trace = tmp_path / "ran"
    team.submit(problem={"source": f"open({str(trace)!r}, 'w').close()\nraise SystemExit(1)\n{SOURCE}"})
    assert not trace.exists()


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"surprise": 1}, "body.surprise"),
        ({"target": "tpu"}, "body.target"),
        ({"target": None}, "body.target"),
        ({"problem": {"source": SOURCE, "policy": "fp8"}}, "body.problem.policy"),
        ({"problem": {"source": SOURCE, "id": "softmax"}}, "body.problem"),
        ({"problem": {}}, "body.problem"),
        ({"problem": {"source": SOURCE, "size": "full"}}, "body.problem"),
        ({"problem": {"source": SOURCE, "name": "n" * 201}}, "body.problem.name"),
        ({"problem": {"id": "nothing"}}, "body.problem.id"),
        ({"problem": {"id": str(uuid.uuid4())}}, "body.problem.id"),
        ({"budgets": {"candidates": 0}}, "body.budgets.candidates"),
        ({"budgets": {"candidates": 10**30}}, "body.budgets.candidates"),
        ({"budgets": {"wall_seconds": -1}}, "body.budgets.wall_seconds"),
        ({"budgets": {"gpu_hours": 1}}, "body.budgets.gpu_hours"),
        ({"method": {"name": "magic"}}, "body.method.name"),
        ({"method": {"population": 2, "elites": 2}}, "body.method"),
        ({"method": {"population": 10**9}}, "body.method.population"),
        ({"seed": -1}, "body.seed"),
        ({"seed": 2**31}, "body.seed"),
        ({"priority": "urgent"}, "body.priority"),
        ({"labels": {str(n): "x" for n in range(17)}}, "body.labels"),
        ({"labels": {"": "x"}}, "body.labels."),
        ({"labels": {"k": "v" * 201}}, "body.labels.k"),
        ({"labels": [1]}, "body.labels"),
    ],
)
def test_what_is_wrong_with_a_request_is_named(team: Team, changes: dict[str, Any], where: str) -> None:
    response = team.http.post("/v1/jobs", json=job_request(**changes))
    assert response.status_code == 422, response.text
    error = _error(response)
    assert error["code"] == "invalid_input"
    assert error["where"].startswith(where)
    assert team.http.get("/v1/jobs").json()["items"] == []


def test_unicode_names_and_labels_come_back_as_they_were(team: Team) -> None:
    name = "Ω-softmax 漢字 🚀 e\u0301 \u202eabc"
    job = team.submit(problem={"name": name, "source": SOURCE + f"# {name}\n"}, labels={"größe": "ß" * 200})
    view = team.http.get(f"/v1/jobs/{job['id']}").json()
    assert view["problem"]["name"] == name
    assert view["labels"] == {"größe": "ß" * 200}
    assert len(team.http.get("/v1/jobs", params={"label": f"größe={'ß' * 200}"}).json()["items"]) == 1
    assert len(team.http.get("/v1/jobs", params={"problem": name}).json()["items"]) == 1


def test_jobs_of_another_team_do_not_exist(world: World, team: Team, stranger: Team) -> None:
    with world.database.transaction() as session:
        job = evolved(session, team.id)
        problem = job.problem_id
    paths = [
        "",
        "/events",
        "/candidates",
        "/candidates/4",
        f"/candidates/{job.best_candidate_id}",
        "/best",
        "/best/download",
    ]
    for path in paths:
        assert team.http.get(f"/v1/jobs/{job.id}{path}").status_code == 200
        response = stranger.http.get(f"/v1/jobs/{job.id}{path}")
        assert (response.status_code, _error(response)["code"]) == (404, "not_found"), path
    assert stranger.http.post(f"/v1/jobs/{job.id}/cancel").status_code == 404
    assert stranger.http.get(f"/v1/problems/{problem}").status_code == 404
    assert stranger.http.post("/v1/jobs", json=job_request(problem={"id": str(problem)})).status_code == 422
    assert stranger.http.get("/v1/jobs").json()["items"] == []
    own = stranger.submit()
    crossed = stranger.http.get(f"/v1/jobs/{own['id']}/candidates/{job.best_candidate_id}")
    assert crossed.status_code == 404


def test_a_finished_job_shows_its_counts_and_its_best_kernel(world: World, team: Team) -> None:
    with world.database.transaction() as session:
        job_id = evolved(session, team.id).id
    response = team.http.get(f"/v1/jobs/{job_id}")
    job = JobView.model_validate_json(response.content)
    assert "Retry-After" not in response.headers
    assert (job.state, job.final, job.retry_after_seconds) == ("succeeded", True, None)
    assert (job.generation, job.candidates) == (1, 5)
    assert job.verdicts == {"audited": 2, "rejected": 1, "reproduced": 1}
    assert job.candidate_states == {"evaluated": 4, "duplicate": 1}
    assert job.best is not None
    assert (job.best.ordinal, job.best.generation, job.best.verdict) == (4, 1, "reproduced")
    assert (job.best.speedup.low, job.best.speedup.median, job.best.speedup.high) == (1.8, 2.0, 2.2)
    assert job.best.speedup_over_compile is not None
    assert job.best.speedup_over_compile.median == 0.5
    assert job.best.strategy.ids() == ("simd", "threads")
    assert job.preparation is not None
    assert (job.preparation.zone, job.preparation.device) == ("memory", "Test CPU")
    assert job.preparation.floor_us > 0
    assert job.queue_position is None
    assert job.wall_seconds >= 0


def test_queue_positions_follow_priority_and_age(team: Team) -> None:
    def position(job: dict[str, Any]) -> int:
        found: int = team.http.get(f"/v1/jobs/{job['id']}").json()["queue_position"]
        return found

    first, second = team.submit(target="cuda"), team.submit(target="cuda")
    assert position(second) == position(first) + 1
    ahead = team.submit(target="cuda", priority="high")
    assert position(ahead) < position(first)
    assert position(second) == position(first) + 1


@pytest.mark.parametrize(("order", "other"), [("newest", "oldest"), ("oldest", "newest")])
def test_pages_cover_every_job_once_in_either_order(team: Team, order: str, other: str) -> None:
    ids = [team.submit(seed=seed)["id"] for seed in range(7)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        parameters = {"limit": 3, "order": order} | ({"cursor": cursor} if cursor else {})
        page = team.http.get("/v1/jobs", params=parameters).json()
        seen += [job["id"] for job in page["items"]]
        assert len(page["items"]) <= 3
        cursor = page["next_cursor"]
        if cursor is None:
            break
        refused = team.http.get("/v1/jobs", params={"order": other, "cursor": cursor})
        assert (refused.status_code, refused.json()["error"]["where"]) == (422, "query.cursor")
        assert "another order" in refused.json()["error"]["message"]
        if order == "newest":
            team.submit(seed=99)  # what arrives meanwhile disturbs no page
    assert seen == (ids[::-1] if order == "newest" else ids)


def test_a_list_can_be_filtered(world: World, team: Team) -> None:
    with world.database.transaction() as session:
        done = evolved(session, team.id)
    labelled = team.submit(labels={"a": "1", "b": "2"})
    team.submit(labels={"a": "1"}, target="cuda", problem={"id": "relu"})

    def ids(**parameters: Any) -> list[str]:
        response = team.http.get("/v1/jobs", params=parameters)
        assert response.status_code == 200, response.text
        return [job["id"] for job in response.json()["items"]]

    assert ids(state="succeeded") == [str(done.id)]
    assert len(ids(state=["succeeded", "queued"])) == 3
    assert len(ids(target="cuda")) == 1
    assert ids(label=["a=1", "b=2"]) == [labelled["id"]]
    assert len(ids(label="a=1")) == 2
    assert ids(label="a=2") == []
    assert len(ids(problem="relu")) == 1
    assert ids(problem="relu", target="cpu") == []


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=x",
        "cursor=x",
        "cursor=%00",
        "cursor=MjAyNi0xMS0yMXxmb28",
        "cursor=MTk5OTktMTEtMjF8MDAwMDAwMDAtMDAwMC0wMDAwLTAwMDAtMDAwMDAwMDAwMDAw",
        "state=done",
        "order=best",
        "target=tpu",
        "label=x",
        "label==x",
        "label=a%00=b",
        "problem=%00",
        "&".join(f"label={n}=1" for n in range(17)),
    ],
)
def test_a_malformed_query_is_named(team: Team, query: str) -> None:
    response = team.http.get(f"/v1/jobs?{query}")
    assert (response.status_code, _error(response)["code"]) == (422, "invalid_input")
    assert _error(response)["where"].startswith("query.")


@pytest.mark.parametrize("job", ["x", "00000000-0000-0000-0000-000000000000", "%00", "last", "a" * 5000, "1;DROP"])
def test_a_job_that_is_not_there_is_not_found(team: Team, job: str) -> None:
    for path in ("", "/events", "/candidates", "/candidates/1", "/best", "/best/download"):
        response = team.http.get(f"/v1/jobs/{job}{path}")
        assert (response.status_code, _error(response)["code"]) == (404, "not_found")
    assert team.http.post(f"/v1/jobs/{job}/cancel").status_code == 404


def test_cancelling_is_idempotent(team: Team) -> None:
    job = team.submit()
    for _ in range(2):
        response = team.http.post(f"/v1/jobs/{job['id']}/cancel")
        assert (response.status_code, response.json()["state"]) == (202, "cancelled")
    assert team.http.get(f"/v1/jobs/{job['id']}").json()["final"]


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.BUDGET_EXHAUSTED])
def test_a_job_that_has_ended_cannot_be_cancelled(world: World, team: Team, state: JobState) -> None:
    with world.database.transaction() as session:
        job = Story(session, team.id).prepare().end(state, reason="because")
    response = team.http.post(f"/v1/jobs/{job.id}/cancel")
    assert (response.status_code, _error(response)["code"]) == (409, "conflict")


def test_events_come_in_pages_in_order(world: World, team: Team) -> None:
    with world.database.transaction() as session:
        job = evolved(session, team.id)
    everything = team.http.get(f"/v1/jobs/{job.id}/events").json()
    after, seen = 0, []
    while True:
        page = team.http.get(f"/v1/jobs/{job.id}/events", params={"after": after, "limit": 4}).json()
        if not page["items"]:
            break
        seen += page["items"]
        after = page["next_after"]
    assert page["next_after"] == after
    assert seen == everything["items"]
    assert [event["id"] for event in seen] == sorted(event["id"] for event in seen)
    assert seen[-1]["kind"] == "job.succeeded"


def test_waiting_for_an_event_ends_when_it_happens(team: Team) -> None:
    job = team.submit()
    after = team.http.get(f"/v1/jobs/{job['id']}/events").json()["next_after"]

    def cancel_soon() -> None:
        time.sleep(0.2)
        team.http.post(f"/v1/jobs/{job['id']}/cancel")

    thread = threading.Thread(target=cancel_soon)
    thread.start()
    page = team.http.get(f"/v1/jobs/{job['id']}/events", params={"after": after, "wait": 30}).json()
    thread.join()
    assert page["items"][-1]["kind"] == "job.cancelled"


def test_waiting_for_an_event_that_does_not_happen_ends_with_an_empty_page(team: Team) -> None:
    job = team.submit()
    after = team.http.get(f"/v1/jobs/{job['id']}/events").json()["next_after"]
    page = team.http.get(f"/v1/jobs/{job['id']}/events", params={"after": after, "wait": 0.3}).json()
    assert page == {"items": [], "next_after": after}


@pytest.mark.parametrize("query", ["after=-1", f"after={2**63}", "wait=31", "wait=nan", "wait=-1", "limit=1001"])
def test_a_malformed_question_for_events_is_named(team: Team, query: str) -> None:
    job = team.submit()
    response = team.http.get(f"/v1/jobs/{job['id']}/events?{query}")
    assert (response.status_code, _error(response)["code"]) == (422, "invalid_input")


def test_a_plan_says_what_a_job_can_use_and_makes_nothing(team: Team) -> None:
    request = job_request(
        method={"population": 4, "generations": 2, "elites": 1},
        budgets={"candidates": 20, "gpu_seconds": 90},
        learning={"attribution": 3},
    )
    plan = team.http.post("/v1/jobs/plan", json=request).json()
    assert plan["at_most"] == {
        "candidates": 8,
        "kernels": 20,  # the budget; with all revisions and the attribution there would be 35
        "wall_seconds": 3600.0,
        "gpu_seconds": 90.0,
        "cost_usd": 0.0,
    }
    assert (plan["problem"], plan["method"]["repair_rounds"], plan["guess"]) == ("double", 2, None)
    assert [note[:14] for note in plan["notes"]] == ["The file's tex", "No live worker", "No job of your"]
    request["problem"]["source"] = request["problem"]["source"].replace("x * 2", "torch.rellu(x)")
    (broken, *_) = team.http.post("/v1/jobs/plan", json=request).json()["notes"]
    assert "PyTorch has no `torch.rellu`; did you mean relu?" in broken
    for path in ("/v1/jobs", "/v1/problems"):
        assert [item for item in team.http.get(path).json()["items"] if not item.get("builtin")] == []


def test_a_plan_guesses_by_the_teams_own_jobs_and_by_those_on_the_problem_first(
    world: World, team: Team, stranger: Team
) -> None:
    request = job_request(method={"population": 5, "generations": 2, "elites": 1})

    def guess(asking: Team) -> Any:
        return asking.http.post("/v1/jobs/plan", json=request).json()["guess"]

    with world.database.transaction() as session:
        other = Story(session, team.id, Problem(name="other", source=SOURCE + "\n# another\n")).prepare()
        other.job.candidates, other.job.gpu_seconds = 10, 50.0
        other.end(JobState.SUCCEEDED)
        Story(session, team.id).prepare().end(JobState.FAILED, reason="no_valid_kernel")
    found = guess(team)
    assert (found["jobs"], found["same_problem"], found["gpu_seconds"]) == (1, False, 50.0)
    with world.database.transaction() as session:
        same = evolved(session, team.id)
        same.gpu_seconds = 10.0
    found = guess(team)
    assert (found["jobs"], found["same_problem"], found["gpu_seconds"]) == (1, True, 20.0)
    assert (found["cost_usd"], found["tokens"]) == (0.0, 0)
    assert guess(stranger) is None


def test_a_plan_leaves_out_a_job_whose_budget_ended_before_its_first_candidate(world: World, team: Team) -> None:
    with world.database.transaction() as session:
        Story(session, team.id).prepare().end(JobState.BUDGET_EXHAUSTED, reason="wall_time")
    response = team.http.post("/v1/jobs/plan", json=job_request())
    assert (response.status_code, response.json()["guess"]) == (200, None)


def test_a_plan_refuses_what_a_submission_would(world: World, team: Team) -> None:
    for changes in ({"agents": "llm"}, {"problem": {"id": "sotfmax"}}, {"budgets": {"candidates": 0}}):
        answers = [team.http.post(path, json=job_request(**changes)) for path in ("/v1/jobs", "/v1/jobs/plan")]
        assert {answer.status_code for answer in answers} == {422}
        first, second = (_error(answer) for answer in answers)
        assert (first["code"], first["where"], first["hint"]) == (second["code"], second["where"], second["hint"])
    assert "softmax" in _error(team.http.post("/v1/jobs/plan", json=job_request(problem={"id": "sotfmax"})))["hint"]
    with world.database.transaction() as session:
        session.get_one(TeamRow, team.id).max_queued_jobs = 1
    assert team.http.post("/v1/jobs/plan", json=job_request()).status_code == 200
    assert team.submit()["queue_position"] is not None
    assert _error(team.http.post("/v1/jobs/plan", json=job_request()))["code"] == "quota_exceeded"


def test_a_plan_says_which_line_the_playbook_has_no_kernel_for(team: Team) -> None:
    source = SOURCE.replace("x * 2", "torch.special.erfcx(x)")
    assert source != SOURCE
    plan = team.http.post("/v1/jobs/plan", json=job_request(problem={"source": source})).json()
    (note,) = [note for note in plan["notes"] if "no_template" in note]
    assert "torch.special.erfcx(x)` in line " in note
    assert "near it are supported" in note
    assert "cupilot submit FILE --agents hybrid" in note


def test_a_plan_goes_by_what_an_earlier_job_traced(world: World, team: Team) -> None:
    """The story's graph makes no output, which no text can show."""
    with world.database.transaction() as session:
        Story(session, team.id).prepare()
    plan = team.http.post("/v1/jobs/plan", json=job_request()).json()
    assert plan["notes"][0].startswith("The job would end as no_template: ")
    assert "the value 'out'" in plan["notes"][0]


def test_a_plan_says_that_a_job_would_end_as_its_predecessor_without_a_template(world: World, team: Team) -> None:
    with world.database.transaction() as session:
        evolved(session, team.id, problem=Problem(name="other", source=SOURCE + "\n# another\n"))
        story = Story(session, team.id).prepare()
        failed = story.end(JobState.FAILED, reason="no_template", message="no template").id
    plan = team.http.post("/v1/jobs/plan", json=job_request()).json()
    assert plan["guess"] is None
    assert "would end in the same way" in plan["notes"][0]
    assert "--agents hybrid" in plan["notes"][0]
    assert plan["notes"][1] == "That job said: no template"
    refused = team.http.post(f"/v1/jobs/{failed}/retry")
    assert (refused.status_code, _error(refused)["code"]) == (409, "conflict")
    assert "have no template" in _error(refused)["message"]


def test_a_retry_of_a_problem_that_cannot_be_judged_is_refused(world: World, team: Team) -> None:
    with world.database.transaction() as session:
        lacking = Story(session, team.id).end(JobState.FAILED, reason="out_of_memory", message="no memory").id
        wrong = Story(session, team.id).end(JobState.FAILED, reason="invalid_problem", message="forward raises").id
    assert team.http.post(f"/v1/jobs/{lacking}/retry").status_code == 202
    refused = team.http.post(f"/v1/jobs/{wrong}/retry")
    assert (refused.status_code, _error(refused)["code"]) == (409, "conflict")
    assert "cannot be judged" in _error(refused)["message"]
    assert "mend the file" in _error(refused)["hint"]


def test_a_candidate_that_is_not_made_yet_is_no_missing_thing(team: Team) -> None:
    job = team.submit()["id"]
    for path, body in (
        (f"/v1/jobs/{job}/directives", {"kind": "pin", "candidate": "0"}),
        (f"/v1/jobs/{job}/candidates/0/fork", {}),
    ):
        answer = team.http.post(path, json=body)
        assert (answer.status_code, _error(answer)["code"]) == (409, "conflict"), answer.text
        assert "not made yet" in _error(answer)["message"]
