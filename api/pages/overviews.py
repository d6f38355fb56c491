"""Pages over many jobs: leaderboards, pool, experiments, cluster, audit log, operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request
from markupsafe import Markup
from pydantic import ValidationError
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.dependencies import Transaction, plain_text
from api.pages import charts
from api.pages.champions import over_fastest
from api.pages.visits import HEADERS, HOME, Actor, Fields, Form, PageRoute, Visitor, invalid_form, page, seen
from cupilot.domain import problems as builtin
from cupilot.domain.champions import champions
from cupilot.domain.errors import CupilotError, InvalidInput, Unavailable
from cupilot.domain.people import Caller, Role
from cupilot.domain.pool import PoolAnswer, PoolQuestion
from cupilot.domain.problem import Target
from cupilot.jobs import experiments as experimentation
from cupilot.reports.canvas import Format
from cupilot.reports.champion import summary
from cupilot.reports.figures import FigureName
from cupilot.reports.figures import figure as drawing
from cupilot.reports.job import BASELINE_NAMES
from cupilot.schemas import ExperimentRequest, PoolStatistics, ProblemInput, TechniqueStatistics
from cupilot.schemas.experiments import MAX_SEEDS
from cupilot.storage.experiments import views as experiments
from cupilot.storage.experiments.experiments import cancel_experiment
from cupilot.storage.experiments.report import experiment_report
from cupilot.storage.jobs import timelines
from cupilot.storage.jobs.steering_views import quota_view
from cupilot.storage.operations.views import backlogs, quarantine
from cupilot.storage.people.audit import AuditFilter, list_entries
from cupilot.storage.people.people import teams_for
from cupilot.storage.pool import views as pool_views
from cupilot.storage.pool.leaderboards import BoardViewer, leaderboard, list_leaderboards
from cupilot.storage.pool.search import search
from cupilot.storage.queue.cluster_views import cluster_view
from cupilot.storage.queue.drains import drains

ROWS = 50
BOARDS = 200
POLL_SECONDS = 5

router = APIRouter(prefix=HOME, route_class=PageRoute, include_in_schema=False)

Text = Annotated[str | None, Query(max_length=200)]
Cursor = Annotated[str | None, Query(max_length=2_000)]
"""That of the leaderboards holds a problem's and a device's names."""


@router.get("/leaderboards")
def boards(session: Transaction, caller: Visitor, cursor: Cursor = None) -> Response:
    """List the leaderboards, one for each problem and device."""
    listed = list_leaderboards(session, BoardViewer(caller.team_id), cursor=cursor, limit=BOARDS)
    return page(
        "boards",
        caller,
        boards=listed,
        champions=[(summary(champion), over_fastest(champion)) for champion in champions()],
        names=BASELINE_NAMES,
    )


@router.get("/leaderboards/{problem}")
def board(
    *, session: Transaction, caller: Visitor, problem: str, device: Text = None, cursor: Cursor = None
) -> Response:
    """List proven kernels, the fastest first."""
    device = plain_text("device", device)
    problem_ref = plain_text("problem", problem) or ""
    viewer = BoardViewer(caller.team_id)
    ranking = leaderboard(session, viewer, problem_ref, device=device, cursor=cursor, limit=BOARDS)
    return page("board", caller, board=ranking)


@router.get("/pool")
def pool(
    *,
    request: Request,
    session: Transaction,
    caller: Visitor,
    op_class: Text = None,
    technique: Text = None,
    target: Text = None,
    ask: Text = None,
    cursor: Text = None,
) -> Response:
    """Show what works where, search the pool, and list its entries."""
    op_class, technique = plain_text("op_class", op_class) or "", plain_text("technique", technique) or ""
    if target and target not in set(Target):
        raise InvalidInput(f"{target!r} is no target", hint=f"one of {', '.join(sorted(Target))}", where="target")
    statistics = pool_views.statistics(session, caller.team_id)
    return page(
        "pool",
        caller,
        statistics=statistics,
        heat=_heat(statistics),
        asked={"op_class": op_class, "technique": technique, "target": target or "", "ask": ask or ""},
        targets=[place.value for place in Target],
        answer=_answer(request, session, caller.team_id, _question(ask, op_class, target)) if ask else None,
        entries=pool_views.list_entries(
            session,
            caller.team_id,
            shared=True,
            target=Target(target) if target else None,
            op_class=op_class or None,
            technique=technique or None,
            job=None,
            cursor=cursor,
            limit=ROWS,
        ),
    )


def _question(ask: str, op_class: str, target: str | None) -> PoolQuestion:
    ask = plain_text("ask", ask) or ""
    return PoolQuestion(
        name=ask,
        op_class=op_class or "elementwise",
        operators=tuple(ask.split()),
        target=Target(target or Target.CUDA.value),
    )


def _answer(request: Request, session: Transaction, team: UUID, question: PoolQuestion) -> PoolAnswer:
    """Return what a job on such a problem would be shown."""
    state = request.app.state
    return search(session, state.pool, team, question, half_life_days=state.settings.pool_half_life_days)


def _heat(statistics: PoolStatistics) -> tuple[list[str], dict[str, list[TechniqueStatistics | None]]]:
    """Return the classes of operators, and by technique what is known of each of them (both targets' best)."""
    classes = sorted({row.op_class for row in statistics.techniques})
    known: dict[str, dict[str, TechniqueStatistics]] = {}
    for row in statistics.techniques:
        there = known.setdefault(row.technique, {}).get(row.op_class)
        if there is None or (row.median_speedup or 0.0) > (there.median_speedup or 0.0):
            known[row.technique][row.op_class] = row
    return classes, {name: [cells.get(op_class) for op_class in classes] for name, cells in sorted(known.items())}


@router.get("/experiments")
def list_all(session: Transaction, caller: Visitor, cursor: Text = None) -> Response:
    """List the team's experiments, and offer to start one."""
    return _experiments(session, caller, cursor=cursor, poll=POLL_SECONDS)


def _experiments(
    session: Session,
    caller: Caller,
    *,
    cursor: str | None = None,
    poll: int | None = None,
    given: Form | None = None,
    error: CupilotError | None = None,
) -> Response:
    """Show the list and the form; after an ``error`` the form with what was ``given`` (and no poll, to keep it)."""
    given = given or Form("")
    return page(
        "experiments",
        caller,
        status=error.status if error else 200,
        poll=poll,
        experiments=experiments.list_experiments(session, caller.team_id, cursor=cursor, limit=ROWS),
        error=error,
        given={"name": "", "target": "", "switch": "", "seeds": "3", **given},
        chosen=given.everything.get("problem", []),
        problems=sorted(builtin.names()),
        targets=[target.value for target in Target],
    )


@router.post("/experiments")
def start(session: Transaction, caller: Actor, fields: Fields) -> Response:
    """Start an experiment that compares the method with one of its switches on and off."""
    try:
        with session.begin_nested():
            made, _ = experimentation.submit(session, caller, _matrix(fields), None)
    except ValidationError as error:
        return _experiments(session, caller, given=fields, error=invalid_form(error))
    except Unavailable:
        raise
    except CupilotError as error:
        return _experiments(session, caller, given=fields, error=error)
    return seen(f"/experiments/{made.id}")


def _matrix(fields: Form) -> ExperimentRequest:
    switch = fields.text("switch")
    switches = {"pool": [True, False], "roofline_guidance": [True, False], "alignment": [True, False]}
    if switch and switch not in switches:
        raise InvalidInput(f"{switch[:50]!r} is no switch", hint=f"one of {', '.join(switches)}", where="switch")
    seeds = fields.given(seeds=int).get("seeds", 3)
    if not 1 <= seeds <= MAX_SEEDS:  # before that many are listed
        raise InvalidInput(f"an experiment has 1 to {MAX_SEEDS} seeds", where="seeds")
    return ExperimentRequest(
        name=fields.text("name") or "experiment",
        target=fields.given(target=Target).get("target", Target.CUDA),
        problems=[ProblemInput(id=name) for name in fields.everything.get("problem", []) if name],
        seeds=list(range(seeds)),
        switches={switch: list(switches[switch])} if switch else {},
    )


@router.get("/experiments/{experiment}")
def one(session: Transaction, caller: Visitor, experiment: UUID) -> Response:
    """Show an experiment: arms, figures, comparisons, jobs."""
    report = experiment_report(session, caller.team_id, experiment)
    jobs = experiments.list_experiment_jobs(session, caller.team_id, experiment, arm=None, cursor=None, limit=ROWS)
    return page(
        "experiment",
        caller,
        poll=None if report.experiment.final else POLL_SECONDS,
        report=report,
        jobs=jobs,
        figures=[name.value for name in FigureName],
    )


@router.get("/experiments/{experiment}/figures/{figure}")
def figure(session: Transaction, caller: Visitor, experiment: UUID, figure: FigureName) -> Response:
    """Return one figure of an experiment as an image."""
    content = drawing(experiment_report(session, caller.team_id, experiment), figure, Format.SVG)
    policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return Response(content, media_type=Format.SVG.media_type, headers={**HEADERS, **policy})


@router.post("/experiments/{experiment}/cancel")
def cancel(session: Transaction, caller: Actor, experiment: UUID) -> Response:
    """Cancel every job of an experiment that has not ended."""
    cancel_experiment(session, caller.team_id, experiment)
    return seen(f"/experiments/{experiment}")


@router.get("/cluster")
def cluster(session: Transaction, caller: Visitor) -> Response:
    """Show workers, devices and queues."""
    return page(
        "cluster",
        caller,
        poll=POLL_SECONDS,
        cluster=cluster_view(session),
        backlogs=backlogs(session) if caller.rules else [],
        used=_days(timelines.gpu_days(session)),
    )


def _days(points: Sequence[charts.Point]) -> Markup:
    return charts.line(points, "days from today", "device seconds a day")


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
