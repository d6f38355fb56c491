"""Step ``convert``: the Kernel Engineer writes the problem's computation as one pure function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from agents.interface import Conversion
from cupilot.domain.evolution.pipeline import Done, Outcome, Refused
from cupilot.domain.evolution.seeds import stage_seed
from cupilot.jobs.flow import advance
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.evolving import give_notes
from cupilot.storage.jobs.progress import notes_of
from cupilot.storage.queue.steps import Claim
from workers.handlers.common import Assignment, ask, candidate_of, engineer_of, load_assignment, stage_of
from workers.tools import Tools


@dataclass(frozen=True)
class Wish:
    """What is asked for."""

    assignment: Assignment
    attempts: list[Conversion]
    """Conversions that were wrong, oldest first."""


def load(session: Session, claim: Claim) -> Wish:
    """What was tried before."""
    candidate, assignment = load_assignment(session, claim)
    attempts = [Conversion(source=source, complaint=why) for source, why in notes_of(candidate).conversions]
    return Wish(assignment, attempts)


def work(wish: Wish, tools: Tools, cancelled: Callable[[], bool]) -> str | Refused:  # noqa: ARG001
    """Ask the engineer."""
    assignment = wish.assignment
    seed = stage_seed(assignment.spec.seed, assignment.ordinal, assignment.stage)
    return ask(tools, assignment, lambda agents: engineer_of(agents).convert(assignment.briefing, wish.attempts, seed))


def store(session: Session, job: Job, step: Step, answer: str | Refused) -> None:
    """Keep the function, for the judge to check."""
    candidate = candidate_of(session, step)
    outcome: Outcome = answer if isinstance(answer, Refused) else Done()
    if not isinstance(answer, Refused):
        give_notes(session, candidate, functional=answer)
    advance(session, job, candidate, stage_of(step), outcome)
