"""Recovery from what goes wrong beside kernels: silent workers, faulty machines, cancels, time."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

import workers.steps
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import Budgets
from cupilot.domain.states import CandidateState, JobState, StepKind, StepState
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Event, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.job_views import job_view
from cupilot.storage.jobs.jobs import request_cancel
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.queue.cluster import cluster_overview
from cupilot.storage.queue.steps import claim_step, release_step
from tests.service.doubles import strategy
from tests.service.rig import Message, Rig
from workers.clock import ClockWatch
from workers.handlers.registry import HANDLERS
from workers.reaper import end_cancelled, end_overtime, reap
from workers.steps import RETRY_SECONDS

pytestmark = pytest.mark.service


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    return Rig(database, settings)


def die_with(rig: Rig, message: Message) -> None:
    """A worker takes the step and is never heard of again; its lease runs out."""
    step_id = uuid.UUID(message[1][0])
    with rig.database.transaction() as session:
        assert claim_step(session, step_id, message[1][1], "dead", timedelta(seconds=30)) is not None
        gone = func.now() - timedelta(seconds=1)
        session.execute(update(Step).where(Step.id == step_id).values(lease_expires_at=gone))
    reap(rig.database)
    rig.make_ready(step_id)


def set_clock_back(rig: Rig) -> None:
    """Half an hour on the database's clock: what is written then lies ahead by so much."""
    shift_what_is_written(rig, timedelta(minutes=30))


def set_clock_forward(rig: Rig) -> None:
    """An hour: what is written lies so far behind."""
    shift_what_is_written(rig, -timedelta(hours=1))


def shift_what_is_written(rig: Rig, ahead: timedelta) -> None:
    moments = (Step.dispatched_at, Step.started_at, Step.finished_at, Step.lease_expires_at, Step.not_before)
    with rig.database.transaction() as session:
        session.execute(update(Step).values({moment: moment + ahead for moment in moments}))
        session.execute(update(Job).values(started_at=Job.started_at + ahead))


def cancel(rig: Rig, job_id: uuid.UUID) -> None:
    with rig.database.transaction() as session:
        request_cancel(session, ensure_team(session, "blue").id, job_id)


def test_a_dead_workers_step_is_done_by_another(rig: Rig) -> None:
    job_id = rig.submit()
    die_with(rig, rig.publish()[0])
    step = rig.step(job_id, "prepare")
    assert (step.state, step.attempt) == (StepState.QUEUED, 1)
    assert "step.reaped" in rig.events(job_id)
    rig.run()
    assert rig.job(job_id).state is JobState.SUCCEEDED


def test_a_clock_set_back_charges_nothing_and_holds_nothing_up(rig: Rig) -> None:
    job_id = rig.submit()
    step_id, attempt = map(str, rig.publish()[0][1])
    with rig.database.transaction() as session:
        assert claim_step(session, uuid.UUID(step_id), int(attempt), "dead", timedelta(seconds=30)) is not None
    set_clock_back(rig)
    reap(rig.database)
    step = rig.step(job_id, "prepare")
    assert (step.state, step.attempt, step.busy_seconds, rig.job(job_id).gpu_seconds) == (StepState.QUEUED, 1, 0, 0)
    set_clock_back(rig)  # the second attempt is put off until then
    message = rig.publish()[0]

    def meanwhile(*_: object, **__: object) -> None:
        set_clock_back(rig)

    rig.judge.prepare = _after(meanwhile, rig.judge.prepare)  # type: ignore[method-assign]
    rig.do(message)
    assert rig.step(job_id, "prepare").state is StepState.SUCCEEDED
    rig.run()
    assert rig.job(job_id).state is JobState.SUCCEEDED


def test_a_clock_set_forward_charges_what_workers_had_and_is_no_wall_time(rig: Rig) -> None:
    job_id = rig.submit()
    step_id, attempt = map(str, rig.publish()[0][1])
    with rig.database.transaction() as session:
        assert claim_step(session, uuid.UUID(step_id), int(attempt), "dead", timedelta(seconds=30)) is not None
    own = [1_000.0]
    watch = ClockWatch(600.0, lambda: own[0])
    watch.look(rig.database)
    set_clock_forward(rig)
    own[0] -= 3_600
    watch.look(rig.database)
    watch.look(rig.database)
    assert rig.job(job_id).paused_seconds == pytest.approx(3_600, abs=5)
    reap(rig.database)
    dead = rig.step(job_id, "prepare").busy_seconds
    assert 29 < dead <= 30, "a worker that fell silent had it until its lease ended, at most"
    rig.make_ready(uuid.UUID(step_id))
    message = rig.publish()[0]
    rig.judge.prepare = _after(lambda *_, **__: set_clock_forward(rig), rig.judge.prepare)  # type: ignore[method-assign]
    rig.do(message)
    assert rig.step(job_id, "prepare").state is StepState.SUCCEEDED
    assert rig.step(job_id, "prepare").busy_seconds - dead < 600
    with rig.database.transaction() as session:
        assert job_view(session, rig.job(job_id).team_id, job_id).wall_seconds < 3_600 + 600


