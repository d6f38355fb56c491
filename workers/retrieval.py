"""What steps look up in the strategy pool. Finding is the pool's business, using it the handlers'."""

from __future__ import annotations

import logging
from datetime import datetime

from cupilot.errors import CupilotError
from cupilot.evaluation import Preparation
from cupilot.job import JobSpec
from cupilot.pool import PoolMatch
from workers.indexing import index_pool
from workers.tools import Tools

logger = logging.getLogger(__name__)


def retrieved(
    tools: Tools,
    team: str,
    spec: JobSpec,
    preparation: Preparation,
    *,
    before: datetime | None,
    limit: int = 8,
) -> list[PoolMatch]:
    """What earlier jobs of the team learned, ``before`` a time where one is given.

    A pool that does not answer is a loss, but no reason to fail.
    """
    try:
        index_pool(tools)
        return tools.pool().retrieve(
            team,
            preparation.facts,
            spec.problem.name,
            target=spec.target,
            zone=preparation.placement.zone,
            device_class=preparation.environment.device.device_class,
            limit=limit,
            before=before,
        )
    except CupilotError as error:
        logger.warning("strategy pool not available: %s", error)
        return []
