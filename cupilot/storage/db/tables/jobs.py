"""The schema. Invariants live here: enums, checks, partial unique indexes, foreign keys.

Rows are changed only through :mod:`cupilot.storage.db.transitions` and the repositories; Alembic owns the DDL.
"""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Identity,
    Index,
    String,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from cupilot.domain.evaluation import Evaluation, Preparation, Verdict
from cupilot.domain.evolution.methods import MethodConfig
from cupilot.domain.evolution.notes import Notes
from cupilot.domain.evolution.population import Operator
from cupilot.domain.job import AgentKind, Budgets, Learning, Priority
from cupilot.domain.kernel import LaunchPlan
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.states import (
    CandidateState,
    EvaluationPurpose,
    GenerationState,
    JobState,
    StepKind,
    StepState,
    StrategyOrigin,
)
from cupilot.domain.strategy import Strategy
from cupilot.storage.db.base import Base, Json, fk, id_column, now_column
from cupilot.storage.db.json_columns import JsonOf
from cupilot.storage.db.tables.cluster import CardLease as CardLease
from cupilot.storage.db.tables.cluster import Drain as Drain
from cupilot.storage.db.tables.cluster import SchedulerLook as SchedulerLook
from cupilot.storage.db.tables.cluster import WorkerRow as WorkerRow
from cupilot.storage.db.tables.experiments import Experiment
from cupilot.storage.db.tables.people import ApiKey as ApiKey
from cupilot.storage.db.tables.people import Membership as Membership
from cupilot.storage.db.tables.people import Team as Team
from cupilot.storage.db.tables.people import User as User
from cupilot.storage.db.tables.steering import Directive as Directive
from cupilot.storage.db.tables.steering import GpuUsage as GpuUsage


class ProblemRow(Base):
    """A problem of a team, content-addressed."""

    __tablename__ = "problems"
    __table_args__ = (UniqueConstraint("team_id", "hash"),)

    id: Mapped[uuid.UUID] = id_column()
    team_id: Mapped[uuid.UUID] = fk("teams.id")
    hash: Mapped[str] = mapped_column(String(64), index=True)
    name: Mapped[str] = mapped_column(String(200))
    source: Mapped[str] = mapped_column(Text)
    policy: Mapped[NumericsPolicy]
    created_at: Mapped[datetime] = now_column()


