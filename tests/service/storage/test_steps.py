"""Claims: who may work on a step, and whose result counts."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import func, select, update

from cupilot.domain.states import JobState, StepState
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import EvaluationRow
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import Stale
from cupilot.storage.jobs.jobs import request_cancel
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.queue.steps import Claim, claim_step, lock_claimed, release_step, renew_lease, still_wanted
from tests.service.rig import Rig
from workers.reaper import reap
from workers.steps import run_step

pytestmark = pytest.mark.service

LEASE = timedelta(seconds=30)


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    return Rig(database, settings)


def claim(rig: Rig, step_id: uuid.UUID, attempt: int = 0, owner: str = "w") -> Claim | None:
    with rig.database.transaction() as session:
        return claim_step(session, step_id, attempt, owner, LEASE)


def expire(rig: Rig, step_id: uuid.UUID) -> None:
    """As if the worker had been silent for long."""
    with rig.database.transaction() as session:
        gone = func.now() - timedelta(seconds=1)
        session.execute(update(Step).where(Step.id == step_id).values(lease_expires_at=gone))


def test_of_many_workers_one_gets_the_step(rig: Rig) -> None:
    step_id = rig.step(rig.submit(), "prepare").id
    with ThreadPoolExecutor(4) as pool:
        claims = list(pool.map(lambda number: claim(rig, step_id, owner=f"w{number}"), range(8)))
    won = [item for item in claims if item is not None]
    assert len(won) == 1
    assert won[0].attempt == 1


def test_the_first_claim_starts_the_job(rig: Rig) -> None:
    job_id = rig.submit()
    claim(rig, rig.step(job_id, "prepare").id)
    job = rig.job(job_id)
    assert job.state is JobState.PREPARING
    assert job.started_at is not None


@pytest.mark.parametrize("attempt", [1, 2, -1])
def test_a_message_of_another_attempt_gets_nothing(rig: Rig, attempt: int) -> None:
    assert claim(rig, rig.step(rig.submit(), "prepare").id, attempt) is None


def test_a_message_of_no_step_gets_nothing(rig: Rig) -> None:
    assert claim(rig, uuid.uuid4()) is None


def test_a_duplicate_message_does_nothing(rig: Rig) -> None:
    job_id = rig.submit()
    (message,) = rig.publish()
    for _ in range(3):
        rig.do(message)
    assert rig.judge.calls == ["prepare"]
    assert rig.step(job_id, "prepare").attempt == 1
    assert rig.events(job_id).count("step.succeeded") == 1


def test_every_message_twice_gives_the_same_job(rig: Rig) -> None:
    job_id = rig.submit()
    while messages := rig.publish():
        for message in [*messages, *reversed(messages)]:
            rig.do(message)
    assert rig.job(job_id).state is JobState.SUCCEEDED
    assert len(rig.judge.calls) == len(set(rig.judge.calls))
    assert all(step.attempt == 1 for step in rig.steps(job_id))


def test_a_late_result_is_refused(rig: Rig) -> None:
    job_id = rig.submit()
    step_id = rig.step(job_id, "prepare").id
    late = claim(rig, step_id, owner="slow")
    assert late is not None
    expire(rig, step_id)
    reap(rig.database)
    again = claim(rig, step_id, attempt=1, owner="quick")
    assert again is not None
    with pytest.raises(Stale), rig.database.transaction() as session:
        lock_claimed(session, late)
    with rig.database.transaction() as session:
        assert not renew_lease(session, late, LEASE)
        assert not still_wanted(session, late)
        assert renew_lease(session, again, LEASE)


def test_a_worker_that_lost_its_lease_stores_nothing(rig: Rig) -> None:
    """The lease is lost while the judge works; another worker finishes; the first one's result comes too late."""
    job_id = rig.submit()
    rig.run_until(job_id, "c0/evaluate/0")
    step = rig.step(job_id, "c0/evaluate/0")
    evaluate = rig.judge.evaluate

    def slow(*arguments: object, **named: object) -> object:
        rig.judge.evaluate = evaluate  # type: ignore[method-assign]
        expire(rig, step.id)
        reap(rig.database)
        rig.make_ready(step.id)
        run_step(step.id, 1, "quick", rig.tools, lambda: False)
        return evaluate(*arguments, **named)  # type: ignore[arg-type]

    rig.judge.evaluate = slow  # type: ignore[assignment,method-assign]
    run_step(step.id, 0, "slow", rig.tools, lambda: False)
    with rig.database.transaction() as session:
        count = session.execute(select(func.count()).where(EvaluationRow.step_id == step.id)).scalar_one()
    assert count == 1
    assert rig.step(job_id, step.key).attempt == 2
    assert rig.events(job_id).count("candidate.measured") == 1


def test_a_released_step_costs_no_attempt(rig: Rig) -> None:
    step_id = rig.step(rig.submit(), "prepare").id
    for attempt in range(5):
        held = claim(rig, step_id, attempt)
        assert held is not None
        with rig.database.transaction() as session:
            release_step(session, held)
    with rig.database.transaction() as session:
        step = session.get_one(Step, step_id)
        assert step.max_attempts - step.attempt == 3
        assert step.state is StepState.QUEUED


def test_a_step_of_a_cancelled_job_is_not_to_be_had(rig: Rig) -> None:
    job_id = rig.submit()
    held = claim(rig, rig.step(job_id, "prepare").id)
    assert held is not None
    with rig.database.transaction() as session:
        request_cancel(session, ensure_team(session, "blue").id, job_id)
    assert rig.job(job_id).state is JobState.CANCELLING
    with rig.database.transaction() as session:
        assert not still_wanted(session, held)
        release_step(session, held)
    assert claim(rig, held.step_id, attempt=1) is None
