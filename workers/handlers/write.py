"""Step ``write``: the Kernel Engineer writes a candidate's kernel freely, shown what its operator shows and no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from agents.interface import Commission, Draft, Example
from cupilot.domain.evolution.ai_cuda_engineer import AiCudaEngineerConfig
from cupilot.domain.evolution.pipeline import Done, Duplicate, Outcome, Refused
from cupilot.domain.evolution.population import Operator
from cupilot.domain.evolution.seeds import stage_seed
from cupilot.domain.states import StrategyOrigin
from cupilot.jobs.flow import advance
from cupilot.storage.db.tables.jobs import Candidate, Generation, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.experiments.experiments import pool_cutoff
from cupilot.storage.jobs.evolving import add_strategy, give_kernel, give_notes, give_strategy
from cupilot.storage.jobs.progress import candidates_of, has_kernel, notes_of, parents_of
from cupilot.storage.pool.solved import solved
from cupilot.storage.queue.steps import Claim, pin
from workers.handlers.common import (
    Assignment,
    ask,
    attempt_of,
    candidate_of,
    engineer_of,
    load_assignment,
    stage_of,
)
from workers.retrieval import similar_solved
from workers.tools import Tools


@dataclass(frozen=True)
class Wish:
    """What is asked for."""

    assignment: Assignment
    team: str
    pool_until: datetime | None
    """Pool entries made later are not looked at: an experiment's jobs must not teach each other."""
    commission: Commission


def load(session: Session, claim: Claim) -> Wish:
    """Everything that the operator shows, but for what the pool has."""
    job = session.get_one(Job, claim.job_id)
    candidate, assignment = load_assignment(session, claim)
    notes = notes_of(candidate)
    shown = candidates_of(session, notes.inspirations)
    best = candidates_of(session, [notes.best] if notes.best else [])
    drawn = candidate.operator in (Operator.REWRITE, Operator.CODE_CROSSOVER, Operator.MUTATION)
    commission = Commission(
        method=assignment.spec.method.name,
        operator=candidate.operator,
        generation=session.get_one(Generation, candidate.generation_id).number,
        place=notes.place,
        places=notes.places,
        best=attempt_of(session, best[0]) if best else None,
        parents=tuple(attempt_of(session, parent) for parent in parents_of(session, candidate)),
        shown=() if drawn else tuple(attempt_of(session, one) for one in shown),
        insights=_insights(shown) if drawn else (),
        functional=notes.functional,
    )
    return Wish(assignment, str(job.team_id), pool_cutoff(session, job), commission)


def work(wish: Wish, tools: Tools, cancelled: Callable[[], bool]) -> Draft | Refused:  # noqa: ARG001
    """Look into the pool where the operator does, and ask the engineer."""
    assignment = wish.assignment
    seed = stage_seed(assignment.spec.seed, assignment.ordinal, assignment.stage)
    commission = wish.commission
    if commission.operator is Operator.COMPOSITION:
        commission = commission.model_copy(update={"examples": _examples(wish, tools)})
    return ask(tools, assignment, lambda agents: engineer_of(agents).write(assignment.briefing, commission, seed))


def store(session: Session, job: Job, step: Step, answer: Draft | Refused) -> None:
    """Give the candidate its kernel, unless the job has it already; its insight is kept in either case."""
    candidate = candidate_of(session, step)
    outcome: Outcome
    if isinstance(answer, Refused):
        outcome = answer
    else:
        give_notes(session, candidate, name=answer.name, insight=answer.insight)
        outcome = Duplicate()
        if not has_kernel(session, job, answer.kernel):
            give_strategy(session, candidate, add_strategy(session, job, answer.strategy, StrategyOrigin.CODE))
            give_kernel(session, candidate, answer.kernel, repair_round=0)
            outcome = Done()
    advance(session, job, candidate, stage_of(step), outcome)


def _insights(shown: Sequence[Candidate]) -> tuple[str, ...]:
    return tuple(notes.insight for notes in map(notes_of, shown) if notes.insight)


def _examples(wish: Wish, tools: Tools) -> tuple[Example, ...]:
    """The best kernels of the most similar other problems, as the step's first attempt found them."""
    spec, preparation = wish.assignment.spec, wish.assignment.preparation
    assert isinstance(spec.method, AiCudaEngineerConfig)
    chosen = similar_solved(tools, wish.team, spec, preparation, before=wish.pool_until, limit=spec.method.retrieved)
    with tools.database.transaction() as session:
        ids = pin(session, wish.assignment.claim, "examples", chosen)
        return tuple(
            Example(
                problem=one.problem_name,
                reference=one.reference,
                kernel=one.kernel,
                speedup=one.speedup,
                insight=one.insight,
            )
            for one in solved(session, wish.team, ids)
        )
