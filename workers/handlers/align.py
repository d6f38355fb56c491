"""Step ``align``: the Strategy Translator rewrites a candidate's strategy to what its code really does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from agents.interface import Alignment, Attempt
from cupilot.domain.evolution.pipeline import Done, Outcome, Refused
from cupilot.domain.states import StrategyOrigin
from cupilot.jobs.flow import advance
from cupilot.jobs.learning import correct
from cupilot.storage.db.tables.jobs import EvaluationRow, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.evolving import add_strategy, give_alignment
from cupilot.storage.jobs.progress import evaluation_of, kernel_of, strategy_of
from cupilot.storage.pool.techniques import enter_techniques
from cupilot.storage.queue.steps import Claim
from workers.handlers.common import Assignment, ask, candidate_of, load_assignment, stage_of
from workers.tools import Tools


@dataclass(frozen=True)
class Wish:
    """What is asked for."""

    assignment: Assignment
    attempt: Attempt


def load(session: Session, claim: Claim) -> Wish:
    """The candidate with its measurement."""
    candidate, assignment = load_assignment(session, claim)
    assert candidate.kernel_hash is not None
    assert candidate.evaluation_id is not None
    attempt = Attempt(
        strategy=strategy_of(session, candidate),
        kernel=kernel_of(session, candidate.kernel_hash),
        evaluation=evaluation_of(session, candidate.evaluation_id),
    )
    return Wish(assignment, attempt)


def work(wish: Wish, tools: Tools, cancelled: Callable[[], bool]) -> Alignment | Refused:  # noqa: ARG001
    """Ask the translator."""
    briefing = wish.assignment.briefing
    return ask(tools, wish.assignment, lambda agents: agents.translator.align(briefing, wish.attempt))


def store(session: Session, job: Job, step: Step, answer: Alignment | Refused) -> None:
    """Keep both strategies: the one that was asked for and the one that the code follows."""
    candidate = candidate_of(session, step)
    outcome: Outcome
    if isinstance(answer, Refused):
        outcome = answer
    else:
        row = add_strategy(session, job, answer.strategy, StrategyOrigin.ALIGNMENT)
        give_alignment(session, candidate, row, answer.fidelity)
        enter_techniques(session, job, [answer.strategy], StrategyOrigin.ALIGNMENT)
        correct(session, session.get_one(EvaluationRow, candidate.evaluation_id), strategy=answer.strategy)
        outcome = Done()
    advance(session, job, candidate, stage_of(step), outcome)