class Job(Base):
    """A job and where it stands."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("team_id", "idempotency_key"),
        UniqueConstraint("experiment_id", "arm", "problem_id", "seed"),
        CheckConstraint("(experiment_id IS NULL) = (arm IS NULL)", name="arm"),
        CheckConstraint(
            "(finished_at IS NOT NULL) = (state IN ('succeeded','failed','cancelled','budget_exhausted'))",
            name="finished",
        ),
        CheckConstraint("state <> 'failed' OR reason IS NOT NULL", name="failed_has_reason"),
        CheckConstraint("(state::text = 'paused') = (paused_at IS NOT NULL)", name="paused"),
        CheckConstraint("cost_usd >= 0 AND gpu_seconds >= 0 AND candidates >= 0", name="counters"),
        Index("ix_jobs_team_created", "team_id", text("created_at DESC"), text("id DESC")),
        Index("ix_jobs_open", "state", postgresql_where=text("finished_at IS NULL")),
        Index("ix_jobs_labels", "labels", postgresql_using="gin"),
        Index(
            "ix_jobs_unpruned", "finished_at", postgresql_where=text("finished_at IS NOT NULL AND pruned_at IS NULL")
        ),
    )

    id: Mapped[uuid.UUID] = id_column()
    team_id: Mapped[uuid.UUID] = fk("teams.id")
    problem_id: Mapped[uuid.UUID] = fk("problems.id")
    target: Mapped[Target]
    method: Mapped[MethodConfig] = mapped_column(JsonOf(MethodConfig))
    agents: Mapped[AgentKind]
    budgets: Mapped[Budgets] = mapped_column(JsonOf(Budgets))
    seed: Mapped[int]
    priority: Mapped[Priority]
    labels: Mapped[Json] = mapped_column(server_default=text("'{}'::jsonb"))
    learning: Mapped[Learning] = mapped_column(JsonOf(Learning), server_default=text("'{}'::jsonb"))
    """:class:`cupilot.domain.job.Learning` as JSON."""
    idempotency_key: Mapped[str | None] = mapped_column(String(200))
    request_hash: Mapped[str] = mapped_column(String(64))
    author: Mapped[str | None] = mapped_column(String(100))
    """The user who asked for it; None of jobs that are older than this column."""
    traceparent: Mapped[str | None] = mapped_column(String(55))
    """Of the request that made it, where that was traced (:mod:`cupilot.tracing`)."""
    experiment_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey(Experiment.id, ondelete="CASCADE"))
    arm: Mapped[str | None] = mapped_column(String(100))
    """Which arm of its experiment it is a job of."""

    state: Mapped[JobState] = mapped_column(server_default=JobState.QUEUED.value)
    reason: Mapped[str | None] = mapped_column(String(64))
    """Machine-readable: why it ended as it did, or what it waits for."""
    message: Mapped[str | None] = mapped_column(Text)
    """The same for a person."""
    preparation: Mapped[Preparation | None] = mapped_column(JsonOf(Preparation), deferred=True)
    """None until the job is prepared. Loaded on access: a large reference's graph has thousands of nodes."""
    best_candidate_id: Mapped[uuid.UUID | None] = mapped_column(
        ForeignKey("candidates.id", ondelete="SET NULL", use_alter=True)
    )
    generation: Mapped[int] = mapped_column(server_default=text("0"))
    candidates: Mapped[int] = mapped_column(server_default=text("0"))
    """Candidates made so far; the next one's ordinal."""
    cost_usd: Mapped[float] = mapped_column(server_default=text("0"))
    """Charged for model calls so far."""
    spending_stopped: Mapped[str | None] = mapped_column(String(32))
    """The budget that a model call did not fit (:class:`cupilot.domain.model_call.BudgetScope`): none follows."""
    gpu_seconds: Mapped[float] = mapped_column(server_default=text("0"))
    cancel_requested_at: Mapped[datetime | None]
    paused_at: Mapped[datetime | None]
    paused_seconds: Mapped[float] = mapped_column(server_default=text("0"))
    """Of former pauses since the job began; they do not count as its wall time."""
    retry_of_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"))
    forked_from_id: Mapped[uuid.UUID | None] = mapped_column(
        ForeignKey("candidates.id", ondelete="SET NULL", use_alter=True)
    )
    created_at: Mapped[datetime] = now_column()
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    pruned_at: Mapped[datetime | None]
    """When the last of its details went (:mod:`cupilot.storage.operations.retention`)."""


