"""Short steps in one message: claimed and stored together, and yet each for itself in whatever goes wrong."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, text, update

import workers.bundles
import workers.steps
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.problem import Target
from cupilot.domain.states import JobState, StepKind, StepState
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.queue import Step, WorkerRow
from cupilot.storage.jobs.endings import end_job
from cupilot.storage.jobs.steering import pause_job
from cupilot.storage.queue.steps import MODELS_QUEUE, claim_step, device_queue
from tests.service.faults.matrix.audit import RULES
from tests.service.rig import Message, Rig
from workers.app import BUNDLE_TASK, STEP_TASK
from workers.handlers.registry import HANDLERS
from workers.reaper import reap

pytestmark = pytest.mark.service

LONG = 5.0
"""Seconds of steps that travel together, long beside any of these on a slow machine."""
METHOD = SceConfig(population=4, generations=1, elites=1, repair_rounds=0)


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    rig = Rig(database, settings)
    # On a slow machine no bundle gives back what it has not begun, but where that is tested.
    rig.tools = replace(rig.tools, settings=settings.model_copy(update={"bundle_seconds": 10.0}))
    return rig


def bundle_of(rig: Rig, *jobs: uuid.UUID) -> Message:
    """A message with the four translations of each job."""
    wanted = {step.id for job in jobs for step in rig.steps(job) if step.kind is StepKind.TRANSLATE}
    while len(wanted) < 4 * len(jobs):
        for message in rig.publish():
            rig.do(message)
            wanted = {step.id for job in jobs for step in rig.steps(job) if step.kind is StepKind.TRANSLATE}
            if len(wanted) == 4 * len(jobs):
                break
    # None was done yet: each initialisation of the last round made its four at once.
    with rig.database.transaction() as session:
        session.execute(update(Step).where(Step.id.in_(wanted)).values(dispatched_at=None, dispatches=0))
    messages = [message for message in rig.publish(LONG) if message[0] == BUNDLE_TASK]
    assert len(messages) == 1, "one message"
    assert {uuid.UUID(step) for step in messages[0][1][0]} == wanted
    return messages[0]


def steps_of(rig: Rig, message: Message) -> list[Step]:
    ids = [uuid.UUID(step) for step in message[1][0]]
    with rig.database.transaction() as session:
        return [session.get_one(Step, step) for step in ids]


def states(rig: Rig, message: Message) -> list[StepState]:
    return [step.state for step in steps_of(rig, message)]


def finish(rig: Rig) -> None:
    """Until nothing is dispatched any more, in bundles."""
    for _ in range(200):
        messages = rig.publish(LONG)
        if not messages:
            return
        for message in messages:
            rig.do(message)
    raise AssertionError("the jobs do not come to an end")


def breaches(rig: Rig, *jobs: uuid.UUID) -> list[str]:
    with rig.database.transaction() as session:
        return [
            f"{rule}: {tuple(row)}"
            for rule, query in RULES.items()
            for row in session.execute(text(query), {"jobs": list(jobs)})
        ]


def test_short_steps_of_several_teams_travel_and_end_together(rig: Rig) -> None:
    jobs = [rig.submit("blue", method=METHOD), rig.submit("red", method=METHOD)]
    message = bundle_of(rig, *jobs)
    rig.do(message)
    assert states(rig, message) == [StepState.SUCCEEDED] * 8
    assert all(step.attempt == 1 and step.busy_seconds < LONG for step in steps_of(rig, message))
    finish(rig)
    assert [rig.job(job).state for job in jobs] == [JobState.SUCCEEDED] * 2
    assert breaches(rig, *jobs) == []


def test_a_bundle_that_is_delivered_twice_is_done_once(rig: Rig) -> None:
    job = rig.submit(method=METHOD)
    message = bundle_of(rig, job)
    rig.do(message)
    rig.do(message)
    assert rig.events(job).count("step.succeeded") == 6
    finish(rig)
    assert breaches(rig, job) == []


def test_what_another_worker_has_is_left_to_it(rig: Rig) -> None:
    message = bundle_of(rig, rig.submit(method=METHOD))
    taken = steps_of(rig, message)[1]
    with rig.database.transaction() as session:
        assert claim_step(session, taken.id, 0, "agent-2", timedelta(seconds=30)) is not None
    rig.do(message)
    assert states(rig, message).count(StepState.SUCCEEDED) == 3
    assert rig.step(taken.job_id, taken.key).lease_owner == "agent-2"


def test_steps_of_a_paused_job_are_not_begun(rig: Rig) -> None:
    blue, red = rig.submit("blue", method=METHOD), rig.submit("red", method=METHOD)
    message = bundle_of(rig, blue, red)
    with rig.database.transaction() as session:
        pause_job(session, rig.job(blue).team_id, blue, author="ann")
    rig.do(message)
    done = {step.job_id for step in steps_of(rig, message) if step.state is StepState.SUCCEEDED}
    assert done == {red}


def test_a_step_that_cannot_be_stored_fails_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that cannot be stored together are stored one by one: one team's fault costs no other team anything."""
    blue, red = rig.submit("blue", method=METHOD), rig.submit("red", method=METHOD)
    message = bundle_of(rig, blue, red)
    translate = HANDLERS[StepKind.TRANSLATE]

    def store(session: Any, job: Any, step: Any, result: Any) -> None:
        if job.id == blue:
            raise RuntimeError("cannot be stored")
        translate.store(session, job, step, result)

    broken = {**HANDLERS, StepKind.TRANSLATE: replace(translate, store=store)}
    monkeypatch.setattr(workers.bundles, "HANDLERS", broken)
    monkeypatch.setattr(workers.steps, "HANDLERS", broken)
    rig.do(message)
    succeeded = {step.job_id for step in steps_of(rig, message) if step.state is StepState.SUCCEEDED}
    assert succeeded == {red}
    failed = [step for step in steps_of(rig, message) if step.job_id == blue]
    assert {(step.state, step.attempt) for step in failed} == {(StepState.QUEUED, 1)}
    assert {(step.error or {})["reason"] for step in failed} == {"internal_error"}


