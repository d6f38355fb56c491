"""Directives and quotas as the REST boundary shows them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cupilot.domain.states import JobState
from cupilot.schemas.steering import DirectiveList, DirectiveView, QueueShare, QuotaUse, QuotaView
from cupilot.storage.db.tables.jobs import Directive, Job
from cupilot.storage.db.tables.models import LlmCall
from cupilot.storage.db.tables.people import Team
from cupilot.storage.db.tables.queue import Step, WorkerRow
from cupilot.storage.db.usage import begin_of, gpu_seconds_since
from cupilot.storage.jobs.steering import directives
from cupilot.storage.models.money import allowance
from cupilot.storage.people.quotas import BEGUN, quota_of
from cupilot.storage.queue.fairness import shares


def directive_view(row: Directive) -> DirectiveView:
    """Return one directive."""
    return DirectiveView(
        id=row.id,
        kind=row.kind,
        candidate=row.candidate_id,
        technique=row.technique,
        strategy=row.strategy,
        kernel_hash=row.kernel_hash,
        became=row.made_id,
        in_force=row.lifted_at is None and row.done_at is None,
        author=row.author,
        created_at=row.created_at,
        done_at=row.done_at,
        lifted_at=row.lifted_at,
    )


def list_directives(session: Session, team: UUID, job: UUID) -> DirectiveList:
    """Return all of a job's; NotFound for another team's."""
    return DirectiveList(items=[directive_view(row) for row in directives(session, team, job)])


def quota_view(session: Session, team_id: UUID, *, with_shares: bool = True) -> QuotaView:
    """Return what the team may use, and has used; shares are left out where many teams are shown."""
    team = session.get_one(Team, team_id)
    quota = quota_of(team)
    began = begin_of(session, quota.period)
    return QuotaView(
        team=team.name,
        weight=team.weight,
        quota=quota,
        running_jobs=QuotaUse(used=_jobs(session, team_id, BEGUN), limit=quota.max_running_jobs),
        queued_jobs=QuotaUse(used=_jobs(session, team_id, (JobState.QUEUED,)), limit=quota.max_queued_jobs),
        gpu_seconds=QuotaUse(used=gpu_seconds_since(session, team_id, began), limit=quota.gpu_seconds),
        model_usd=_money(session, team_id, began),
        period_began_at=began,
        shares=_shares(session, team_id) if with_shares else [],
    )


def _jobs(session: Session, team: UUID, states: Sequence[JobState]) -> int:
    counted = (Job.team_id == team, Job.state.in_(states), Job.finished_at.is_(None))
    return session.execute(select(func.count()).where(*counted)).scalar_one()


def _money(session: Session, team: UUID, since: datetime) -> QuotaUse:
    """Return what was charged, and reserved for calls whose cost is not known."""
    limited = allowance(session, team)
    if limited is not None:
        return QuotaUse(used=limited.spent_usd, limit=limited.limit_usd)
    spent = select(func.coalesce(func.sum(LlmCall.cost_usd), 0.0))
    query = spent.where(LlmCall.team_id == team, LlmCall.created_at >= since)
    return QuotaUse(used=session.scalars(query).one() or 0.0)


def _shares(session: Session, team: UUID) -> list[QueueShare]:
    """Return the team's share of the queues of its open steps, and of those that it has used lately."""
    open_steps = (Job.team_id == team, Job.finished_at.is_(None), Step.finished_at.is_(None))
    own = set(session.scalars(select(Step.queue).join(Job, Job.id == Step.job_id).where(*open_steps).distinct()))
    heard = session.scalars(select(func.jsonb_array_elements_text(WorkerRow.queues)))
    listed = []
    for queue in sorted({*own, *heard}):
        used = {team_id: float(seconds) for team_id, seconds in session.execute(shares(queue))}
        if queue in own or team in used:
            listed.append(QueueShare(queue=queue, seconds=used.get(team, 0.0), of_all=sum(used.values())))
    return listed