def test_a_kernel_that_kills_every_worker_fails_alone(rig: Rig) -> None:
    job_id = rig.submit()
    message = rig.run_until(job_id, "c0/evaluate/0")
    for _ in range(3):
        die_with(rig, message)
        message = next(iter(rig.publish()), message)
    step = rig.step(job_id, "c0/evaluate/0")
    assert (step.state, step.attempt) == (StepState.FAILED, 3)
    assert step.error is not None
    assert step.error["reason"] == "worker_lost"
    _finish(rig)
    candidate = rig.candidates(job_id)[0]
    assert (candidate.state, candidate.reason) == (CandidateState.FAILED, "worker_lost")
    assert rig.job(job_id).state is JobState.SUCCEEDED


def test_a_preparation_that_kills_every_worker_fails_the_job(rig: Rig) -> None:
    job_id = rig.submit()
    for _ in range(3):
        die_with(rig, rig.publish()[0])
    job = rig.job(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, "worker_lost")


def test_a_lost_confirmation_keeps_the_audited_kernel(rig: Rig) -> None:
    job_id = rig.submit(method=SceConfig(population=2, generations=1, elites=1))
    message = rig.run_until(job_id, "confirm/0")
    for _ in range(3):
        die_with(rig, message)
        message = next(iter(rig.publish()), message)
    job = rig.job(job_id)
    assert (job.state, job.reason) == (JobState.SUCCEEDED, "not_confirmed")
    assert job.best_candidate_id is not None
    error = rig.step(job_id, "confirm/0").error
    assert error is not None
    assert job.message == f"the best kernel is audited, but could not be measured again: {error['message']}"


def test_a_faulty_machine_is_not_the_kernels_fault(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy("lost"), strategy("t1")])
    job_id = rig.submit(method=SceConfig(population=2, generations=1, elites=1))
    _finish(rig)
    lost = rig.candidates(job_id)[0]
    assert (lost.state, lost.reason, lost.verdict) == (CandidateState.FAILED, "infrastructure", None)
    assert rig.judge.calls.count("evaluate lost") == 3
    assert rig.job(job_id).state is JobState.SUCCEEDED


def test_a_problem_that_is_too_large_to_be_judged_ends_at_the_second_attempt(
    database: Database, settings: Settings
) -> None:
    rig = Rig(database, settings, [strategy("large"), strategy("large", "t1")])
    job_id = rig.submit(method=SceConfig(population=2, generations=1, elites=1))
    _finish(rig)
    job = rig.job(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, "out_of_memory")
    assert job.message is not None
    assert "memory" in job.message
    asked = [call for call in rig.judge.calls if call.startswith("evaluate")]
    assert len(asked) <= 3, "the other kernel was tried once, while the first one waited for its second attempt"
    assert all(candidate.state is not CandidateState.ACTIVE for candidate in rig.candidates(job_id))


def test_a_job_with_a_kernel_outlives_one_that_the_judge_lacked_memory_for(
    database: Database, settings: Settings
) -> None:
    rig = Rig(database, settings, [strategy("t1"), strategy("large")])
    job_id = rig.submit(method=SceConfig(population=2, generations=1, elites=1))
    _finish(rig)
    assert rig.job(job_id).state is JobState.SUCCEEDED
    assert [candidate.reason for candidate in rig.candidates(job_id)] == [None, "out_of_memory"]


def test_a_step_that_was_released_is_tried_twice_where_the_judge_lacks_memory(
    database: Database, settings: Settings
) -> None:
    rig = Rig(database, settings, [strategy("t1"), strategy("large")])
    job_id = rig.submit(method=SceConfig(population=2, generations=1, elites=1))
    step_id, attempt = rig.run_until(job_id, "c1/evaluate/0")[1]
    with database.transaction() as session:
        held = claim_step(session, uuid.UUID(step_id), attempt, "gpu-1", timedelta(minutes=1))
        assert held is not None
        release_step(session, held)
    _finish(rig)
    assert rig.judge.calls.count("evaluate large") == 2
    assert rig.candidates(job_id)[1].reason == "out_of_memory"


