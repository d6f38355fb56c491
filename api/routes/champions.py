"""``/v1/champions``: proven kernels for built-in problems that ship with the release."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Response

from api.dependencies import Member, Transaction, Viewer
from api.documentation import errors
from cupilot.domain.champions import by_kernel, champions
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.jobs.champions import judge
from cupilot.reports.champion import report_of, summary
from cupilot.schemas import ChampionList, JobView, Report
from cupilot.storage.jobs.job_views import job_view

router = APIRouter(prefix="/v1/champions", tags=["results"])

Kernel = Annotated[str, Path(max_length=64, description="The kernel's hash, or its first eight digits or more.")]
IdempotencyKey = Annotated[
    str | None,
    Header(min_length=1, max_length=200, description="A repeated key answers with the first job."),
]


@router.get("", summary="List champions", responses=errors(401, 403, 422))
def list_champions(
    *,
    caller: Viewer,  # noqa: ARG001 - checked
    problem: Annotated[str | None, Query(max_length=200, description="A built-in's name, or a problem's hash.")] = None,
    target: Target | None = None,
    policy: NumericsPolicy | None = None,
) -> ChampionList:
    """List the proven kernels that ship with this release: reproduced in fresh processes against three baselines.

    Each holds for the kind of device that it was measured on. Jobs on its problem begin from it.
    """
    return ChampionList(
        items=[
            summary(champion)
            for champion in champions()
            if problem in (None, champion.problem, champion.problem_hash)
            and target in (None, champion.target)
            and policy in (None, champion.policy)
        ]
    )


@router.get("/{kernel}", summary="A champion", responses=errors(401, 403, 404))
def get_champion(caller: Viewer, kernel: Kernel) -> Report:  # noqa: ARG001 - checked
    """Return a champion with kernel, evidence and reference, as the report of the job that it won."""
    return report_of(by_kernel(kernel))


@router.post(
    "/{kernel}/judge",
    status_code=202,
    summary="Judge a champion again",
    responses={
        **errors(401, 403, 404, 409, 422),
        202: {
            "description": "Accepted: a job that prepares the problem here and measures this kernel, nothing else.",
            "headers": {"Location": {"description": "Where to follow it.", "schema": {"type": "string"}}},
        },
    },
)
def judge_champion(
    *,
    session: Transaction,
    caller: Member,
    kernel: Kernel,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> JobView:
    """Judge a champion on a device of this service: a job of your team whose only kernel it is."""
    made, is_new = judge(session, caller, kernel, idempotency_key)
    response.headers["Location"] = f"/v1/jobs/{made.id}"
    if not is_new:
        response.headers["Idempotent-Replayed"] = "true"
    return job_view(session, made.team_id, made.id)
