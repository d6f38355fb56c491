"""Problems as the REST boundary shows them: the built-in suite, then the team's own."""

from __future__ import annotations

import ast
from contextlib import suppress
from functools import cache
from uuid import UUID

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session, defer

from cupilot.domain import problems as builtin
from cupilot.domain.errors import NotFound
from cupilot.schemas import ProblemPage, ProblemSummary, ProblemView
from cupilot.storage.db.cursor import decode_cursor, encode_cursor
from cupilot.storage.db.scope import scoped
from cupilot.storage.db.tables.jobs import ProblemRow


def list_problems(session: Session, team: UUID, *, cursor: str | None, limit: int) -> ProblemPage:
    """Built-in problems on the first page (all of them, beyond the limit), then the team's, newest first."""
    query = scoped(select(ProblemRow), team).order_by(ProblemRow.created_at.desc(), ProblemRow.id.desc())
    if cursor:
        query = query.where(tuple_(ProblemRow.created_at, ProblemRow.id) < decode_cursor(cursor))
    rows = session.scalars(query.options(defer(ProblemRow.source)).limit(limit + 1)).all()
    page = rows[:limit]
    first = [] if cursor else [_builtin(name) for name in builtin.names()]
    return ProblemPage(
        items=first + [_summary(row) for row in page],
        next_cursor=encode_cursor(page[-1].created_at, page[-1].id) if len(rows) > limit else None,
    )


def problem_view(session: Session, team: UUID, reference: str) -> ProblemView:
    """A problem by id: a built-in's name or the id of one of the team's; NotFound for any other."""
    if reference in builtin.names():
        return ProblemView(**_builtin(reference).model_dump(), source=builtin.load(reference).source)
    row = get_problem(session, team, reference)
    return ProblemView(**_summary(row).model_dump(), source=row.source)


def get_problem(session: Session, team: UUID, reference: str) -> ProblemRow:
    """One of the team's problems by id; NotFound for any other."""
    row = None
    with suppress(ValueError):
        row = session.scalar(scoped(select(ProblemRow), team).where(ProblemRow.id == UUID(reference)))
    if row is None:
        raise NotFound("no such problem", hint=builtin.suggestion(reference), where="problem")
    return row


@cache
def _builtin(name: str) -> ProblemSummary:
    text = ast.get_docstring(ast.parse(builtin.load(name).source))
    return ProblemSummary(id=name, name=name, builtin=True, summary=text.splitlines()[0] if text else None)


def _summary(row: ProblemRow) -> ProblemSummary:
    return ProblemSummary(
        id=str(row.id), name=row.name, policy=row.policy, hash=row.hash, builtin=False, created_at=row.created_at
    )
