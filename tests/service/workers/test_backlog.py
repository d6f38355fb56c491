"""A tick costs what is under way, not what waits: counted in rows that Postgres reads, not in seconds."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.orm import Session

from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.problem import Target
from cupilot.domain.states import StepKind
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Candidate, Job
from cupilot.storage.db.tables.people import Team
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.progress import rounds_of
from cupilot.storage.jobs.steering_views import quota_view
from cupilot.storage.queue.cluster import unclaimed_steps
from tests.service.doubles import strategy
from tests.service.rig import REDISPATCH, Rig
from tests.service.rows import rows_read
from workers.dispatcher import dispatch, note_missing
from workers.reaper import end_cancelled, end_over_quota, end_overtime

pytestmark = pytest.mark.service

JOBS, STEPS = 10, 300
"""Jobs that wait, and the steps of each."""


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    found = Rig(database, settings)
    jobs = [found.submit(f"team {number % 3}") for number in range(JOBS)]
    with database.transaction() as session:
        rows = [
            {"id": uuid.uuid4(), "job_id": job, "key": f"more {n}", "kind": StepKind.PREPARE, "queue": "gpu.cpu"}
            for job in jobs
            for n in range(STEPS)
        ]
        session.execute(insert(Step), rows)
        session.execute(update(Team).values(max_running_jobs=JOBS))
    return found


def test_a_tick_reads_few_of_the_steps_that_wait(rig: Rig) -> None:
    first = rig.publish()
    assert len(first) == 2
    rig.do(first[0])
    with rows_read(rig.database) as counts:
        dispatch(rig.database, REDISPATCH)
    assert len(counts) > 5
    assert max(counts) <= 5 * JOBS, counts


def test_a_heartbeat_reads_none_of_them(rig: Rig) -> None:
    rig.publish()
    with rows_read(rig.database) as counts, rig.database.transaction() as session:
        assert len(unclaimed_steps(session, "gpu-1")) == 2
    assert max(counts) <= 10, counts


def look_around(rig: Rig) -> None:
    """Everything that the scheduler looks at without being asked."""
    dispatch(rig.database, REDISPATCH)
    note_missing(rig.database)
    end_cancelled(rig.database, REDISPATCH)
    end_overtime(rig.database)
    end_over_quota(rig.database)


@pytest.mark.parametrize("table", ["jobs", "steps"])
def test_a_tick_reads_none_of_what_has_ended(rig: Rig, table: str) -> None:
    """Jobs are kept for months, also where their details are not."""
    with rig.database.transaction() as session:
        session.execute(update(Team).values(gpu_seconds=1e9))
        session.execute(text("DELETE FROM steps WHERE key LIKE 'more %'"))
        for each in (Job, Step):
            own = {"id": "gen_random_uuid()", "finished_at": "now() - interval '2 days'"}
            own |= {"state": "'succeeded'", "key": "steps.key || n"}
            columns = {column.name: own.get(column.name, column.name) for column in each.__table__.columns}
            into = f"{each.__tablename__} ({', '.join(columns)}) SELECT {', '.join(columns.values())}"
            session.execute(text(f"INSERT INTO {into} FROM {each.__tablename__}, generate_series(1, {STEPS}) AS n"))
    rig.submit(target=Target.CUDA)
    with rows_read(rig.database, table) as counts:
        look_around(rig)
    assert len(counts) > 15
    assert max(counts) <= 5 * JOBS, counts


def test_a_teams_quota_reads_none_of_what_has_ended_long_ago(rig: Rig) -> None:
    with rig.database.transaction() as session:
        session.execute(text("UPDATE steps SET state = 'cancelled', finished_at = now() - interval '2 days'"))
        team = session.scalars(select(Team.id).where(Team.name == "team 0")).one()
        session.add(Step(job_id=_job_of(session, team), key="now", kind=StepKind.PREPARE, queue="gpu.cpu"))
    with rows_read(rig.database) as counts, rig.database.transaction() as session:
        assert [share.queue for share in quota_view(session, team).shares] == ["gpu.cpu"]
    assert max(counts) <= 5, counts


def _job_of(session: Session, team: uuid.UUID) -> uuid.UUID:
    return session.scalars(select(Job.id).where(Job.team_id == team).limit(1)).one()


def test_a_repair_reads_the_strategies_of_its_own_candidate(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy("wrong1"), *(strategy(f"t{number}") for number in range(2, 9))])
    job = rig.submit(method=SceConfig(population=8, generations=2, elites=1, repair_rounds=2))
    rig.run()
    mended = rig.candidates(job)[0]
    assert mended.repair_rounds == 1
    with rows_read(database, "strategies") as counts, database.transaction() as session:
        assert len(rounds_of(session, session.get_one(Candidate, mended.id))) == 2
    assert max(counts) == 2, counts
