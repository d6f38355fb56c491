"""The tables of language models: calls with prompt, answer and cost, and the rate limits that workers share."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import CheckConstraint, Index, String, Text, UniqueConstraint, func, text
from sqlalchemy.orm import Mapped, mapped_column

from cupilot.domain.model_call import Answer, Call, NoAnswer
from cupilot.domain.states import LlmCallState
from cupilot.storage.db.base import Base, fk, id_column
from cupilot.storage.db.json_columns import ValidatedJson


class LlmCall(Base):
    """A model call: recorded before it is made, its answer stored before it is used."""

    __tablename__ = "llm_calls"
    __table_args__ = (
        UniqueConstraint("step_id", "purpose", "sequence"),
        CheckConstraint("NOT cached OR cost_usd = 0", name="cached_is_free"),
        CheckConstraint("cost_usd >= 0", name="cost"),
        Index("ix_llm_calls_team_created", "team_id", "created_at"),
        Index("ix_llm_calls_answers", "team_id", "request_hash", postgresql_where=text("state = 'answered'")),
    )

    id: Mapped[uuid.UUID] = id_column()
    team_id: Mapped[uuid.UUID] = fk("teams.id", index=False)
    job_id: Mapped[uuid.UUID] = fk("jobs.id")
    step_id: Mapped[uuid.UUID] = fk("steps.id", index=False)
    role: Mapped[str] = mapped_column(String(32))
    purpose: Mapped[str] = mapped_column(String(64))
    sequence: Mapped[int] = mapped_column(server_default=text("0"))
    state: Mapped[LlmCallState] = mapped_column(server_default=LlmCallState.STARTED.value)
    model: Mapped[str] = mapped_column(String(200))
    request: Mapped[Call | None] = mapped_column(ValidatedJson(Call, empty_is_none=True), nullable=False)
    """None where it was pruned."""
    request_hash: Mapped[str] = mapped_column(String(64))
    response: Mapped[Answer | NoAnswer | None] = mapped_column(ValidatedJson(Answer | NoAnswer))
    complaint: Mapped[str | None] = mapped_column(Text)
    """Defect of an answer that could not be used."""
    cached: Mapped[bool] = mapped_column(server_default=text("false"))
    """True if the answer is that of an earlier, equal call of the team."""
    prompt_tokens: Mapped[int | None]
    completion_tokens: Mapped[int | None]
    cost_usd: Mapped[float] = mapped_column(server_default=text("0"))
    """Charged once answered; the worst case while it is started or lost."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    finished_at: Mapped[datetime | None]


class LlmRate(Base):
    """State of a model's rate limits: two token buckets that all workers share, and a provider's wish to wait."""

    __tablename__ = "llm_rates"

    model: Mapped[str] = mapped_column(String(300), primary_key=True)
    """Model and endpoint."""
    requests: Mapped[float]
    """Requests that may be made at ``updated_at``; below zero, how many are waiting."""
    tokens: Mapped[float]
    updated_at: Mapped[datetime]
    blocked_until: Mapped[datetime | None]
    """The provider answered 429 with a Retry-After."""
