"""Compute jobs' wall time, find jobs that used theirs up, and exclude time in which nobody could work.

Wall time is reckoned from moments that the database wrote, since it outlives every process: from a job's start to now,
without its ``paused_seconds``. Those hold its pauses, times in which its steps lay in batches, steps of the database's
clock, and absences, in which no scheduler looked and no worker had anything of the job. Ends no job, and does not say
when to look: that is ``workers/reaper.py`` and ``workers/clock.py``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from cupilot.domain.states import JobState
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.queue import SchedulerTick

TAKE_OUT = text("""
WITH begun AS (
    SELECT id, started_at, paused_at FROM jobs WHERE started_at IS NOT NULL AND finished_at IS NULL
), accounted (job_id, first, last) AS (
    SELECT id, :since, started_at FROM begun
    UNION ALL SELECT id, paused_at, :until FROM begun WHERE paused_at IS NOT NULL
    UNION ALL SELECT job_id, :since, created_at FROM events JOIN begun ON begun.id = job_id
        WHERE kind LIKE 'job.%' AND kind = 'job.resumed' AND created_at > :since
    UNION ALL SELECT job_id, steps.started_at, coalesce(finished_at, lease_expires_at) FROM steps
        JOIN begun ON begun.id = job_id
        WHERE steps.started_at IS NOT NULL AND coalesce(finished_at, lease_expires_at) > :since
), absent AS (
    SELECT job_id,
        tstzmultirange(tstzrange(:since, :until)) - range_agg(tstzrange(first, greatest(first, last))) AS spans
    FROM accounted GROUP BY job_id
), lost AS (
    SELECT job_id, (SELECT sum(extract(epoch FROM upper(span) - lower(span))) FROM unnest(spans) span) AS seconds
    FROM absent
)
UPDATE jobs SET paused_seconds = paused_seconds + lost.seconds FROM lost
WHERE jobs.id = lost.job_id AND lost.seconds > 0 AND finished_at IS NULL
RETURNING jobs.id
""")
"""Of the time in question everything that is accounted for otherwise stays: before the job began, its pauses, and what
workers had of it, to the end of the lease where they fell silent, which is how far they are charged for.

When a job was paused that has been resumed since is in no row, so all until then stays. Spans, not the last sign of
work: a worker that is started before the scheduler may have claimed a step when that one looks for the first time.
"""


@dataclass(frozen=True)
class Tick:
    """Last look of a scheduler: whose it was, and when by the database's clock, in seconds since 1970."""

    scheduler: uuid.UUID
    at: float


def wall_seconds(job: Job, now: Callable[[], datetime]) -> float:
    """Return a job's wall time; ``now`` is the database's, read where time goes on. Never negative: clocks are set."""
    if job.started_at is None:
        return 0.0
    # While steps of it lie in a batch, its clock stands still.
    end = job.finished_at or min(filter(None, (job.paused_at, job.batched_at)), default=None) or now()
    return max((end - job.started_at).total_seconds() - job.paused_seconds, 0.0)


def over_time(session: Session) -> Sequence[uuid.UUID]:
    """Return jobs whose wall time is used up."""
    wall = Job.budgets["wall_seconds"].as_float()
    elapsed = func.extract("epoch", func.now() - Job.started_at) - Job.paused_seconds
    begun = Job.state.in_((JobState.PREPARING, JobState.EVOLVING)) & Job.finished_at.is_(None)
    return session.scalars(select(Job.id).where(begun, Job.batched_at.is_(None), elapsed > wall)).all()


def database_seconds(session: Session) -> float:
    """Return the database's clock, in seconds since 1970."""
    return float(session.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())


def last_tick(session: Session) -> Tick | None:
    """Return the last look of a scheduler in charge, locked so that only one acts on it; None before the first."""
    query = select(SchedulerTick.scheduler, func.extract("epoch", SchedulerTick.at)).with_for_update()
    row = session.execute(query).one_or_none()
    return None if row is None else Tick(row[0], float(row[1]))


def record_tick(session: Session, look: Tick) -> None:
    """Write down that a scheduler looked."""
    values = {"scheduler": look.scheduler, "at": func.to_timestamp(look.at)}
    row = insert(SchedulerTick).values(single=True, **values)
    session.execute(row.on_conflict_do_update(index_elements=[SchedulerTick.single], set_=values))


def shift_wall_time(session: Session, seconds: float) -> None:
    """Count the seconds by which the clock was just set as a pause of jobs that had begun before.

    A paused job's own pause covers them.
    """
    before = Job.started_at < func.clock_timestamp() - timedelta(seconds=seconds)
    session.execute(
        update(Job)
        .where(Job.state.in_((JobState.PREPARING, JobState.EVOLVING)), before)
        .values(paused_seconds=Job.paused_seconds + seconds, batched_at=Job.batched_at + timedelta(seconds=seconds))
        .execution_options(synchronize_session=False)
    )


def take_out(session: Session, since: float, until: float) -> int:
    """Count the time without a scheduler and a worker as a pause of each job; return how many jobs had any."""
    moments = {"since": datetime.fromtimestamp(since, UTC), "until": datetime.fromtimestamp(until, UTC)}
    return len(session.execute(TAKE_OUT, moments).all())
