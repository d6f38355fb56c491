"""The pages: jobs, a job, a candidate, comparisons, leaderboards, the cluster, the team, the audit log, operations."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qs
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from api.dependencies import Transaction, plain_text
from api.pages import plots
from api.pages.visits import COOKIE, HEADERS, HOME, SIGN_IN, SIGNED_IN_SECONDS, PageRoute, Visitor, page, same_site
from cupilot.domain.champions import champions
from cupilot.domain.errors import InvalidInput, Pruned
from cupilot.domain.people import Role
from cupilot.domain.states import JobState
from cupilot.reports.champion import summary
from cupilot.schemas import CandidateSummary
from cupilot.schemas.jobs import JobFilter
from cupilot.storage.db.tables.people import Team
from cupilot.storage.jobs import timelines
from cupilot.storage.jobs.call_views import list_calls
from cupilot.storage.jobs.candidate_views import candidate_view, list_candidates
from cupilot.storage.jobs.comparison_views import compare_candidates
from cupilot.storage.jobs.job_views import job_view, list_jobs
from cupilot.storage.jobs.steering_views import quota_view
from cupilot.storage.jobs.step_views import job_log
from cupilot.storage.operations.views import backlogs, quarantine
from cupilot.storage.people.audit import AuditFilter, list_entries
from cupilot.storage.people.people import keys_for, members_of, team_for, team_of_job, teams_for
from cupilot.storage.people.teams import identify
from cupilot.storage.pool.leaderboards import BoardViewer, leaderboard, list_leaderboards
from cupilot.storage.queue.cluster_views import cluster_view
from cupilot.storage.queue.drains import drains

STYLE = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
ICON = (Path(__file__).parent / "icon.svg").read_text(encoding="utf-8")
CACHED = {"Cache-Control": "max-age=3600"}
ROWS = 50
DRAWN = 500
"""Candidates of a job that its page lists and draws; the command line and REST page through all."""
LOG_LINES = 30
LARGEST_FORM = 1_000

router = APIRouter(prefix=HOME, route_class=PageRoute, include_in_schema=False)

Text = Annotated[str | None, Query(max_length=200)]
Reference = Annotated[str, Query(max_length=200)]


@router.get("/login")
def sign_in() -> Response:
    """Show the form for a key."""
    return page("login", None, complaint=None)


@router.post("/login", dependencies=[Depends(same_site)])
async def signed_in(request: Request) -> Response:
    """Keep a valid key in the cookie."""
    body = await request.body()
    if len(body) > LARGEST_FORM:
        raise InvalidInput("this is not an API key", hint="paste the key that cupilot key create printed: cpk_...")
    secret = parse_qs(body.decode("ascii", "ignore")).get("key", [""])[0].strip()

    def known() -> bool:
        with request.app.state.database.transaction() as session:
            return bool(secret) and identify(session, secret) is not None

    if not await run_in_threadpool(known):
        return page("login", None, status=401, complaint="The key is unknown, has expired or was revoked.")
    answer = RedirectResponse(HOME, 303, headers=HEADERS)
    secure = request.url.scheme == "https" or request.app.state.settings.environment == "production"
    answer.set_cookie(
        COOKIE, secret, max_age=SIGNED_IN_SECONDS, path=HOME, httponly=True, samesite="strict", secure=secure
    )
    return answer


@router.post("/logout", dependencies=[Depends(same_site)])
def sign_out() -> Response:
    """Forget the key."""
    answer = RedirectResponse(SIGN_IN, 303, headers=HEADERS)
    answer.delete_cookie(COOKIE, path=HOME)
    return answer


@router.get("/style.css")
def style() -> Response:
    """Return the style sheet."""
    return Response(STYLE, media_type="text/css", headers=CACHED)


@router.get("/icon.svg")
def icon() -> Response:
    """Return the icon that browsers show in a tab; they would ask for ``/favicon.ico`` otherwise."""
    return Response(ICON, media_type="image/svg+xml", headers=CACHED)


@router.get("")
def jobs(
    *,
    session: Transaction,
    caller: Visitor,
    state: JobState | None = None,
    user: Text = None,
    team: Text = None,
    cursor: Text = None,
) -> Response:
    """List the team's jobs, newest first; those of another team for cluster admins."""
    filters = JobFilter(state=state, user=plain_text("user", user))
    home = team_for(session, caller, plain_text("team", team) or caller.team)
    jobs = list_jobs(session, home.id, filters, cursor=cursor, limit=ROWS)
    return page("jobs", caller, jobs=jobs, state=state, user=user, team=home.name, states=list(JobState))


