"""Check a job's budgets of kernels and money before each step. The scheduler watches wall time."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy.orm import Session

from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.jobs.progress import evaluations_asked


class Exhausted(StrEnum):
    """Which budget a job has reached: the ``reason`` of a job that ends as ``budget_exhausted``."""

    CANDIDATES = "candidates_budget"
    WALL = "wall_budget"
    COST = "cost_budget"
    TEAM = "team_budget"
    GPU = "gpu_budget"
    TEAM_GPU = "team_gpu_quota"

    @property
    def message(self) -> str:
        """The same for a person."""
        return _MESSAGES[self]


_MESSAGES = {
    Exhausted.CANDIDATES: "all kernels that the budget allows have been evaluated",
    Exhausted.WALL: "the job's wall time is used up",
    Exhausted.COST: "the job's model budget does not pay for another call",
    Exhausted.TEAM: "the team's model budget of this period does not pay for another call",
    Exhausted.GPU: "the job's device seconds are used up",
    Exhausted.TEAM_GPU: "the team's device seconds of this period are used up",
}


def exhausted(session: Session, job: Job) -> Exhausted | None:
    """Return which budget forbids a new candidate, or None."""
    return money_reached(job) or no_evaluation(session, job)


def no_evaluation(session: Session, job: Job) -> Exhausted | None:
    """Return which budget forbids to evaluate another kernel, or None."""
    limit = job.budgets.gpu_seconds
    if limit is not None and job.gpu_seconds >= limit:
        return Exhausted.GPU
    return None if evaluations_left(session, job) > 0 else Exhausted.CANDIDATES


def evaluations_left(session: Session, job: Job) -> int:
    """Return how many kernels may still be evaluated."""
    return job.budgets.candidates - evaluations_asked(session, job)


def money_reached(job: Job) -> Exhausted | None:
    """Return which budget forbids further model calls; a job that makes none never reaches a budget of 0."""
    if job.spending_stopped is not None:
        return Exhausted(job.spending_stopped)
    spent = job.cost_usd > 0 and job.cost_usd >= job.budgets.cost_usd
    return Exhausted.COST if spent else None
