"""Step ``revise``: the Kernel Revisor mends a candidate's kernel after a failed evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from agents.interface import Attempt, Revision
from cupilot.evolution.pipeline import Done, Duplicate, Outcome, Refused
from cupilot.evolution.seeds import stage_seed
from cupilot.storage.evolving import add_strategy, give_kernel, give_strategy
from cupilot.storage.progress import has_kernel, rounds_of
from cupilot.storage.states import StrategyOrigin
from cupilot.storage.steps import Claim
from cupilot.storage.tables import Job, Step
from workers.flow import advance
from workers.handlers.common import Assignment, ask, candidate_of, load_assignment, stage_of
from workers.tools import Tools

GAVE_UP = "gave_up"


@dataclass(frozen=True)
class Wish:
    """What is asked for."""

    assignment: Assignment
    history: list[Attempt]
    """The candidate's kernels with what the judge said to each, oldest first."""


def load(session: Session, claim: Claim) -> Wish:
    """All former rounds of the candidate."""
    candidate, assignment = load_assignment(session, claim)
    history = [
        Attempt(strategy=one.strategy, kernel=one.kernel, evaluation=one.evaluation)
        for one in rounds_of(session, candidate)
    ]
    return Wish(assignment, history)


def work(wish: Wish, tools: Tools, cancelled: Callable[[], bool]) -> Revision | Refused:  # noqa: ARG001
    """Ask the revisor."""
    assignment = wish.assignment
    seed = stage_seed(assignment.spec.seed, assignment.ordinal, assignment.stage)
    answer = ask(tools, assignment, lambda agents: agents.revisor.revise(assignment.briefing, wish.history, seed))
    return answer or Refused(GAVE_UP)


def store(session: Session, job: Job, step: Step, answer: Revision | Refused) -> None:
    """Give the candidate the mended kernel, unless the job has it already."""
    candidate = candidate_of(session, step)
    outcome: Outcome
    if isinstance(answer, Refused):
        outcome = answer
    elif has_kernel(session, job, answer.kernel.content_hash()):
        outcome = Duplicate()
    else:
        give_strategy(session, candidate, add_strategy(session, job, answer.strategy, StrategyOrigin.REVISION))
        give_kernel(session, candidate, answer.kernel, repair_round=step.payload["round"])
        outcome = Done()
    advance(session, job, candidate, stage_of(step), outcome)
