"""The tables of the strategy pool, which outlives jobs: its entries, and whose problems may be shared."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from cupilot.domain.pool import PoolEntry
from cupilot.storage.db.base import Base, fk, id_column, now_column
from cupilot.storage.db.json_columns import ValidatedJson


class BuiltinProblem(Base):
    """A problem that a version of this service shipped. Results on others never leave the team that wrote them.

    Rows stay after an upgrade that changes a problem's text: what was measured on the former text was trusted too.
    """

    __tablename__ = "builtin_problems"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    """Content hash: a problem's name proves nothing."""
    name: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[datetime] = now_column()


class PoolReference(Base):
    """A description that entries share: what similarity is measured on. One a scope, however many entries have it."""

    __tablename__ = "pool_references"
    __table_args__ = (
        Index("ix_pool_references_place", "scope", "target", "policy", "op_class"),
        Index("ix_pool_references_unindexed", "id", postgresql_where=text("indexed_at IS NULL")),
    )

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    """Made from all of the rest, so that equal descriptions are one row."""
    scope: Mapped[str] = mapped_column(String(36))
    """The team whose entries it describes, or ``builtin`` for entries on built-in problems that all teams may see.

    ``cluster`` until it is read again: made by the release before, which shared entries on any problem.
    """
    target: Mapped[str] = mapped_column(String(16))
    policy: Mapped[str] = mapped_column(String(16))
    op_class: Mapped[str] = mapped_column(String(64))
    zone: Mapped[str] = mapped_column(String(16))
    text: Mapped[str] = mapped_column(Text)
    length: Mapped[int]
    """Words in it."""
    indexed_at: Mapped[datetime | None]
    """Time at which the vector index was given it."""


class PoolTerm(Base):
    """Count of a word in a description: the postings that BM25 is computed from."""

    __tablename__ = "pool_terms"
    __table_args__ = (Index("ix_pool_terms_term", "term"),)

    reference_id: Mapped[uuid.UUID] = mapped_column(
        ForeignKey("pool_references.id", ondelete="CASCADE"), primary_key=True
    )
    term: Mapped[str] = mapped_column(String(100), primary_key=True)
    occurrences: Mapped[int]


class PoolRow(Base):
    """The truth of the strategy pool: one evaluation. The columns beside ``body`` are made from it, to be searched."""

    __tablename__ = "pool_entries"
    __table_args__ = (
        CheckConstraint("sharing IN ('private', 'anonymous', 'open')", name="sharing"),
        CheckConstraint("(sharing = 'private') = (shared_reference_id IS NULL)", name="shared"),
        Index("ix_pool_entries_team_created", "team_id", text("created_at DESC"), text("id DESC")),
        Index("ix_pool_entries_team_problem", "team_id", "problem_hash"),
        Index("ix_pool_entries_techniques", "techniques", postgresql_using="gin"),
        Index("ix_pool_entries_unread", "created_at", postgresql_where=text("reference_id IS NULL")),
        Index("ix_pool_entries_shared", "shared_reference_id", postgresql_where=text("sharing <> 'private'")),
    )

    id: Mapped[uuid.UUID] = id_column()
    """The evaluation's id."""
    team_id: Mapped[uuid.UUID] = fk("teams.id")
    body: Mapped[PoolEntry] = mapped_column(ValidatedJson(PoolEntry))
    sharing: Mapped[str] = mapped_column(String(16), server_default="private")
    """:class:`cupilot.domain.pool.Sharing`; ``private`` of every entry that is not on a built-in problem."""
    reference_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("pool_references.id"), index=True)
    """None until the columns were made."""
    shared_reference_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("pool_references.id"))
    """The description that other teams find it by, without what it does not show them."""
    problem_hash: Mapped[str] = mapped_column(String(64), server_default="")
    signature: Mapped[str] = mapped_column(String(64), server_default="")
    techniques: Mapped[list[str]] = mapped_column(JSONB, server_default=text("'[]'::jsonb"))
    device_class: Mapped[str] = mapped_column(String(64), server_default="")
    gain: Mapped[float | None]
    """ln of the speedup, of a kernel that counts."""
    failure: Mapped[str | None] = mapped_column(String(64))
    imported: Mapped[bool] = mapped_column(server_default=text("false"))
    measured_at: Mapped[datetime] = now_column()
    created_at: Mapped[datetime] = now_column()


class NovelTechnique(Base):
    """A technique that a team's agents or people named and the catalogue does not know: when first, and what it is.

    What kernels with it came to stands in the pool's entries and is reckoned from them.
    """

    __tablename__ = "novel_techniques"
    __table_args__ = (UniqueConstraint("team_id", "technique", "target"),)

    id: Mapped[uuid.UUID] = id_column()
    team_id: Mapped[uuid.UUID] = fk("teams.id", index=False)
    technique: Mapped[str] = mapped_column(String(64))
    target: Mapped[str] = mapped_column(String(16))
    meaning: Mapped[str] = mapped_column(Text)
    """Untrusted: a model may have written it. At most :data:`cupilot.domain.strategy.MAX_MEANING` characters."""
    origin: Mapped[str] = mapped_column(String(16))
    """:class:`cupilot.domain.states.StrategyOrigin` of the strategy that named it first."""
    job_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"))
    created_at: Mapped[datetime] = now_column()
