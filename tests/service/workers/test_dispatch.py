"""Dispatch: who gets the next slot, and what happens to messages that are lost or sent twice."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError

from cupilot.domain.job import Priority
from cupilot.domain.problem import Target
from cupilot.domain.states import JobState, StepKind, WorkerKind
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.people import Team
from cupilot.storage.db.tables.pool import PoolReference
from cupilot.storage.db.tables.queue import Outbox, Step, WorkerRow
from cupilot.storage.db.transitions import lock_job
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.queue.cluster import QueueCounts, cluster_overview, forget_worker, register_worker
from cupilot.storage.queue.steps import AGENTS_QUEUE, MODELS_QUEUE, add_step, claim_step
from tests.service.doubles import device, strategy
from tests.service.rig import Message, Rig
from workers.dispatcher import note_missing, request_index
from workers.relay import Relay

pytestmark = pytest.mark.service


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    return Rig(database, settings)


def owners(rig: Rig, messages: list[Message]) -> list[str]:
    """The teams whose steps were published, in order."""
    with rig.database.transaction() as session:
        query = select(Team.name).join(Job, Job.team_id == Team.id).join(Step, Step.job_id == Job.id)
        return [session.scalars(query.where(Step.id == uuid.UUID(message[1][0]))).one() for message in messages]


def jobs_of(rig: Rig, messages: list[Message]) -> list[uuid.UUID]:
    with rig.database.transaction() as session:
        return [session.get_one(Step, uuid.UUID(message[1][0])).job_id for message in messages]


def finish(rig: Rig, message: Message, seconds: float = 1.0) -> None:
    """Do a device step and let it have taken so long."""
    rig.do(message)
    with rig.database.transaction() as session:
        began = Step.finished_at - timedelta(seconds=seconds)
        took = {"started_at": began, "busy_seconds": seconds}
        session.execute(update(Step).where(Step.id == uuid.UUID(message[1][0])).values(took))


def one_at_a_time(rig: Rig, seconds: dict[str, float]) -> Iterator[str]:
    """The teams in the order in which their preparations are done by the one CPU worker; agents are away."""
    with rig.database.transaction() as session:
        forget_worker(session, "agent-1")
    waiting = rig.publish()
    while waiting:
        message = waiting.pop(0)
        (team,) = owners(rig, [message])
        finish(rig, message, seconds.get(team, 1.0))
        waiting += rig.publish()
        yield team


def test_only_what_free_slots_and_one_more_can_take_is_published(rig: Rig) -> None:
    for _ in range(6):
        rig.submit()
    assert len(rig.publish()) == 2
    assert rig.publish() == []
    rig.do(rig.postbox.sent[0])
    published = rig.publish()
    assert [message[2] for message in published].count("gpu.cpu") == 1


def test_a_team_with_many_jobs_does_not_starve_another(rig: Rig) -> None:
    for _ in range(6):
        rig.submit("blue")
    rig.submit("red")
    order = list(one_at_a_time(rig, {}))
    assert order.index("red") <= 2


def test_time_counts_and_not_the_number_of_steps(rig: Rig) -> None:
    for _ in range(6):
        rig.submit("blue")
        rig.submit("red")
    order = list(one_at_a_time(rig, {"blue": 100.0, "red": 10.0}))
    # Two were published before anything was known. Then red has time for all of its jobs before blue has a third one.
    third_blue = [place for place, team in enumerate(order) if team == "blue"][2]
    assert "red" not in order[third_blue:]


def test_use_fades(rig: Rig) -> None:
    """A team that had the worker to itself an hour ago has as much right to it as any other."""
    for _ in range(4):
        rig.submit("blue")
    assert list(one_at_a_time(rig, {"blue": 1_000.0})) == ["blue"] * 4
    with rig.database.transaction() as session:
        hour = timedelta(hours=1, minutes=5)
        ended = {"started_at": Step.started_at - hour, "finished_at": Step.finished_at - hour}
        session.execute(update(Step).where(Step.finished_at.is_not(None)).values(ended))
    for _ in range(2):
        rig.submit("blue")
        rig.submit("red")
    order = list(one_at_a_time(rig, {}))
    assert sorted(order[:2]) == ["blue", "red"]


def test_a_heavier_team_gets_more(rig: Rig) -> None:
    with rig.database.transaction() as session:
        ensure_team(session, "blue")
        session.execute(update(Team).where(Team.name == "blue").values(weight=5.0))
        session.execute(update(WorkerRow).where(WorkerRow.name == "gpu-1").values(slots=5))
    for _ in range(6):
        rig.submit("red")
        rig.submit("blue")
    teams = owners(rig, rig.publish())
    assert (teams.count("blue"), teams.count("red")) == (5, 1)


def test_priority_orders_within_a_team_only(rig: Rig) -> None:
    low = rig.submit("blue", priority=Priority.LOW)
    normal = rig.submit("blue")
    high = rig.submit("blue", priority=Priority.HIGH)
    other = rig.submit("red", priority=Priority.LOW)
    assert set(jobs_of(rig, rig.publish())) == {high, other}
    order = []
    for message in rig.postbox.sent:
        if message[2] == "gpu.cpu":
            rig.do(message)
            order += [each for each in jobs_of(rig, rig.publish()) if each in (low, normal)]
    assert order == [normal, low]


def test_of_equals_the_older_job_goes_first(rig: Rig) -> None:
    jobs = [rig.submit() for _ in range(4)]
    assert jobs_of(rig, rig.publish()) == jobs[:2]


def test_a_postponed_step_waits_for_its_time(rig: Rig) -> None:
    job_id = rig.submit()
    step = rig.step(job_id, "prepare")
    with rig.database.transaction() as session:
        later = func.now() + timedelta(minutes=9)
        session.execute(update(Step).where(Step.id == step.id).values(not_before=later))
    assert rig.publish() == []
    rig.make_ready(step.id)
    assert len(rig.publish()) == 1


def test_a_lost_message_is_sent_again(rig: Rig) -> None:
    """The broker was flushed: nothing is claimed, though a slot is free."""
    job_id = rig.submit()
    first = rig.publish()
    assert rig.publish() == [], "not yet"
    age(rig, job_id)
    assert rig.publish() == first
    rig.do(first[0])
    age(rig, job_id)
    assert first[0] not in rig.publish(), "it has been claimed"


def test_a_message_that_waits_for_a_busy_slot_is_not_sent_again(rig: Rig) -> None:
    rig.submit()
    waiting = rig.submit()
    first, second = rig.publish()
    with rig.database.transaction() as session:
        assert claim_step(session, uuid.UUID(first[1][0]), 0, "gpu-1", timedelta(seconds=30)) is not None
    age(rig, waiting)
    assert second not in rig.publish()


def age(rig: Rig, job_id: uuid.UUID) -> None:
    """As if its messages had been sent long ago."""
    with rig.database.transaction() as session:
        long_ago = Step.dispatched_at - timedelta(hours=1)
        session.execute(update(Step).where(Step.job_id == job_id).values(dispatched_at=long_ago))


def test_without_the_broker_messages_wait_in_the_outbox(rig: Rig) -> None:
    job_id = rig.submit()
    rig.postbox.away = True
    assert rig.publish() == []
    with rig.database.transaction() as session:
        (message,) = session.scalars(select(Outbox)).all()
        assert (message.sent_at, message.attempts) == (None, 1)
    rig.postbox.away = False
    rig.run()
    assert rig.job(job_id).state is JobState.SUCCEEDED


def test_a_relay_that_dies_between_publishing_and_noting_it_does_no_harm(rig: Rig) -> None:
    job_id = rig.submit()
    send = rig.postbox.send_task

    class Killed(BaseException):
        """The process is gone."""

    def send_and_die(*arguments: object, **named: object) -> None:
        send(*arguments, **named)  # type: ignore[arg-type]
        raise Killed

    rig.postbox.send_task = send_and_die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        rig.publish()
    rig.postbox.send_task = send  # type: ignore[method-assign]
    rig.run()
    duplicate, original = rig.postbox.sent[:2]
    assert duplicate == original
    rig.do(duplicate)
    assert rig.job(job_id).state is JobState.SUCCEEDED
    assert rig.judge.calls.count("prepare") == 1


def test_a_message_of_an_unknown_topic_holds_up_no_other(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with rig.database.transaction() as session:
        session.add(Outbox(topic="step.of_tomorrow", payload={}))
    rig.submit()
    assert len(rig.publish()) == 1
    assert rig.relay.run()
    assert caplog.text.count("its topic is unknown: step.of_tomorrow") == 1


def test_two_relays_at_once_send_each_message_once(rig: Rig) -> None:
    """The second one leaves out what the first one holds."""
    rig.submit()
    rig.submit()
    other = Relay(rig.database, rig.postbox)  # type: ignore[arg-type]
    send = rig.postbox.send_task

    def send_beside_another(*arguments: object, **named: object) -> None:
        rig.postbox.send_task = send  # type: ignore[method-assign]
        other.run()
        send(*arguments, **named)  # type: ignore[arg-type]

    rig.postbox.send_task = send_beside_another  # type: ignore[method-assign]
    rig.publish()
    assert len(rig.postbox.sent) == len({message[1][0] for message in rig.postbox.sent}) == 2


@pytest.mark.parametrize("target", Target)
def test_the_dispatcher_waits_for_nobody_who_locks_jobs_and_their_steps(rig: Rig, target: Target) -> None:
    """As one who cancels many does; what was locked is sent at a later tick."""
    jobs = [rig.submit(target=target) for _ in range(2)]
    with rig.database.transaction() as session:
        lock_job(session, jobs[0])
        session.execute(select(Step).where(Step.job_id == jobs[0]).with_for_update())
        note_missing(rig.database)
        if target is Target.CUDA:
            _gpu(rig, "sm_90", slots=2)
        assert [message[1][0] for message in rig.publish()] == [str(rig.step(jobs[1], "prepare").id)]
    assert [message[1][0] for message in rig.publish()] == [str(rig.step(jobs[0], "prepare").id)]


def test_a_cuda_job_goes_to_the_class_with_the_most_room(rig: Rig) -> None:
    job_id = rig.submit(target=Target.CUDA)
    assert rig.publish() == []
    with rig.database.transaction() as session:
        for arch, slots in (("sm_80", 1), ("sm_90", 2)):
            gpu = device(Target.CUDA, arch, uid=arch)
            queues = [f"gpu.{arch}"]
            register_worker(session, arch, WorkerKind.GPU, queues=queues, slots=slots, version="t", device=gpu)
        session.execute(update(Step).where(Step.job_id == job_id).values(queue="gpu.cuda"))
    (message,) = rig.publish()
    assert message[2] in ("gpu.sm_80", "gpu.sm_90")


def test_a_cuda_job_that_has_no_class_yet_goes_to_another_one_when_its_own_has_left(rig: Rig) -> None:
    """Return whether it had been sent there or not."""
    jobs = [rig.submit(target=Target.CUDA) for _ in range(3)]
    _gpu(rig, "sm_80")
    assert len(rig.publish()) == 2
    assert {rig.step(job, "prepare").queue for job in jobs} == {"gpu.sm_80"}
    with rig.database.transaction() as session:
        forget_worker(session, "sm_80")
    _gpu(rig, "sm_90", slots=3)
    rig.publish()
    assert {rig.step(job, "prepare").queue for job in jobs} == {"gpu.sm_90"}
    assert len([message for message in rig.postbox.sent if message[2] == "gpu.sm_90"]) == 3


def _gpu(rig: Rig, arch: str, slots: int = 1) -> None:
    with rig.database.transaction() as session:
        gpu = device(Target.CUDA, arch, uid=arch)
        queues = [f"gpu.{arch}"]
        register_worker(session, arch, WorkerKind.GPU, queues=queues, slots=slots, version="t", device=gpu)


def test_a_job_without_a_worker_for_its_target_says_so(rig: Rig) -> None:
    job_id = rig.submit(target=Target.CUDA)
    other = rig.submit()
    assert (rig.job(job_id).reason, rig.job(other).reason) == ("no_worker_for_target", None)  # at once
    note_missing(rig.database)
    job = rig.job(job_id)
    assert (job.state, job.reason) == (JobState.QUEUED, "no_worker_for_target")
    assert "cupilot batch export" in str(job.message)
    assert rig.job(other).reason is None
    with rig.database.transaction() as session:
        gpu = device(Target.CUDA, "sm_90")
        queues = ["gpu.sm_90"]
        register_worker(session, "h", WorkerKind.GPU, queues=queues, slots=1, version="t", device=gpu)
    rig.publish()
    note_missing(rig.database)
    assert rig.job(job_id).reason is None


def test_a_silent_workers_slots_do_not_count(rig: Rig) -> None:
    with rig.database.transaction() as session:
        session.execute(update(WorkerRow).values(heartbeat_at=func.now() - timedelta(hours=1)))
    job_id = rig.submit()
    assert rig.publish() == []
    note_missing(rig.database)
    assert rig.job(job_id).reason == "no_worker_for_target"


def test_the_pool_is_indexed_when_there_is_something_to_index(rig: Rig) -> None:
    request_index(rig.database)
    assert rig.publish() == []
    rig.submit()
    rig.run()
    request_index(rig.database)
    request_index(rig.database)
    assert [message[0] for message in rig.publish()] == ["cupilot.pool.index"]
    request_index(rig.database)
    assert rig.publish() == [], "that one is under way, or has failed just now"
    with rig.database.transaction() as session:
        session.execute(update(Outbox).values(sent_at=func.now() - timedelta(seconds=31)))
    request_index(rig.database)
    assert [message[0] for message in rig.publish()] == ["cupilot.pool.index"]
    with rig.database.transaction() as session:
        session.execute(update(PoolReference).values(indexed_at=func.now()))
        place = {"target": "cpu", "policy": "fp32", "op_class": "softmax", "zone": "memory"}
        session.add(PoolReference(id=uuid.uuid4(), scope="builtin", text="new", length=1, **place))
    request_index(rig.database)
    assert [message[0] for message in rig.publish()] == ["cupilot.pool.index"], "the last one has done its work"


def test_the_overview_shows_workers_and_queues(rig: Rig) -> None:
    for _ in range(3):
        rig.submit()
    rig.publish()
    with rig.database.transaction() as session:
        view = cluster_overview(session)
    assert {worker.worker.name: worker.live for worker in view.workers} == {"agent-1": True, "gpu-1": True}
    assert all(0 <= worker.heartbeat_age_seconds < 60 for worker in view.workers)
    assert view.queues == {"gpu.cpu": QueueCounts(queued=3)}
    assert not view.scheduler_alive


def test_a_step_cannot_be_made_twice(rig: Rig) -> None:
    job_id = rig.submit()
    with pytest.raises(IntegrityError), rig.database.transaction() as session:
        add_step(session, session.get_one(Job, job_id), StepKind.PREPARE, "prepare")


def test_more_agent_slots_take_more_steps(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy(f"t{number}") for number in range(1, 5)], slots=3)
    job_id = rig.submit()
    rig.run_until(job_id, "c0/translate/0")
    assert sum(step.dispatched_at is not None for step in rig.steps(job_id) if step.kind is StepKind.TRANSLATE) == 4


def test_slow_models_leave_a_slot_to_templates(rig: Rig) -> None:
    def wait_in(job_id: uuid.UUID, queue: str) -> None:
        with rig.database.transaction() as session:
            session.execute(update(Step).where(Step.job_id == job_id).values(queue=queue))

    with rig.database.transaction() as session:
        both = [AGENTS_QUEUE, MODELS_QUEUE]
        session.execute(update(WorkerRow).where(WorkerRow.name == "agent-1").values(queues=both, slots=3))
    for _ in range(4):
        wait_in(rig.submit(), MODELS_QUEUE)
    sent = [message[2] for message in rig.publish()]
    assert sent == [MODELS_QUEUE, MODELS_QUEUE], "two of three slots, and none waits at the worker for the third"
    wait_in(rig.submit(), AGENTS_QUEUE)
    assert [message[2] for message in rig.publish()] == [AGENTS_QUEUE]


def test_a_worker_with_one_slot_asks_models_too(rig: Rig) -> None:
    job_id = rig.submit()
    with rig.database.transaction() as session:
        both = [AGENTS_QUEUE, MODELS_QUEUE]
        session.execute(update(WorkerRow).where(WorkerRow.name == "agent-1").values(queues=both, slots=1))
        session.execute(update(Step).where(Step.job_id == job_id).values(queue=MODELS_QUEUE))
    assert [message[2] for message in rig.publish()] == [MODELS_QUEUE]
