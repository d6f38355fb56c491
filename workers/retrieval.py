"""Searches of the strategy pool that steps make."""

from __future__ import annotations

import logging
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from cupilot.domain.errors import CupilotError
from cupilot.domain.evaluation import Preparation
from cupilot.domain.job import AgentKind, JobSpec
from cupilot.domain.pool import PoolMatch, PoolQuestion, question_of
from cupilot.domain.strategy import Strategy
from cupilot.domain.technique import catalogue
from cupilot.storage.pool.lessons import nearest_lessons
from cupilot.storage.pool.search import search
from cupilot.storage.pool.solved import nearest_solved
from workers.indexing import index_pool
from workers.tools import Tools

if TYPE_CHECKING:
    from agents.interface import Briefing

logger = logging.getLogger(__name__)


def retrieved(
    tools: Tools,
    team: str,
    spec: JobSpec,
    preparation: Preparation,
    briefing: Briefing,
    *,
    before: datetime | None,
    limit: int = 8,
) -> list[PoolMatch]:
    """Return what earlier jobs of the team learned ``before`` a time, if one is given, and this one can apply.

    Its device must have what a strategy needs, and nobody have banned that from the job.

    Nothing where the pool does not answer; without its vector index it is searched by words alone.
    """
    question = _question(tools, spec, preparation, before, limit)
    try:
        with tools.database.reading() as session:  # no transaction waits for the index
            answer = search(
                session,
                tools.pool(),
                UUID(team),
                question,
                half_life_days=tools.settings.pool_half_life_days,
                applicable=partial(objection, briefing, spec.agents),
            )
    except CupilotError as error:
        logger.warning("strategy pool not available: %s", error)
        return []
    return list(answer.matches)


def similar_solved(
    tools: Tools, team: str, spec: JobSpec, preparation: Preparation, *, before: datetime | None, limit: int
) -> list[str]:
    """Return entries of the team's fastest kernels for the most similar other problems, the most similar first."""
    question = _question(tools, spec, preparation, before, limit)
    others = question.model_copy(update={"without_problem": preparation.facts.problem_hash})
    try:
        with tools.database.reading() as session:  # no transaction waits for the index
            return nearest_solved(session, tools.pool(), UUID(team), others, limit)
    except CupilotError as error:
        logger.warning("strategy pool not available: %s", error)
        return []


def lessons_for(
    tools: Tools, team: str, spec: JobSpec, preparation: Preparation, *, before: datetime | None, limit: int
) -> list[str]:
    """Return entries of the team whose changes gained most on problems of the same shape of computation."""
    question = _question(tools, spec, preparation, before, limit)
    try:
        with tools.database.reading() as session:  # no transaction waits for the index
            return nearest_lessons(session, tools.pool(), UUID(team), question, limit)
    except CupilotError as error:
        logger.warning("strategy pool not available: %s", error)
        return []


def objection(briefing: Briefing, agents: AgentKind, strategy: Strategy) -> str | None:
    """Return why a job cannot apply a strategy, beyond what the catalogue says of targets and policies.

    What keeps a template from rendering it is no reason where a model may write the kernel.
    """
    from agents.playbook.preconditions import unmet

    arch = briefing.device.arch
    for name in strategy.ids():
        if name in briefing.banned:
            return f"{name} is banned from the job"
        technique = catalogue().get(name)
        if technique is not None and not technique.runs_on(arch):
            return f"{arch} lacks what {name} needs"
    return unmet(briefing, strategy) if agents is AgentKind.PLAYBOOK else None


def _question(
    tools: Tools, spec: JobSpec, preparation: Preparation, before: datetime | None, limit: int
) -> PoolQuestion:
    """Bring the index up to date and return the job's question to it."""
    try:
        index_pool(tools)
    except CupilotError as error:
        logger.warning("strategy pool not indexed: %s", error)
    question = question_of(
        preparation.facts,
        spec.problem.name,
        target=spec.target,
        zone=preparation.placement.zone,
        device_class=preparation.environment.device.device_class,
        limit=limit,
    )
    return question.model_copy(update={"before": before})
