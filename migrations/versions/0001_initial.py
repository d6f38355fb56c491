"""The first schema."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0001"
down_revision: str | Sequence[str] | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


ENUMS: list[postgresql.ENUM] = []


def _refers(name: str, columns: list[str], target: list[str], ondelete: str = "CASCADE") -> sa.ForeignKeyConstraint:
    """A reference whose row goes with the row it points to, or forgets it."""
    return sa.ForeignKeyConstraint(columns, target, name=op.f(name), ondelete=ondelete)


def _enum(name: str, *values: str) -> postgresql.ENUM:
    """A type that is made once here, not by each table that uses it."""
    ENUMS.append(postgresql.ENUM(*values, name=name, create_type=False))
    return ENUMS[-1]


TARGET = _enum("target", "cuda", "cpu")
WORKER_KIND = _enum("worker_kind", "agent", "gpu")
NUMERICS_POLICY = _enum("numerics_policy", "fp32", "tf32", "half")
AGENT_KIND = _enum("agent_kind", "playbook", "llm", "hybrid")
PRIORITY = _enum("priority", "low", "normal", "high")
JOB_STATE = _enum(
    "job_state", "queued", "preparing", "evolving", "cancelling", "succeeded", "failed", "cancelled", "budget_exhausted"
)
GENERATION_STATE = _enum("generation_state", "running", "finished")
STRATEGY_ORIGIN = _enum("strategy_origin", "idea", "pool", "crossover", "revision", "alignment")
OPERATOR = _enum("operator", "initial", "crossover")
CANDIDATE_STATE = _enum("candidate_state", "active", "evaluated", "duplicate", "failed", "cancelled")
VERDICT = _enum("verdict", "rejected", "compiled", "correct", "plausible", "audited", "reproduced", "quarantined")
STEP_KIND = _enum("step_kind", "prepare", "initialise", "cross", "translate", "evaluate", "revise", "align", "confirm")
STEP_STATE = _enum("step_state", "queued", "running", "succeeded", "failed", "cancelled")
EVALUATION_PURPOSE = _enum("evaluation_purpose", "evaluate", "confirm")
LLM_CALL_STATE = _enum("llm_call_state", "started", "answered", "failed")


TABLES = (
    "llm_calls, evaluations, steps, candidate_parents, candidates, strategies, generations, events, jobs, problems,"
    " pool_entries, api_keys, workers, teams, outbox, kernels"
)


def upgrade() -> None:
    for kind in ENUMS:
        kind.create(op.get_bind())
    op.create_table(
        "kernels",
        sa.Column("hash", sa.String(length=64), primary_key=True),
        sa.Column("target", TARGET, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("plan", postgresql.JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), primary_key=True),
        sa.Column("topic", sa.String(length=64), nullable=False),
        sa.Column("payload", postgresql.JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
    )
    op.create_index("ix_outbox_unsent", "outbox", ["id"], postgresql_where=sa.text("sent_at IS NULL"))
    op.create_table(
        "teams",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("weight", sa.Double(), server_default=sa.text("1"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("weight > 0", name=op.f("ck_teams_weight")),
        sa.UniqueConstraint("name", name=op.f("uq_teams_name")),
    )
    op.create_table(
        "workers",
        sa.Column("name", sa.String(length=200), primary_key=True),
        sa.Column("kind", WORKER_KIND, nullable=False),
        sa.Column("queues", postgresql.JSONB(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("device", postgresql.JSONB(), nullable=True),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("healthy", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("slots >= 1", name=op.f("ck_workers_slots")),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("team_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        _refers("fk_api_keys_team_id_teams", ["team_id"], ["teams.id"]),
        sa.UniqueConstraint("prefix", name=op.f("uq_api_keys_prefix")),
    )
    op.create_index(op.f("ix_api_keys_team_id"), "api_keys", ["team_id"])
    op.create_table(
        "pool_entries",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("team_id", sa.Uuid(), nullable=False),
        sa.Column("body", postgresql.JSONB(), nullable=False),
        sa.Column("indexed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        _refers("fk_pool_entries_team_id_teams", ["team_id"], ["teams.id"]),
    )
    op.create_index(op.f("ix_pool_entries_team_id"), "pool_entries", ["team_id"])
    op.create_index(
        "ix_pool_entries_unindexed", "pool_entries", ["created_at"], postgresql_where=sa.text("indexed_at IS NULL")
    )
    op.create_table(
        "problems",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("team_id", sa.Uuid(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("policy", NUMERICS_POLICY, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        _refers("fk_problems_team_id_teams", ["team_id"], ["teams.id"]),
        sa.UniqueConstraint("team_id", "hash", name=op.f("uq_problems_team_id_hash")),
    )
    op.create_index(op.f("ix_problems_hash"), "problems", ["hash"])
    op.create_index(op.f("ix_problems_team_id"), "problems", ["team_id"])
    op.create_table(
        "jobs",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("team_id", sa.Uuid(), nullable=False),
        sa.Column("problem_id", sa.Uuid(), nullable=False),
        sa.Column("target", TARGET, nullable=False),
        sa.Column("method", postgresql.JSONB(), nullable=False),
        sa.Column("agents", AGENT_KIND, nullable=False),
        sa.Column("budgets", postgresql.JSONB(), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("priority", PRIORITY, nullable=False),
        sa.Column("labels", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("idempotency_key", sa.String(length=200), nullable=True),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("state", JOB_STATE, server_default="queued", nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("preparation", postgresql.JSONB(), nullable=True),
        sa.Column("best_candidate_id", sa.Uuid(), nullable=True),
        sa.Column("generation", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("candidates", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("cost_usd", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("gpu_seconds", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(finished_at IS NOT NULL) = (state IN ('succeeded','failed','cancelled','budget_exhausted'))",
            name=op.f("ck_jobs_finished"),
        ),
        sa.CheckConstraint("state <> 'failed' OR reason IS NOT NULL", name=op.f("ck_jobs_failed_has_reason")),
        sa.CheckConstraint("cost_usd >= 0 AND gpu_seconds >= 0 AND candidates >= 0", name=op.f("ck_jobs_counters")),
        _refers("fk_jobs_problem_id_problems", ["problem_id"], ["problems.id"]),
        _refers("fk_jobs_team_id_teams", ["team_id"], ["teams.id"]),
        sa.UniqueConstraint("team_id", "idempotency_key", name=op.f("uq_jobs_team_id_idempotency_key")),
    )
    op.create_index("ix_jobs_labels", "jobs", ["labels"], postgresql_using="gin")
    op.create_index("ix_jobs_open", "jobs", ["state"], postgresql_where=sa.text("finished_at IS NULL"))
    op.create_index(op.f("ix_jobs_problem_id"), "jobs", ["problem_id"])
    op.create_index(
        "ix_jobs_team_created",
        "jobs",
        ["team_id", sa.literal_column("created_at DESC"), sa.literal_column("id DESC")],
        unique=False,
    )
    op.create_index(op.f("ix_jobs_team_id"), "jobs", ["team_id"])
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), primary_key=True),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("candidate_id", sa.Uuid(), nullable=True),
        sa.Column("step_id", sa.Uuid(), nullable=True),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("data", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        _refers("fk_events_job_id_jobs", ["job_id"], ["jobs.id"]),
    )
    op.create_index("ix_events_job", "events", ["job_id", "id"])
    op.create_table(
        "generations",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", GENERATION_STATE, server_default="running", nullable=False),
        sa.Column("pending", sa.Integer(), nullable=False),
        sa.Column("cut_short", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(state = 'finished') = (finished_at IS NOT NULL)", name=op.f("ck_generations_finished")),
        sa.CheckConstraint("pending >= 0", name=op.f("ck_generations_pending")),
        _refers("fk_generations_job_id_jobs", ["job_id"], ["jobs.id"]),
        sa.UniqueConstraint("job_id", "number", name=op.f("uq_generations_job_id_number")),
    )
    op.create_table(
        "strategies",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("signature", sa.String(length=64), nullable=False),
        sa.Column("origin", STRATEGY_ORIGIN, nullable=False),
        sa.Column("body", postgresql.JSONB(), nullable=False),
        sa.Column("pool_entry_id", sa.Uuid(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        _refers("fk_strategies_job_id_jobs", ["job_id"], ["jobs.id"]),
        sa.ForeignKeyConstraint(
            ["pool_entry_id"],
            ["pool_entries.id"],
            name=op.f("fk_strategies_pool_entry_id_pool_entries"),
            ondelete="SET NULL",
        ),
    )
    op.create_index(op.f("ix_strategies_job_id"), "strategies", ["job_id"])
    op.create_table(
        "candidates",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("generation_id", sa.Uuid(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("operator", OPERATOR, nullable=False),
        sa.Column("state", CANDIDATE_STATE, server_default="active", nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.Column("strategy_id", sa.Uuid(), nullable=True),
        sa.Column("aligned_strategy_id", sa.Uuid(), nullable=True),
        sa.Column("kernel_hash", sa.String(length=64), nullable=True),
        sa.Column("evaluation_id", sa.Uuid(), nullable=True),
        sa.Column("verdict", VERDICT, nullable=True),
        sa.Column("speedup", sa.Double(), nullable=True),
        sa.Column("fitness", sa.Double(), nullable=True),
        sa.Column("utilisation", sa.Double(), nullable=True),
        sa.Column("fidelity", sa.Double(), nullable=True),
        sa.Column("repair_rounds", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("survives", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(state = 'active') = (finished_at IS NULL)", name=op.f("ck_candidates_finished")),
        sa.CheckConstraint(
            "speedup IS NULL OR verdict IN ('audited','reproduced')", name=op.f("ck_candidates_speedup_counts")
        ),
        sa.ForeignKeyConstraint(
            ["aligned_strategy_id"],
            ["strategies.id"],
            name=op.f("fk_candidates_aligned_strategy_id_strategies"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["generation_id"],
            ["generations.id"],
            name=op.f("fk_candidates_generation_id_generations"),
            ondelete="CASCADE",
        ),
        _refers("fk_candidates_job_id_jobs", ["job_id"], ["jobs.id"]),
        sa.ForeignKeyConstraint(["kernel_hash"], ["kernels.hash"], name=op.f("fk_candidates_kernel_hash_kernels")),
        _refers("fk_candidates_strategy_id_strategies", ["strategy_id"], ["strategies.id"], "SET NULL"),
        sa.UniqueConstraint("job_id", "ordinal", name=op.f("uq_candidates_job_id_ordinal")),
    )
    op.create_index(op.f("ix_candidates_generation_id"), "candidates", ["generation_id"])
    op.create_table(
        "candidate_parents",
        sa.Column("candidate_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("parent_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(
            ["candidate_id"],
            ["candidates.id"],
            name=op.f("fk_candidate_parents_candidate_id_candidates"),
            ondelete="CASCADE",
        ),
        _refers("fk_candidate_parents_parent_id_candidates", ["parent_id"], ["candidates.id"]),
        sa.PrimaryKeyConstraint("candidate_id", "position", name=op.f("pk_candidate_parents")),
    )
    op.create_index(op.f("ix_candidate_parents_parent_id"), "candidate_parents", ["parent_id"])
    op.create_table(
        "steps",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("generation_id", sa.Uuid(), nullable=True),
        sa.Column("candidate_id", sa.Uuid(), nullable=True),
        sa.Column("key", sa.String(length=100), nullable=False),
        sa.Column("kind", STEP_KIND, nullable=False),
        sa.Column("queue", sa.String(length=100), nullable=False),
        sa.Column("state", STEP_STATE, server_default="queued", nullable=False),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("max_attempts", sa.Integer(), server_default=sa.text("3"), nullable=False),
        sa.Column("payload", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("error", postgresql.JSONB(), nullable=True),
        sa.Column("dispatched_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("dispatches", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lease_owner", sa.String(length=200), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(state = 'running') = (lease_owner IS NOT NULL AND lease_expires_at IS NOT NULL)",
            name=op.f("ck_steps_lease"),
        ),
        sa.CheckConstraint(
            "(state IN ('succeeded','failed','cancelled')) = (finished_at IS NOT NULL)", name=op.f("ck_steps_finished")
        ),
        sa.CheckConstraint("attempt BETWEEN 0 AND max_attempts", name=op.f("ck_steps_attempt")),
        _refers("fk_steps_candidate_id_candidates", ["candidate_id"], ["candidates.id"]),
        _refers("fk_steps_generation_id_generations", ["generation_id"], ["generations.id"]),
        _refers("fk_steps_job_id_jobs", ["job_id"], ["jobs.id"]),
        sa.UniqueConstraint("job_id", "key", name=op.f("uq_steps_job_id_key")),
    )
    op.create_index(op.f("ix_steps_candidate_id"), "steps", ["candidate_id"])
    op.create_index("ix_steps_leased", "steps", ["lease_expires_at"], postgresql_where=sa.text("state = 'running'"))
    op.create_index("ix_steps_open", "steps", ["queue", "state"], postgresql_where=sa.text("finished_at IS NULL"))
    op.create_index("ix_steps_ready", "steps", ["queue", "created_at"], postgresql_where=sa.text("state = 'queued'"))
    op.create_index(
        "ix_steps_usage", "steps", ["queue", "finished_at"], postgresql_where=sa.text("finished_at IS NOT NULL")
    )
    op.create_table(
        "evaluations",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("candidate_id", sa.Uuid(), nullable=False),
        sa.Column("step_id", sa.Uuid(), nullable=False),
        sa.Column("kernel_hash", sa.String(length=64), nullable=False),
        sa.Column("problem_hash", sa.String(length=64), nullable=False),
        sa.Column("purpose", EVALUATION_PURPOSE, nullable=False),
        sa.Column("verdict", VERDICT, nullable=False),
        sa.Column("body", postgresql.JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        _refers("fk_evaluations_candidate_id_candidates", ["candidate_id"], ["candidates.id"]),
        _refers("fk_evaluations_job_id_jobs", ["job_id"], ["jobs.id"]),
        sa.ForeignKeyConstraint(["kernel_hash"], ["kernels.hash"], name=op.f("fk_evaluations_kernel_hash_kernels")),
        _refers("fk_evaluations_step_id_steps", ["step_id"], ["steps.id"]),
        sa.UniqueConstraint("step_id", name=op.f("uq_evaluations_step_id")),
    )
    op.create_index(op.f("ix_evaluations_candidate_id"), "evaluations", ["candidate_id"])
    op.create_index(op.f("ix_evaluations_job_id"), "evaluations", ["job_id"])
    op.create_index(op.f("ix_evaluations_kernel_hash"), "evaluations", ["kernel_hash"])
    op.create_index(op.f("ix_evaluations_problem_hash"), "evaluations", ["problem_hash"])
    op.create_table(
        "llm_calls",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("step_id", sa.Uuid(), nullable=False),
        sa.Column("purpose", sa.String(length=64), nullable=False),
        sa.Column("sequence", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("state", LLM_CALL_STATE, server_default="started", nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("request", postgresql.JSONB(), nullable=False),
        sa.Column("response", postgresql.JSONB(), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=True),
        sa.Column("completion_tokens", sa.Integer(), nullable=True),
        sa.Column("cost_usd", sa.Double(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        _refers("fk_llm_calls_job_id_jobs", ["job_id"], ["jobs.id"]),
        _refers("fk_llm_calls_step_id_steps", ["step_id"], ["steps.id"]),
        sa.UniqueConstraint("step_id", "purpose", "sequence", name=op.f("uq_llm_calls_step_id_purpose_sequence")),
    )
    op.create_index(op.f("ix_llm_calls_job_id"), "llm_calls", ["job_id"])
    # Both tables of each pair exist only now: they refer to each other.
    name = op.f("fk_jobs_best_candidate_id_candidates")
    op.create_foreign_key(name, "jobs", "candidates", ["best_candidate_id"], ["id"], ondelete="SET NULL")
    name = op.f("fk_candidates_evaluation_id_evaluations")
    op.create_foreign_key(name, "candidates", "evaluations", ["evaluation_id"], ["id"], ondelete="SET NULL")


def downgrade() -> None:
    op.execute(f"DROP TABLE {TABLES}")
    for kind in reversed(ENUMS):
        kind.drop(op.get_bind())
