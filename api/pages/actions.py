"""Actions of the pages' buttons: the same functions as REST, on forms instead of JSON. They render nothing."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlencode
from uuid import UUID

from fastapi import APIRouter
from pydantic import ValidationError
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.dependencies import Transaction
from api.pages import work
from api.pages.visits import HOME, Actor, Fields, Form, PageRoute, Visitor, invalid_form, seen
from cupilot.domain.errors import CupilotError, InvalidInput, Unavailable
from cupilot.domain.job import Priority
from cupilot.domain.people import Caller
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.exports import ExportFormat, Winner, archive
from cupilot.jobs import continuing, remeasuring
from cupilot.schemas.steering import ForkRequest, RetryRequest
from cupilot.storage.jobs import steering
from cupilot.storage.jobs.jobs import change_job, request_cancel, request_cancels
from cupilot.storage.jobs.report_views import report_on
from cupilot.storage.people.people import team_of_job
from cupilot.storage.pool.techniques import check_known
from cupilot.storage.queue.drains import SERVICE, begin_drain, end_drain

MOST_AT_ONCE = 50

router = APIRouter(prefix=HOME, route_class=PageRoute, include_in_schema=False)

Act = Callable[[Session, Caller, UUID, Form], UUID | None]
"""Do something to a job; return the job that came of it, if another."""


def _cancel(session: Session, caller: Caller, job: UUID, _: Form) -> None:
    request_cancel(session, caller.team_id, job)


def _pause(session: Session, caller: Caller, job: UUID, _: Form) -> None:
    steering.pause_job(session, caller.team_id, job, caller.user)


def _resume(session: Session, caller: Caller, job: UUID, _: Form) -> None:
    steering.resume_job(session, caller.team_id, job, caller.user)


def _retry(session: Session, caller: Caller, job: UUID, _: Form) -> UUID:
    return continuing.retry(session, caller, job, RetryRequest(), None)[0].id


def _change(session: Session, caller: Caller, job: UUID, fields: Form) -> None:
    priority = fields.given(priority=Priority).get("priority")
    change_job(session, caller.team_id, job, caller.user, labels={}, priority=priority)


def _pin(session: Session, caller: Caller, job: UUID, fields: Form) -> None:
    steering.pin(session, caller.team_id, job, fields.needed("candidate"), caller.user)


def _ban(session: Session, caller: Caller, job: UUID, fields: Form) -> None:
    technique, candidate = fields.text("technique"), fields.text("candidate")
    if (technique is None) == (candidate is None):
        raise InvalidInput("name a technique, or a candidate whose strategy is to be banned", where="technique")
    if technique is not None:
        check_known(session, caller.team_id, technique)
    steering.ban(session, caller.team_id, job, caller.user, technique=technique, candidate=candidate)


def _inject(session: Session, caller: Caller, job: UUID, fields: Form) -> None:
    names = fields.needed("techniques").replace(",", " ").split()
    strategy = Strategy(
        techniques=tuple(TechniqueUse(id=name) for name in names), rationale=fields.text("rationale") or "by hand"
    )
    steering.inject(session, caller.team_id, job, caller.user, strategy=strategy)


def _lift(session: Session, caller: Caller, job: UUID, fields: Form) -> None:
    directive = fields.given(directive=UUID).get("directive")
    if directive is None:
        raise InvalidInput("name the directive", where="directive")
    steering.lift(session, caller.team_id, job, directive, caller.user)


ACTIONS: dict[str, Act] = {
    "cancel": _cancel,
    "pause": _pause,
    "resume": _resume,
    "retry": _retry,
    "change": _change,
    "pin": _pin,
    "ban": _ban,
    "inject": _inject,
    "lift": _lift,
}


TYPED = ("pin", "ban", "inject")
"""Actions with a form to fill in, which is shown again where they are refused."""


@router.post("/jobs/bulk")
def bulk(session: Transaction, caller: Actor, fields: Fields) -> Response:
    """Cancel the chosen jobs, or compare their best kernels."""
    chosen = fields.everything.get("job", [])[:MOST_AT_ONCE]
    if not chosen:
        raise InvalidInput("no job was chosen", hint="tick one job at least", where="job")
    if fields.text("action") == "compare":
        return seen(f"/compare?{urlencode([('of', job) for job in chosen])}")
    request_cancels(session, caller.team_id, [_job_id(job) for job in chosen])
    return seen("")


def _job_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise InvalidInput(f"{text[:50]!r} is no job", where="job") from error


@router.post("/jobs/{job}/{action}")
def act(session: Transaction, caller: Actor, fields: Fields, job: UUID, action: str) -> Response:
    """Pause, resume, cancel, retry or steer a job, and show what came of it."""
    if action not in ACTIONS:
        raise InvalidInput(f"a job cannot be asked to {action[:30]}", hint=f"one of {', '.join(ACTIONS)}")
    try:
        with session.begin_nested():
            made = ACTIONS[action](session, caller, job, fields)
    except ValidationError as error:
        return work.show_job(session, caller, job, fields, invalid_form(error))
    except CupilotError as error:
        if action not in TYPED or isinstance(error, Unavailable):
            raise
        return work.show_job(session, caller, job, fields, error)
    return seen(f"/jobs/{made or job}")


@router.post("/jobs/{job}/candidates/{candidate}/fork")
def fork(session: Transaction, caller: Actor, job: UUID, candidate: str) -> Response:
    """Start a job from a candidate."""
    made, _ = continuing.fork(session, caller, job, candidate, ForkRequest(), idempotency_key=None)
    return seen(f"/jobs/{made.id}")


@router.post("/jobs/{job}/candidates/{candidate}/remeasure")
def remeasure(session: Transaction, caller: Actor, job: UUID, candidate: str) -> Response:
    """Measure a candidate again."""
    made, _ = remeasuring.remeasure(session, caller, job, candidate, None)
    return seen(f"/jobs/{made.id}")


@router.get("/jobs/{job}/candidates/{candidate}/exports/{form}")
def export(session: Transaction, caller: Visitor, job: UUID, candidate: str, form: ExportFormat) -> Response:
    """Download a kernel that counts, in one of the forms of export."""
    team = team_of_job(session, caller, job)
    found = report_on(session, team, job, candidate)
    name = f"cupilot-{job}-{found.candidate.ordinal}-{form.value}.zip"
    return Response(
        archive(Winner.of(found), form),
        media_type="application/zip",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


@router.post("/operations/drain")
def drain(session: Transaction, caller: Actor, fields: Fields) -> Response:
    """Let a worker, or the service, take nothing new; for cluster admins."""
    caller.needs_cluster_admin()
    begin_drain(session, fields.text("scope") or SERVICE, fields.text("reason") or f"by {caller.user}")
    return seen("/operations")


@router.post("/operations/undrain")
def undrain(session: Transaction, caller: Actor, fields: Fields) -> Response:
    """Let a worker, or the service, go on; for cluster admins."""
    caller.needs_cluster_admin()
    end_drain(session, fields.text("scope") or SERVICE)
    return seen("/operations")
