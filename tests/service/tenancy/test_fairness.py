"""Fair shares in a simulated cluster: the scheduler's own choice, on a clock that the test turns."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import func, select, update

from cupilot.domain.job import Priority
from cupilot.domain.problem import Target
from cupilot.domain.states import JobState, StepKind, StepState
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.people import Team
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.jobs import change_job, submit_job
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.queue.dispatch import dispatch_ready
from cupilot.storage.queue.steps import add_step, device_queue
from tests.service.rig import job_spec

pytestmark = pytest.mark.service

QUEUE = device_queue(Target.CPU)


class Cluster:
    """One worker that does steps of the queue, as long as each takes by the simulated clock."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.seconds: dict[uuid.UUID, float] = {}

    def job(self, team: str, steps: int, seconds: float, weight: float = 1.0, **changes: object) -> uuid.UUID:
        """A job of so many steps that are ready at once, each of so many seconds."""
        with self.database.transaction() as session:
            owner = ensure_team(session, team)
            session.execute(update(Team).where(Team.id == owner.id).values(weight=weight))
            job, _ = submit_job(session, owner.id, job_spec(**changes), idempotency_key=None, request_hash="0" * 64)
            for number in range(steps - 1):
                add_step(session, job, StepKind.EVALUATE, f"s{number}", queue=QUEUE)
            self.seconds[job.id] = seconds
            return job.id

    def begin(self, job: uuid.UUID) -> None:
        """As its first step's claim does it."""
        with self.database.transaction() as session:
            begun = {"state": JobState.PREPARING, "started_at": func.clock_timestamp()}
            session.execute(update(Job).where(Job.id == job).values(begun))

    def next(self) -> tuple[str, uuid.UUID, float] | None:
        """Do the step whose turn it is: (team, job, seconds), or None where there is none."""
        with self.database.transaction() as session:
            if not dispatch_ready(session, QUEUE, 1):
                return None
            query = select(Step.id, Step.job_id, Team.name).join(Job, Job.id == Step.job_id).join(Team)
            step, job, team = session.execute(
                query.where(Step.dispatched_at.is_not(None), Step.finished_at.is_(None))
            ).one()
            self.pass_time(session, self.seconds[job])
            done = {"state": StepState.SUCCEEDED, "busy_seconds": self.seconds[job], "finished_at": func.now()}
            session.execute(update(Step).where(Step.id == step).values(started_at=func.now(), **done))
            return team, job, self.seconds[job]

    @staticmethod
    def pass_time(session: object, seconds: float) -> None:
        """Let the past be longer ago."""
        ago = timedelta(seconds=seconds)
        values = {"started_at": Step.started_at - ago, "finished_at": Step.finished_at - ago}
        session.execute(update(Step).where(Step.finished_at.is_not(None)).values(values))  # type: ignore[attr-defined]

    def used(self, turns: int) -> Counter[str]:
        """Seconds by team of the next so many steps."""
        counted: Counter[str] = Counter()
        for _ in range(turns):
            done = self.next()
            assert done is not None
            counted[done[0]] += done[2]  # type: ignore[assignment]
        return counted


@pytest.fixture
def cluster(database: Database, settings: Settings) -> Cluster:  # noqa: ARG001
    return Cluster(database)


def test_shares_converge_to_the_weights_in_seconds_and_not_in_steps(cluster: Cluster) -> None:
    """One team's steps take twenty times as long as another's, and it has many times as many jobs."""
    for _ in range(6):
        cluster.job("long", 10, 20.0)
    cluster.job("short", 150, 1.0)
    cluster.job("heavy", 60, 10.0, weight=2.0)
    used = cluster.used(140)
    total = sum(used.values())
    assert used["heavy"] / total == pytest.approx(0.5, abs=0.08)
    assert used["long"] / total == pytest.approx(0.25, abs=0.08)
    assert used["short"] / total == pytest.approx(0.25, abs=0.08)


