"""The world of the API's tests: teams with keys on a real database, and jobs put into any state without workers."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import httpx
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import func, update
from sqlalchemy.orm import Session

from api.app import create_app
from cupilot.domain.evaluation import Baseline, Evaluation, Failure, FailureKind, Preparation, Verdict
from cupilot.domain.evolution.population import Operator
from cupilot.domain.hardware import Device, Environment
from cupilot.domain.job import JobSpec
from cupilot.domain.kernel import Kernel
from cupilot.domain.people import Role
from cupilot.domain.problem import Problem, Target
from cupilot.domain.roofline import place
from cupilot.domain.states import (
    CandidateState,
    EvaluationPurpose,
    GenerationState,
    JobState,
    StepKind,
    StepState,
    StrategyOrigin,
)
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Candidate, CandidateParent, EvaluationRow, Generation, Job, StrategyRow
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import lock_job, move_candidate, move_generation, move_job
from cupilot.storage.jobs.evolving import store_kernel
from cupilot.storage.jobs.jobs import submit_job
from cupilot.storage.people.teams import create_api_key, ensure_team, ensure_user, set_role
from cupilot.storage.queue.steps import add_step
from tests.unit.cupilot.factories import build, comparison, facts, kernel, law, peaks

SOURCE = '''"""Twice the input."""
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return []
'''

DEVICE = Device(
    target=Target.CPU, uid="cpu-1", name="Test CPU", arch="x86-64-avx2", units=2, memory_bytes=2**33, cache_bytes=2**20
)


@dataclass
class Team:
    """A tenant and its client."""

    id: uuid.UUID
    key: str
    http: httpx.Client

    def submit(self, **changes: Any) -> dict[str, Any]:
        """A queued job, through the API."""
        response = self.http.post("/v1/jobs", json=job_request(**changes))
        assert response.status_code == 202, response.text
        body: dict[str, Any] = response.json()
        return body


@dataclass
class World:
    """A database and an application on it, behind a real server."""

    database: Database
    url: str
    open: list[httpx.Client] = field(default_factory=list)

    def team(self) -> Team:
        """A team of its own, so that tests share nothing."""
        with self.database.transaction() as session:
            row = ensure_team(session, f"team-{uuid.uuid4()}")
            _, key = create_api_key(session, row, "test")
        return Team(row.id, key, self.http(key))

    def cluster_admin(self) -> Team:
        """A team, with the key of one who is its admin and runs the service."""
        with self.database.transaction() as session:
            row = ensure_team(session, f"team-{uuid.uuid4()}")
            user = ensure_user(session, f"admin-{uuid.uuid4()}")
            user.cluster_admin = True
            set_role(session, row, user, Role.ADMIN)
            _, key = create_api_key(session, row, "test", user=user)
        return Team(row.id, key, self.http(key))

    def http(self, key: str | None = None) -> httpx.Client:
        """A client with this key, or without any."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        client = httpx.Client(base_url=self.url, headers=headers, timeout=60)
        self.open.append(client)
        return client

    def close(self) -> None:
        """Close what was opened."""
        for client in self.open:
            client.close()


def job_request(**changes: Any) -> dict[str, Any]:
    """A small, valid request body."""
    return {"problem": {"name": "double", "source": SOURCE}, "target": "cpu", **changes}


@cache
def documentation() -> dict[str, Any]:
    """Return the API's OpenAPI document, which takes 1.5 s to make."""
    return create_app(Settings(database_url=SecretStr("postgresql+psycopg2://nowhere/none"))).openapi()


