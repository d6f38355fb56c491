"""Pages of jobs, a job, a candidate and comparisons, and the streams that keep them live. They only read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request
from fastapi.security import HTTPAuthorizationCredentials
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from api.dependencies import Transaction, plain_text
from api.pages import charts
from api.pages.lineage import lineage, notable
from api.pages.visits import COOKIE, HOME, PageRoute, Visitor, page
from api.routes.events import continue_after, event_stream
from cupilot.domain.counted import counted
from cupilot.domain.errors import CupilotError, InvalidInput, NotFound, Pruned
from cupilot.domain.evaluation import Interval, Verdict
from cupilot.domain.imported import KernelKind
from cupilot.domain.people import Caller, Role
from cupilot.domain.problem import Target
from cupilot.domain.states import JobState
from cupilot.exports import Winner, refusals
from cupilot.reports.job import steps_after_failure
from cupilot.reports.problem import preparation_notes
from cupilot.schemas import CandidateComparison, CandidateSummary, JobView, Report
from cupilot.schemas.jobs import JobFilter, PreparationSummary
from cupilot.storage.db.feed import nothing_follows
from cupilot.storage.jobs import timelines
from cupilot.storage.jobs.best_so_far import Improvement, improvements, risen
from cupilot.storage.jobs.call_views import call_view, list_calls
from cupilot.storage.jobs.candidate_views import MAX_ORDINAL, candidate_view, list_candidates
from cupilot.storage.jobs.candidate_views import Order as CandidateOrder
from cupilot.storage.jobs.comparison_views import compare_candidates
from cupilot.storage.jobs.job_views import job_view, list_jobs
from cupilot.storage.jobs.jobs import get_job
from cupilot.storage.jobs.measurements import MAX_MEASUREMENTS, measurements
from cupilot.storage.jobs.members import members, worth_of_techniques
from cupilot.storage.jobs.progress import preparation_of
from cupilot.storage.jobs.report_views import report_on
from cupilot.storage.jobs.steering_views import list_directives
from cupilot.storage.jobs.step_views import job_log, list_steps
from cupilot.storage.people.people import team_for, team_of_job

ROWS = 50
DRAWN = 150
"""Candidates of a job that its page draws as a tree; a page of its own draws all."""
ANCESTORS = 50
LOG_LINES = 200
MAX_BEST = 60
MOST_COMPARED = 6
FUNNEL = (Verdict.COMPILED, Verdict.CORRECT, Verdict.PLAUSIBLE, Verdict.AUDITED, Verdict.REPRODUCED)

router = APIRouter(prefix=HOME, route_class=PageRoute, include_in_schema=False)

Text = Annotated[str | None, Query(max_length=200)]
Reference = Annotated[str | None, Query(max_length=200)]
Kernels = Annotated[list[str] | None, Query(max_length=50)]


@router.get("")
def jobs(
    *,
    session: Transaction,
    caller: Visitor,
    state: Text = None,
    target: Text = None,
    problem: Text = None,
    label: Text = None,
    user: Text = None,
    text: Text = None,
    team: Text = None,
    cursor: Text = None,
) -> Response:
    """List the team's jobs, newest first; those of another team for cluster admins."""
    given = {"state": state, "target": target, "problem": problem, "label": label, "user": user, "text": text}
    asked = {name: plain_text(name, value) or "" for name, value in given.items()}
    home = team_for(session, caller, plain_text("team", team) or caller.team)
    listed = list_jobs(session, home.id, _filter(asked), cursor=cursor, limit=ROWS)
    return page(
        "jobs",
        caller,
        events=f"{HOME}/events" if home.id == caller.team_id and not cursor else None,
        poll=10 if home.id != caller.team_id else None,
        jobs=listed,
        best=charts,
        risen=risen(session, [job.id for job in listed.items]),
        asked=asked,
        filtered=any(asked.values()),
        team=home.name,
        states=[state.value for state in JobState],
        targets=[target.value for target in Target],
    )


