"""Step ``cross``: the SCE Manager combines two parents' strategies into a new candidate's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from agents.interface import Attempt
from cupilot.domain.evolution.novelty import strategy_key
from cupilot.domain.evolution.pipeline import Done, Duplicate, Outcome, Refused
from cupilot.domain.evolution.seeds import stage_seed
from cupilot.domain.states import StrategyOrigin
from cupilot.domain.strategy import Strategy
from cupilot.domain.technique import catalogue
from cupilot.jobs.flow import advance
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.evolving import add_strategy, give_strategy
from cupilot.storage.jobs.progress import parents_of, strategies_of
from cupilot.storage.pool.techniques import enter_techniques
from cupilot.storage.queue.steps import Claim
from workers.handlers.common import Assignment, ask, attempt_of, candidate_of, load_assignment, stage_of
from workers.tools import Tools


@dataclass(frozen=True)
class Wish:
    """What is asked for."""

    assignment: Assignment
    first: Attempt
    second: Attempt
    taken: list[Strategy]


def load(session: Session, claim: Claim) -> Wish:
    """Both parents, and what the job has tried already."""
    candidate, assignment = load_assignment(session, claim)
    first, second = (attempt_of(session, parent) for parent in parents_of(session, candidate))
    return Wish(assignment, first, second, strategies_of(session, claim.job_id))


def work(wish: Wish, tools: Tools, cancelled: Callable[[], bool]) -> Strategy | Refused:  # noqa: ARG001
    """Ask the manager."""
    assignment = wish.assignment
    seed = stage_seed(assignment.spec.seed, assignment.ordinal, assignment.stage)
    return ask(
        tools,
        assignment,
        lambda agents: agents.manager.crossover(assignment.briefing, wish.first, wish.second, wish.taken, seed),
    )


def store(session: Session, job: Job, step: Step, answer: Strategy | Refused) -> None:
    """Give the candidate its strategy, unless the job has it already."""
    candidate = candidate_of(session, step)
    outcome: Outcome
    if isinstance(answer, Refused):
        outcome = answer
    elif strategy_key(answer, catalogue()) in {
        strategy_key(one, catalogue()) for one in strategies_of(session, job.id)
    }:
        outcome = Duplicate()
    else:
        give_strategy(session, candidate, add_strategy(session, job, answer, StrategyOrigin.CROSSOVER))
        enter_techniques(session, job, [answer], StrategyOrigin.CROSSOVER)
        outcome = Done()
    advance(session, job, candidate, stage_of(step), outcome)
