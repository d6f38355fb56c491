"""Step ``initialise``: the SCE Manager writes the initial strategies of a generation, helped by the strategy pool."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from cupilot.domain.evaluation import Preparation
from cupilot.domain.evolution.pipeline import first
from cupilot.domain.evolution.population import Operator
from cupilot.domain.evolution.seeds import initialise_seed
from cupilot.domain.job import JobSpec
from cupilot.domain.pool import PoolMatch
from cupilot.domain.states import StrategyOrigin
from cupilot.domain.strategy import Strategy
from cupilot.jobs.flow import begin_stage, fail_generation, pipeline_of
from cupilot.storage.db.tables.jobs import Candidate, Generation, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import lock_generation, record_event
from cupilot.storage.experiments.experiments import pool_cutoff
from cupilot.storage.jobs.evolving import add_candidate, add_strategy, count_down, set_strategy
from cupilot.storage.jobs.jobs import job_spec
from cupilot.storage.jobs.progress import outcomes_of, preparation_of, strategies_of
from cupilot.storage.jobs.steering import banned_techniques
from cupilot.storage.pool.techniques import enter_techniques
from cupilot.storage.queue.steps import Claim, pin
from workers.handlers.handler import Handler
from workers.handlers.rows import attempts_of, learned_of
from workers.retrieval import retrieved
from workers.tools import Tools

if TYPE_CHECKING:
    from agents.interface import Attempt, Briefing, InitialStrategy
    from agents.stages import InitialStrategies


@dataclass(frozen=True)
class InitialiseInput:
    """Input of the step ``initialise``, read in one transaction."""

    claim: Claim
    team: str
    spec: JobSpec
    preparation: Preparation
    briefing: Briefing
    number: int
    """Of the generation."""
    count: int
    """Strategies that are wanted."""
    tried: list[Strategy]
    outcomes: dict[str, str]
    """Results of those, by signature."""
    seeds: list[Attempt]
    """The kernels that an epoch begins from."""
    pool_until: datetime | None = None
    """Pool entries made later are not shown: an experiment's jobs must not teach each other."""


@dataclass(frozen=True)
class InitialiseResult:
    """The manager's answer."""

    answer: InitialStrategies
    matches: int
    """Pool entries that the manager was shown."""


def load(session: Session, claim: Claim) -> InitialiseInput:
    """Read the job, and how many strategies are wanted."""
    from agents.interface import Briefing

    job = session.get_one(Job, claim.job_id)
    spec, preparation = job_spec(session, job), preparation_of(job)
    banned, learned = banned_techniques(session, job.id), learned_of(session, job, spec, claim)
    return InitialiseInput(
        claim=claim,
        team=str(job.team_id),
        spec=spec,
        preparation=preparation,
        briefing=Briefing.of(spec, preparation, banned=banned, learned=learned),
        number=claim.payload["number"],
        count=claim.payload["count"],
        tried=strategies_of(session, job.id),
        outcomes=outcomes_of(session, job.id),
        seeds=attempts_of(session, list(dict.fromkeys(claim.payload.get("seeds", ())))),
        pool_until=pool_cutoff(session, job),
    )


def work(step: InitialiseInput, tools: Tools, cancelled: Callable[[], bool]) -> InitialiseResult:
    """Search the pool and ask the manager."""
    from agents.stages import initial_strategies

    matches = _matches(step, tools) if step.spec.method.pool else []
    answer = initial_strategies(
        lambda: tools.agents(step.spec.agents, step.claim, cancelled),
        step.briefing,
        matches,
        step.count,
        initialise_seed(step.spec.seed, step.number),
        tried=step.tried,
        outcomes=step.outcomes,
        seeds=step.seeds,
    )
    return InitialiseResult(answer, len(matches))


def store(session: Session, job: Job, step: Step, result: InitialiseResult) -> None:
    """Make a candidate of each strategy that the job does not have yet."""
    assert step.generation_id is not None
    generation, answer = lock_generation(session, step.generation_id), result.answer
    number, count = step.payload["number"], len(answer.strategies)
    data = {"number": number, "strategies": count, "pool_matches": result.matches}
    record_event(session, job.id, "generation.initialised", step_id=step.id, data=data)
    if answer.refusal is not None:
        fail_generation(session, job, generation, answer.refusal.code, str(answer.refusal))
        return
    new = answer.new(strategies_of(session, job.id))
    if not new:
        fail_generation(session, job, generation, "no_strategies", "the agents proposed no further strategy")
        return
    candidates = _add_candidates(session, job, step, generation, new)
    enter_techniques(session, job, [initial.strategy for initial in answer.strategies], StrategyOrigin.IDEA)
    count_down(session, generation, len(candidates) - 1)
    for candidate in candidates:
        begin_stage(session, job, candidate, first(pipeline_of(job, Operator.INITIAL)))


INITIALISE = Handler(load, work, store)


def _add_candidates(
    session: Session, job: Job, step: Step, generation: Generation, new: list[InitialStrategy]
) -> list[Candidate]:
    seeds = [uuid.UUID(seed) for seed in step.payload.get("seeds", ())]
    candidates = []
    for place, initial in enumerate(new):
        parents = [seeds[place % len(seeds)]] if seeds else []
        candidate = add_candidate(session, job, generation, Operator.INITIAL, parents)
        origin = StrategyOrigin(initial.source.value)
        set_strategy(session, candidate, add_strategy(session, job, initial.strategy, origin, initial.pool_entry))
        candidates.append(candidate)
    return candidates


def _matches(step: InitialiseInput, tools: Tools) -> list[PoolMatch]:
    """Return what earlier jobs of the team learned, as the step's first attempt found it."""
    matches = retrieved(tools, step.team, step.spec, step.preparation, step.briefing, before=step.pool_until)
    with tools.database.transaction() as session:
        pinned = pin(session, step.claim, "matches", [match.model_dump(mode="json") for match in matches])
    return [PoolMatch.model_validate(match) for match in pinned]