def _filter(asked: dict[str, str]) -> JobFilter:
    for name, values in (("state", set(JobState)), ("target", set(Target))):
        if asked[name] and asked[name] not in values:
            raise InvalidInput(f"{asked[name]!r} is no {name}", hint=f"one of {', '.join(sorted(values))}", where=name)
    key, equals, value = asked["label"].partition("=")
    if asked["label"] and not (key and equals):
        raise InvalidInput("a label filter looks like key=value", where="label")
    return JobFilter(
        state=asked["state"] or None,
        target=asked["target"] or None,
        problem=asked["problem"] or None,
        labels={key: value} if equals else None,
        user=asked["user"] or None,
        text=asked["text"] or None,
    )


@router.get("/jobs")
def jobs_by_their_address() -> Response:
    """Redirect to the list of jobs, where an address of a job is cut off."""
    return RedirectResponse(HOME)


@router.get("/jobs/{job}")
def job_page(session: Transaction, caller: Visitor, job: UUID) -> Response:
    """Show a job: its state, figures, candidates by generation and newest events."""
    return show_job(session, caller, job)


def show_job(
    session: Session, caller: Caller, job: UUID, given: dict[str, str] | None = None, error: CupilotError | None = None
) -> Response:
    """Show a job; after the ``error`` of a form that steers it, the form with what was ``given``, and no live parts."""
    team = team_of_job(session, caller, job)
    view = job_view(session, team, job)
    population = members(session, team, job)
    drawn = notable(population, DRAWN, view.best.ordinal if view.best else None)
    base = f"{HOME}/jobs/{job}/candidates"
    best = improvements(session, team, job, MAX_BEST)
    found = report_on(session, team, job, str(view.best.ordinal)) if view.best else None
    return page(
        "job",
        caller,
        status=error.status if error else 200,
        events=None if view.final or error else f"{HOME}/jobs/{job}/events",
        error=error,
        given={**dict.fromkeys(("candidate", "technique", "techniques", "rationale"), ""), **(given or {})},
        job=view,
        may_act=_may_act(caller, team),
        generations=_newest(session, team, view),
        listed=ROWS,
        progress=charts.progress(population, best, base, _levels(view)),
        population=charts.population(population, base),
        lineage=lineage(drawn, base, view.best.ordinal if view.best else None),
        drawn=len(drawn),
        roofline=_roofline(session, team, view, best, base),
        funnel=_funnel(view),
        techniques=worth_of_techniques(session, team, job),
        credits=found.candidate.credits if found else [],
        seconds=charts.line(timelines.used_device_seconds(session, team, job), "minutes", "seconds on devices"),
        dollars=charts.line(timelines.used_dollars(session, team, job), "minutes", "US dollars for models"),
        directives=list_directives(session, team, job).items,
        exports=_exports(found),
        trajectory=found.trajectory if found else [],
        notes=preparation_notes(view.preparation),
        advice=_advice(view, found),
        log=job_log(session, team, job, lines=LOG_LINES).splitlines(),
    )


def _advice(view: JobView, found: Report | None) -> list[str]:
    """Return what to do next; nothing while the job itself goes on."""
    if not view.final:
        return []
    return list(found.next_steps) if found else steps_after_failure(view)


def _newest(session: Session, team: UUID, view: JobView) -> dict[int, list[CandidateSummary]]:
    """Return the newest candidates by generation."""
    found: dict[int, list[CandidateSummary]] = {}
    for candidate in list_candidates(session, team, view.id, after=view.candidates - ROWS - 1, limit=ROWS).items:
        found.setdefault(candidate.generation, []).append(candidate)
    return found


