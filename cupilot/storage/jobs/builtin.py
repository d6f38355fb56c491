"""Which problems are built-in, by content hash, also those that only earlier versions shipped.

Decides nothing about who sees what; that is :mod:`cupilot.storage.pool.rows`' business.
"""

from __future__ import annotations

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from cupilot.domain import problems
from cupilot.storage.db.tables.pool import BuiltinProblem


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
    """Record all that this version ships.

    All at once and sorted: transactions that recorded some each, in different orders, could wait for each other.
    """
    rows = [{"hash": key, "name": name} for key, name in sorted(problems.hashes().items())]
    session.execute(insert(BuiltinProblem).on_conflict_do_nothing(), rows)
