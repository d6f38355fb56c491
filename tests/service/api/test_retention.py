"""Retention: what old jobs no longer need goes, in batches; what anybody leans on stays; what went is called gone."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.model_call import Answer, Call
from cupilot.domain.states import JobState, LlmCallState
from cupilot.settings import Settings
from cupilot.storage.db.tables.jobs import Event, Job, KernelRow
from cupilot.storage.db.tables.models import LlmCall
from cupilot.storage.db.tables.queue import SchedulerTick, Step
from cupilot.storage.db.transitions import lock_job, move_job
from cupilot.storage.jobs.evolving import store_kernel
from cupilot.storage.operations import retention
from cupilot.storage.operations.pruning import may_prune
from cupilot.storage.operations.retention import prune_some
from tests.service.api.world import Story, Team, World, code_of, evolved, rejected
from tests.service.rig import Postbox
from workers.clock import ClockWatch
from workers.relay import Relay
from workers.scheduler import Scheduler

pytestmark = pytest.mark.service

KEPT = timedelta(days=30)
LOSER = code_of(2).content_hash()


def aged(session: Session, job: Job, days: float) -> uuid.UUID:
    """The job, as if it had ended so long ago."""
    session.flush()
    session.execute(update(Job).where(Job.id == job.id).values(finished_at=job.finished_at - timedelta(days=days)))
    return job.id


def with_call(session: Session, job: Job) -> uuid.UUID:
    """A model call of the job's first step, answered."""
    step = session.scalars(select(Step.id).where(Step.job_id == job.id)).first()
    known = {"role": "translator", "purpose": "translate", "model": "m"}
    call = Call(**known, prompt_hash="0", messages=({"role": "user", "content": "hello"},), worst_cost_usd=1.0)
    row = LlmCall(
        id=uuid.uuid4(),
        team_id=job.team_id,
        job_id=job.id,
        step_id=step,
        **known,
        state=LlmCallState.ANSWERED,
        request=call,
        request_hash=call.request_hash(),
        response=Answer(text="hi", prompt_tokens=3, completion_tokens=4, cost_usd=0.5),
        prompt_tokens=3,
        completion_tokens=4,
        cost_usd=0.5,
    )
    session.add(row)
    return row.id


def prune_all(world: World) -> list[uuid.UUID]:
    """Until nothing is due; the job of each batch."""
    jobs = []
    while True:
        with world.database.transaction() as session:
            job = prune_some(session, KEPT)
        if job is None:
            return jobs
        jobs.append(job)


def gone(answer: Any) -> None:
    assert answer.status_code == 410, answer.text
    error = answer.json()["error"]
    assert error["code"] == "pruned"
    assert "CUPILOT_JOB_KEEP_DAYS" in error["message"]


