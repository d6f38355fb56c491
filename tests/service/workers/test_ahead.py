"""Kernels of waiting steps are built while another step is on the device, and the queue does not notice."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import pytest
from sqlalchemy import select

from cupilot.domain.evaluation import Preparation
from cupilot.domain.kernel import Kernel
from cupilot.domain.states import StepKind, StepState
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.jobs.jobs import request_cancel
from cupilot.storage.operations.metrics import totals
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.queue.dispatch import next_steps
from cupilot.storage.queue.drains import SERVICE, begin_drain, end_drain
from cupilot.storage.queue.steps import AGENTS_QUEUE
from tests.service.rig import Message, Rig
from workers.reaper import end_cancelled
from workers.steps import run_step

pytestmark = pytest.mark.service


@pytest.fixture
def rig(database: Database, settings: Settings) -> Iterator[Rig]:
    """With an empty queue at the end, since tests share the database."""
    rig = Rig(database, settings)
    yield rig
    with database.transaction() as session:
        end_drain(session, SERVICE)
        team = ensure_team(session, "blue").id
        for job_id in session.scalars(select(Job.id).where(Job.finished_at.is_(None))).all():
            request_cancel(session, team, job_id)
    end_cancelled(database, timedelta(0))


def all_translated(rig: Rig) -> list[Message]:
    """A job whose first generation waits to be measured; the messages that a GPU worker has got of it."""
    on_device: list[Message] = []
    prepared = False
    while messages := rig.publish():
        for message in messages:
            if message[2].startswith(AGENTS_QUEUE) or not prepared:
                rig.do(message)
                prepared = True
            else:
                on_device.append(message)
    return on_device


def until(condition: Callable[[], bool], work: threading.Thread) -> None:
    while not condition():
        assert work.is_alive()
        time.sleep(0.01)


def test_waiting_kernels_are_built_and_their_steps_stay_as_they_are(rig: Rig) -> None:
    job_id = rig.submit()
    first, *published = all_translated(rig)
    before = {step.id: (step.state, step.attempt, step.dispatches, step.lease_owner) for step in rig.steps(job_id)}
    with rig.database.transaction() as session:
        coming = next_steps(session, first[2], [StepKind.EVALUATE], 3)
        assert next_steps(session, first[2], [StepKind.CONFIRM], 3) == []
    sent = {message[1][0] for message in (first, *published)}
    assert len(coming) == 3
    assert {str(each) for each in coming[: len(sent)]} == sent, "what is on its way comes first"
    rig.judge.builds_ahead, rig.judge.hold = 2, threading.Event()
    working = threading.Thread(target=rig.do, args=[first])
    working.start()
    until(lambda: len(set(rig.judge.ahead)) == 2, working)
    now = {step.id: (step.state, step.attempt, step.dispatches, step.lease_owner) for step in rig.steps(job_id)}
    measured = uuid.UUID(first[1][0])
    assert now.pop(measured)[0] is StepState.RUNNING
    assert now == {step: of for step, of in before.items() if step != measured}, "nobody has claimed them"
    rig.judge.hold.set()
    working.join()
    built = list(rig.judge.ahead)
    for message in published:
        rig.do(message)
    assert f"evaluate {built[0]}" in rig.judge.calls, "what was built was measured"
    with rig.database.transaction() as session:
        found = totals(session).builds
    assert found[first[2], "made"] >= 1
    assert found[first[2], "ahead"] >= 1


@pytest.mark.parametrize("why", ["not wanted", "drained"])
def test_nothing_is_built_for_a_worker_that_takes_no_more(rig: Rig, why: str) -> None:
    rig.submit()
    first, *_ = all_translated(rig)
    rig.judge.builds_ahead = 0 if why == "not wanted" else 2
    if why == "drained":
        with rig.database.transaction() as session:
            begin_drain(session, SERVICE, "upgrade")
    rig.do(first)
    assert rig.judge.ahead == []


def test_builds_end_with_a_worker_that_has_to_end(rig: Rig) -> None:
    rig.submit()
    first, *_ = all_translated(rig)
    rig.judge.builds_ahead, rig.judge.hold = 2, threading.Event()
    ending = threading.Event()
    step, attempt = first[1]
    arguments = (uuid.UUID(step), attempt, "gpu-1", rig.tools, ending.is_set)
    working = threading.Thread(target=run_step, args=arguments)
    working.start()
    until(lambda: len(set(rig.judge.ahead)) == 2, working)
    ending.set()
    working.join()
    assert rig.judge.ahead[-1] == "ended"


def test_a_builder_that_breaks_does_not_harm_the_measurement(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = threading.Event()

    def broken(_: Preparation, kernels: Sequence[Kernel]) -> int:
        tried.set()
        raise RuntimeError(kernels)

    job_id = rig.submit()
    first, *_ = all_translated(rig)
    monkeypatch.setattr(rig.judge, "build_ahead", broken)
    rig.judge.builds_ahead, rig.judge.hold = 2, threading.Event()
    working = threading.Thread(target=rig.do, args=[first])
    working.start()
    assert tried.wait(30)
    rig.judge.hold.set()
    working.join()
    states = {step.id: step.state for step in rig.steps(job_id)}
    assert states[uuid.UUID(first[1][0])] is StepState.SUCCEEDED