def test_a_step_that_fails_is_tried_again_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    job = rig.submit(method=METHOD)
    message = bundle_of(rig, job)
    first = steps_of(rig, message)[0]
    translate = HANDLERS[StepKind.TRANSLATE]

    def work(step: Any, *rest: Any) -> Any:
        if step.claim.step_id == first.id and step.claim.attempt == 1:
            raise RuntimeError("once")
        return translate.work(step, *rest)

    monkeypatch.setattr(workers.steps, "HANDLERS", {**HANDLERS, StepKind.TRANSLATE: replace(translate, work=work)})
    rig.do(message)
    assert states(rig, message).count(StepState.SUCCEEDED) == 3
    rig.make_ready(first.id)
    sent = rig.publish(LONG)
    assert (STEP_TASK, [str(first.id), 1], message[2]) in sent, "in a message of its own"
    for each in sent:
        rig.do(each)
    finish(rig)
    assert breaches(rig, job) == []


def test_steps_of_a_worker_that_died_are_tried_again_one_by_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that kills its worker has company once only: the others do not use up their attempts with it."""
    job = rig.submit(method=METHOD)
    message = bundle_of(rig, job)

    def die(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(workers.bundles, "_run", die)
        with pytest.raises(SystemExit):
            rig.do(message)
    with rig.database.transaction() as session:
        session.execute(
            update(Step)
            .values(lease_expires_at=func.now() - timedelta(minutes=1))
            .where(Step.state == StepState.RUNNING)
        )
    reap(rig.database)
    assert states(rig, message) == [StepState.QUEUED] * 4
    for step in steps_of(rig, message):
        rig.make_ready(step.id)
    sent = [each for each in rig.publish(LONG) if each[2] == message[2]]
    assert [each[0] for each in sent] == [STEP_TASK] * 4
    for each in sent:
        rig.do(each)
    finish(rig)
    assert breaches(rig, job) == []


def test_a_bundle_that_takes_too_long_gives_back_the_rest(rig: Rig) -> None:
    job = rig.submit(method=METHOD)
    message = bundle_of(rig, job)
    rig.tools = replace(rig.tools, settings=rig.settings.model_copy(update={"bundle_seconds": 0.0}))
    rig.do(message)
    given_back = [step for step in steps_of(rig, message) if step.state is StepState.QUEUED]
    assert given_back
    assert all(step.max_attempts == rig.settings.step_attempts + 1 for step in given_back), "no attempt is charged"
    finish(rig)
    assert breaches(rig, job) == []


def test_a_worker_that_ends_returns_its_bundle(rig: Rig) -> None:
    message = bundle_of(rig, rig.submit(method=METHOD))
    rig.do(message, draining=True)
    steps = steps_of(rig, message)
    assert [(step.state, step.attempt, step.dispatched_at) for step in steps] == [(StepState.QUEUED, 0, None)] * 4


def test_a_cancelled_job_costs_its_own_steps_only(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    blue, red = rig.submit("blue", method=METHOD), rig.submit("red", method=METHOD)
    message = bundle_of(rig, blue, red)
    translate = HANDLERS[StepKind.TRANSLATE]

    def work(*arguments: Any) -> Any:
        with rig.database.transaction() as session:  # in the middle of the bundle
            session.execute(
                text("UPDATE jobs SET cancel_requested_at = now(), state = 'cancelling' WHERE id = :job"), {"job": blue}
            )
        return translate.work(*arguments)

    monkeypatch.setattr(workers.steps, "HANDLERS", {**HANDLERS, StepKind.TRANSLATE: replace(translate, work=work)})
    rig.do(message)
    by_job = {job: {step.state for step in steps_of(rig, message) if step.job_id == job} for job in (blue, red)}
    assert by_job == {blue: {StepState.CANCELLED}, red: {StepState.SUCCEEDED}}
    assert rig.job(blue).state is JobState.CANCELLED
    monkeypatch.undo()
    finish(rig)
    assert breaches(rig, blue, red) == []


def test_a_result_that_comes_after_its_job_has_ended_is_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of a job's steps ends it: the others in the bundle are stale, as if they had come by themselves."""
    blue, red = rig.submit("blue", method=METHOD), rig.submit("red", method=METHOD)
    message = bundle_of(rig, blue, red)
    translate = HANDLERS[StepKind.TRANSLATE]

    def store(session: Any, job: Any, step: Any, result: Any) -> None:
        if job.id == blue:
            end_job(session, job, JobState.BUDGET_EXHAUSTED, reason="wall_time", message="used up")
        else:
            translate.store(session, job, step, result)

    broken = {**HANDLERS, StepKind.TRANSLATE: replace(translate, store=store)}
    with monkeypatch.context() as patched:
        patched.setattr(workers.bundles, "HANDLERS", broken)
        patched.setattr(workers.steps, "HANDLERS", broken)
        rig.do(message)
    of_blue = sorted(step.state for step in steps_of(rig, message) if step.job_id == blue)
    assert of_blue == [StepState.CANCELLED] * 3 + [StepState.SUCCEEDED]
    finish(rig)
    assert rig.job(red).state is JobState.SUCCEEDED
    assert breaches(rig, blue, red) == []


