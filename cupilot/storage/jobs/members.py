"""Read what figures show of a whole population: a row a candidate without strategy or code, and sums over techniques.

Lists of candidates with all that REST tells of them are :mod:`cupilot.storage.jobs.candidate_views`'.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import column, func, select, true
from sqlalchemy.dialects.postgresql import JSONB, aggregate_order_by
from sqlalchemy.orm import Session

from cupilot.domain.evaluation import Verdict
from cupilot.domain.evolution.population import Operator
from cupilot.domain.states import CandidateState
from cupilot.storage.db.tables.jobs import Candidate, CandidateParent, Generation, StrategyRow
from cupilot.storage.jobs.jobs import get_job

MAX_MEMBERS = 10_000
"""The newest so many are drawn; a figure has not as many pixels."""


@dataclass(frozen=True, slots=True)
class Member:
    """A candidate as figures show it."""

    id: UUID
    ordinal: int
    generation: int
    operator: Operator
    state: CandidateState
    reason: str | None
    verdict: Verdict | None
    speedup: float | None
    utilisation: float | None
    survives: bool
    parents: tuple[UUID, ...]
    """The fitter first."""


@dataclass(frozen=True, slots=True)
class Worth:
    """Outcome of a technique in one job."""

    id: str
    tries: int
    counted: int
    """Tries with a verdict that counts."""
    median: float | None
    best: float | None


def members(session: Session, team: UUID, job_id: UUID) -> list[Member]:
    """Return a job's candidates by ordinal; NotFound for another team's job."""
    job = get_job(session, team, job_id)
    parents = (
        select(func.array_agg(aggregate_order_by(CandidateParent.parent_id, CandidateParent.position.asc())))
        .where(CandidateParent.candidate_id == Candidate.id)
        .correlate(Candidate)
        .scalar_subquery()
    )
    query = (
        select(
            Candidate.id,
            Candidate.ordinal,
            Generation.number,
            Candidate.operator,
            Candidate.state,
            Candidate.reason,
            Candidate.verdict,
            Candidate.speedup,
            Candidate.utilisation,
            Candidate.survives,
            parents,
        )
        .join(Generation, Generation.id == Candidate.generation_id)
        .where(Candidate.job_id == job.id)
        .order_by(Candidate.ordinal.desc())
        .limit(MAX_MEMBERS)
    )
    rows = session.execute(query).all()
    return [Member(*fields, parents=tuple(parents or ())) for *fields, parents in reversed(rows)]


def worth_of_techniques(session: Session, team: UUID, job_id: UUID) -> list[Worth]:
    """Return each technique that a job's candidates used, the best speedup first."""
    job = get_job(session, team, job_id)
    used = func.jsonb_array_elements(StrategyRow.body["techniques"]).table_valued(column("value", JSONB))
    technique = used.c.value["id"].astext
    best = func.max(Candidate.speedup)
    query = (
        select(
            technique,
            func.count(Candidate.id.distinct()),
            func.count(Candidate.speedup),
            func.percentile_cont(0.5).within_group(Candidate.speedup),
            best,
        )
        .select_from(Candidate)
        .join(StrategyRow, StrategyRow.id == func.coalesce(Candidate.aligned_strategy_id, Candidate.strategy_id))
        .join(used, true())
        .where(Candidate.job_id == job.id)
        .group_by(technique)
        .order_by(best.desc().nulls_last(), technique)
    )
    return [Worth(*row) for row in session.execute(query)]
