"""The base of all tables: the declarative class, the types of columns, the names of constraints.

Knows no table; those are in :mod:`cupilot.storage.db.tables`.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import DateTime, Enum, ForeignKey, MetaData, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from cupilot.domain.evaluation import Verdict
from cupilot.domain.evolution.population import Operator
from cupilot.domain.job import AgentKind, Priority
from cupilot.domain.people import Role, Scope
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.quota import QuotaPeriod
from cupilot.domain.states import (
    BatchOutcome,
    BatchState,
    CandidateState,
    EvaluationPurpose,
    GenerationState,
    JobState,
    LlmCallState,
    StepKind,
    StepState,
    StrategyOrigin,
    WorkerKind,
)
from cupilot.domain.steering import DirectiveKind

Json = dict[str, Any]

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


def _enum(kind: type[StrEnum], name: str) -> Enum:
    return Enum(kind, name=name, values_callable=lambda members: [member.value for member in members])


class Base(DeclarativeBase):
    """Declarative base: JSONB for dicts, timezone-aware times, named constraints."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {
        Json: JSONB,
        datetime: DateTime(timezone=True),
        Target: _enum(Target, "target"),
        NumericsPolicy: _enum(NumericsPolicy, "numerics_policy"),
        Verdict: _enum(Verdict, "verdict"),
        Operator: _enum(Operator, "operator"),
        AgentKind: _enum(AgentKind, "agent_kind"),
        Priority: _enum(Priority, "priority"),
        Role: _enum(Role, "role"),
        Scope: _enum(Scope, "scope"),
        QuotaPeriod: _enum(QuotaPeriod, "quota_period"),
        DirectiveKind: _enum(DirectiveKind, "directive_kind"),
        BatchState: _enum(BatchState, "batch_state"),
        BatchOutcome: _enum(BatchOutcome, "batch_outcome"),
        JobState: _enum(JobState, "job_state"),
        GenerationState: _enum(GenerationState, "generation_state"),
        CandidateState: _enum(CandidateState, "candidate_state"),
        StepKind: _enum(StepKind, "step_kind"),
        StepState: _enum(StepState, "step_state"),
        StrategyOrigin: _enum(StrategyOrigin, "strategy_origin"),
        EvaluationPurpose: _enum(EvaluationPurpose, "evaluation_purpose"),
        LlmCallState: _enum(LlmCallState, "llm_call_state"),
        WorkerKind: _enum(WorkerKind, "worker_kind"),
    }


def id_column() -> Mapped[uuid.UUID]:
    """Return a random primary key."""
    return mapped_column(primary_key=True, default=uuid.uuid4)


def now_column() -> Mapped[datetime]:
    """Return the time of insertion, by the database's clock."""
    return mapped_column(server_default=func.now())


def fk(target: str, *, index: bool = True) -> Mapped[uuid.UUID]:
    """Return a reference whose row goes with the row it points to."""
    return mapped_column(ForeignKey(target, ondelete="CASCADE"), index=index)
