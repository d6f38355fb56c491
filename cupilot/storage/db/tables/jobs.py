"""The tables of jobs: problems, jobs, candidates with strategies, kernels and evaluations, directives, credits, events.

States change only through :mod:`cupilot.storage.db.transitions`.
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
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from cupilot.domain.attribution import Credit
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
    StrategyOrigin,
)
from cupilot.domain.steering import DirectiveKind
from cupilot.domain.strategy import Strategy
from cupilot.storage.db.base import Base, Json, fk, id_column, now_column
from cupilot.storage.db.json_columns import ValidatedJson


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
    """A job, its state and its budgets."""

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
    method: Mapped[MethodConfig] = mapped_column(ValidatedJson(MethodConfig))
    agents: Mapped[AgentKind]
    budgets: Mapped[Budgets] = mapped_column(ValidatedJson(Budgets))
    seed: Mapped[int]
    priority: Mapped[Priority]
    labels: Mapped[Json] = mapped_column(server_default=text("'{}'::jsonb"))
    learning: Mapped[Learning] = mapped_column(ValidatedJson(Learning), server_default=text("'{}'::jsonb"))
    """:class:`cupilot.domain.job.Learning` as JSON."""
    idempotency_key: Mapped[str | None] = mapped_column(String(200))
    request_hash: Mapped[str] = mapped_column(String(64))
    author: Mapped[str | None] = mapped_column(String(100))
    """The user who asked for it; None of jobs that are older than this column."""
    traceparent: Mapped[str | None] = mapped_column(String(55))
    """Of the request that made it, where that was traced (:mod:`cupilot.tracing`)."""
    experiment_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    arm: Mapped[str | None] = mapped_column(String(100))
    """Which arm of its experiment it is a job of."""

    state: Mapped[JobState] = mapped_column(server_default=JobState.QUEUED.value)
    reason: Mapped[str | None] = mapped_column(String(64))
    """Machine-readable: why it ended as it did, or what it waits for."""
    message: Mapped[str | None] = mapped_column(Text)
    """The same for a person."""
    preparation: Mapped[Preparation | None] = mapped_column(ValidatedJson(Preparation), deferred=True)
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
    batched_at: Mapped[datetime | None]
    """Since when steps of it lie in batches without a break: that is no wall time either."""
    retry_of_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"))
    forked_from_id: Mapped[uuid.UUID | None] = mapped_column(
        ForeignKey("candidates.id", ondelete="SET NULL", use_alter=True)
    )
    created_at: Mapped[datetime] = now_column()
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    pruned_at: Mapped[datetime | None]
    """Time at which the last of its details was pruned (:mod:`cupilot.storage.operations.retention`)."""


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
    """True if a budget allowed less than the method asked for."""
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
    body: Mapped[Strategy] = mapped_column(ValidatedJson(Strategy))
    pool_entry_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("pool_entries.id", ondelete="SET NULL"))
    created_at: Mapped[datetime] = now_column()


class KernelRow(Base):
    """A kernel, content-addressed and shared by all who arrive at it."""

    __tablename__ = "kernels"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    target: Mapped[Target]
    source: Mapped[str] = mapped_column(Text)
    plan: Mapped[LaunchPlan | None] = mapped_column(ValidatedJson(LaunchPlan, empty_is_none=True), nullable=False)
    """None of an imported file."""
    likeness: Mapped[str | None] = mapped_column(String(64), index=True)
    """:func:`cupilot.domain.evolution.novelty.kernel_key`: the same for kernels that differ in comments and blanks."""
    created_at: Mapped[datetime] = now_column()
    pruned_at: Mapped[datetime | None]
    """Time at which its source was pruned: it is empty since."""


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
    """True if selection kept it for the next generation."""
    notes: Mapped[Notes] = mapped_column(ValidatedJson(Notes), server_default=text("'{}'::jsonb"))
    created_at: Mapped[datetime] = now_column()
    finished_at: Mapped[datetime | None]


class CandidateParent(Base):
    """Lineage: the parents of a candidate, the fitter first."""

    __tablename__ = "candidate_parents"

    candidate_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("candidates.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    parent_id: Mapped[uuid.UUID] = fk("candidates.id")


class EvaluationRow(Base):
    """Measurement of the judge. Append-only; one a finished evaluate or confirm step."""

    __tablename__ = "evaluations"

    id: Mapped[uuid.UUID] = id_column()
    job_id: Mapped[uuid.UUID] = fk("jobs.id")
    candidate_id: Mapped[uuid.UUID] = fk("candidates.id")
    step_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("steps.id", ondelete="CASCADE"), unique=True)
    kernel_hash: Mapped[str] = mapped_column(ForeignKey("kernels.hash"), index=True)
    problem_hash: Mapped[str] = mapped_column(String(64), index=True)
    purpose: Mapped[EvaluationPurpose]
    verdict: Mapped[Verdict]
    body: Mapped[Evaluation] = mapped_column(ValidatedJson(Evaluation))
    created_at: Mapped[datetime] = now_column()


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


class Directive(Base):
    """Directive of a person to a job's evolution."""

    __tablename__ = "directives"
    __table_args__ = (
        CheckConstraint("kind <> 'ban' OR (technique IS NULL) <> (signature IS NULL)", name="ban"),
        CheckConstraint("kind <> 'inject' OR strategy IS NOT NULL", name="inject"),
        Index(
            "uq_directives_pin",
            "job_id",
            "candidate_id",
            unique=True,
            postgresql_where=text("kind = 'pin' AND lifted_at IS NULL"),
        ),
    )

    id: Mapped[uuid.UUID] = id_column()
    job_id: Mapped[uuid.UUID] = fk("jobs.id")
    kind: Mapped[DirectiveKind]
    candidate_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("candidates.id", ondelete="SET NULL"))
    """The pinned candidate; the one whose strategy is banned; the one, perhaps of another job, that is injected."""
    technique: Mapped[str | None] = mapped_column(String(64))
    """A banned technique."""
    strategy: Mapped[Strategy | None] = mapped_column(ValidatedJson(Strategy))
    """A banned or injected strategy."""
    signature: Mapped[str | None] = mapped_column(String(64))
    """Of a banned strategy."""
    kernel_hash: Mapped[str | None] = mapped_column(ForeignKey("kernels.hash"), index=True)
    """The code of an injected strategy, where it has any yet."""
    made_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("candidates.id", ondelete="SET NULL"))
    """The candidate that an injection became."""
    author: Mapped[str] = mapped_column(String(100))
    """The user who wants it."""
    created_at: Mapped[datetime] = now_column()
    done_at: Mapped[datetime | None]
    """Time at which an injection became a candidate."""
    lifted_at: Mapped[datetime | None]
    """Time at which it was withdrawn."""


class CreditRow(Base):
    """Credit of one technique of a winner: one row a technique, however often its step is done."""

    __tablename__ = "credits"
    __table_args__ = (UniqueConstraint("candidate_id", "technique"),)

    id: Mapped[uuid.UUID] = id_column()
    candidate_id: Mapped[uuid.UUID] = fk("candidates.id", index=False)
    position: Mapped[int]
    """Of the technique in the strategy."""
    technique: Mapped[str] = mapped_column(String(64))
    evaluation_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("evaluations.id", ondelete="SET NULL"))
    """Of the kernel without it, where one was measured."""
    body: Mapped[Credit] = mapped_column(ValidatedJson(Credit))
    created_at: Mapped[datetime] = now_column()