@contextmanager
def live(app: FastAPI, lifespan: Literal["on", "off"] = "off") -> Iterator[str]:
    """The application behind a real uvicorn on a free port; with its lifespan what it holds is closed at the end."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan=lifespan, timeout_graceful_shutdown=10))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


class Story:
    """A job lived through without workers: what they would write is written here."""

    def __init__(self, session: Session, team: uuid.UUID, problem: Problem | None = None) -> None:
        self.session = session
        problem = problem or Problem(name="double", source=SOURCE)
        spec = JobSpec(problem=problem, target=Target.CPU)
        self.job, _ = submit_job(session, team, spec, idempotency_key=None, request_hash="0" * 64)
        lock_job(session, self.job.id)

    def prepare(self) -> Story:
        """The reference was checked and placed; evolution has begun."""
        move_job(self.session, self.job, JobState.PREPARING)
        self.job.preparation = preparation()
        move_job(self.session, self.job, JobState.EVOLVING)
        return self

    def generation(self, number: int) -> Generation:
        """A round that is over."""
        row = Generation(id=uuid.uuid4(), job_id=self.job.id, number=number, pending=0)
        self.session.add(row)
        self.session.flush()
        move_generation(self.session, row, GenerationState.FINISHED)
        self.job.generation = number
        return row

    def candidate(
        self,
        generation: Generation,
        evaluation: Evaluation | None = None,
        *parents: Candidate,
        techniques: tuple[str, ...] = ("simd",),
        best: bool = False,
    ) -> Candidate:
        """A candidate that has been evaluated, or was dropped as a duplicate."""
        strategy = Strategy(techniques=tuple(TechniqueUse(id=name) for name in techniques), rationale="because")
        row = StrategyRow(
            id=uuid.uuid4(),
            job_id=self.job.id,
            hash=strategy.content_hash(),
            signature=strategy.signature(),
            origin=StrategyOrigin.CROSSOVER if parents else StrategyOrigin.IDEA,
            body=strategy,
        )
        candidate = Candidate(
            id=uuid.uuid4(),
            job_id=self.job.id,
            generation_id=generation.id,
            ordinal=self.job.candidates,
            operator=Operator.CROSSOVER if parents else Operator.INITIAL,
        )
        self.job.candidates += 1
        self.session.add_all([row, candidate])
        self.session.flush()
        candidate.strategy_id = candidate.aligned_strategy_id = row.id
        for position, parent in enumerate(parents):
            self.session.add(CandidateParent(candidate_id=candidate.id, position=position, parent_id=parent.id))
        if evaluation is None:
            move_candidate(self.session, candidate, CandidateState.DUPLICATE, reason="duplicate_strategy")
            return candidate
        self._evaluated(candidate, evaluation)
        if best:
            self.job.best_candidate_id = candidate.id
        return candidate

    def end(self, state: JobState, **reasons: str) -> Job:
        """The job is over."""
        self.session.flush()
        move_job(self.session, self.job, state, **reasons)
        return self.job

    def leave_no_steps(self) -> Job:
        """Settle its steps: workers that run beside the test find none to do."""
        done = {"state": StepState.SUCCEEDED, "finished_at": func.now()}
        self.session.execute(update(Step).where(Step.job_id == self.job.id).values(done))
        return self.job

    def _evaluated(self, candidate: Candidate, evaluation: Evaluation) -> None:
        code = code_of(candidate.ordinal)
        store_kernel(self.session, code)
        step = add_step(
            self.session, self.job, StepKind.EVALUATE, f"c{candidate.ordinal}/evaluate", candidate=candidate
        )
        row = EvaluationRow(
            id=uuid.uuid4(),
            job_id=self.job.id,
            candidate_id=candidate.id,
            step_id=step.id,
            kernel_hash=code.content_hash(),
            problem_hash=evaluation.problem_hash,
            purpose=EvaluationPurpose.EVALUATE,
            verdict=evaluation.verdict,
            body=evaluation,
        )
        self.session.add(row)
        self.session.flush()
        candidate.kernel_hash, candidate.evaluation_id = row.kernel_hash, row.id
        candidate.verdict, candidate.speedup = evaluation.verdict, evaluation.speedup
        candidate.utilisation = 0.5
        move_candidate(self.session, candidate, CandidateState.EVALUATED)


def code_of(ordinal: int) -> Kernel:
    """A kernel whose source tells its candidate."""
    base = kernel(
        {"kernel": "rows", "args": ["x", "out"]},  # type: ignore[arg-type]
        target=Target.CPU,
        tunables={"BLOCK": {"value": 64, "choices": [64, 128]}},
    )
    return base.model_copy(update={"source": f"// candidate {ordinal}\n"})


def preparation() -> Preparation:
    """Facts, placement and baseline of the test problem."""
    found = facts()
    return Preparation(
        facts=found,
        placement=place(found, peaks()),
        peaks=peaks(),
        environment=Environment(device=DEVICE),
        baseline_us=comparison().baseline_us,
        laws=("own", "signed", "wide_range"),
        tolerances={"own": 1e-6},
        admission={"zeros": True},
    )


def audited(speedup: float, *, compiled: float | None = None, verdict: Verdict = Verdict.AUDITED) -> Evaluation:
    """A kernel that counts."""
    comparisons = [comparison(speedup)]
    if compiled is not None:
        comparisons.append(comparison(compiled, Baseline.COMPILE))
    found = preparation()
    return Evaluation(
        kernel_hash="0" * 64,
        problem_hash=Problem(name="double", source=SOURCE).content_hash(),
        verdict=verdict,
        build=build(),
        laws=(law(),),
        comparisons=tuple(comparisons),
        placement=found.placement,
        environment=found.environment,
        tunables={"BLOCK": 128},
        seconds=1.5,
    )


def rejected(kind: FailureKind = FailureKind.WRONG_VALUE) -> Evaluation:
    """A kernel that does not count."""
    return Evaluation(
        kernel_hash="0" * 64,
        problem_hash="0" * 64,
        verdict=Verdict.REJECTED,
        failure=Failure(kind=kind, message="out[0] is 1, should be 2"),
        build=build(),
    )


def evolved(
    session: Session, team: uuid.UUID, state: JobState = JobState.SUCCEEDED, problem: Problem | None = None
) -> Job:
    """A job with five candidates in two generations, the last one crossed from the first two; EVOLVING goes on."""
    story = Story(session, team, problem).prepare()
    first = story.generation(0)
    one = story.candidate(first, audited(1.5), techniques=("simd",))
    two = story.candidate(first, audited(1.2), techniques=("threads",))
    story.candidate(first, rejected())
    story.candidate(first)
    second = story.generation(1)
    evaluation = audited(2.0, compiled=0.5, verdict=Verdict.REPRODUCED)
    story.candidate(second, evaluation, one, two, techniques=("simd", "threads"), best=True)
    return story.job if state is JobState.EVOLVING else story.end(state)