@router.get("/jobs/{job}/candidates")
def candidates(
    *,
    session: Transaction,
    caller: Visitor,
    job: UUID,
    order: CandidateOrder = "speedup",
    verdict: Text = None,
    generation: Text = None,
    cursor: Text = None,
) -> Response:
    """List a job's candidates, the fastest first or as they were made."""
    team = team_of_job(session, caller, job)
    asked = {"order": order, "verdict": verdict or "", "generation": generation or ""}
    return page(
        "candidates",
        caller,
        job=job_view(session, team, job),
        asked=asked,
        verdicts=[known.value for known in Verdict],
        found=list_candidates(
            session,
            team,
            job,
            verdict=_verdict(asked["verdict"]),
            generation=_generation(asked["generation"]),
            order=order,
            cursor=cursor,
            limit=ROWS,
        ),
    )


def _verdict(given: str) -> Verdict | None:
    if given and given not in set(Verdict):
        raise InvalidInput(f"{given!r} is no verdict", hint=f"one of {', '.join(Verdict)}", where="verdict")
    return Verdict(given) if given else None


def _generation(given: str) -> int | None:
    """Return the number that the database knows: people count from one."""
    if given and not (given.isascii() and given.isdigit() and 0 < int(given) <= MAX_ORDINAL):
        raise InvalidInput(f"{given!r} is no generation", hint="a number from 1 on", where="generation")
    return int(given) - 1 if given else None


@router.get("/jobs/{job}/lineage")
def whole_lineage(session: Transaction, caller: Visitor, job: UUID) -> Response:
    """Draw the family tree of all of a job's candidates, which may be large."""
    team = team_of_job(session, caller, job)
    view = job_view(session, team, job)
    drawn = lineage(
        members(session, team, job), f"{HOME}/jobs/{job}/candidates", view.best.ordinal if view.best else None
    )
    return page("lineage", caller, job=view, lineage=drawn)


def _may_act(caller: Any, team: UUID) -> bool:
    return bool(team == caller.team_id and caller.acts_as.rank >= Role.MEMBER.rank)


def _levels(view: JobView) -> list[charts.Level]:
    levels = []
    if view.preparation and view.preparation.floor_us > 0:
        bound = _eager(view, view.preparation).median / view.preparation.floor_us
        levels.append(charts.Level(bound, "roofline bound", "bound"))
    if view.best and view.best.speedup_over_compile:
        compiled = view.best.speedup.median / view.best.speedup_over_compile.median
        levels.append(charts.Level(compiled, "torch.compile"))
    return levels


def _eager(view: JobView, preparation: PreparationSummary) -> Interval:
    """Return PyTorch's time as it was measured beside the best kernel; at preparation where there is none yet."""
    return view.best.baseline_us if view.best else preparation.baseline_us


def _roofline(session: Session, team: UUID, view: JobView, best: Sequence[Improvement], base: str) -> Any:
    if view.preparation is None:
        return None
    known = preparation_of(get_job(session, team, view.id))
    return charts.roofline(known, _eager(view, view.preparation).median, best, base)


def _funnel(view: JobView) -> list[tuple[str, int]]:
    """Return how many kernels climbed to each verdict or higher, the candidates first."""
    ranked = {verdict: view.verdicts.get(verdict.value, 0) for verdict in Verdict}
    return [("made", view.candidates)] + [
        (step.value, sum(count for verdict, count in ranked.items() if verdict.rank >= step.rank)) for step in FUNNEL
    ]


def _exports(found: Report | None) -> list[tuple[str, str | None]]:
    """Return the forms of export, each with the reason where it cannot be had; none of a file that somebody had."""
    if found is None or (found.job.best and found.job.best.kernel_kind is KernelKind.IMPORTED):
        return []
    return [(form.value, why) for form, why in refusals(Winner.of(found)).items()]


