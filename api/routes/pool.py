"""``/v1/pool``: list, search, share, export and import what earlier jobs learned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Body, Depends, Query, Request
from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session

from api import dependencies
from api.dependencies import Cursor, Limit, StrictRoute, TeamId, Transaction, Viewer, plain_text
from api.documentation import POOL_EXAMPLES, errors
from cupilot.domain.errors import InvalidInput
from cupilot.domain.pool import PoolAnswer, PoolQuestion
from cupilot.domain.problem import Target
from cupilot.domain.strategy import Strategy
from cupilot.schemas import (
    BadLine,
    PoolEntryView,
    PoolImportResult,
    PoolPage,
    PoolSearchRequest,
    PoolSearchResult,
    PoolShareRequest,
    PoolShareResult,
    PoolStatistics,
)
from cupilot.storage.db.engine import Database
from cupilot.storage.jobs.jobs import get_job, job_spec
from cupilot.storage.jobs.progress import preparation_of
from cupilot.storage.pool import views
from cupilot.storage.pool.search import search
from cupilot.storage.pool.transfer import Position, exported, import_lines

JSON_LINES = "application/x-ndjson"
LINES: dict[str, Any] = {JSON_LINES: {"schema": {"type": "string"}}}

router = APIRouter(prefix="/v1/pool", tags=["pool"], route_class=StrictRoute)

TextFilter = Annotated[str | None, Query(max_length=64)]


@router.get("/entries", summary="List pool entries", responses=errors(401, 422))
def list_entries(
    *,
    session: Transaction,
    team: TeamId,
    cursor: Cursor = None,
    limit: Limit = 50,
    shared: Annotated[bool, Query(description="Also those that other teams share.")] = False,
    target: Target | None = None,
    op_class: TextFilter = None,
    technique: TextFilter = None,
    job: Annotated[UUID | None, Query(description="Only those that this job of yours made.")] = None,
) -> PoolPage:
    """List your team's entries, newest first."""
    return views.list_entries(
        session,
        team,
        shared=shared,
        target=target,
        op_class=plain_text("op_class", op_class),
        technique=plain_text("technique", technique),
        job=job,
        cursor=cursor,
        limit=limit,
    )


@router.get("/entries/{entry}", summary="A pool entry", responses=errors(401, 404))
def get_entry(session: Transaction, team: TeamId, entry: UUID) -> PoolEntryView:
    """Get an entry of your team, or one that another team shares, without what sharing hides."""
    return views.entry_view(session, team, entry)


@router.post("/search", summary="Ask the pool", responses=errors(401, 404, 409, 413, 422))
def search_pool(
    request: Request,
    session: Transaction,
    caller: Viewer,
    asked: Annotated[PoolSearchRequest, Body(openapi_examples=POOL_EXAMPLES)],
) -> PoolSearchResult:
    """List what a job on this problem would be shown.

    Each match comes with its reasons: similarities, counts, shrunken gain.
    """
    if asked.job is not None:
        question = views.question_of_job(session, caller.team_id, asked.job, asked.limit)
    else:
        assert asked.question is not None
        question = asked.question.model_copy(update={"limit": asked.limit})
    answer = _answer(request, session, caller.team_id, question, asked.job)
    return PoolSearchResult(question=question, **{name: getattr(answer, name) for name in PoolAnswer.model_fields})


@router.put("/sharing", summary="Share entries, or withdraw them", responses=errors(401, 404, 413, 422))
def share_entries(session: Transaction, team: TeamId, wanted: PoolShareRequest) -> PoolShareResult:
    """Set how your team's entries are shared.

    `anonymous` shows other teams everything but names, hashes, prose and origin; `private` withdraws at once. Results
    on a problem that is not built-in stay in your team: they are counted as `withheld`.
    """
    return views.share_entries(session, team, wanted.sharing, entries=wanted.entries, job=wanted.job)


@router.get(
    "/export",
    summary="Your team's entries as JSON lines",
    response_class=StreamingResponse,
    responses={
        **errors(401),
        200: {
            "description": "One entry a line, oldest first.",
            "content": LINES,
        },
    },
)
def export_pool(
    team: TeamId,
    database: Annotated[Database, Depends(dependencies.database)],
    kernels: Annotated[
        bool, Query(description="If false, the export has hashes instead of sources and launch plans.")
    ] = True,
) -> StreamingResponse:
    """Stream all entries, one a line.

    Entries added meanwhile may or may not be included. A kernel stands in the first line that names it.
    """
    return StreamingResponse(_lines(database, team, kernels=kernels), media_type=JSON_LINES)


def _lines(database: Database, team: UUID, *, kernels: bool) -> Iterator[str]:
    """Yield lines in batches, each read in its own transaction, so that a slow reader holds no connection."""
    position: Position | None = None
    sent: set[str] | None = set() if kernels else None
    while True:
        with database.transaction() as session:
            lines, position = exported(session, team, position, sent)
        yield from lines
        if position is None:
            return


async def _raw(request: Request) -> bytes:
    return await request.body()


@router.post(
    "/import",
    summary="Import entries as JSON lines",
    responses=errors(401, 413, 422),
    openapi_extra={"requestBody": {"required": True, "content": LINES}},
)
def import_pool(
    session: Transaction,
    team: TeamId,
    body: Annotated[bytes, Depends(_raw)],
    source: Annotated[str, Query(min_length=1, max_length=100, description="Where they come from.")] = "import",
    first_line: Annotated[int, Query(ge=1, lt=2**31, description="Number of the first line, in a split file.")] = 1,
) -> PoolImportResult:
    """Check each line and keep the valid ones; others are reported with number and reason.

    Repeating it adds nothing.

    Imported gains are claims: they are marked, and never count as measured here.
    """
    try:
        lines = body.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise InvalidInput("the lines are not UTF-8 text", where=f"body, byte {error.start}") from error
    label = plain_text("source", source)
    assert label is not None
    imported = import_lines(session, team, lines, label, first_line=first_line)
    bad = [BadLine(line=refused.line, reason=refused.reason) for refused in imported.bad]
    return PoolImportResult(lines=imported.lines, added=imported.added, known=imported.known, bad=bad)


@router.get("/stats", summary="Show the pool's statistics", responses=errors(401))
def pool_statistics(session: Transaction, team: TeamId) -> PoolStatistics:
    """Get counts, and for each technique and class of operators its tries, failures, typical speedup and worth."""
    return views.statistics(session, team)


def _answer(request: Request, session: Session, team: UUID, question: PoolQuestion, job: UUID | None) -> PoolAnswer:
    state = request.app.state
    return search(
        session,
        state.pool,
        team,
        question,
        half_life_days=state.settings.pool_half_life_days,
        applicable=_preconditions(session, team, job) if job else None,
    )


def _preconditions(session: Session, team: UUID, job_id: UUID) -> Callable[[Strategy], str | None]:
    """Return the preconditions that code can check against what was measured of the job's problem."""
    # Only here: the API starts without loading agents.
    from agents.interface import Briefing
    from agents.playbook.preconditions import unmet

    job = get_job(session, team, job_id)
    known = preparation_of(job)
    about = Briefing(
        problem=job_spec(session, job).problem,
        facts=known.facts,
        target=job.target,
        device=known.environment.device,
        placement=known.placement,
    )
    return lambda strategy: unmet(about, strategy)
