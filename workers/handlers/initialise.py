"""Step ``initialise``: the SCE Manager writes the initial strategies of a generation, helped by the strategy pool."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from agents.interface import AgentError, InitialStrategy
from cupilot.errors import CupilotError
from cupilot.evaluation import Preparation
from cupilot.evolution.pipeline import first
from cupilot.evolution.population import Operator
from cupilot.evolution.seeds import initialise_seed
from cupilot.job import JobSpec
from cupilot.model_call import CostBudgetReached
from cupilot.pool import PoolMatch
from cupilot.storage.evolving import add_candidate, add_strategy, count_down, give_strategy
from cupilot.storage.experiments import pool_cutoff
from cupilot.storage.jobs import job_spec
from cupilot.storage.progress import preparation_of, strategies_of
from cupilot.storage.states import StrategyOrigin
from cupilot.storage.steps import Claim
from cupilot.storage.tables import Job, Step
from cupilot.storage.transitions import lock_generation, record_event
from workers.flow import begin_stage, give_up_generation
from workers.handlers.common import briefing
from workers.indexing import index_pool
from workers.tools import Tools

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wish:
    """What is asked for."""

    claim: Claim
    team: str
    spec: JobSpec
    preparation: Preparation
    number: int
    count: int
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
    number, count = claim.payload["number"], claim.payload["count"]
    return Wish(claim, str(job.team_id), spec, preparation, number, count, pool_until=pool_cutoff(session, job))


def work(wish: Wish, tools: Tools, cancelled: Callable[[], bool]) -> Strategies:  # noqa: ARG001
    """Look into the pool and ask the manager."""
    matches = _matches(wish, tools) if wish.spec.method.pool else []
    seed = initialise_seed(wish.spec.seed, wish.number)
    try:
        manager = tools.agents(wish.spec.agents, wish.claim).manager
        found = manager.initial_strategies(briefing(wish.spec, wish.preparation), matches, wish.count, seed)
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
    taken = {one.signature() for one in strategies_of(session, job.id)}
    candidates = []
    for one in strategies.found:
        if one.strategy.signature() in taken:
            continue
        taken.add(one.strategy.signature())
        candidate = add_candidate(session, job, generation, Operator.INITIAL)
        origin = StrategyOrigin(one.source.value)
        give_strategy(session, candidate, add_strategy(session, job, one.strategy, origin, one.pool_entry))
        candidates.append(candidate)
    if not candidates:
        give_up_generation(session, job, generation, "no_strategies", "the agents know nothing more to try")
        return
    count_down(session, generation, len(candidates) - 1)
    for candidate in candidates:
        begin_stage(session, job, candidate, first(Operator.INITIAL))


def _matches(wish: Wish, tools: Tools) -> list[PoolMatch]:
    """What earlier jobs of the team learned; a pool that does not answer is a loss, but no reason to fail."""
    try:
        index_pool(tools)
        return tools.pool().retrieve(
            wish.team,
            wish.preparation.facts,
            wish.spec.problem.name,
            target=wish.spec.target,
            zone=wish.preparation.placement.zone,
            device_class=wish.preparation.environment.device.device_class,
            before=wish.pool_until,
        )
    except CupilotError as error:
        logger.warning("strategy pool not available: %s", error)
        return []
