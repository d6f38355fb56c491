"""Step ``initialise``: the SCE Manager writes the initial strategies of a generation, helped by the strategy pool."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from agents.interface import AgentError, Attempt, InitialStrategy
from cupilot.domain.evaluation import Preparation
from cupilot.domain.evolution.novelty import strategy_key
from cupilot.domain.evolution.pipeline import first
from cupilot.domain.evolution.population import Operator
from cupilot.domain.evolution.seeds import initialise_seed
from cupilot.domain.job import JobSpec
from cupilot.domain.model_call import CostBudgetReached
from cupilot.domain.pool import PoolMatch
from cupilot.domain.standing import LearnedTechnique
from cupilot.domain.states import StrategyOrigin
from cupilot.domain.strategy import Strategy
from cupilot.domain.technique import catalogue
from cupilot.jobs.flow import begin_stage, course_of, give_up_generation
from cupilot.storage.db.tables.jobs import Candidate, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import lock_generation, record_event
from cupilot.storage.experiments.experiments import pool_cutoff
from cupilot.storage.jobs.evolving import add_candidate, add_strategy, count_down, give_strategy
from cupilot.storage.jobs.jobs import job_spec
from cupilot.storage.jobs.progress import candidates_of, preparation_of, strategies_of
from cupilot.storage.jobs.steering import banned_techniques
from cupilot.storage.pool.techniques import enter_techniques
from cupilot.storage.queue.steps import Claim, pin
from workers.handlers.common import attempt_of, briefing, learned_of
from workers.retrieval import retrieved
from workers.tools import Tools


@dataclass(frozen=True)
class Wish:
    """What is asked for."""

    claim: Claim
    team: str
    spec: JobSpec
    preparation: Preparation
    number: int
    count: int
    taken: list[Strategy]
    seeds: list[Attempt]
    """The kernels that an epoch begins from."""
    banned: tuple[str, ...] = ()
    learned: tuple[LearnedTechnique, ...] = ()
    pool_until: datetime | None = None
    """Pool entries made later are not shown: an experiment's jobs must not teach each other."""


@dataclass(frozen=True)
class Strategies:
    """What came of it."""

    found: list[InitialStrategy]
    matches: int
    """Pool entries that the manager was shown."""
    refusal: AgentError | CostBudgetReached | None = None


def load(session: Session, claim: Claim) -> Wish:
    """The job, and how many strategies are wanted."""
    job = session.get_one(Job, claim.job_id)
    spec, preparation = job_spec(session, job), preparation_of(job)
    begun = candidates_of(session, list(dict.fromkeys(claim.payload.get("seeds", ()))))
    return Wish(
        claim=claim,
        team=str(job.team_id),
        spec=spec,
        preparation=preparation,
        number=claim.payload["number"],
        count=claim.payload["count"],
        taken=strategies_of(session, job.id),
        seeds=[attempt_of(session, one) for one in begun],
        banned=banned_techniques(session, job.id),
        learned=learned_of(session, job, spec, claim),
        pool_until=pool_cutoff(session, job),
    )


def work(wish: Wish, tools: Tools, cancelled: Callable[[], bool]) -> Strategies:  # noqa: ARG001
    """Look into the pool and ask the manager."""
    matches = _matches(wish, tools) if wish.spec.method.pool else []
    seed = initialise_seed(wish.spec.seed, wish.number)
    try:
        manager = tools.agents(wish.spec.agents, wish.claim).manager
        about = briefing(wish.spec, wish.preparation, wish.banned, wish.learned)
        found = manager.initial_strategies(about, matches, wish.count, seed, taken=wish.taken, seeds=wish.seeds)
    except (AgentError, CostBudgetReached) as error:
        return Strategies([], len(matches), error)
    return Strategies(found[: wish.count], len(matches))


def store(session: Session, job: Job, step: Step, strategies: Strategies) -> None:
    """One candidate a strategy that the job does not have yet."""
    number = step.payload["number"]
    generation = lock_generation(session, step.generation_id) if step.generation_id else None
    assert generation is not None
    data = {"number": number, "strategies": len(strategies.found), "pool_matches": strategies.matches}
    record_event(session, job.id, "generation.initialised", step_id=step.id, data=data)
    if strategies.refusal is not None:
        give_up_generation(session, job, generation, strategies.refusal.code, str(strategies.refusal))
        return
    taken = {strategy_key(one, catalogue()) for one in strategies_of(session, job.id)}
    seeds = [uuid.UUID(one) for one in step.payload.get("seeds", ())]
    candidates: list[Candidate] = []
    for one in strategies.found:
        key = strategy_key(one.strategy, catalogue())
        if key in taken:
            continue
        taken.add(key)
        parents = [seeds[len(candidates) % len(seeds)]] if seeds else []
        candidate = add_candidate(session, job, generation, Operator.INITIAL, parents)
        origin = StrategyOrigin(one.source.value)
        give_strategy(session, candidate, add_strategy(session, job, one.strategy, origin, one.pool_entry))
        candidates.append(candidate)
    if not candidates:
        give_up_generation(session, job, generation, "no_strategies", "the agents know nothing more to try")
        return
    enter_techniques(session, job, [one.strategy for one in strategies.found], StrategyOrigin.IDEA)
    count_down(session, generation, len(candidates) - 1)
    for candidate in candidates:
        begin_stage(session, job, candidate, first(course_of(job, Operator.INITIAL)))


def _matches(wish: Wish, tools: Tools) -> list[PoolMatch]:
    """What earlier jobs of the team learned, as the step's first attempt found it."""
    found = retrieved(tools, wish.team, wish.spec, wish.preparation, before=wish.pool_until)
    with tools.database.transaction() as session:
        pinned = pin(session, wish.claim, "matches", [one.model_dump(mode="json") for one in found])
    return [PoolMatch.model_validate(one) for one in pinned]