@router.get("/jobs/{job}/candidates/{candidate}")
def candidate_page(
    session: Transaction, caller: Visitor, job: UUID, candidate: str, against: Reference = None
) -> Response:
    """Show a candidate: strategy, kernel, the judge's findings, lineage, what it changed, and which models wrote it."""
    team = team_of_job(session, caller, job)
    view = candidate_view(session, team, job, candidate)
    parents = [entry for entry in view.lineage if entry.candidate in view.parents]
    chosen = next((parent for parent in parents if str(parent.ordinal) == against), parents[0] if parents else None)
    changed = None
    if chosen and view.kernel:
        with suppress(Pruned):
            changed = compare_candidates(session, team, f"{job}:{chosen.ordinal}", f"{job}:{view.ordinal}")
    calls = list_calls(session, team, job, candidate=str(view.ordinal), cursor=None, limit=ROWS).items
    return page(
        "candidate",
        caller,
        candidate=view,
        may_act=_may_act(caller, team),
        parents=parents,
        ancestors=view.lineage[:ANCESTORS],
        changed=changed,
        calls=calls,
        steps=list_steps(session, team, job, candidate=str(view.ordinal), cursor=None, limit=ROWS).items,
        measurements=measurements(session, team, job, str(view.ordinal), cursor=None, limit=MAX_MEASUREMENTS).items,
        language="cuda" if view.kernel and view.kernel.target is Target.CUDA else "c++",
    )


@router.get("/jobs/{job}/calls/{call}")
def call_page(session: Transaction, caller: Visitor, job: UUID, call: UUID) -> Response:
    """Show a model call with its prompt and its answer."""
    team = team_of_job(session, caller, job)
    return page("call", caller, call=call_view(session, team, job, call))


@router.get("/compare")
def compare(
    *, session: Transaction, caller: Visitor, first: Reference = None, second: Reference = None, of: Kernels = None
) -> Response:
    """Show two to six candidates for one problem side by side, all against the first."""
    chosen = [reference for reference in (first, second, *(of or [])) if reference]
    if not 2 <= len(chosen) <= MOST_COMPARED:
        raise InvalidInput(
            f"{counted(len(chosen), 'kernel')} chosen",
            hint=f"choose two to {MOST_COMPARED}: jobs or candidates",
            where="of",
        )
    pairs = [compare_candidates(session, caller.team_id, chosen[0], other) for other in chosen[1:]]
    return page("compare", caller, pairs=pairs, metrics=_metrics(pairs), kernels=[pairs[0].first, *_seconds(pairs)])


def _seconds(pairs: Sequence[CandidateComparison]) -> list[Any]:
    return [pair.second for pair in pairs]


def _metrics(pairs: Sequence[CandidateComparison]) -> dict[str, list[float | None]]:
    """Return each metric's value of every kernel, the first one's first."""
    names = dict.fromkeys(metric.name for pair in pairs for metric in pair.metrics)
    found = [{metric.name: metric for metric in pair.metrics} for pair in pairs]
    table: dict[str, list[float | None]] = {}
    for name in names:
        firsts = [pair[name].first for pair in found if name in pair]
        table[name] = [firsts[0] if firsts else None, *(pair[name].second if name in pair else None for pair in found)]
    return table


After = Annotated[str | None, Header(alias="Last-Event-ID", max_length=20)]


@router.get("/events")
def team_events(request: Request, caller: Visitor, last_event_id: After = None) -> Response:
    """Stream the events of the team's jobs to a page, from now on."""
    return event_stream(request, _credentials(request), caller.team_id, None, continue_after(last_event_id, None))


@router.get("/jobs/{job}/events")
def job_events(
    session: Transaction, request: Request, caller: Visitor, job: UUID, last_event_id: After = None
) -> Response:
    """Stream a job's events to its page, from now on, until the job ends."""
    team = team_of_job(session, caller, job)
    if team != caller.team_id:
        raise NotFound("another team's job is not streamed")
    after = continue_after(last_event_id, None)
    if get_job(session, team, job).state.final and nothing_follows(session, job, after or 2**63 - 1):
        return Response(status_code=204)
    return event_stream(request, _credentials(request), team, job, after)


def _credentials(request: Request) -> HTTPAuthorizationCredentials:
    return HTTPAuthorizationCredentials(scheme="Bearer", credentials=request.cookies.get(COOKIE, ""))
