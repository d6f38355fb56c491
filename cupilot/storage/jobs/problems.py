"""Problems of a team: content-addressed, stored once. Showing them is :mod:`cupilot.storage.views`' business."""

from __future__ import annotations

import uuid

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from cupilot.domain.problem import Problem
from cupilot.storage.db.scope import scoped
from cupilot.storage.db.tables.jobs import ProblemRow
from cupilot.storage.jobs.builtin import builtin_name


def ensure_problem(session: Session, team_id: uuid.UUID, problem: Problem) -> ProblemRow:
    """The team's row for this problem, made where there is none; the first name given to a content stays."""
    values = {
        "id": uuid.uuid4(),
        "team_id": team_id,
        "hash": problem.content_hash(),
        "name": problem.name,
        "source": problem.source,
        "policy": problem.policy,
    }
    builtin_name(session, problem.content_hash())  # recorded while this version ships it
    session.execute(insert(ProblemRow).values(values).on_conflict_do_nothing())
    found = scoped(select(ProblemRow), team_id).where(ProblemRow.hash == values["hash"])
    return session.scalars(found).one()


def problem_value(row: ProblemRow) -> Problem:
    """The row as the value object that everybody else knows."""
    return Problem(name=row.name, source=row.source, policy=row.policy)
