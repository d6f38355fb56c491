"""Step ``check``: the judge traces a conversion, which must make the same calls as the reference did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from cupilot.domain.errors import InvalidProblem
from cupilot.domain.evaluation import FailureKind
from cupilot.domain.evolution.pipeline import Done, Mistaken
from cupilot.domain.problem import Problem
from cupilot.domain.sameness import difference
from cupilot.jobs.flow import advance
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.evolving import give_notes
from cupilot.storage.jobs.progress import notes_of
from cupilot.storage.queue.steps import Claim
from workers.handlers.common import Assignment, candidate_of, load_assignment, stage_of
from workers.tools import Infrastructure, Tools

MAX_COMPLAINT = 2_000


@dataclass(frozen=True)
class Wish:
    """What is asked for."""

    assignment: Assignment
    functional: str


def load(session: Session, claim: Claim) -> Wish:
    """The conversion."""
    candidate, assignment = load_assignment(session, claim)
    return Wish(assignment, notes_of(candidate).functional)


def work(wish: Wish, tools: Tools, cancelled: Callable[[], bool]) -> str | None:
    """What is wrong with the conversion, or None."""
    spec, preparation = wish.assignment.spec, wish.assignment.preparation
    if wish.functional == spec.problem.source:
        return None
    try:
        converted = Problem(name=spec.problem.name, source=wish.functional, policy=spec.problem.policy)
    except InvalidProblem as error:
        return error.message
    timeout = tools.settings.prepare_timeout_seconds
    tracing = tools.judge().trace(converted, timeout=timeout, cancelled=cancelled)
    if tracing.facts is None:
        assert tracing.failure is not None
        if tracing.failure.kind is FailureKind.INFRASTRUCTURE:
            raise Infrastructure(tracing.failure.message)
        return tracing.failure.message
    return difference(preparation.facts, tracing.facts)


def store(session: Session, job: Job, step: Step, complaint: str | None) -> None:
    """Go on with the function, or have it written again."""
    candidate = candidate_of(session, step)
    if complaint is not None:
        notes = notes_of(candidate)
        failed = (*notes.conversions, (notes.functional, complaint[:MAX_COMPLAINT]))
        give_notes(session, candidate, functional="", conversions=failed)
    advance(session, job, candidate, stage_of(step), Done() if complaint is None else Mistaken())