class Generation(Base):
    """One round of a job. ``pending`` is the fan-in: candidates that are not final yet."""

    __tablename__ = "generations"
    __table_args__ = (
        UniqueConstraint("job_id", "number"),
        CheckConstraint("pending >= 0", name="pending"),
        CheckConstraint("(state = 'finished') = (finished_at IS NOT NULL)", name="finished"),
    )

    id: Mapped[uuid.UUID] = id_column()
    job_id: Mapped[uuid.UUID] = fk("jobs.id", index=False)
    number: Mapped[int]
    state: Mapped[GenerationState] = mapped_column(server_default=GenerationState.RUNNING.value)
    pending: Mapped[int]
    cut_short: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether a budget allowed less than the method asked for."""
    created_at: Mapped[datetime] = now_column()
    finished_at: Mapped[datetime | None]


class StrategyRow(Base):
    """A strategy of a job, as asked for or as aligned."""

    __tablename__ = "strategies"

    id: Mapped[uuid.UUID] = id_column()
    job_id: Mapped[uuid.UUID] = fk("jobs.id")
    hash: Mapped[str] = mapped_column(String(64))
    signature: Mapped[str] = mapped_column(String(64))
    origin: Mapped[StrategyOrigin]
    body: Mapped[Strategy] = mapped_column(JsonOf(Strategy))
    pool_entry_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("pool_entries.id", ondelete="SET NULL"))
    created_at: Mapped[datetime] = now_column()


class KernelRow(Base):
    """A kernel, content-addressed and shared by all who arrive at it."""

    __tablename__ = "kernels"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    target: Mapped[Target]
    source: Mapped[str] = mapped_column(Text)
    plan: Mapped[LaunchPlan | None] = mapped_column(JsonOf(LaunchPlan, empty_is_none=True), nullable=False)
    """None of an imported file."""
    likeness: Mapped[str | None] = mapped_column(String(64), index=True)
    """:func:`cupilot.domain.evolution.novelty.kernel_key`: the same for kernels that differ in comments and blanks."""
    created_at: Mapped[datetime] = now_column()
    pruned_at: Mapped[datetime | None]
    """When its source went: it is empty since."""


class Candidate(Base):
    """An individual: strategy + kernel + evaluation + lineage."""

    __tablename__ = "candidates"
    __table_args__ = (
        UniqueConstraint("job_id", "ordinal"),
        CheckConstraint("(state = 'active') = (finished_at IS NULL)", name="finished"),
        CheckConstraint("speedup IS NULL OR verdict IN ('audited','reproduced')", name="speedup_counts"),
    )

    id: Mapped[uuid.UUID] = id_column()
    job_id: Mapped[uuid.UUID] = fk("jobs.id", index=False)
    generation_id: Mapped[uuid.UUID] = fk("generations.id")
    ordinal: Mapped[int]
    operator: Mapped[Operator]
    state: Mapped[CandidateState] = mapped_column(server_default=CandidateState.ACTIVE.value)
    reason: Mapped[str | None] = mapped_column(String(64))
    strategy_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("strategies.id", ondelete="SET NULL"))
    aligned_strategy_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("strategies.id", ondelete="SET NULL"))
    kernel_hash: Mapped[str | None] = mapped_column(ForeignKey("kernels.hash"), index=True)
    evaluation_id: Mapped[uuid.UUID | None] = mapped_column(
        ForeignKey("evaluations.id", ondelete="SET NULL", use_alter=True)
    )
    verdict: Mapped[Verdict | None]
    speedup: Mapped[float | None]
    fitness: Mapped[float | None]
    utilisation: Mapped[float | None]
    fidelity: Mapped[float | None]
    repair_rounds: Mapped[int] = mapped_column(server_default=text("0"))
    survives: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether selection kept it for the next generation."""
    notes: Mapped[Notes] = mapped_column(JsonOf(Notes), server_default=text("'{}'::jsonb"))
    created_at: Mapped[datetime] = now_column()
    finished_at: Mapped[datetime | None]


class CandidateParent(Base):
    """Lineage: the parents of a candidate, the fitter first."""

    __tablename__ = "candidate_parents"

    candidate_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("candidates.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    parent_id: Mapped[uuid.UUID] = fk("candidates.id")


class EvaluationRow(Base):
    """What the judge measured. Append-only; one a finished evaluate or confirm step."""

    __tablename__ = "evaluations"

    id: Mapped[uuid.UUID] = id_column()
    job_id: Mapped[uuid.UUID] = fk("jobs.id")
    candidate_id: Mapped[uuid.UUID] = fk("candidates.id")
    step_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("steps.id", ondelete="CASCADE"), unique=True)
    kernel_hash: Mapped[str] = mapped_column(ForeignKey("kernels.hash"), index=True)
    problem_hash: Mapped[str] = mapped_column(String(64), index=True)
    purpose: Mapped[EvaluationPurpose]
    verdict: Mapped[Verdict]
    body: Mapped[Evaluation] = mapped_column(JsonOf(Evaluation))
    created_at: Mapped[datetime] = now_column()