def test_a_worker_whose_device_is_lost_gets_no_more_work(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy("lost"), strategy("t1")])
    rig.tools = replace(rig.tools, device_fault=lambda: "the card fell off the bus")
    job_id = rig.submit(method=SceConfig(population=2, generations=1, elites=1))
    rig.run()
    with database.transaction() as session:
        workers = {view.worker.name: view for view in cluster_overview(session).workers}
    assert not workers["gpu-1"].live
    assert workers["gpu-1"].worker.note == "the card fell off the bus"
    assert workers["agent-1"].live
    assert rig.step(job_id, "c0/evaluate/0").attempt == 1
    assert rig.job(job_id).state is JobState.EVOLVING, "it waits for another worker"


def test_a_fault_of_ours_fails_the_step_after_its_attempts_and_not_the_job(rig: Rig) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    rig.players.align = broken  # type: ignore[assignment,method-assign]
    job_id = rig.submit(method=SceConfig(population=2, generations=1, elites=1))
    _finish(rig)
    assert {candidate.reason for candidate in rig.candidates(job_id)} == {"internal_error"}
    assert rig.job(job_id).state is JobState.SUCCEEDED, "they were measured before"
    error = rig.step(job_id, "c0/align/0").error
    assert error is not None
    assert error["message"].startswith("ZeroDivisionError in a worker")
    assert "a bug" not in error["message"], "an error may hold SQL or secrets; it belongs into the log"


def test_a_result_that_cannot_be_stored_is_a_failed_attempt_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = HANDLERS[StepKind.PREPARE]

    def store(session: Session, job: Job, step: Step, result: Any) -> None:
        prepare.store(session, job, step, result)
        if step.attempt == 1:
            raise ZeroDivisionError("a bug")

    monkeypatch.setattr(workers.steps, "HANDLERS", {**HANDLERS, StepKind.PREPARE: replace(prepare, store=store)})
    job_id = rig.submit(method=SceConfig(population=2, generations=1, elites=1))
    rig.do(rig.publish()[0])
    step = rig.step(job_id, "prepare")
    assert (step.state, step.attempt) == (StepState.QUEUED, 1)
    assert step.error is not None
    assert (step.error["reason"], step.error["message"][:29]) == ("internal_error", "ZeroDivisionError in a worker")
    assert rig.job(job_id).state is JobState.PREPARING, "nothing of the result was kept"
    rig.make_ready(step.id)
    _finish(rig)
    assert rig.job(job_id).state is JobState.SUCCEEDED


def test_a_retry_is_postponed(rig: Rig) -> None:
    job_id = rig.submit()
    rig.judge.prepare = _raise_os_error  # type: ignore[assignment,method-assign]
    (message,) = rig.publish()
    rig.do(message)
    step = rig.step(job_id, "prepare")
    assert (step.state, step.attempt) == (StepState.QUEUED, 1)
    with rig.database.transaction() as session:
        failed_at = session.scalars(select(Event.created_at).where(Event.kind == "step.retried")).one()
    pause = timedelta(seconds=RETRY_SECONDS)
    assert step.not_before == failed_at + pause
    # A machine may stand still for longer than that. Nine minutes are more than a test may last, and less than what
    # is taken for a clock that was set back.
    ahead = timedelta(minutes=9)
    shift_what_is_written(rig, ahead)
    assert rig.publish() == [], "its time has not come"
    shift_what_is_written(rig, -ahead - pause)
    assert rig.publish() == [(message[0], [str(step.id), 1], message[2])]


def test_a_cancel_reaches_the_work_and_ends_the_job(rig: Rig) -> None:
    job_id = rig.submit()
    rig.judge.hold = threading.Event()
    working = threading.Thread(target=rig.do, args=[rig.publish()[0]])
    working.start()
    assert rig.judge.held.wait(10)
    cancel(rig, job_id)
    assert rig.job(job_id).state is JobState.CANCELLING
    working.join(20)
    assert not working.is_alive()
    assert rig.job(job_id).state is JobState.CANCELLED
    assert rig.step(job_id, "prepare").state is StepState.CANCELLED


