"""The service in one process: dispatches, relays into a list, does each step itself, so that tests see every move."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kombu.exceptions import OperationalError
from sqlalchemy import func, select, update

from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import Budgets, JobSpec, Priority
from cupilot.domain.problem import Target
from cupilot.domain.states import WorkerKind
from cupilot.domain.strategy import Strategy
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Candidate, Event, Job
from cupilot.storage.db.tables.queue import Step, WorkerRow
from cupilot.storage.jobs.jobs import submit_job
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.queue.cluster import register_worker
from cupilot.storage.queue.steps import AGENTS_QUEUE, device_queue
from tests.service.doubles import MemoryPool, ScriptedAgents, ScriptedJudge, device, problem, strategy
from workers.app import BUNDLE_TASK
from workers.bundles import run_bundle
from workers.dispatcher import dispatch
from workers.relay import Relay
from workers.steps import run_step
from workers.tools import Tools

Message = tuple[str, list[Any], str]

REDISPATCH = timedelta(minutes=10)
"""No test lasts so long, however slow the machine: a message is lost only where a test makes it look old."""


@dataclass
class Postbox:
    """Stands for the broker: keeps what is published, or refuses it."""

    away: bool = False
    sent: list[Message] = field(default_factory=list)

    def send_task(self, name: str, *, args: list[Any], queue: str, **_: Any) -> None:
        if self.away:
            raise OperationalError("connection refused")
        self.sent.append((name, args, queue))


class Rig:
    """One agent worker with ``slots`` slots, one CPU worker, and everything they need."""

    def __init__(
        self, database: Database, settings: Settings, initial: Sequence[Strategy] = (), slots: int = 1
    ) -> None:
        self.database = database
        self.settings = settings
        self.judge = ScriptedJudge()
        self.players = ScriptedAgents(initial or [strategy(f"t{number}") for number in range(1, 9)])
        self.pool = MemoryPool()
        self.postbox = Postbox()
        self.relay = Relay(database, self.postbox)  # type: ignore[arg-type]
        self.tools = Tools(
            settings=settings,
            database=database,
            agents=lambda *_: self.players.agents(),
            judge=lambda: self.judge,
            pool=lambda: self.pool,  # type: ignore[arg-type,return-value]
        )
        with database.transaction() as session:
            register_worker(
                session, "agent-1", WorkerKind.AGENT, queues=[AGENTS_QUEUE], slots=slots, version="test", device=None
            )
            queues = [device_queue(Target.CPU)]
            register_worker(session, "gpu-1", WorkerKind.GPU, queues=queues, slots=1, version="test", device=device())

    def submit(self, team: str = "blue", **changes: Any) -> uuid.UUID:
        key, request = changes.pop("idempotency_key", None), changes.pop("request_hash", "0" * 64)
        spec = job_spec(**changes)
        with self.database.transaction() as session:
            owner = ensure_team(session, team)
            job, _ = submit_job(session, owner.id, spec, idempotency_key=key, request_hash=request)
            return job.id

    def publish(self, bundle_seconds: float = 0.0) -> list[Message]:
        """Dispatch and relay once; the messages that came out."""
        before = len(self.postbox.sent)
        dispatch(self.database, REDISPATCH, bundle_seconds)
        self.relay.run()
        return self.postbox.sent[before:]

    def do(self, message: Message, draining: bool = False) -> None:
        """Take one message, as a worker would."""
        worker = "agent-1" if message[2].startswith(AGENTS_QUEUE) else "gpu-1"
        if message[0] == BUNDLE_TASK:
            run_bundle(
                {uuid.UUID(step): attempt for step, attempt in message[1][0].items()},
                worker,
                self.tools,
                lambda: draining,
            )
            self._beat()
            return
        step, attempt = message[1]
        run_step(uuid.UUID(step), attempt, worker, self.tools, lambda: draining)
        self._beat()

    def _beat(self) -> None:
        """Keep the workers live: on a slow machine a test may last longer than a heartbeat counts."""
        living = update(WorkerRow).where(WorkerRow.name.in_(["agent-1", "llm-1", "gpu-1"]))
        with self.database.transaction() as session:
            session.execute(living.values(heartbeat_at=func.now()))

    def run(self, rounds: int = 1_000) -> None:
        """Until nothing is dispatched any more."""
        for _ in range(rounds):
            messages = self.publish()
            if not messages:
                return
            for message in messages:
                self.do(message)
        raise AssertionError("the job does not come to an end")

    def run_until(self, job_id: uuid.UUID, key: str) -> Message:
        """Do everything else until a step of this key is published; its message."""
        for _ in range(1_000):
            messages = self.publish()
            wanted = self.step_or_none(job_id, key)
            for message in messages:
                if wanted is not None and message[1][0] == str(wanted.id):
                    return message
                self.do(message)
            assert messages, f"nothing is dispatched any more, and no step {key}"
        raise AssertionError(f"there is no step {key}")

    def make_ready(self, step_id: uuid.UUID) -> None:
        """As if a postponed step's time had come."""
        with self.database.transaction() as session:
            session.execute(update(Step).where(Step.id == step_id).values(not_before=None))

    def step_or_none(self, job_id: uuid.UUID, key: str) -> Step | None:
        return next((step for step in self.steps(job_id) if step.key == key), None)

    def job(self, job_id: uuid.UUID) -> Job:
        with self.database.transaction() as session:
            return session.get_one(Job, job_id)

    def steps(self, job_id: uuid.UUID) -> list[Step]:
        with self.database.transaction() as session:
            return list(session.scalars(select(Step).where(Step.job_id == job_id).order_by(Step.created_at, Step.key)))

    def step(self, job_id: uuid.UUID, key: str) -> Step:
        return next(step for step in self.steps(job_id) if step.key == key)

    def candidates(self, job_id: uuid.UUID) -> list[Candidate]:
        with self.database.transaction() as session:
            query = select(Candidate).where(Candidate.job_id == job_id).order_by(Candidate.ordinal)
            return list(session.scalars(query))

    def events(self, job_id: uuid.UUID) -> list[str]:
        with self.database.transaction() as session:
            return list(session.scalars(select(Event.kind).where(Event.job_id == job_id).order_by(Event.id)))


def job_spec(**changes: Any) -> JobSpec:
    """A small job for the ``cpu`` target."""
    values: dict[str, Any] = {
        "problem": problem(),
        "target": Target.CPU,
        "method": SceConfig(population=4, generations=2, elites=1, repair_rounds=2),
        "budgets": Budgets(candidates=50),
        "priority": Priority.NORMAL,
    }
    return JobSpec(**(values | changes))