def test_an_idle_team_banks_no_credit_forever(cluster: Cluster) -> None:
    """However long it was away, it catches up within a few fading times, and the other is not shut out for longer."""
    cluster.job("busy", 120, 60.0)
    cluster.used(60)  # an hour to itself
    cluster.job("idle", 100, 60.0)
    order = []
    for _ in range(30):
        done = cluster.next()
        assert done is not None
        order.append(done[0])
    first_of_busy = order.index("busy")
    assert 1 <= first_of_busy <= 15, "within about a fading time"
    later = Counter(order[first_of_busy:])
    assert later["busy"] >= len(order[first_of_busy:]) // 3


def test_nobody_starves(cluster: Cluster) -> None:
    """A light team with one step against heavy teams with many; an unimportant job against a stream of urgent ones."""
    for number in range(3):
        cluster.job(f"heavy{number}", 40, 5.0, weight=10.0)
    cluster.job("light", 3, 5.0, weight=0.5)
    low = cluster.job("heavy0", 3, 5.0, weight=10.0, priority=Priority.LOW)
    cluster.job("heavy0", 40, 5.0, weight=10.0, priority=Priority.HIGH)
    done = [cluster.next() for _ in range(75)]
    assert "light" in {item[0] for item in done if item}
    assert low in {item[1] for item in done if item}


def test_a_started_job_is_not_overtaken_by_later_ones_of_its_team(cluster: Cluster) -> None:
    """Waiting is counted in steps of others between two of its own, while a new job begins after every step."""
    first = cluster.job("blue", 12, 5.0)
    cluster.begin(first)
    cluster.job("red", 60, 5.0)
    waits, others, of_blue = [], 0, []
    while len(waits) < 12:
        done = cluster.next()
        assert done is not None
        if done[0] == "blue":
            of_blue.append(done[1])
        if done[1] == first:
            waits.append(others)
            others = 0
            cluster.begin(cluster.job("blue", 3, 5.0))
        else:
            others += 1
    assert of_blue == [first] * 12
    assert max(waits) <= 1, "but for the other team's turn"


def test_jobs_of_a_team_end_in_the_order_in_which_they_began(cluster: Cluster) -> None:
    jobs = [cluster.job("blue", 4, 5.0) for _ in range(4)]
    began = [jobs[2], jobs[0]]
    for job in began:
        cluster.begin(job)
    done = [cluster.next() for _ in range(16)]
    order = [item[1] for item in done if item]
    assert order == [job for job in (jobs[2], jobs[0], jobs[1], jobs[3]) for _ in range(4)]


def test_a_huge_job_does_not_hold_up_a_more_urgent_one_of_its_team(cluster: Cluster) -> None:
    huge = cluster.job("blue", 100, 5.0)
    cluster.begin(huge)
    cluster.used(10)
    small = cluster.job("blue", 3, 5.0, priority=Priority.HIGH)
    done = [cluster.next() for _ in range(8)]
    assert [item[1] for item in done if item].count(small) == 3
    with cluster.database.transaction() as session:
        assert session.get_one(Job, small).state is JobState.QUEUED  # only its steps are simulated


def test_a_priority_that_was_changed_decides_who_goes_next(cluster: Cluster) -> None:
    """Without the change the older one would go on."""
    older, younger = (cluster.job("blue", 6, 5.0) for _ in range(2))
    assert [done[1] for done in (cluster.next(), cluster.next()) if done] == [older, older]

    def move(job: uuid.UUID, priority: Priority) -> None:
        with cluster.database.transaction() as session:
            team = session.get_one(Job, job).team_id
            change_job(session, team, job, "olga", labels={}, priority=priority)

    move(younger, Priority.HIGH)
    done = cluster.next()
    assert done is not None
    assert done[1] == younger
    move(younger, Priority.LOW)
    done = cluster.next()
    assert done is not None
    assert done[1] == older
