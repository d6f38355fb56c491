"""The matrix: each fault as a function that hurts a running service once and returns the job that lived through it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from tests.service.faults.matrix.disk import fill, small_disk
from tests.service.faults.matrix.points import Act, Point
from tests.service.faults.matrix.service import LEASE_SECONDS, Service, wait_until

STEP = [
    Point.BEFORE_CLAIM,
    Point.AFTER_CLAIM,
    Point.DURING_WORK,
    Point.BEFORE_STORE,
    Point.IN_STORE,
    Point.BEFORE_ACK,
]
CALLS = [Point.CALL_RECORDED, Point.CALL_PAID, Point.CALL_STORED]
MESSAGES = [Point.IN_FAN_OUT, Point.MESSAGE_CLAIMED, Point.MESSAGE_SENT, Point.IN_RECORD]
CLOCK_STEP_SECONDS = 1_800.0


@dataclass(frozen=True)
class Case:
    """One fault."""

    name: str
    strike: Callable[[Service, int], UUID]
    """Hurts the service (the number makes the job's content unique); the job meanwhile under way."""
    quick: bool = False
    """Part of the short form."""
    role: str | None = None
    """Whose process dies, where nothing else is hurt: faults of different roles do not disturb each other."""


def _kill(role: str, point: Point, act: Act, service: Service, number: int) -> UUID:
    return service.strike(role, point, act, number)


def _pause(role: str, point: Point, service: Service, number: int) -> UUID:
    """Stand still for longer than the lease, then go on: the step is done elsewhere, the late result refused."""
    job = service.strike(role, point, Act.STOP, number)
    pids = service.arms.struck(role, point)
    again = "SELECT 1 FROM events WHERE job_id = :job AND kind = 'step.reaped'"
    wait_until(lambda: service.rows(again, job=job), f"the paused step is reaped; {service.logs()}")
    done = (
        "SELECT 1 FROM steps s JOIN events e ON e.step_id = s.id AND e.kind = 'step.reaped'"
        " WHERE s.job_id = :job AND s.state = 'succeeded'"
    )
    wait_until(lambda: service.rows(done, job=job), f"the paused step is done elsewhere; {service.logs()}")
    service.awake(pids)
    return job


def _under_way(service: Service, number: int) -> UUID:
    """A job that is in the middle of its work."""
    job = service.submit(number)
    finished = "SELECT count(*) FROM steps WHERE job_id = :job AND finished_at IS NOT NULL"
    wait_until(lambda: service.rows(finished, job=job)[0][0] >= 3, f"the job is under way; {service.logs()}")
    return job


def _flush(service: Service, number: int) -> UUID:
    job = _under_way(service, number)
    service.flush_broker()
    return job


def _broker(lose: bool, service: Service, number: int) -> UUID:
    job = _under_way(service, number)
    service.restart_broker(lose=lose)
    return job


def _database(service: Service, number: int) -> UUID:
    job = _under_way(service, number)
    service.restart_database()
    return job


def _cut(what: str, silent: bool, service: Service, number: int) -> UUID:
    """No network between the workers and a server, for longer than the lease."""
    job = _under_way(service, number)
    link = service.broker_link if what == "broker" else service.database_link
    link.cut(silent=silent)
    time.sleep(LEASE_SECONDS + 2.0)  # the fault itself lasts so long
    link.heal()
    return job


def _clock(whose: str, seconds: float, service: Service, number: int) -> UUID:
    """The wall clock jumps in the middle of a job, and stays there until the job is over."""
    job = _under_way(service, number)
    (service.database_clock if whose == "database" else service.workers_clock).step(seconds)
    service.wait_final(job)
    return job


def _clock_and_kill(service: Service, number: int) -> UUID:
    """The database's clock jumps back while a step's worker is dead: its lease now ends in half an hour."""
    job = service.strike("gpu", Point.DURING_WORK, Act.WORKER, number)
    service.database_clock.step(-CLOCK_STEP_SECONDS)
    service.wait_final(job)
    return job


def _disk_full(service: Service, number: int) -> UUID:
    """A real CPU worker whose work folder fills up takes itself out of service; its step is done elsewhere."""
    folder = service.folder / "work"
    service.start("gpu-full", "gpu-real", prepare=small_disk(folder, 256 * 2**20))
    up = "SELECT name FROM workers WHERE name LIKE 'gpu-full%' AND healthy"
    wait_until(lambda: service.rows(up), f"the real worker is up; {service.logs()}")
    fill(service.pid("gpu-full"), folder)
    for name in ("gpu-1", "gpu-2"):
        service.stop_process(name)
    job = service.submit(number)
    gone = "SELECT note FROM workers WHERE name LIKE 'gpu-full%' AND NOT healthy AND note LIKE '%MiB free%'"
    wait_until(lambda: service.rows(gone), f"the worker says that its disk is full; {service.logs()}")
    wait_until(lambda: service.exited("gpu-full") is not None, f"and ends; {service.logs()}")
    service.stop_process("gpu-full")
    for name in ("gpu-1", "gpu-2"):
        service.start(name, "gpu")
    return job


def _heal_clocks(service: Service) -> None:
    service.database_clock.step(0.0)
    service.workers_clock.step(0.0)


def _cases() -> list[Case]:
    found = []
    quick = {
        ("agent", Point.CALL_STORED, Act.CHILD),
        ("gpu", Point.DURING_WORK, Act.WORKER),
        ("gpu", Point.IN_STORE, Act.CHILD),
        ("gpu", Point.BEFORE_ACK, Act.WORKER),
    }
    for role, points in (("agent", [*STEP, *CALLS]), ("gpu", STEP)):
        for point in points:
            for act in (Act.CHILD, Act.WORKER):
                chosen = (role, point, act) in quick
                found.append(Case(f"{role} {act}: {point}", partial(_kill, role, point, act), chosen, role))
    for point in (Point.AFTER_DISPATCH, Point.BEFORE_PUBLISH, Point.AFTER_PUBLISH, Point.AFTER_TICK):
        found.append(
            Case(
                f"scheduler: {point}",
                partial(_kill, "scheduler", point, Act.CHILD),
                point is Point.AFTER_PUBLISH,
                "scheduler",
            )
        )
    for point in (Point.IN_SUBMIT, Point.BEFORE_ANSWER):
        answer = point is Point.BEFORE_ANSWER
        found.append(Case(f"api: {point}", partial(_kill, "api", point, Act.CHILD), answer, "api"))
    for point in MESSAGES:
        sent = point is Point.MESSAGE_SENT
        found.append(Case(f"webhooks: {point}", partial(_kill, "webhooks", point, Act.CHILD), sent, "webhooks"))
    found += [  # first of those that hurt everybody, so that a short run has them
        Case("work folder full", _disk_full),
        Case("agent without descriptors", partial(_kill, "agent", Point.DURING_WORK, Act.STARVE)),
        Case("gpu without descriptors", partial(_kill, "gpu", Point.DURING_WORK, Act.STARVE)),
    ]
    for role, point in (("gpu", Point.DURING_WORK), ("gpu", Point.BEFORE_STORE), ("agent", Point.BEFORE_STORE)):
        found.append(Case(f"{role} paused beyond its lease: {point}", partial(_pause, role, point), role == "gpu"))
    found += [
        Case("broker flushed", _flush, quick=True),
        Case("broker killed", partial(_broker, False)),
        Case("broker killed, its file lost", partial(_broker, True)),
        Case("database killed", _database, quick=True),
        Case("broker link reset", partial(_cut, "broker", False)),
        Case("broker link silent", partial(_cut, "broker", True)),
        Case("database link reset", partial(_cut, "database", False)),
        Case("database link silent", partial(_cut, "database", True)),
        Case("database clock forward", partial(_clock, "database", CLOCK_STEP_SECONDS)),
        Case("database clock back", partial(_clock, "database", -CLOCK_STEP_SECONDS)),
        Case("workers' clock forward", partial(_clock, "workers", CLOCK_STEP_SECONDS)),
        Case("workers' clock back", partial(_clock, "workers", -CLOCK_STEP_SECONDS)),
        Case("database clock back, worker dead", _clock_and_kill, quick=True),
    ]
    return found


CASES = _cases()


def run(service: Service, case: Case, number: int) -> UUID:
    """Strike, heal, and wait for the job's end, for its team to be told, and for all workers to be back."""
    try:
        job = case.strike(service, number)
        service.wait_final(job)
    finally:
        _heal_clocks(service)
    service.wait_told([job])
    service.wait_for_workers()
    return job
