"""Tenant scope, in one place: every query of a team goes through :func:`scoped`."""

from __future__ import annotations

import uuid
from typing import Any, TypeVar

from sqlalchemy import BindParameter, Select

from cupilot.storage.db.tables.experiments import Experiment
from cupilot.storage.db.tables.jobs import Candidate, Generation, Job, ProblemRow
from cupilot.storage.db.tables.pool import NovelTechnique, PoolRow
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.tables.webhooks import WebhookEndpoint

Query = TypeVar("Query", bound=Select[*tuple[Any, ...]])


def scoped(select: Query, team_id: uuid.UUID | BindParameter[uuid.UUID]) -> Query:
    """Restrict a query to what belongs to the team.

    The query must select from a table with a ``team_id`` (jobs, problems, pool entries) or from one below jobs that
    it has not joined with jobs yet. Raises TypeError for any other, so that a forgotten scope is an error at once.
    """
    entity = select.column_descriptions[0]["entity"]
    if entity in (Experiment, Job, NovelTechnique, ProblemRow, PoolRow, WebhookEndpoint):
        return select.where(entity.team_id == team_id)
    if entity in (Candidate, Generation, Step):
        return select.join(Job, entity.job_id == Job.id).where(Job.team_id == team_id)
    raise TypeError(f"no tenant scope is known for {entity}")
