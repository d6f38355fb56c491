"""``/v1/imports``: files that people already have, judged as kernels are."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Response

from api.dependencies import Member, StrictRoute, Transaction
from api.documentation import errors
from cupilot.jobs.importing import submit_file
from cupilot.schemas import ImportRequest, JobView
from cupilot.storage.jobs.job_views import job_view

router = APIRouter(prefix="/v1/imports", tags=["jobs"], route_class=StrictRoute)

IdempotencyKey = Annotated[
    str | None,
    Header(min_length=1, max_length=200, description="A repeated key answers with the first job."),
]


@router.post(
    "",
    status_code=202,
    summary="Judge a file",
    responses={
        **errors(401, 403, 409, 413, 422),
        202: {
            "description": "Accepted: a job that prepares the problem and judges this file, nothing else.",
            "headers": {"Location": {"description": "Where to follow it.", "schema": {"type": "string"}}},
        },
    },
)
def judge_file(
    session: Transaction,
    caller: Member,
    response: Response,
    request: ImportRequest,
    idempotency_key: IdempotencyKey = None,
) -> JobView:
    """Judge a KernelBench `ModelNew` file or the source of a torch extension, as any kernel is judged.

    A `ModelNew` file may use plain torch, `load_inline` or Triton; host code is included. Laws, poison, floors and
    clocks are those of any kernel. What is measured is marked `imported`, stands beside other kernels in `/v1/compare`,
    and enters the strategy pool so marked; leaderboards hold no such file.
    """
    made, is_new = submit_file(session, caller, request, idempotency_key)
    response.headers["Location"] = f"/v1/jobs/{made.id}"
    if not is_new:
        response.headers["Idempotent-Replayed"] = "true"
    return job_view(session, caller.team_id, made.id)