def test_what_nobody_leans_on_goes_and_is_said_to_be_gone(
    world: World, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROWS", 2)
    with world.database.transaction() as session:
        old, new = evolved(session, team.id), evolved(session, team.id)
        call = with_call(session, old)
        job, other = aged(session, old, 31), aged(session, new, 29)
    path = f"/v1/jobs/{job}"
    before = team.http.get(path).json()
    batches = prune_all(world)
    assert set(batches) == {job}
    assert len(batches) > 2
    after = team.http.get(path).json()
    assert after.pop("pruned_at")
    assert before.pop("pruned_at") is None
    assert after == before

    kinds = [event["kind"] for event in team.http.get(f"{path}/events").json()["items"]]
    assert kinds[-1] == "job.pruned"
    assert all(kind.startswith("job.") for kind in kinds)
    step = team.http.get(f"{path}/steps").json()["items"][0]["id"]
    gone(team.http.get(f"{path}/steps/{step}/log"))
    gone(team.http.get(f"{path}/calls/{call}"))
    listed = team.http.get(f"{path}/calls").json()["items"][0]
    assert (listed["cost_usd"], listed["prompt_tokens"]) == (0.5, 3)
    assert team.http.get(f"{path}/log").text.startswith("(pruned ")
    logged = team.http.get("/v1/audit", params={"principal": "scheduler"}).json()["items"]
    assert [entry["resource"] for entry in logged] == [path]

    # The other job still has its details, and the kernels that both tried.
    assert team.http.get(f"/v1/jobs/{other}").json()["pruned_at"] is None
    assert team.http.get(f"{path}/candidates/2").json()["kernel"]["source"] == "// candidate 2\n"
    with world.database.transaction() as session:
        aged(session, session.get_one(Job, other), 2)
    assert set(prune_all(world)) == {other}
    for ordinal, proven in ((0, True), (1, True), (2, False), (4, True)):
        kernel = team.http.get(f"{path}/candidates/{ordinal}").json()["kernel"]
        assert bool(kernel["source"]) is proven
        assert (kernel["pruned_at"] is None) is proven
        assert kernel["plan"]
    assert team.http.get(f"{path}/best/download").status_code == 200
    assert len(team.http.get(f"{path}/candidates/4").json()["lineage"]) == 3
    gone(team.http.get("/v1/compare", params={"first": f"{job}:2", "second": f"{job}:4"}))
    gone(team.http.post(f"{path}/candidates/2/fork", json={}))
    assert team.http.post(f"{path}/candidates/0/fork", json={}).status_code == 202


def test_a_source_that_somebody_needs_stays_and_one_that_comes_again_is_kept_again(world: World, team: Team) -> None:
    with world.database.transaction() as session:
        job = aged(session, evolved(session, team.id), 31)
        story = Story(session, team.id).prepare()  # goes on, with a kernel that the old job tried too
        story.job.candidates = 2
        story.candidate(story.generation(0), rejected(FailureKind.CRASH))
        running = story.job.id
    assert prune_all(world) == [job]
    with world.database.transaction() as session:
        assert session.get_one(KernelRow, LOSER).source
        aged(session, _ended(session, running), 31)
    assert prune_all(world) == [running]
    with world.database.transaction() as session:
        assert not session.get_one(KernelRow, LOSER).source
        store_kernel(session, code_of(2))
    with world.database.transaction() as session:
        kept = session.get_one(KernelRow, LOSER)
        assert (kept.source, kept.pruned_at) == ("// candidate 2\n", None)


def test_the_scheduler_prunes_only_where_it_was_told_to(world: World, team: Team, settings: Settings) -> None:
    with world.database.transaction() as session:
        job = aged(session, evolved(session, team.id), 31)

    def ticked(days: float | None) -> bool:
        relay = Relay(world.database, Postbox())  # type: ignore[arg-type]
        Scheduler(settings.model_copy(update={"job_keep_days": days}), world.database, relay).tick()
        with world.database.transaction() as session:
            kept = select(Event.id).where(Event.job_id == job, Event.kind.not_like("job.%"))
            return session.get_one(Job, job).pruned_at is not None and not session.scalars(kept).all()

    assert not ticked(None)
    assert not ticked(32)
    assert ticked(30)


def test_nothing_is_pruned_for_hours_after_the_clock_was_set_far_ahead(
    world: World, team: Team, settings: Settings
) -> None:
    own = [1_000.0]
    watch = ClockWatch(30.0, lambda: own[0])
    watch.look(world.database)
    own[0] -= 40 * 86_400  # the database's clock seems ahead by as much
    with world.database.transaction() as session:
        session.execute(update(SchedulerTick).values(at=SchedulerTick.at - timedelta(days=40)))
        job = aged(session, evolved(session, team.id), 31)
    watch.look(world.database)

    def ticked() -> bool:
        relay = Relay(world.database, Postbox())  # type: ignore[arg-type]
        Scheduler(settings.model_copy(update={"job_keep_days": 30}), world.database, relay).tick()
        with world.database.transaction() as session:
            return session.get_one(Job, job).pruned_at is not None

    assert not ticked()
    with world.database.transaction() as session:
        session.execute(update(SchedulerTick).values(prune_after=SchedulerTick.prune_after + timedelta(days=40)))
        assert may_prune(session), "it was set back"
        session.execute(update(SchedulerTick).values(prune_after=func.now() - timedelta(seconds=1)))
    assert ticked()


def _ended(session: Session, job: uuid.UUID) -> Job:
    row = lock_job(session, job)
    move_job(session, row, JobState.FAILED, reason="no_valid_kernel")
    session.flush()
    session.refresh(row)
    return row
