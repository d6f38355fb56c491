"""Check the budgets of model calls, and warn before they are used up. The calls themselves are in ``llm_calls``.

Money is counted from the rows of calls: charged where answered, the worst case where started or lost. So nothing that
restarts can forget it. Budgets of a call and a job are the job's; a team's is per calendar period, UTC.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cupilot.domain.model_call import BudgetScope, Call, CostBudgetReached
from cupilot.domain.states import LlmCallState
from cupilot.storage.db.engine import settings_of
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.models import LlmCall
from cupilot.storage.db.tables.people import Team
from cupilot.storage.db.transitions import record_event

COST_UNKNOWN = (LlmCallState.STARTED, LlmCallState.LOST)
"""Calls on their way, or lost: their rows carry the worst that they may cost."""
WARNED_SHARES = (0.5, 0.8)
"""Shares of a budget at which an event ``budget.warned`` says so."""


@dataclass(frozen=True)
class Allowance:
    """A team's money for models in the present period."""

    limit_usd: float
    period: str
    since: datetime
    """Begin of the period."""
    spent_usd: float
    """Charged, and reserved for calls whose cost is not known."""
    settled_usd: float
    """The same without calls on their way."""

    @property
    def left_usd(self) -> float:
        """Amount that may still be spent; below zero by a rounding error at most."""
        return self.limit_usd - self.spent_usd


def allowance(session: Session, team_id: uuid.UUID) -> Allowance | None:
    """Return the team's allowance for models in this period, by quota, else by settings; None for no limit."""
    limited = _limit(session, session.get_one(Team, team_id))
    if limited is None:
        return None
    limit, period = limited
    since = session.scalars(select(func.date_trunc(period, func.now()))).one()
    cost = func.sum(LlmCall.cost_usd)
    sums = select(cost, cost.filter(LlmCall.state != LlmCallState.STARTED)).where(
        LlmCall.team_id == team_id, LlmCall.created_at >= since
    )
    spent, settled = session.execute(sums).one()
    return Allowance(limit, period, since, spent or 0.0, settled or 0.0)


def _limit(session: Session, team: Team) -> tuple[float, str] | None:
    """Return the team's money for models and the period that it is for; None for no limit."""
    if team.model_usd is not None:
        return team.model_usd, team.period.value
    settings = settings_of(session)
    return None if settings.team_model_usd is None else (settings.team_model_usd, settings.team_model_period)


def check_budgets(session: Session, job: Job, call: Call) -> None:
    """Raise :class:`CostBudgetReached` where the call could break a budget. Locks the team where it has one."""
    budgets = job.budgets
    worst = call.worst_cost_usd
    if budgets.call_usd is not None and worst > budgets.call_usd:
        raise CostBudgetReached(worst, budgets.call_usd, BudgetScope.CALL)
    left = budgets.cost_usd - job.cost_usd - reserved(session, job.id, *COST_UNKNOWN)
    if worst > left:
        raise CostBudgetReached(worst, left, BudgetScope.JOB)
    team = _locked_allowance(session, job.team_id) if worst else None
    if team is not None and worst > team.left_usd:
        raise CostBudgetReached(worst, team.left_usd, BudgetScope.TEAM)


def reserved(session: Session, job_id: uuid.UUID, *states: LlmCallState) -> float:
    """Return the worst cost of the job's calls in these states, whose true cost is unknown: in flight, or lost."""
    query = select(func.sum(LlmCall.cost_usd)).where(LlmCall.job_id == job_id, LlmCall.state.in_(states))
    return session.scalars(query).one() or 0.0


def warn_of_budgets(session: Session, job: Job, added_usd: float) -> None:
    """Warn of budgets that ``added_usd`` brings near their end: what was charged to the locked job, or lost, just now.

    A lost call's worst cost stays reserved, and counts; that of a call on its way does not, as most cost much less. The
    rows of the calls have their costs already.
    """
    if added_usd <= 0:
        return
    session.flush()
    spent = job.cost_usd + reserved(session, job.id, LlmCallState.LOST)
    limit = job.budgets.cost_usd
    _warn(session, job, BudgetScope.JOB, (spent - added_usd, spent), limit)
    team = _locked_allowance(session, job.team_id)
    if team is not None:
        spent = team.settled_usd
        _warn(session, job, BudgetScope.TEAM, (spent - added_usd, spent), team.limit_usd)


def _locked_allowance(session: Session, team_id: uuid.UUID) -> Allowance | None:
    """Return the allowance, with the team's row locked so that two jobs cannot spend the same dollar."""
    if _limit(session, session.get_one(Team, team_id)) is None:
        return None
    session.get_one(Team, team_id, with_for_update={"key_share": True}, populate_existing=True)
    return allowance(session, team_id)


def _warn(session: Session, job: Job, scope: BudgetScope, spent: tuple[float, float], limit: float) -> None:
    before, after = spent
    for share in WARNED_SHARES:
        if limit > 0 and before < share * limit <= after:
            data = {"budget": scope.value, "share": share, "spent_usd": after, "limit_usd": limit}
            record_event(session, job.id, "budget.warned", data=data)