@router.get("/jobs/{job}")
def one_job(session: Transaction, caller: Visitor, job: UUID) -> Response:
    """Show a job: its state, figures, candidates by generation and newest events."""
    team = team_of_job(session, caller, job)
    view = job_view(session, team, job)
    candidates = list_candidates(session, team, job, limit=DRAWN)
    generations: dict[int, list[CandidateSummary]] = {}
    for candidate in candidates.items:
        generations.setdefault(candidate.generation, []).append(candidate)
    return page(
        "job",
        caller,
        refresh=not view.final,
        job=view,
        generations=generations,
        more=candidates.next_after is not None,
        progress=plots.progress(candidates.items),
        population=plots.population(candidates.items),
        lineage=plots.lineage(candidates.items, f"{HOME}/jobs/{job}/candidates"),
        seconds=plots.line(timelines.used_device_seconds(session, team, job), "minutes", "seconds on devices"),
        dollars=plots.line(timelines.used_dollars(session, team, job), "minutes", "US dollars for models"),
        log=job_log(session, team, job, lines=LOG_LINES),
    )


@router.get("/jobs/{job}/candidates/{candidate}")
def one_candidate(session: Transaction, caller: Visitor, job: UUID, candidate: str) -> Response:
    """Show a candidate: strategy, kernel, the judge's findings, lineage, what it changed, and which models wrote it."""
    team = team_of_job(session, caller, job)
    view = candidate_view(session, team, job, candidate)
    parents = [entry for entry in view.lineage if entry.candidate in view.parents]
    changed = None
    if parents and view.kernel:
        with suppress(Pruned):
            changed = compare_candidates(session, team, f"{job}:{parents[0].ordinal}", f"{job}:{view.ordinal}")
    calls = list_calls(session, team, job, candidate=str(view.ordinal), cursor=None, limit=ROWS).items
    return page("candidate", caller, candidate=view, changed=changed, calls=calls)


@router.get("/compare")
def compare(session: Transaction, caller: Visitor, first: Reference, second: Reference) -> Response:
    """Show two candidates for one problem side by side."""
    return page("compare", caller, comparison=compare_candidates(session, caller.team_id, first, second))


@router.get("/leaderboards")
def boards(session: Transaction, caller: Visitor) -> Response:
    """List the leaderboards, one for each problem and device."""
    listed = list_leaderboards(session, BoardViewer(caller.team_id), after=0, limit=200)
    return page("boards", caller, boards=listed, champions=[summary(champion) for champion in champions()])


@router.get("/leaderboards/{problem}")
def board(session: Transaction, caller: Visitor, problem: str, device: Text = None) -> Response:
    """List proven kernels, the fastest first."""
    device = plain_text("device", device)
    problem_ref = plain_text("problem", problem) or ""
    ranking = leaderboard(session, BoardViewer(caller.team_id), problem_ref, device=device, after=0, limit=200)
    return page("board", caller, board=ranking)


@router.get("/cluster")
def cluster(session: Transaction, caller: Visitor) -> Response:
    """Show workers, devices and queues."""
    return page("cluster", caller, refresh=True, cluster=cluster_view(session), used=_days(timelines.gpu_days(session)))


@router.get("/team")
def team_page(session: Transaction, caller: Visitor) -> Response:
    """Show the team's quota and use, its members and its keys."""
    members = members_of(session, session.get_one(Team, caller.team_id))
    return page(
        "team",
        caller,
        quota=quota_view(session, caller.team_id),
        used=_days(timelines.gpu_days(session, caller.team_id)),
        members=members,
        keys=keys_for(session, caller),
    )


def _days(points: Sequence[plots.Point]) -> Markup:
    return plots.line(points, "days from today", "GPU seconds a day")


@router.get("/audit")
def audit(
    session: Transaction, caller: Visitor, before: Annotated[int | None, Query(ge=0, lt=2**63)] = None
) -> Response:
    """Show the audit log; for the team's admins."""
    caller.needs(Role.ADMIN)
    entries = list_entries(session, caller.team_id, AuditFilter(), before=before, limit=ROWS)
    return page("audit", caller, entries=entries)


@router.get("/operations")
def operations(session: Transaction, caller: Visitor) -> Response:
    """Show what operators look after, over all teams; for cluster admins."""
    caller.needs_cluster_admin()
    teams = [quota_view(session, team.id, with_shares=False) for team in teams_for(session, caller)]
    return page(
        "operations",
        caller,
        cluster=cluster_view(session),
        drains=drains(session),
        backlogs=backlogs(session),
        quarantined=quarantine(session, ROWS),
        rows=ROWS,
        teams=teams,
    )
