"""Time in which the service was away: it ends no job, and is shown as no wall time of any."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from sqlalchemy import func, update

from cupilot.domain.job import Budgets
from cupilot.domain.states import JobState
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Event, Job
from cupilot.storage.db.tables.queue import SchedulerTick, Step
from cupilot.storage.jobs.job_views import job_view
from cupilot.storage.jobs.jobs import request_cancel
from cupilot.storage.jobs.steering import pause_job, resume_job
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.queue.steps import claim_step
from tests.service.rig import Rig
from workers.clock import ClockWatch
from workers.reaper import end_overtime, reap

pytestmark = pytest.mark.service

HOUR, DAY = 3_600.0, 86_400.0
SILENCE = 30.0
SLOW = 600.0
"""Seconds that a test may last on a slow machine."""


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    return Rig(database, settings)


@pytest.fixture
def job_id(rig: Rig) -> uuid.UUID:
    """A job under way, with a step that is on its way to a worker, and a scheduler that has just looked."""
    job_id = rig.submit(budgets=Budgets(candidates=50, wall_seconds=HOUR))
    rig.run_until(job_id, "c0/evaluate/0")
    look(rig)
    return job_id


def look(rig: Rig) -> None:
    """A scheduler that has just come into charge looks for the first time."""
    ClockWatch(SILENCE).look(rig.database)


def let_pass(rig: Rig, seconds: float) -> None:
    """Everything that is written was so much earlier: as after an outage, or in a backup of that time."""
    moments = {
        Job: (Job.created_at, Job.started_at, Job.paused_at),
        Step: (Step.dispatched_at, Step.started_at, Step.finished_at, Step.lease_expires_at, Step.not_before),
        Event: (Event.created_at,),
        SchedulerTick: (SchedulerTick.at,),
    }
    with rig.database.transaction() as session:
        for table, columns in moments.items():
            session.execute(update(table).values({column: column - timedelta(seconds=seconds) for column in columns}))


def started_ago(rig: Rig, job_id: uuid.UUID, seconds: float) -> None:
    with rig.database.transaction() as session:
        began = func.now() - timedelta(seconds=seconds)
        session.execute(update(Job).where(Job.id == job_id).values(started_at=began))


def claim(rig: Rig, job_id: uuid.UUID) -> None:
    """A worker has the step, for as long as a test may last."""
    step = rig.step(job_id, "c0/evaluate/0")
    with rig.database.transaction() as session:
        assert claim_step(session, step.id, step.attempt, "gpu-1", timedelta(seconds=SLOW)) is not None


def renew(rig: Rig) -> None:
    """The worker is at it still."""
    with rig.database.transaction() as session:
        lease = func.now() + timedelta(seconds=SLOW)
        session.execute(update(Step).where(Step.lease_owner.is_not(None)).values(lease_expires_at=lease))


def pause(rig: Rig, job_id: uuid.UUID) -> None:
    with rig.database.transaction() as session:
        pause_job(session, ensure_team(session, "blue").id, job_id, "ann")


def resume(rig: Rig, job_id: uuid.UUID) -> None:
    with rig.database.transaction() as session:
        resume_job(session, ensure_team(session, "blue").id, job_id, "ann")


def shown(rig: Rig, job_id: uuid.UUID) -> float:
    with rig.database.transaction() as session:
        return job_view(session, rig.job(job_id).team_id, job_id).wall_seconds


def goes_on(rig: Rig, job_id: uuid.UUID) -> bool:
    """Return whether a scheduler that has looked leaves the job alone, to its end."""
    end_overtime(rig.database)
    reap(rig.database)
    for step in rig.steps(job_id):
        rig.make_ready(step.id)
    with rig.database.transaction() as session:
        session.execute(update(Step).values(dispatched_at=None))  # messages are lost, and sent again in time
    rig.run()
    return rig.job(job_id).state is JobState.SUCCEEDED


def test_a_day_without_the_service_ends_no_job_and_is_not_shown(rig: Rig, job_id: uuid.UUID) -> None:
    let_pass(rig, DAY)
    assert shown(rig, job_id) > DAY
    look(rig)
    look(rig)
    assert shown(rig, job_id) < SLOW
    assert goes_on(rig, job_id)
    assert shown(rig, job_id) < SLOW


def test_without_a_look_before_nothing_is_known(rig: Rig) -> None:
    job_id = rig.submit()
    rig.run_until(job_id, "c0/evaluate/0")
    let_pass(rig, DAY)
    look(rig)
    assert rig.job(job_id).paused_seconds == 0


def test_a_step_whose_worker_went_too_is_wall_time_to_the_end_of_its_lease(rig: Rig, job_id: uuid.UUID) -> None:
    claim(rig, job_id)
    look(rig)
    let_pass(rig, DAY)
    look(rig)
    assert 0 < DAY - rig.job(job_id).paused_seconds <= SLOW
    assert goes_on(rig, job_id)


def test_a_restart_within_a_lease_is_wall_time_as_ever(rig: Rig, job_id: uuid.UUID) -> None:
    with rig.database.transaction() as session:
        session.execute(update(SchedulerTick).values(at=func.clock_timestamp() - timedelta(seconds=SILENCE)))
    ClockWatch(SILENCE + SLOW).look(rig.database)
    assert rig.job(job_id).paused_seconds == 0


def test_schedulers_that_take_turns_take_nothing_out(rig: Rig, job_id: uuid.UUID) -> None:
    one, other = (ClockWatch(SLOW) for _ in range(2))
    for watch in (one, other, other, one):
        watch.look(rig.database)
    assert rig.job(job_id).paused_seconds == 0


def test_a_clock_that_is_set_between_two_schedulers_looks_is_taken_out_once(rig: Rig, job_id: uuid.UUID) -> None:
    own = [1_000.0]
    one, other = (ClockWatch(SLOW, lambda: own[0]) for _ in range(2))
    for watch in (one, other):
        watch.look(rig.database)
    let_pass(rig, HOUR)
    own[0] -= HOUR
    for watch in (one, other, one, other):
        watch.look(rig.database)
    assert rig.job(job_id).paused_seconds == pytest.approx(HOUR, abs=SLOW)


def test_a_database_that_was_away_under_its_scheduler_or_came_back_from_a_backup(rig: Rig, job_id: uuid.UUID) -> None:
    own = [1_000.0]
    watch = ClockWatch(SILENCE, lambda: own[0])
    watch.look(rig.database)
    let_pass(rig, DAY)  # for this process too: its clock shows as much against the database's as before
    watch.look(rig.database)
    assert rig.job(job_id).paused_seconds == pytest.approx(DAY, abs=SLOW)
    assert goes_on(rig, job_id)


def test_away_and_the_clock_set_at_once_is_taken_out_once(rig: Rig, job_id: uuid.UUID) -> None:
    own = [1_000.0]
    watch = ClockWatch(SILENCE, lambda: own[0])
    watch.look(rig.database)
    let_pass(rig, DAY + HOUR)
    own[0] -= HOUR
    watch.look(rig.database)
    assert rig.job(job_id).paused_seconds == pytest.approx(DAY + HOUR, abs=SLOW)


def test_a_clock_that_was_set_back_meanwhile_gives_and_takes_nothing(rig: Rig, job_id: uuid.UUID) -> None:
    let_pass(rig, -DAY)
    look(rig)
    assert rig.job(job_id).paused_seconds == 0
    assert shown(rig, job_id) == 0
    let_pass(rig, DAY + HOUR)  # a time server sets it right again, unseen
    look(rig)
    assert shown(rig, job_id) < DAY


def test_wall_time_that_was_used_up_before_ends_the_job(rig: Rig, job_id: uuid.UUID) -> None:
    started_ago(rig, job_id, HOUR + SLOW)
    let_pass(rig, DAY)
    look(rig)
    end_overtime(rig.database)
    job = rig.job(job_id)
    assert (job.state, job.reason) == (JobState.BUDGET_EXHAUSTED, "wall_budget")
    assert HOUR + SLOW - 1 <= shown(rig, job_id) < HOUR + 2 * SLOW, "less the moments between looks"


def test_what_workers_did_without_a_scheduler_is_wall_time(rig: Rig, job_id: uuid.UUID) -> None:
    claim(rig, job_id)
    look(rig)
    let_pass(rig, 2 * HOUR)
    renew(rig)
    look(rig)
    assert rig.job(job_id).paused_seconds == 0


def test_what_several_steps_at_once_did_counts_once(rig: Rig, job_id: uuid.UUID) -> None:
    let_pass(rig, 2 * HOUR)
    with rig.database.transaction() as session:
        begun, ended = (func.now() - timedelta(seconds=ago) for ago in (1.75 * HOUR, 1.25 * HOUR))
        done = update(Step).where(Step.job_id == job_id, Step.finished_at.is_not(None))
        session.execute(done.values(started_at=begun, finished_at=ended))
    assert sum(step.finished_at is not None for step in rig.steps(job_id)) > 1
    look(rig)
    assert rig.job(job_id).paused_seconds == pytest.approx(1.5 * HOUR, abs=SLOW)


def test_a_worker_that_starts_before_the_scheduler_hides_no_absence(rig: Rig, job_id: uuid.UUID) -> None:
    let_pass(rig, DAY)
    claim(rig, job_id)
    look(rig)
    assert rig.job(job_id).paused_seconds == pytest.approx(DAY, abs=SLOW)


def test_a_job_that_begins_meanwhile_loses_what_came_after(rig: Rig, job_id: uuid.UUID) -> None:
    let_pass(rig, DAY)
    started_ago(rig, job_id, HOUR)
    look(rig)
    assert rig.job(job_id).paused_seconds == pytest.approx(HOUR, abs=SLOW)
    assert shown(rig, job_id) < SLOW


def test_a_pause_is_taken_out_once(rig: Rig, job_id: uuid.UUID) -> None:
    pause(rig, job_id)
    look(rig)
    let_pass(rig, DAY)
    look(rig)
    assert rig.job(job_id).paused_seconds == 0
    resume(rig, job_id)
    assert rig.job(job_id).paused_seconds == pytest.approx(DAY, abs=SLOW)
    assert goes_on(rig, job_id)


def test_a_pause_that_ends_meanwhile_is_taken_out_once(rig: Rig, job_id: uuid.UUID) -> None:
    pause(rig, job_id)
    let_pass(rig, HOUR)
    resume(rig, job_id)
    let_pass(rig, HOUR)
    look(rig)
    assert rig.job(job_id).paused_seconds == pytest.approx(2 * HOUR, abs=SLOW)
    assert shown(rig, job_id) < SLOW


def test_a_pause_that_begins_meanwhile_is_taken_out_once(rig: Rig, job_id: uuid.UUID) -> None:
    let_pass(rig, HOUR)
    pause(rig, job_id)
    let_pass(rig, HOUR)
    look(rig)
    assert rig.job(job_id).paused_seconds == pytest.approx(HOUR, abs=SLOW)
    resume(rig, job_id)
    assert rig.job(job_id).paused_seconds == pytest.approx(2 * HOUR, abs=SLOW)
    assert shown(rig, job_id) < SLOW


def test_jobs_that_wait_or_are_being_cancelled(rig: Rig, job_id: uuid.UUID) -> None:
    waiting = rig.submit(request_hash="1" * 64)
    claim(rig, job_id)
    with rig.database.transaction() as session:
        request_cancel(session, ensure_team(session, "blue").id, job_id)
    look(rig)
    let_pass(rig, DAY)
    look(rig)
    assert rig.job(job_id).state is JobState.CANCELLING
    assert shown(rig, job_id) < HOUR, "the absence is not shown for what is being cancelled either"
    assert (rig.job(waiting).state, rig.job(waiting).paused_seconds) == (JobState.QUEUED, 0)
