"""Drained: what runs is finished, nothing new is taken, nothing is lost; then it goes on."""

from __future__ import annotations

import argparse
import json
import threading
import uuid
from collections.abc import Sequence
from datetime import timedelta

import pytest
from sqlalchemy import func, update

from cupilot.domain.errors import NotFound
from cupilot.domain.problem import Target
from cupilot.domain.states import JobState, StepState, WorkerKind
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.queue import Drain
from cupilot.storage.people.audit import AuditFilter, list_entries
from cupilot.storage.queue.cluster import live_workers, register_worker
from cupilot.storage.queue.drains import SERVICE, begin_drain, drains, end_drain, is_drained, prune_drains
from cupilot.storage.queue.steps import claim_step, device_queue
from tests.service.doubles import device
from tests.service.rig import Rig
from workers.dispatcher import note_missing
from workers.draining import Draining
from workers.operator import NOT_DRAINED, add_commands, run_command
from workers.steps import return_step

pytestmark = pytest.mark.service


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    return Rig(database, settings)


def command(rig: Rig, *words: str) -> int:
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers(dest="role", required=True))
    return run_command(parser.parse_args(words), rig.database)


def shown(capsys: pytest.CaptureFixture[str]) -> Sequence[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_drained_service_finishes_what_runs_and_takes_nothing_new(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    first = rig.submit()
    rig.judge.hold = threading.Event()
    working = threading.Thread(target=rig.do, args=[rig.publish()[0]])
    working.start()
    assert rig.judge.held.wait(10)
    assert command(rig, "drain", "--reason", "upgrade", "--wait", "0") == NOT_DRAINED
    second = rig.submit(request_hash="1" * 64)
    assert rig.publish() == [], "a job is accepted, and waits"
    rig.judge.hold.set()
    working.join(20)
    assert rig.step(first, "prepare").state is StepState.SUCCEEDED
    assert command(rig, "drain", "--reason", "upgrade", "--wait", "5") == 0
    assert [(line["scope"], line["running"]) for line in shown(capsys)] == [(SERVICE, 1), (SERVICE, 0)]
    assert rig.publish() == []
    assert command(rig, "resume") == 0
    rig.run()
    assert {rig.job(job).state for job in (first, second)} == {JobState.SUCCEEDED}
    with rig.database.transaction() as session:
        told = list_entries(session, None, AuditFilter(principal="operator"), before=None, limit=9).items
    assert [(item.route, item.resource, item.changes) for item in told] == [
        ("workers resume", SERVICE, {"drain.reason": ["upgrade", None]}),
        ("workers drain", SERVICE, None),
        ("workers drain", SERVICE, {"drain.reason": [None, "upgrade"]}),
    ]


@pytest.mark.parametrize("scope", [SERVICE, "gpu-1"])
@pytest.mark.parametrize("target", Target)
def test_a_job_that_waits_for_a_drain_says_so(rig: Rig, scope: str, target: Target) -> None:
    with rig.database.transaction() as session:
        if target is Target.CUDA:
            gpu = device(Target.CUDA, "sm_90")
            register_worker(session, "gpu-1", WorkerKind.GPU, queues=["gpu.sm_90"], slots=1, version="t", device=gpu)
        begin_drain(session, scope, "upgrade")
    job = rig.submit(target=target)
    note_missing(rig.database)
    assert rig.job(job).reason == "draining"
    with rig.database.transaction() as session:
        end_drain(session, scope)
    note_missing(rig.database)
    assert (rig.job(job).reason, rig.job(job).message) == (None, None)


def test_a_drained_worker_is_sent_nothing_and_the_others_go_on(rig: Rig) -> None:
    job = rig.submit()
    assert command(rig, "drain", "gpu-1") == 0
    assert rig.publish() == []
    with rig.database.transaction() as session:
        assert is_drained(session, "gpu-1")
        assert not is_drained(session, "agent-1")
        assert {worker.name for worker in live_workers(session)} == {"agent-1", "gpu-1"}, "it still reports itself"
        assert end_drain(session, "gpu-1")
    rig.run()
    assert rig.job(job).state is JobState.SUCCEEDED


def test_a_worker_drained_until_it_restarts_takes_steps_again_once_it_registers(rig: Rig) -> None:
    """The chart drains a container before its end, also when only a probe failed; its successor has its name."""
    assert command(rig, "drain", "gpu-1", "--until-restart", "--reason", "pod ends") == 0
    assert command(rig, "drain", "agent-1") == 0
    assert command(rig, "drain", "agent-1", "--until-restart", "--reason", "pod ends") == 0
    with rig.database.transaction() as session:
        assert is_drained(session, "gpu-1")
        register_worker(session, "gpu-1", WorkerKind.GPU, queues=["gpu.cpu"], slots=1, version="t", device=device())
        register_worker(session, "agent-1", WorkerKind.AGENT, queues=["agents"], slots=1, version="t", device=None)
        [kept] = drains(session)
    assert (kept.scope, kept.reason) == ("agent-1", "drained by an operator"), "an operator's drain stays"


def test_a_message_that_was_on_its_way_is_returned_and_sent_again(rig: Rig) -> None:
    job = rig.submit()
    (message,) = rig.publish()
    with rig.database.transaction() as session:
        begin_drain(session, SERVICE, "test")
    return_step(rig.step(job, "prepare").id, 0, rig.tools)
    step = rig.step(job, "prepare")
    assert (step.state, step.attempt, step.dispatched_at) == (StepState.QUEUED, 0, None)
    with rig.database.transaction() as session:
        end_drain(session, SERVICE)
    rig.make_ready(step.id)
    assert rig.publish() == [message]


def test_a_drained_worker_is_not_sent_what_it_hands_back_over_and_over(rig: Rig) -> None:
    """The other one is busy, so that the drained one takes the message that is sent ahead to their queue."""
    with rig.database.transaction() as session:
        queues = [device_queue(Target.CPU)]
        register_worker(session, "gpu-2", WorkerKind.GPU, queues=queues, slots=1, version="t", device=device())
        begin_drain(session, "gpu-1", "test")
    jobs = [rig.submit(), rig.submit(request_hash="1" * 64)]
    with rig.database.transaction() as session:
        busy, returned = rig.publish()
        assert claim_step(session, uuid.UUID(busy[1][0]), 0, "gpu-2", timedelta(minutes=1)) is not None
    sent = 0
    for _ in range(5):
        return_step(uuid.UUID(returned[1][0]), 0, rig.tools)
        sent += len(rig.publish())
    assert sent <= 1, "at most once a second"
    rig.make_ready(uuid.UUID(returned[1][0]))
    assert rig.publish() == [returned]
    assert {rig.job(job).state for job in jobs} == {JobState.PREPARING, JobState.QUEUED}


def test_a_closed_worker_keeps_what_it_holds_and_one_that_ends_lets_go() -> None:
    draining = Draining()
    draining.close(True)
    assert draining.closed
    assert not draining(), "running steps are not touched"
    draining.close(False)
    assert not draining.closed
    draining.begin()
    assert draining.closed
    assert draining()


def test_only_workers_that_exist_are_drained_and_a_drain_outlives_a_repair(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NotFound):
        command(rig, "drain", "gpu-9")
    command(rig, "drain", "gpu-1")
    command(rig, "drain", "agent-1", "--until-restart")
    with rig.database.transaction() as session:
        for worker in live_workers(session):
            session.delete(worker)
        session.flush()
        prune_drains(session)
    capsys.readouterr()
    assert command(rig, "drains") == 0
    assert [line["scope"] for line in shown(capsys)] == ["gpu-1"]
    with rig.database.transaction() as session:
        session.execute(update(Drain).values(since=func.now() - timedelta(days=31)))
        prune_drains(session)
    assert command(rig, "resume", "gpu-1") == 0
    assert shown(capsys) == [{"scope": "gpu-1", "resumed": False}]


def test_whoever_waits_for_a_drain_that_is_ended_meanwhile_is_told(
    rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = rig.submit()
    rig.publish()
    with rig.database.transaction() as session:
        assert claim_step(session, rig.step(job, "prepare").id, 0, "gpu-1", timedelta(minutes=1)) is not None

    def resume(_: float) -> None:
        with rig.database.transaction() as session:
            end_drain(session, "gpu-1")

    monkeypatch.setattr("workers.operator.time.sleep", resume)
    assert command(rig, "drain", "gpu-1", "--wait", "60") == NOT_DRAINED
    assert shown(capsys) == [{"scope": "gpu-1", "ended": True, "running": 1}]
