"""Users, their roles in teams, and keys that belong to a user.

A key from before becomes that of a service account of its team with the role that every key had: admin.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0008"
down_revision: str | Sequence[str] | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

ROLE = postgresql.ENUM("viewer", "member", "admin", name="role", create_type=False)
SCOPE = postgresql.ENUM("read", "submit", "admin", name="scope", create_type=False)


def upgrade() -> None:
    ROLE.create(op.get_bind())
    SCOPE.create(op.get_bind())
    op.create_table(
        "users",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("team_id", sa.Uuid(), nullable=True),
        sa.Column("cluster_admin", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("NOT (cluster_admin AND team_id IS NOT NULL)", name=op.f("ck_users_cluster_admin")),
        sa.ForeignKeyConstraint(["team_id"], ["teams.id"], name=op.f("fk_users_team_id_teams"), ondelete="CASCADE"),
    )
    person, service = sa.text("team_id IS NULL"), sa.text("team_id IS NOT NULL")
    op.create_index("uq_users_person", "users", ["name"], unique=True, postgresql_where=person)
    op.create_index("uq_users_service", "users", ["team_id", "name"], unique=True, postgresql_where=service)
    op.create_table(
        "memberships",
        sa.Column("team_id", sa.Uuid(), primary_key=True),
        sa.Column("user_id", sa.Uuid(), primary_key=True),
        sa.Column("role", ROLE, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["team_id"], ["teams.id"], name=op.f("fk_memberships_team_id_teams"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_memberships_user_id_users"), ondelete="CASCADE"
        ),
    )
    op.create_index(op.f("ix_memberships_user_id"), "memberships", ["user_id"])
    op.add_column("api_keys", sa.Column("user_id", sa.Uuid(), nullable=True))
    op.add_column("api_keys", sa.Column("scope", SCOPE, server_default="admin", nullable=False))
    op.add_column("api_keys", sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True))
    # A key's id serves as its account's: one account a key, and no two of one name.
    op.execute(
        "INSERT INTO users (id, name, team_id) SELECT id, left(name, 87) || ' ' || prefix, team_id FROM api_keys"
    )
    op.execute("INSERT INTO memberships (team_id, user_id, role) SELECT team_id, id, 'admin' FROM api_keys")
    op.execute("UPDATE api_keys SET user_id = id")
    op.alter_column("api_keys", "user_id", nullable=False)
    op.create_foreign_key(
        op.f("fk_api_keys_user_id_users"), "api_keys", "users", ["user_id"], ["id"], ondelete="CASCADE"
    )
    op.create_index(op.f("ix_api_keys_user_id"), "api_keys", ["user_id"])


def downgrade() -> None:
    for column in ("user_id", "scope", "expires_at"):
        op.drop_column("api_keys", column)
    op.drop_table("memberships")
    op.drop_table("users")
    SCOPE.drop(op.get_bind())
    ROLE.drop(op.get_bind())
