"""Quotas hold under races, and jobs say that they wait for them."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, text, update

from cupilot.domain.job import Budgets
from cupilot.domain.model_call import Call
from cupilot.domain.problem import Target
from cupilot.domain.quota import QuotaExceeded
from cupilot.domain.states import JobState
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.people import GpuUsage, Team
from cupilot.storage.db.tables.queue import WorkerRow
from cupilot.storage.db.transitions import lock_job
from cupilot.storage.jobs.jobs import request_cancel, submit_job
from cupilot.storage.jobs.steering import pause_job, resume_job
from cupilot.storage.jobs.steering_views import quota_view
from cupilot.storage.models.money import allowance, check_budgets, warn_of_budgets
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.queue.steps import claim_step
from tests.service.doubles import problem
from tests.service.rig import Rig, job_spec
from workers.dispatcher import note_missing
from workers.reaper import end_over_quota

pytestmark = pytest.mark.service


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    return Rig(database, settings)


def finish(rig: Rig) -> None:
    """Do all that was published, and all that follows. What was done before is not done again."""
    for message in list(rig.postbox.sent):
        rig.do(message)
    rig.run()


def limit(rig: Rig, **limits: float | None) -> uuid.UUID:
    with rig.database.transaction() as session:
        team = ensure_team(session, "blue")
        session.execute(update(Team).where(Team.id == team.id).values(limits))
        return team.id


def test_two_submissions_race_for_the_last_place_in_the_queue(rig: Rig) -> None:
    limit(rig, max_queued_jobs=3)
    rig.submit()
    rig.submit()
    start = threading.Barrier(4)

    def submit(_: int) -> bool:
        start.wait()
        try:
            rig.submit()
        except QuotaExceeded:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(submit, range(4))) == [False, False, False, True]
    rig.submit("red")  # another team's queue is its own


def test_a_paused_job_comes_back_into_the_queue_only_where_there_is_room(rig: Rig) -> None:
    team = limit(rig, max_queued_jobs=1)
    paused = rig.submit()
    with rig.database.transaction() as session:
        pause_job(session, team, paused, "ann")
    queued = rig.submit()
    with pytest.raises(QuotaExceeded), rig.database.transaction() as session:
        resume_job(session, team, paused, "ann")
    assert rig.job(paused).state is JobState.PAUSED
    with rig.database.transaction() as session:
        request_cancel(session, team, queued)
        assert resume_job(session, team, paused, "ann").state is JobState.QUEUED


def test_without_a_quota_submissions_do_not_wait_for_each_other(rig: Rig) -> None:
    team = limit(rig, max_queued_jobs=None)
    with rig.database.transaction() as first, rig.database.transaction() as second:
        second.execute(text("SET LOCAL lock_timeout = '1s'"))
        for number, session in enumerate((first, second)):
            spec = job_spec(problem=problem(f"p{number}"))
            submit_job(session, team, spec, idempotency_key=None, request_hash="0" * 64)


def test_a_repeated_submission_is_no_second_job_and_needs_no_place(rig: Rig) -> None:
    limit(rig, max_queued_jobs=1)
    first = rig.submit(idempotency_key="k")
    assert rig.submit(idempotency_key="k") == first


def test_as_many_jobs_run_as_may_and_the_others_say_what_they_wait_for(rig: Rig) -> None:
    limit(rig, max_running_jobs=1)
    jobs = [rig.submit() for _ in range(3)]
    (message,) = rig.publish()
    note_missing(rig.database)
    assert [rig.job(job).reason for job in jobs] == [None, "running_quota", "running_quota"]
    rig.do(message)
    assert [rig.job(job).state for job in jobs] == [JobState.EVOLVING, JobState.QUEUED, JobState.QUEUED]
    limit(rig, max_running_jobs=2)
    note_missing(rig.database)
    assert [rig.job(job).reason for job in jobs] == [None, None, "running_quota"]
    limit(rig, max_running_jobs=1)
    finish(rig)
    assert {rig.job(job).state for job in jobs} == {JobState.SUCCEEDED}


def test_two_claims_race_for_the_last_running_job(rig: Rig) -> None:
    """Both messages were published while there was room for both."""
    with rig.database.transaction() as session:
        session.execute(update(WorkerRow).where(WorkerRow.name == "gpu-1").values(slots=2))
    jobs = [rig.submit(), rig.submit()]
    messages = rig.publish()
    assert len(messages) == 2
    limit(rig, max_running_jobs=1)
    start = threading.Barrier(2)

    def claim(number: int) -> bool:
        start.wait()
        with rig.database.transaction() as session:
            step, attempt = messages[number][1]
            return claim_step(session, uuid.UUID(step), attempt, "gpu", timedelta(seconds=30)) is not None

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(claim, range(2))) == [False, True]
    assert sorted(rig.job(job).state.value for job in jobs) == ["preparing", "queued"]
    waiting = next(job for job in jobs if rig.job(job).state is JobState.QUEUED)
    assert rig.step(waiting, "prepare").dispatched_at is None, "it can be handed out again"


def test_a_paused_job_gives_its_place_away_and_takes_one_again(rig: Rig) -> None:
    team = limit(rig, max_running_jobs=1)
    first, second = rig.submit(), rig.submit()
    rig.run_until(first, "initialise/0")
    with rig.database.transaction() as session:
        pause_job(session, team, first, "ann")
    rig.run_until(second, "initialise/0")
    with pytest.raises(QuotaExceeded), rig.database.transaction() as session:
        resume_job(session, team, first, "ann")
    finish(rig)
    with rig.database.transaction() as session:
        resume_job(session, team, first, "ann")
    finish(rig)
    assert {rig.job(each).state for each in (first, second)} == {JobState.SUCCEEDED}


def test_a_team_without_gpu_seconds_keeps_its_best_kernel_and_its_queue(rig: Rig) -> None:
    team = limit(rig, gpu_seconds=1_000.0)
    job_id, waiting = rig.submit(), rig.submit()
    rig.run_until(job_id, "c4/cross/0")
    best = rig.job(job_id).best_candidate_id
    assert best is not None
    with rig.database.transaction() as session:
        session.execute(update(GpuUsage).where(GpuUsage.job_id == job_id).values(seconds=1_000.0))
    end_over_quota(rig.database)
    job = rig.job(job_id)
    assert (job.state, job.reason) == (JobState.BUDGET_EXHAUSTED, "team_gpu_quota")
    assert job.best_candidate_id == best
    assert rig.publish() == []
    note_missing(rig.database)
    assert (rig.job(waiting).state, rig.job(waiting).reason) in (
        (JobState.QUEUED, "gpu_quota"),
        (JobState.BUDGET_EXHAUSTED, "team_gpu_quota"),
    )
    with rig.database.transaction() as session:
        view = quota_view(session, team)
    assert (view.gpu_seconds.used, view.gpu_seconds.limit) == (pytest.approx(1_000, abs=30), 1_000.0)
    with rig.database.transaction() as session:  # the next month
        session.execute(update(GpuUsage).values(day=GpuUsage.day - 40))
    last = rig.submit()
    finish(rig)
    assert rig.job(last).state is JobState.SUCCEEDED


def test_a_teams_own_money_goes_before_the_settings(rig: Rig) -> None:
    team = limit(rig, model_usd=5.0)
    with rig.database.transaction() as session:
        found = allowance(session, team)
        assert found is not None
        assert (found.limit_usd, found.period, found.left_usd) == (5.0, "month", 5.0)
        assert quota_view(session, team).model_usd.limit == 5.0
        assert allowance(session, ensure_team(session, "red").id) is None


def test_a_model_call_sums_the_teams_calls_once_when_it_begins_and_once_when_it_ends(rig: Rig) -> None:
    limit(rig, model_usd=5.0)
    job_id = rig.submit()
    sums: list[str] = []

    def listen(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "sum(llm_calls.cost_usd)" in statement and "llm_calls.team_id" in statement:
            sums.append(statement)

    event.listen(rig.database.engine, "before_cursor_execute", listen)
    call = Call(role="manager", purpose="p", model="m", prompt_hash="0", messages=(), worst_cost_usd=0.5)
    with rig.database.transaction() as session:
        job = lock_job(session, job_id)
        check_budgets(session, job, call)
        assert len(sums) == 1
        warn_of_budgets(session, job, 0.1)
        assert len(sums) == 2
    event.remove(rig.database.engine, "before_cursor_execute", listen)


def test_gpu_seconds_are_charged_once_whatever_came_of_the_step(rig: Rig) -> None:
    job_id = rig.submit()
    finish(rig)
    held = sum(step.busy_seconds for step in rig.steps(job_id) if step.kind.on_device)
    with rig.database.transaction() as session:
        used = session.get_one(GpuUsage, (job_id, rig.job(job_id).created_at.date())).seconds
    assert used == pytest.approx(rig.job(job_id).gpu_seconds) == pytest.approx(held)


def test_a_job_stops_at_its_gpu_seconds_and_confirms_its_best(rig: Rig) -> None:
    job_id = rig.submit(budgets=Budgets(candidates=50, gpu_seconds=1e-6))
    finish(rig)
    job = rig.job(job_id)
    assert (job.state, job.reason) == (JobState.BUDGET_EXHAUSTED, "gpu_budget")


def test_a_job_that_nobody_can_begin_keeps_no_other_waiting(rig: Rig) -> None:
    """It waits for a device that is not there, and holds no place meanwhile."""
    limit(rig, max_running_jobs=1)
    stuck = rig.submit(target=Target.CUDA)
    other = rig.submit()
    note_missing(rig.database)
    assert rig.job(stuck).reason == "no_worker_for_target"
    assert rig.job(other).reason is None
    finish(rig)
    assert rig.job(other).state is JobState.SUCCEEDED
    assert rig.job(stuck).state is JobState.QUEUED
