"""Step ``translate``: the Strategy Translator writes the kernel for a candidate's strategy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from cupilot.domain.evolution.pipeline import Done, Duplicate, Outcome, Refused
from cupilot.domain.evolution.seeds import stage_seed
from cupilot.domain.kernel import Kernel
from cupilot.domain.strategy import Strategy
from cupilot.jobs.flow import advance
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.evolving import give_kernel
from cupilot.storage.jobs.progress import has_kernel, kernel_as_measured, parents_of, strategy_of
from cupilot.storage.queue.steps import Claim
from workers.handlers.common import Assignment, ask, candidate_of, load_assignment, stage_of
from workers.tools import Tools


@dataclass(frozen=True)
class Wish:
    """What is asked for."""

    assignment: Assignment
    strategy: Strategy
    parent: Kernel | None
    """The fitter parent's code, for a crossover."""


def load(session: Session, claim: Claim) -> Wish:
    """The strategy, and the code to start from."""
    candidate, assignment = load_assignment(session, claim)
    parents = parents_of(session, candidate)
    parent = kernel_as_measured(session, parents[0]) if parents else None
    return Wish(assignment, strategy_of(session, candidate), parent)


def work(wish: Wish, tools: Tools, cancelled: Callable[[], bool]) -> Kernel | Refused:  # noqa: ARG001
    """Ask the translator."""
    assignment = wish.assignment
    seed = stage_seed(assignment.spec.seed, assignment.ordinal, assignment.stage)
    return ask(
        tools,
        assignment,
        lambda agents: agents.translator.translate(assignment.briefing, wish.strategy, wish.parent, seed),
    )


def store(session: Session, job: Job, step: Step, answer: Kernel | Refused) -> None:
    """Give the candidate its kernel, unless the job has it already."""
    candidate = candidate_of(session, step)
    outcome: Outcome
    if isinstance(answer, Refused):
        outcome = answer
    elif has_kernel(session, job, answer):
        outcome = Duplicate()
    else:
        give_kernel(session, candidate, answer, repair_round=0)
        outcome = Done()
    advance(session, job, candidate, stage_of(step), outcome)
