"""Step ``merge``: the Strategy Translator writes one kernel out of two, where ``sce`` crosses code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from agents.interface import Attempt
from cupilot.domain.evolution.pipeline import Done, Duplicate, Outcome, Refused
from cupilot.domain.evolution.seeds import stage_seed
from cupilot.domain.kernel import Kernel
from cupilot.domain.states import StrategyOrigin
from cupilot.domain.strategy import union
from cupilot.jobs.flow import advance
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.evolving import add_strategy, give_kernel, give_strategy
from cupilot.storage.jobs.progress import has_kernel, parents_of, strategy_of
from cupilot.storage.queue.steps import Claim
from workers.handlers.common import Assignment, ask, attempt_of, candidate_of, load_assignment, stage_of
from workers.tools import Tools


@dataclass(frozen=True)
class Wish:
    """What is asked for."""

    assignment: Assignment
    first: Attempt
    second: Attempt


def load(session: Session, claim: Claim) -> Wish:
    """Both parents."""
    candidate, assignment = load_assignment(session, claim)
    first, second = (attempt_of(session, parent) for parent in parents_of(session, candidate))
    return Wish(assignment, first, second)


def work(wish: Wish, tools: Tools, cancelled: Callable[[], bool]) -> Kernel | Refused:  # noqa: ARG001
    """Ask the translator."""
    assignment = wish.assignment
    seed = stage_seed(assignment.spec.seed, assignment.ordinal, assignment.stage)
    return ask(
        tools,
        assignment,
        lambda agents: agents.translator.merge(assignment.briefing, wish.first, wish.second, seed),
    )


def store(session: Session, job: Job, step: Step, answer: Kernel | Refused) -> None:
    """Give the candidate its kernel, unless the job has it already; it claims what both parents did."""
    candidate = candidate_of(session, step)
    outcome: Outcome
    if isinstance(answer, Refused):
        outcome = answer
    elif has_kernel(session, job, answer):
        outcome = Duplicate()
    else:
        first, second = (strategy_of(session, parent) for parent in parents_of(session, candidate))
        give_strategy(session, candidate, add_strategy(session, job, union(first, second), StrategyOrigin.MERGE))
        give_kernel(session, candidate, answer, repair_round=0)
        outcome = Done()
    advance(session, job, candidate, stage_of(step), outcome)
