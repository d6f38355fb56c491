"""``/v1/batches``: steps for machines that reach neither database nor broker. For cluster admins only.

A batch holds steps of every team, and what comes back decides verdicts, leaderboards and charges: whoever hands it in
speaks for the judge. So no team's admin may.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response

from api.dependencies import ClusterAdmin, Cursor, Limit, StrictRoute, Transaction, cluster_admin
from api.documentation import errors
from cupilot.domain.batches.errors import InvalidResultFile
from cupilot.domain.states import BatchOutcome
from cupilot.jobs.batches import batch_file, cancel_batch, receive_results, request_batch
from cupilot.schemas import BatchPage, BatchReceipts, BatchRequest, BatchStepPage, BatchView
from cupilot.storage.queue.batch_views import batch_view, list_batch_steps, list_batches

router = APIRouter(prefix="/v1/batches", tags=["batches"], route_class=StrictRoute)

LINES = {"application/x-ndjson": {"schema": {"type": "string"}}}
_ONLY_ADMINS = [Depends(cluster_admin)]


@router.post(
    "",
    status_code=202,
    summary="Export steps",
    responses={
        **errors(401, 403, 404, 409, 413, 422),
        202: {
            "description": "Accepted: steps are claimed now; the batch is `open` when its file can be fetched.",
            "headers": {"Location": {"description": "Where to follow it.", "schema": {"type": "string"}}},
        },
    },
)
def export_batch(session: Transaction, caller: ClusterAdmin, response: Response, request: BatchRequest) -> BatchView:
    """Claim waiting steps of a target and architecture for a machine without a network, fairly between teams.

    Preparations, checks, evaluations, confirmations and attributions. No worker gets them until the lease ends, their
    results are imported, or the batch is cancelled.
    """
    batch = request_batch(session, caller, request)
    response.headers["Location"] = f"/v1/batches/{batch}"
    return batch_view(session, batch)


@router.get("", summary="Batches", responses=errors(401, 403, 422), dependencies=_ONLY_ADMINS)
def get_batches(session: Transaction, cursor: Cursor = None, limit: Limit = 50) -> BatchPage:
    """List all batches, newest first."""
    return list_batches(session, cursor=cursor, limit=limit)


@router.get("/{batch}", summary="A batch", responses=errors(401, 403, 404, 422), dependencies=_ONLY_ADMINS)
def get_batch(session: Transaction, batch: UUID) -> BatchView:
    """Get a batch's state, and how many of its steps have which outcome."""
    return batch_view(session, batch)


@router.get("/{batch}/steps", summary="Its steps", responses=errors(401, 403, 404, 422), dependencies=_ONLY_ADMINS)
def get_batch_steps(
    session: Transaction,
    batch: UUID,
    outcome: Annotated[BatchOutcome | None, Query(description="Only steps of this outcome.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> BatchStepPage:
    """List a batch's steps in its order, with what came of each."""
    return list_batch_steps(session, batch, outcome=outcome, cursor=cursor, limit=limit)


@router.get(
    "/{batch}/file",
    summary="Its file",
    response_class=Response,
    responses={
        **errors(401, 403, 404, 409, 422),
        200: {
            "description": "A signed zip, for `python -m gpu_worker batch run`.",
            "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
        },
    },
    dependencies=_ONLY_ADMINS,
)
def get_batch_file(session: Transaction, batch: UUID) -> Response:
    """Get the file of an open batch, the same each time: references and kernels, no secrets."""
    headers = {"Content-Disposition": f'attachment; filename="cupilot-{batch}.batch"'}
    return Response(batch_file(session, batch), media_type="application/zip", headers=headers)


async def _raw(request: Request) -> bytes:
    return await request.body()


@router.post(
    "/{batch}/results",
    status_code=202,
    summary="Import results",
    responses=errors(401, 403, 404, 409, 413, 422),
    openapi_extra={"requestBody": {"required": True, "content": LINES}},
    dependencies=_ONLY_ADMINS,
)
def import_results(session: Transaction, batch: UUID, body: Annotated[bytes, Depends(_raw)]) -> BatchReceipts:
    """Take in lines of a result file, the first of which is the file's first; a long file in several requests.

    Each line is checked against what was exported, and settled by and by as a worker's result is. Again changes
    nothing.
    """
    try:
        lines = body.decode().split("\n")
    except UnicodeDecodeError as error:
        raise InvalidResultFile("the lines are not UTF-8 text", where=f"body, byte {error.start}") from error
    return receive_results(session, batch, lines)


@router.post(
    "/{batch}/cancel",
    status_code=202,
    summary="Cancel a batch",
    responses=errors(401, 403, 404, 409, 422),
    dependencies=_ONLY_ADMINS,
)
def cancel(session: Transaction, batch: UUID) -> BatchView:
    """Put back into the queue what the batch still holds; results that come later are refused."""
    cancel_batch(session, batch)
    return batch_view(session, batch)
