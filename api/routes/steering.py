"""Steering jobs: pause, resume, change, retry, fork, and directives; and the team's quota."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Body, Response

from api.dependencies import Member, StrictRoute, TeamId, Transaction
from api.documentation import errors
from api.routes.jobs import IdempotencyKey
from cupilot.domain.steering import DirectiveKind
from cupilot.jobs import continuing
from cupilot.schemas import JobView
from cupilot.schemas.steering import (
    DIRECTIVE_EXAMPLES,
    DirectiveList,
    DirectiveRequest,
    DirectiveView,
    ForkRequest,
    JobChange,
    QuotaView,
    RetryRequest,
)
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.jobs import steering
from cupilot.storage.jobs import steering_views as views
from cupilot.storage.jobs.job_views import job_view
from cupilot.storage.jobs.jobs import change_job
from cupilot.storage.people.people import team_of_job
from cupilot.storage.pool.techniques import check_known

router = APIRouter(prefix="/v1", tags=["steering"], route_class=StrictRoute)

NEW_JOB: dict[int | str, dict[str, Any]] = {
    **errors(401, 403, 404, 409, 410, 422),
    202: {"description": "Accepted: the new job is queued; `Location` says where to follow it."},
}


@router.patch("/jobs/{job}", summary="Change a job", responses=errors(401, 403, 404, 409, 422))
def change(session: Transaction, caller: Member, job: UUID, request: JobChange) -> JobView:
    """Change labels at any time, one by one, and the priority of a job that has not ended.

    A cluster admin may change any team's jobs.
    """
    team = team_of_job(session, caller, job)
    change_job(session, team, job, caller.user, labels=request.labels or {}, priority=request.priority)
    return job_view(session, team, job)


@router.post("/jobs/{job}/pause", summary="Pause a job", responses=errors(401, 403, 404, 409))
def pause(session: Transaction, caller: Member, job: UUID) -> JobView:
    """Pause the job: what runs is finished, and nothing starts until it is resumed. Repeating it is harmless."""
    steering.pause_job(session, caller.team_id, job, caller.user)
    return job_view(session, caller.team_id, job)


@router.post("/jobs/{job}/resume", summary="Resume a job", responses=errors(401, 403, 404, 409))
def resume(session: Transaction, caller: Member, job: UUID) -> JobView:
    """Resume the job where it stopped; the pause does not count as wall time. Harmless for a job not paused.

    Refused with `quota_exceeded` where the team may not run another job now, or queue one that was paused before it
    began.
    """
    steering.resume_job(session, caller.team_id, job, caller.user)
    return job_view(session, caller.team_id, job)


@router.post("/jobs/{job}/retry", status_code=202, summary="Retry an ended job", responses=NEW_JOB)
def retry(
    *,
    session: Transaction,
    caller: Member,
    job: UUID,
    request: Annotated[RetryRequest | None, Body()] = None,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> JobView:
    """Make a new job from the best kernels of one that failed, was cancelled or ran out of budget.

    It has budgets of its own, keeps the bans and the injections that had not begun, and refers to the ended job as
    `retry_of`. The ended job stays as it is.
    """
    new = continuing.retry(session, caller, job, request or RetryRequest(), idempotency_key)
    return _accepted(session, caller.team_id, response, *new)


@router.post(
    "/jobs/{job}/candidates/{candidate}/fork", status_code=202, summary="Fork a job from a candidate", responses=NEW_JOB
)
def fork(
    *,
    session: Transaction,
    caller: Member,
    job: UUID,
    candidate: str,
    request: Annotated[ForkRequest | None, Body()] = None,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> JobView:
    """Make a new job whose first generation has the candidate's strategy and kernel; the old job may still run."""
    new = continuing.fork(session, caller, job, candidate, request or ForkRequest(), idempotency_key=idempotency_key)
    return _accepted(session, caller.team_id, response, *new)


@router.get("/jobs/{job}/directives", summary="List a job's directives", responses=errors(401, 404))
def list_directives(session: Transaction, team: TeamId, job: UUID) -> DirectiveList:
    """List pins, bans and injections, oldest first, with the effect of each."""
    return views.list_directives(session, team, job)


@router.post(
    "/jobs/{job}/directives", status_code=201, summary="Steer a job", responses=errors(401, 403, 404, 409, 422)
)
def direct(
    session: Transaction,
    caller: Member,
    job: UUID,
    request: Annotated[DirectiveRequest, Body(openapi_examples=DIRECTIVE_EXAMPLES)],
) -> DirectiveView:
    """Pin, ban or inject, in force from the evolution's next decision on.

    A pinned candidate survives every selection; what is banned is not proposed again, and the agents are told; an
    injected strategy becomes a candidate of the next generation.
    """
    if request.kind is DirectiveKind.PIN:
        assert request.candidate is not None
        row = steering.pin(session, caller.team_id, job, request.candidate, caller.user)
    elif request.kind is DirectiveKind.BAN:
        if request.technique is not None and not request.any_name:
            check_known(session, caller.team_id, request.technique)
        row = steering.ban(
            session,
            caller.team_id,
            job,
            caller.user,
            technique=request.technique,
            strategy=request.strategy,
            candidate=request.candidate,
        )
    else:
        assert request.strategy is not None
        strategy, kernel = request.strategy, request.kernel
        row = steering.inject(session, caller.team_id, job, caller.user, strategy=strategy, kernel=kernel)
    return views.directive_view(row)


@router.delete("/jobs/{job}/directives/{directive}", summary="Lift a directive", responses=errors(401, 403, 404, 409))
def lift(session: Transaction, caller: Member, job: UUID, directive: UUID) -> DirectiveView:
    """Lift a directive from the next decision on. An injection that has become a candidate is a 409."""
    return views.directive_view(steering.lift(session, caller.team_id, job, directive, caller.user))


@router.get("/quota", summary="Show your team's quota and its use", responses=errors(401))
def get_quota(session: Transaction, team: TeamId) -> QuotaView:
    """Get limits and use: jobs, device seconds and money of this period, and the shares of the queues."""
    return views.quota_view(session, team)


def _accepted(session: Transaction, team: UUID, response: Response, job: Job, is_new: bool) -> JobView:
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    if not is_new:
        response.headers["Idempotent-Replayed"] = "true"
    return job_view(session, team, job.id)