class Step(Base):
    """One unit of work: queued, leased, retried. Postgres is the truth; a Celery message is a hint."""

    __tablename__ = "steps"
    __table_args__ = (
        CheckConstraint(
            "(state = 'running') = (lease_owner IS NOT NULL AND lease_expires_at IS NOT NULL)", name="lease"
        ),
        CheckConstraint("attempt BETWEEN 0 AND max_attempts", name="attempt"),
        CheckConstraint("(state IN ('succeeded','failed','cancelled')) = (finished_at IS NOT NULL)", name="finished"),
        UniqueConstraint("job_id", "key"),
        # What waits may be 100,000 rows, what is held or on its way never is: each look has an index of its own.
        Index(
            "ix_steps_waiting",
            *("queue", "job_id", "created_at", "id"),
            postgresql_where=text("state = 'queued' AND dispatched_at IS NULL"),
        ),
        Index(
            "ix_steps_touched",
            *("queue", "job_id"),
            postgresql_where=text(
                "finished_at IS NULL AND (state = 'running' OR dispatched_at IS NOT NULL OR busy_seconds > 0)"
            ),
        ),
        Index("ix_steps_sent", "queue", "created_at", postgresql_where=text("state = 'queued' AND dispatches > 0")),
        Index("ix_steps_open", "queue", "state", postgresql_where=text("finished_at IS NULL")),
        Index("ix_steps_usage", "queue", "finished_at", postgresql_where=text("finished_at IS NOT NULL")),
        Index("ix_steps_leased", "lease_expires_at", postgresql_where=text("state = 'running'")),
    )

    id: Mapped[uuid.UUID] = id_column()
    job_id: Mapped[uuid.UUID] = fk("jobs.id", index=False)
    generation_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("generations.id", ondelete="CASCADE"))
    candidate_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("candidates.id", ondelete="CASCADE"), index=True)
    key: Mapped[str] = mapped_column(String(100))
    """What the step is within its job, e.g. ``c12/revise/1``: a step cannot be made twice."""
    kind: Mapped[StepKind]
    queue: Mapped[str] = mapped_column(String(100))
    state: Mapped[StepState] = mapped_column(server_default=StepState.QUEUED.value)
    attempt: Mapped[int] = mapped_column(server_default=text("0"))
    """Claims so far; the present one's fencing token while running."""
    max_attempts: Mapped[int] = mapped_column(server_default=text("3"))
    payload: Mapped[Json] = mapped_column(server_default=text("'{}'::jsonb"))
    error: Mapped[Json | None] = mapped_column(JSONB(none_as_null=True))
    traceparent: Mapped[str | None] = mapped_column(String(55))
    """Of what made it."""
    dispatched_at: Mapped[datetime | None]
    """When a message was last handed to the outbox; None while it waits in Postgres only."""
    dispatches: Mapped[int] = mapped_column(server_default=text("0"))
    """Messages sent for the next claim; more than a few, and some worker does not do its work."""
    not_before: Mapped[datetime | None]
    avoids: Mapped[str | None] = mapped_column(String(200))
    """A device that is to have it only where no other one of its class can: it failed there, or was measured there."""
    lease_owner: Mapped[str | None] = mapped_column(String(200))
    lease_expires_at: Mapped[datetime | None]
    busy_seconds: Mapped[float] = mapped_column(server_default=text("0"))
    """For which workers held it, over all attempts that have ended."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    """Differs between the steps of one transaction: they are done in the order in which they were made."""
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class Outbox(Base):
    """Messages to publish, written in the transaction that makes them true."""

    __tablename__ = "outbox"
    __table_args__ = (Index("ix_outbox_unsent", "id", postgresql_where=text("sent_at IS NULL")),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    topic: Mapped[str] = mapped_column(String(64))
    payload: Mapped[Json]
    created_at: Mapped[datetime] = now_column()
    sent_at: Mapped[datetime | None]
    attempts: Mapped[int] = mapped_column(server_default=text("0"))


class Event(Base):
    """Append-only history, one row a transition: audit, polling and live views all read it."""

    __tablename__ = "events"
    __table_args__ = (
        Index("ix_events_job", "job_id", "id"),
        Index("ix_events_states", "job_id", "id", postgresql_where=text("kind LIKE 'job.%'")),
        Index("ix_events_reaped", "id", postgresql_where=text("kind = 'step.reaped'")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    job_id: Mapped[uuid.UUID] = fk("jobs.id", index=False)
    candidate_id: Mapped[uuid.UUID | None]
    step_id: Mapped[uuid.UUID | None]
    kind: Mapped[str] = mapped_column(String(64))
    """E.g. ``job.evolving``, ``candidate.evaluated``, ``step.reaped``, ``generation.finished``."""
    data: Mapped[Json] = mapped_column(server_default=text("'{}'::jsonb"))
    created_at: Mapped[datetime] = now_column()
