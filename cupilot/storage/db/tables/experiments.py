"""The table of experiments. Their jobs are ordinary jobs that name their experiment and arm."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import Index, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from cupilot.domain.experiments.matrix import ExperimentSpec
from cupilot.storage.db.base import Base, fk, id_column, now_column
from cupilot.storage.db.json_columns import ValidatedJson


class Experiment(Base):
    """A matrix of matched jobs. Its state follows from theirs."""

    __tablename__ = "experiments"
    __table_args__ = (
        UniqueConstraint("team_id", "idempotency_key"),
        Index("ix_experiments_team_created", "team_id", text("created_at DESC"), text("id DESC")),
    )

    id: Mapped[uuid.UUID] = id_column()
    team_id: Mapped[uuid.UUID] = fk("teams.id", index=False)
    name: Mapped[str] = mapped_column(String(100))
    spec: Mapped[ExperimentSpec] = mapped_column(ValidatedJson(ExperimentSpec))
    idempotency_key: Mapped[str | None] = mapped_column(String(200))
    request_hash: Mapped[str] = mapped_column(String(64))
    cancel_requested_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = now_column()
