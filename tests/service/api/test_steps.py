"""Steps and logs over REST and by command; who asked for a job, when it entered each state, and lists of it by both."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from cupilot.cli.app import app
from cupilot.client import Client, NotFoundError
from cupilot.domain.evaluation import FailureKind
from cupilot.domain.states import JobState, StepState
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import move_step
from tests.service.api.world import DEVICE, Story, Team, World, audited, rejected

pytestmark = [pytest.mark.service, pytest.mark.usefixtures("alone")]


@pytest.fixture
def client(world: World, team: Team) -> Iterator[Client]:
    with Client(world.url, team.key) as client:
        yield client


@pytest.fixture
def job(world: World, team: Team) -> str:
    """Two candidates; a worker holds the step of the second."""
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        generation = story.generation(0)
        story.candidate(generation, audited(1.5), best=True)
        story.candidate(generation, rejected(FailureKind.WRONG_VALUE))
        step = session.query(Step).filter_by(job_id=story.job.id, key="c1/evaluate").one()
        values = {
            "attempt": 1,
            "lease_owner": "gpu-7",
            "lease_expires_at": step.created_at,
            "started_at": step.created_at,
        }
        move_step(session, step, StepState.RUNNING, attempt=0, values=values, data={"owner": "gpu-7"})
        step.error = {"reason": "worker_lost", "message": "fell\nsilent"}
        return str(story.job.id)


def test_steps_say_who_has_them_and_what_went_wrong(client: Client, job: str) -> None:
    steps = {step.key: step for step in client.all_steps(job)}
    assert list(steps) == ["prepare", "c0/evaluate", "c1/evaluate"]
    held = steps["c1/evaluate"]
    assert (held.state, held.attempt, held.worker, held.candidate) == ("running", 1, "gpu-7", 1)
    assert held.held_seconds > 0.0 == steps["c0/evaluate"].held_seconds
    assert held.error == {"reason": "worker_lost", "message": "fell\nsilent"}
    assert [step.key for step in client.steps(job, state="running").items] == ["c1/evaluate"]
    assert [step.key for step in client.steps(job, candidate=0).items] == ["c0/evaluate"]
    first = client.steps(job, limit=2)
    assert [step.key for step in client.steps(job, limit=2, cursor=first.next_cursor).items] == ["c1/evaluate"]


def test_steps_and_calls_of_a_candidate_that_the_job_lacks_are_not_found(team: Team, job: str) -> None:
    for candidate in ("99", str(uuid.uuid4())):
        for path in (f"steps?candidate={candidate}", f"candidates/{candidate}/calls"):
            answer = team.http.get(f"/v1/jobs/{job}/{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), path


def test_a_steps_log_tells_attempts_errors_build_and_findings(client: Client, job: str) -> None:
    told = client.step_log(job, client.steps(job, key="c1/evaluate").items[0].id).decode()
    for part in ("c1/evaluate (evaluate)", 'step.running c1/evaluate kind="evaluate"', '"gpu-7"', "fell\\nsilent"):
        assert part in told
    for part in ("verdict    rejected", "failure    wrong_value: out[0] is 1, should be 2", "build      "):
        assert part in told
    with pytest.raises(NotFoundError):
        client.step_log(job, "00000000-0000-0000-0000-000000000000")


def test_a_jobs_log_has_a_line_an_event_and_ends_with_the_newest(client: Client, job: str) -> None:
    lines = client.job_log(job).decode().splitlines()
    assert len(lines) == len(list(client.all_events(job)))
    assert " job.queued" in lines[0]
    assert client.job_log(job, lines=2).decode().splitlines() == lines[-2:]


def test_both_are_to_be_had_by_command(world: World, team: Team, job: str) -> None:
    def typed(*words: str) -> str:
        environment = {"CUPILOT_URL": world.url, "CUPILOT_API_KEY": team.key}
        result = CliRunner().invoke(app, [*words], env=environment)
        assert result.exit_code == 0, result.output
        return result.output

    assert "c1/evaluate  evaluate  running  1/3" in typed("steps", job)
    assert "failure    wrong_value" in typed("logs", job, "--step", "c1/evaluate")
    assert typed("logs", job, "-n", "1").count("\n") == 1
    assert typed("logs", job, "--out", "job.log") == "job.log\n"


def test_a_job_says_who_asked_and_when_it_entered_each_state(client: Client, team: Team, job: str) -> None:
    assert [entry.state for entry in client.get(job).history] == ["queued", "preparing", "evolving"]
    mine = client.get(team.submit()["id"])
    client.pause(mine.id)
    paused = client.cancel(mine.id)
    assert [(entry.state, entry.reason) for entry in paused.history] == [
        ("queued", None),
        ("paused", "pause_requested"),
        ("cancelling", "cancel_requested"),
        ("cancelled", "cancel_requested"),
    ]
    assert all(one.at <= other.at for one, other in zip(paused.history, paused.history[1:], strict=False))
    assert mine.author == client.me().user
    assert [item.id for item in client.list(user=mine.author).items] == [mine.id]


def test_jobs_are_listed_by_device_and_time(client: Client, team: Team, job: str) -> None:
    queued = client.get(team.submit()["id"])
    assert [str(item.id) for item in client.list(device=DEVICE.name.lower()).items] == [job]
    assert client.list(device="100%").items == []
    assert [item.id for item in client.list(since=queued.created_at).items] == [queued.id]
    assert [str(item.id) for item in client.all_jobs(until=queued.created_at)] == [job]
    assert client.list(state=JobState.QUEUED.value, user="nobody").items == []
