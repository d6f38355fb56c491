"""``/v1/leaderboards`` and ``/v1/compare``: proven kernels against each other."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.dependencies import Cursor, Limit, TeamId, Transaction, Viewer, plain_text
from api.documentation import errors
from cupilot.domain.errors import NotFound
from cupilot.domain.people import Caller
from cupilot.schemas import CandidateComparison, Leaderboard, LeaderboardList
from cupilot.storage.jobs.comparison_views import compare_candidates
from cupilot.storage.pool import leaderboards as views

router = APIRouter(prefix="/v1", tags=["results"])

After = Annotated[
    int, Query(ge=0, lt=2**31, deprecated=True, description="Number of entries before the page; see `cursor`.")
]
AllTeams = Annotated[bool, Query(description="Every team's kernels, with their teams: cluster admins only.")]
Reference = Annotated[
    str,
    Query(
        max_length=200,
        description="A candidate's id, `job:ordinal`, or a job's id for its best kernel.",
        examples=["3f2b8c1e-0000-4000-8000-000000000001:12"],
    ),
]


@router.get("/leaderboards", summary="List leaderboards", responses=errors(401, 403, 422))
def list_leaderboards(
    *,
    session: Transaction,
    caller: Viewer,
    all_teams: AllTeams = False,
    cursor: Cursor = None,
    after: After = 0,
    limit: Limit = 50,
) -> LeaderboardList:
    """List the leaderboards: one for each problem (source and policy) and model of device.

    Only those that hold a kernel that counts: your team's, or, for a built-in problem, one that its team has opened to
    all (`PUT /v1/pool/sharing`).
    """
    return views.list_leaderboards(session, _viewer(caller, all_teams), cursor=cursor, after=after, limit=limit)


@router.get("/leaderboards/{problem}", summary="A leaderboard", responses=errors(401, 403, 404, 422))
def get_leaderboard(
    *,
    session: Transaction,
    caller: Viewer,
    problem: str,
    device: Annotated[
        str | None, Query(max_length=200, description="Model name; needed where there are several.")
    ] = None,
    all_teams: AllTeams = False,
    cursor: Cursor = None,
    after: After = 0,
    limit: Limit = 50,
) -> Leaderboard:
    """List the `reproduced`, then the `audited` kernels, the fastest first, each once with its latest measurement.

    Your team's and, of a built-in problem, those that other teams have opened to all, without team, job and source.
    """
    if "\0" in problem:
        raise NotFound("no such problem", where="problem")
    device = plain_text("device", device)
    viewer = _viewer(caller, all_teams)
    return views.leaderboard(session, viewer, problem, device=device, cursor=cursor, after=after, limit=limit)


@router.get("/compare", summary="Compare two candidates", responses=errors(401, 404, 409, 410, 422))
def compare(session: Transaction, team: TeamId, first: Reference, second: Reference) -> CandidateComparison:
    """Compare the second candidate with the first, for the same problem.

    Shows strategy, source, launch plan and metrics, and the relative speedup with its interval where the measurements
    allow it.
    """
    return compare_candidates(session, team, first, second)


def _viewer(caller: Caller, all_teams: bool) -> views.BoardViewer:
    if all_teams:
        caller.needs_cluster_admin()
    return views.BoardViewer(caller.team_id, everything=all_teams)
