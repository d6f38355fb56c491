"""Problems: a team's own, content-addressed and stored once, and the built-in ones of every version that shipped any.

Decides nothing about who sees results on a problem; that is :mod:`cupilot.storage.pool.rows`' business.
"""

from __future__ import annotations

import ast
import uuid
from contextlib import suppress
from functools import cache

from sqlalchemy import Select, Text, Uuid, bindparam, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, defer
from sqlalchemy.sql.dml import ReturningInsert

from cupilot.domain import problems
from cupilot.domain.errors import NotFound
from cupilot.domain.problem import Problem
from cupilot.domain.syntax import parse
from cupilot.schemas import ProblemPage, ProblemSummary, ProblemView
from cupilot.storage.db.cursor import decode_cursor, encode_cursor
from cupilot.storage.db.engine import rows
from cupilot.storage.db.scope import scoped
from cupilot.storage.db.tables.jobs import ProblemRow
from cupilot.storage.db.tables.pool import BuiltinProblem


def ensure_problem(session: Session, team_id: uuid.UUID, problem: Problem) -> uuid.UUID:
    """Return the id of the team's row for this problem, made where there is none; the first name given to a content
    stays."""
    values = {
        "id": uuid.uuid4(),
        "team_id": team_id,
        "hash": problem.content_hash(),
        "name": problem.name,
        "source": problem.source,
        "policy": problem.policy,
    }
    if problems.name_of(problem.content_hash()) is not None:
        builtin_name(session, problem.content_hash())  # recorded while this version ships it
    content = {"team": team_id, "content": values["hash"]}
    row: uuid.UUID | None = rows(session, _by_content(), content).scalar_one_or_none()
    if row is None:
        row = rows(session, _insertion(), values).scalar_one_or_none()
    return row or rows(session, _by_content(), content).scalar_one()  # another transaction's, made meanwhile


@cache
def _by_content() -> Select[uuid.UUID]:
    query = scoped(select(ProblemRow.id), bindparam("team", type_=Uuid()))
    return query.where(ProblemRow.hash == bindparam("content", type_=Text()))


@cache
def _insertion() -> ReturningInsert[uuid.UUID]:
    return insert(ProblemRow).on_conflict_do_nothing().returning(ProblemRow.id)


def problem_value(row: ProblemRow) -> Problem:
    """Return the row as the value object that everybody else knows."""
    return Problem(name=row.name, source=row.source, policy=row.policy)


def list_problems(session: Session, team: uuid.UUID, *, cursor: str | None, limit: int) -> ProblemPage:
    """Return built-in problems on the first page (all of them, beyond the limit), then the team's, newest first."""
    query = scoped(select(ProblemRow), team).order_by(ProblemRow.created_at.desc(), ProblemRow.id.desc())
    if cursor:
        query = query.where(tuple_(ProblemRow.created_at, ProblemRow.id) < decode_cursor(cursor))
    rows = session.scalars(query.options(defer(ProblemRow.source)).limit(limit + 1)).all()
    page = rows[:limit]
    first = [] if cursor else [_builtin(name) for name in problems.names()]
    return ProblemPage(
        items=first + [_summary(row) for row in page],
        next_cursor=encode_cursor(page[-1].created_at, page[-1].id) if len(rows) > limit else None,
    )


def problem_view(session: Session, team: uuid.UUID, reference: str) -> ProblemView:
    """Return a problem by id: a built-in's name or the id of one of the team's; NotFound for any other."""
    if problems.is_name(reference):
        return ProblemView(**_builtin(reference).model_dump(), source=problems.load(reference).source)
    row = get_problem(session, team, reference)
    return ProblemView(**_summary(row).model_dump(), source=row.source)


def get_problem(session: Session, team: uuid.UUID, reference: str) -> ProblemRow:
    """Return one of the team's problems by id; NotFound for any other."""
    row = None
    with suppress(ValueError):
        row = session.scalar(scoped(select(ProblemRow), team).where(ProblemRow.id == uuid.UUID(reference)))
    if row is None:
        raise NotFound("no such problem", hint=problems.suggestion(reference), where="problem")
    return row


def builtin_name(session: Session, problem_hash: str) -> str | None:
    """Return the name that a problem ships with, recording it, or None where no version of this service shipped it."""
    name = known_name(session, problem_hash)
    if name is None and problems.name_of(problem_hash) is not None:
        _record_shipped(session)
        name = problems.name_of(problem_hash)
    return name


def known_name(session: Session, problem_hash: str) -> str | None:
    """Return the name that a recorded built-in problem ships with; writes nothing."""
    row = session.get(BuiltinProblem, problem_hash)
    return row.name if row is not None else None


def _record_shipped(session: Session) -> None:
    """Record all built-in problems of this version.

    All at once and sorted: transactions that recorded some each, in different orders, could wait for each other.
    """
    rows = [{"hash": key, "name": name} for key, name in sorted(problems.hashes().items())]
    session.execute(insert(BuiltinProblem).on_conflict_do_nothing(), rows)


@cache
def _builtin(name: str) -> ProblemSummary:
    text = ast.get_docstring(parse(problems.load(name).source))
    return ProblemSummary(id=name, name=name, builtin=True, summary=text.splitlines()[0] if text else None)


def _summary(row: ProblemRow) -> ProblemSummary:
    return ProblemSummary(
        id=str(row.id), name=row.name, policy=row.policy, hash=row.hash, builtin=False, created_at=row.created_at
    )