def test_a_result_after_the_cancel_is_not_followed(rig: Rig) -> None:
    job_id = rig.submit()
    prepare = rig.judge.prepare

    def cancelled_meanwhile(*arguments: object, **named: object) -> object:
        cancel(rig, job_id)
        return prepare(*arguments, **named)  # type: ignore[arg-type]

    rig.judge.prepare = cancelled_meanwhile  # type: ignore[assignment,method-assign]
    rig.do(rig.publish()[0])
    assert rig.job(job_id).state is JobState.CANCELLED
    assert rig.publish() == []


def test_a_worker_that_does_not_let_go_is_not_waited_for(rig: Rig) -> None:
    job_id = rig.submit()
    message = rig.publish()[0]
    with rig.database.transaction() as session:
        claim_step(session, uuid.UUID(message[1][0]), 0, "stubborn", timedelta(hours=1))
    cancel(rig, job_id)
    end_cancelled(rig.database, timedelta(hours=1))
    assert rig.job(job_id).state is JobState.CANCELLING
    end_cancelled(rig.database, timedelta(0))
    assert rig.job(job_id).state is JobState.CANCELLED
    assert rig.step(job_id, "prepare").state is StepState.CANCELLED


def test_a_dead_worker_does_not_hold_up_a_cancel(rig: Rig) -> None:
    job_id = rig.submit()
    message = rig.publish()[0]
    step_id = uuid.UUID(message[1][0])
    with rig.database.transaction() as session:
        claim_step(session, step_id, 0, "dead", timedelta(hours=1))
    cancel(rig, job_id)
    with rig.database.transaction() as session:
        gone = func.now() - timedelta(seconds=1)
        session.execute(update(Step).where(Step.id == step_id).values(lease_expires_at=gone))
    reap(rig.database)
    end_cancelled(rig.database, timedelta(hours=1))
    assert rig.job(job_id).state is JobState.CANCELLED


def test_wall_time_ends_a_job_and_keeps_its_best(rig: Rig) -> None:
    job_id = rig.submit(budgets=Budgets(candidates=50, wall_seconds=100.0))
    rig.run_until(job_id, "c2/evaluate/0")
    end_overtime(rig.database)
    assert rig.job(job_id).state is JobState.EVOLVING
    with rig.database.transaction() as session:
        began = Job.started_at - timedelta(seconds=200)
        session.execute(update(Job).where(Job.id == job_id).values(started_at=began))
    end_overtime(rig.database)
    job = rig.job(job_id)
    assert (job.state, job.reason) == (JobState.BUDGET_EXHAUSTED, "wall_budget")
    assert job.best_candidate_id is not None
    assert {step.state for step in rig.steps(job_id)} == {StepState.SUCCEEDED, StepState.CANCELLED}
    assert rig.publish() == []


def test_money_ends_the_evolution(rig: Rig) -> None:
    job_id = rig.submit(budgets=Budgets(candidates=50, cost_usd=1.0))
    rig.run_until(job_id, "c0/evaluate/0")
    with rig.database.transaction() as session:
        session.execute(update(Job).where(Job.id == job_id).values(cost_usd=1.5))
        # What was published before is taken once more.
        session.execute(update(Step).where(Step.state == StepState.QUEUED).values(dispatched_at=None))
    rig.run()
    job = rig.job(job_id)
    assert (job.state, job.reason) == (JobState.BUDGET_EXHAUSTED, "cost_budget")
    assert job.generation == 0


def test_a_draining_worker_hands_its_message_back(rig: Rig) -> None:
    job_id = rig.submit()
    (message,) = rig.publish()
    rig.do(message, draining=True)
    step = rig.step(job_id, "prepare")
    assert (step.state, step.attempt, step.dispatched_at) == (StepState.QUEUED, 0, None)
    rig.make_ready(step.id)
    assert rig.publish() == [message]


def _after(first: Callable[..., None], then: Callable[..., Any]) -> Callable[..., Any]:
    def both(*arguments: Any, **named: Any) -> Any:
        first()
        return then(*arguments, **named)

    return both


def _raise_os_error(*_: object, **__: object) -> None:
    raise OSError("no space left on device")


def _finish(rig: Rig) -> None:
    """Run, and let postponed steps' time come."""
    waiting = True
    while waiting:
        rig.run()
        with rig.database.transaction() as session:
            queued = update(Step).where(Step.state == StepState.QUEUED).returning(Step.id)
            waiting = bool(session.execute(queued.values(not_before=None, dispatched_at=None)).all())