def test_few_steps_are_spread_over_the_slots(rig: Rig) -> None:
    """A bundle is for a backlog: where slots are free, each gets its part."""
    message = bundle_of(rig, rig.submit(method=METHOD))
    with rig.database.transaction() as session:
        session.execute(update(WorkerRow).where(WorkerRow.name == "agent-1").values(slots=2))
        session.execute(update(Step).where(Step.state == StepState.QUEUED).values(dispatched_at=None, dispatches=0))
    assert [len(each[1][0]) for each in rig.publish(LONG) if each[2] == message[2]] == [2, 2]


def test_steps_of_models_and_devices_travel_alone(rig: Rig) -> None:
    """Any of them may take minutes, whatever they take on average."""
    job = rig.submit(method=METHOD)
    message = bundle_of(rig, job)
    assert {each[0] for each in rig.postbox.sent if each[2] != message[2]} == {STEP_TASK}
    for queue in (MODELS_QUEUE, device_queue(Target.CPU)):
        with rig.database.transaction() as session:
            waiting = update(Step).where(Step.state == StepState.QUEUED)
            session.execute(waiting.values(queue=queue, dispatched_at=None, dispatches=0))
            session.execute(update(WorkerRow).values(queues=[queue]))
        assert {each[0] for each in rig.publish(LONG)} == {STEP_TASK}


def test_long_steps_travel_alone(rig: Rig) -> None:
    job = rig.submit(method=METHOD)
    bundle_of(rig, job)
    with rig.database.transaction() as session:
        session.execute(update(Step).where(Step.finished_at.is_not(None)).values(busy_seconds=20.0))
        session.execute(update(Step).where(Step.state == StepState.QUEUED).values(dispatched_at=None, dispatches=0))
    assert {message[0] for message in rig.publish(LONG)} == {STEP_TASK}
    with rig.database.transaction() as session:
        assert session.scalars(select(func.count()).where(Step.dispatches > 0)).one() == 2, "one slot and one more"
