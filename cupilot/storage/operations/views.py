"""Read what operators look after, over all teams: waiting steps, kernels in quarantine. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from cupilot.domain.evaluation import Verdict
from cupilot.domain.job import Priority
from cupilot.domain.states import StepState
from cupilot.storage.db.tables.jobs import Candidate, EvaluationRow, Job, ProblemRow
from cupilot.storage.db.tables.people import Team
from cupilot.storage.db.tables.queue import AT_A_WORKER, IN_A_BATCH, Step


@dataclass(frozen=True)
class Backlog:
    """Open steps of a queue, of one team's jobs of one priority."""

    queue: str
    team: str
    priority: Priority
    waiting: int
    running: int
    in_batches: int
    since: datetime | None
    """Since when the oldest of those that wait does."""


@dataclass(frozen=True)
class Quarantined:
    """Quarantined kernel that no other job has measured again since."""

    team: str
    problem: str
    job: UUID
    ordinal: int
    why: str
    device: str | None
    at: datetime


def backlogs(session: Session) -> Sequence[Backlog]:
    """Return open steps by queue, team and priority."""
    waits = Step.state == StepState.QUEUED
    query = (
        select(
            Step.queue,
            Team.name,
            Job.priority,
            func.count().filter(waits),
            func.count().filter(AT_A_WORKER),
            func.count().filter(IN_A_BATCH),
            func.min(Step.created_at).filter(waits),
        )
        .join(Job, Job.id == Step.job_id)
        .join(Team, Team.id == Job.team_id)
        .where(Step.finished_at.is_(None))
        .group_by(Step.queue, Team.name, Job.priority)
        .order_by(Step.queue, Team.name, Job.priority.desc())
    )
    return [Backlog(*row) for row in session.execute(query)]


def quarantine(session: Session, limit: int) -> Sequence[Quarantined]:
    """Return kernels that wait for a person, the newest first."""
    later = aliased(EvaluationRow)
    judged_again = select(later.id).where(
        later.kernel_hash == EvaluationRow.kernel_hash,
        later.problem_hash == EvaluationRow.problem_hash,
        later.job_id != EvaluationRow.job_id,
        later.created_at > EvaluationRow.created_at,
    )
    query = (
        select(
            Team.name,
            ProblemRow.name,
            Job.id,
            Candidate.ordinal,
            func.coalesce(EvaluationRow.body["failure"]["message"].astext, ""),
            EvaluationRow.body["environment"]["device"]["name"].astext,
            EvaluationRow.created_at,
        )
        .select_from(Candidate)
        .join(EvaluationRow, EvaluationRow.id == Candidate.evaluation_id)
        .join(Job, Job.id == Candidate.job_id)
        .join(ProblemRow, ProblemRow.id == Job.problem_id)
        .join(Team, Team.id == Job.team_id)
        .where(Candidate.verdict == Verdict.QUARANTINED, ~judged_again.exists())
        .order_by(EvaluationRow.created_at.desc(), Candidate.id)
        .limit(limit)
    )
    return [Quarantined(*row) for row in session.execute(query)]
