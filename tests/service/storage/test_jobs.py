"""Submitting and cancelling."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select

from cupilot.domain.errors import Conflict, NotFound
from cupilot.domain.states import CandidateState, JobState, StepState
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.scope import scoped
from cupilot.storage.db.tables.jobs import Job, ProblemRow
from cupilot.storage.db.tables.queue import Outbox
from cupilot.storage.jobs.jobs import IdempotencyMismatch, job_spec, request_cancel, submit_job
from cupilot.storage.people.teams import ensure_team
from tests.service.doubles import problem
from tests.service.rig import Rig
from tests.service.rig import job_spec as make_spec

pytestmark = pytest.mark.service


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    return Rig(database, settings)


def cancel(rig: Rig, job_id: uuid.UUID, team: str = "blue") -> Job:
    with rig.database.transaction() as session:
        return request_cancel(session, ensure_team(session, team).id, job_id)


def test_what_was_submitted_can_be_read_back(rig: Rig) -> None:
    job_id = rig.submit(seed=5, labels={"run": "7"})
    with rig.database.transaction() as session:
        assert job_spec(session, session.get_one(Job, job_id)) == make_spec(seed=5, labels={"run": "7"})


def test_a_repeated_key_gives_the_same_job(rig: Rig) -> None:
    first = rig.submit(idempotency_key="k", request_hash="a")
    assert rig.submit(idempotency_key="k", request_hash="a") == first
    assert rig.submit(idempotency_key="other", request_hash="a") != first
    assert rig.submit(team="red", idempotency_key="k", request_hash="a") != first
    with pytest.raises(IdempotencyMismatch) as caught:
        rig.submit(idempotency_key="k", request_hash="b")
    assert caught.value.code == "idempotency_mismatch"


def test_a_key_used_twice_at_once_gives_one_job(rig: Rig) -> None:
    start = threading.Barrier(4)

    def submit(_: int) -> uuid.UUID:
        start.wait()
        return rig.submit(idempotency_key="k", request_hash="a")

    with ThreadPoolExecutor(4) as pool:
        jobs = set(pool.map(submit, range(4)))
    assert len(jobs) == 1
    assert len(rig.steps(jobs.pop())) == 1


def test_a_submission_that_is_rolled_back_leaves_nothing(rig: Rig) -> None:
    def fail() -> None:
        with rig.database.transaction() as session:
            team = ensure_team(session, "blue")
            submit_job(session, team.id, make_spec(), idempotency_key=None, request_hash="a")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        fail()
    with rig.database.transaction() as session:
        assert session.execute(select(func.count()).select_from(Job)).scalar_one() == 0
        assert session.execute(select(func.count()).select_from(Outbox)).scalar_one() == 0


def test_equal_problems_of_a_team_are_one_row(rig: Rig) -> None:
    rig.submit()
    rig.submit()
    rig.submit(problem=problem("other"))
    rig.submit(team="red")
    with rig.database.transaction() as session:
        assert session.execute(select(func.count()).select_from(ProblemRow)).scalar_one() == 3


def test_another_teams_job_is_not_there(rig: Rig) -> None:
    job_id = rig.submit()
    with pytest.raises(NotFound):
        cancel(rig, job_id, team="red")
    assert rig.job(job_id).state is JobState.QUEUED


def test_a_query_without_a_known_scope_is_an_error() -> None:
    with pytest.raises(TypeError, match="no tenant scope"):
        scoped(select(Outbox), uuid.uuid4())


def test_a_queued_job_is_cancelled_at_once(rig: Rig) -> None:
    job_id = rig.submit()
    assert cancel(rig, job_id).state is JobState.CANCELLED
    assert cancel(rig, job_id).state is JobState.CANCELLED, "repeating is harmless"
    rig.run()
    assert rig.step(job_id, "prepare").state is StepState.CANCELLED
    assert rig.judge.calls == []


def test_an_evolving_job_with_nothing_running_is_cancelled_at_once(rig: Rig) -> None:
    job_id = rig.submit()
    for _ in range(4):
        for message in rig.publish():
            rig.do(message)
    assert rig.job(job_id).state is JobState.EVOLVING
    assert cancel(rig, job_id).state is JobState.CANCELLED
    rig.run()
    job = rig.job(job_id)
    assert (job.state, job.reason) == (JobState.CANCELLED, "cancel_requested")
    assert CandidateState.ACTIVE not in {candidate.state for candidate in rig.candidates(job_id)}
    assert {step.state for step in rig.steps(job_id)} <= {StepState.SUCCEEDED, StepState.CANCELLED}


def test_a_finished_job_cannot_be_cancelled(rig: Rig) -> None:
    job_id = rig.submit()
    rig.run()
    with pytest.raises(Conflict):
        cancel(rig, job_id)
    assert rig.job(job_id).state is JobState.SUCCEEDED
