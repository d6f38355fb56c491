"""Model calls: team, role, request hash, complaint, answer cache; lost calls; shared rate limits; stopped spending."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0013"
down_revision: str | Sequence[str] | None = "0012"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

OLD_STATES = ("started", "answered", "failed")


def upgrade() -> None:
    op.execute("ALTER TYPE llm_call_state ADD VALUE IF NOT EXISTS 'lost'")
    op.add_column("jobs", sa.Column("spending_stopped", sa.String(length=32), nullable=True))
    op.add_column("llm_calls", sa.Column("team_id", sa.Uuid(), nullable=True))
    op.add_column("llm_calls", sa.Column("role", sa.String(length=32), nullable=True))
    op.add_column("llm_calls", sa.Column("request_hash", sa.String(length=64), nullable=True))
    op.add_column("llm_calls", sa.Column("complaint", sa.Text(), nullable=True))
    op.add_column("llm_calls", sa.Column("cached", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.execute(
        "UPDATE llm_calls SET team_id = jobs.team_id, role = request->>'role', request_hash = request->>'hash',"
        " request = request - 'hash', cost_usd = coalesce(llm_calls.cost_usd, 0)"
        " FROM jobs WHERE jobs.id = llm_calls.job_id"
    )
    for name in ("team_id", "role", "request_hash"):
        op.alter_column("llm_calls", name, nullable=False)
    op.alter_column("llm_calls", "cost_usd", nullable=False, server_default=sa.text("0"))
    op.alter_column("llm_calls", "created_at", server_default=sa.text("clock_timestamp()"))
    op.create_foreign_key(
        op.f("fk_llm_calls_team_id_teams"), "llm_calls", "teams", ["team_id"], ["id"], ondelete="CASCADE"
    )
    op.create_check_constraint(op.f("ck_llm_calls_cached_is_free"), "llm_calls", "NOT cached OR cost_usd = 0")
    op.create_check_constraint(op.f("ck_llm_calls_cost"), "llm_calls", "cost_usd >= 0")
    op.create_index("ix_llm_calls_team_created", "llm_calls", ["team_id", "created_at"])
    answered = sa.text("state = 'answered'")
    op.create_index("ix_llm_calls_answers", "llm_calls", ["team_id", "request_hash"], postgresql_where=answered)
    op.create_table(
        "llm_rates",
        sa.Column("model", sa.String(length=300), nullable=False),
        sa.Column("requests", sa.Double(), nullable=False),
        sa.Column("tokens", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("blocked_until", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("model", name=op.f("pk_llm_rates")),
    )


def downgrade() -> None:
    op.drop_table("llm_rates")
    op.drop_index("ix_llm_calls_answers", "llm_calls")
    op.drop_index("ix_llm_calls_team_created", "llm_calls")
    op.drop_constraint(op.f("ck_llm_calls_cost"), "llm_calls")
    op.drop_constraint(op.f("ck_llm_calls_cached_is_free"), "llm_calls")
    op.drop_constraint(op.f("fk_llm_calls_team_id_teams"), "llm_calls")
    op.execute("UPDATE llm_calls SET request = request || jsonb_build_object('hash', request_hash)")
    op.alter_column("llm_calls", "created_at", server_default=sa.text("now()"))
    op.alter_column("llm_calls", "cost_usd", nullable=True, server_default=None)
    for name in ("cached", "complaint", "request_hash", "role", "team_id"):
        op.drop_column("llm_calls", name)
    op.drop_column("jobs", "spending_stopped")
    # Postgres removes no value from an enum: the type is made anew, and lost calls are failed ones again.
    op.execute("ALTER TYPE llm_call_state RENAME TO llm_call_state_with_lost")
    old = sa.Enum(*OLD_STATES, name="llm_call_state")
    old.create(op.get_bind())
    op.execute("ALTER TABLE llm_calls ALTER COLUMN state DROP DEFAULT")
    op.execute(
        "ALTER TABLE llm_calls ALTER COLUMN state TYPE llm_call_state"
        " USING (CASE WHEN state = 'lost' THEN 'failed' ELSE state::text END)::llm_call_state"
    )
    op.execute("ALTER TABLE llm_calls ALTER COLUMN state SET DEFAULT 'started'")
    op.execute("DROP TYPE llm_call_state_with_lost")
