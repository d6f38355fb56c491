"""Drain the service or one worker: it finishes what runs and claims nothing new until it is resumed.

Jobs are still accepted and wait in Postgres. The scheduler dispatches nothing to what is drained, and a drained worker
hands messages back that were on their way already; running steps are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, SQLColumnExpression, delete, func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from cupilot.domain.errors import InvalidInput, NotFound
from cupilot.storage.db.changes import note
from cupilot.storage.db.engine import notify
from cupilot.storage.db.tables.queue import AT_A_WORKER, Drain, Step, WorkerRow

SERVICE = "*"
"""In place of a worker's name: all of them."""
KEPT = timedelta(days=30)
"""A drain of a worker that is gone outlives a repair of its machine; many names never come back."""


@dataclass(frozen=True)
class DrainView:
    """Drain of a worker or the service, and the steps that still run there."""

    scope: str
    """A worker's name, or :data:`SERVICE`."""
    reason: str
    since: datetime
    running: int
    """Steps that are not finished yet; 0: drained."""


def begin_drain(session: Session, scope: str, reason: str, *, until_restart: bool = False) -> None:
    """Drain a worker or the service; again changes the reason, and makes a drain until a restart one without end.

    ``until_restart`` is for a worker that is about to end: its drain ends when one of its name registers, and a drain
    that is there already stays as it is; raises :class:`InvalidInput` for it of the service. Raises :class:`NotFound`
    for an unknown worker.
    """
    if scope == SERVICE and until_restart:
        hint = "name a worker, or leave --until-restart out"
        raise InvalidInput("the service does not start again as one", hint=hint)
    if scope != SERVICE and session.get(WorkerRow, scope) is None:
        raise NotFound(f"no worker is called {scope}", hint="GET /v1/cluster names them all")
    known = session.scalar(select(Drain.reason).where(Drain.scope == scope))
    if known is not None and until_restart:
        return
    note(session, "drain.reason", known, reason)
    values = {"reason": reason, "until_restart": until_restart}
    row = insert(Drain).values(scope=scope, **values)
    session.execute(row.on_conflict_do_update(index_elements=["scope"], set_=values))


def end_drain(session: Session, scope: str) -> bool:
    """Let the worker or the service claim steps again; return whether it was drained."""
    ended = session.scalars(delete(Drain).where(Drain.scope == scope).returning(Drain.reason)).one_or_none()
    note(session, "drain.reason", ended, None)
    notify(session)
    return ended is not None


def drains(session: Session) -> Sequence[DrainView]:
    """Return everything that is drained, the service first."""
    running = select(func.count()).where(_runs_in(Drain.scope)).correlate(Drain).scalar_subquery()
    query = select(Drain.scope, Drain.reason, Drain.since, running).order_by(Drain.scope)
    return [DrainView(*row) for row in session.execute(query)]


def running_in(session: Session, scope: str) -> int:
    """Return how many steps a worker or the service still runs, drained or not."""
    return session.execute(select(func.count()).where(_runs_in(literal(scope)))).scalar_one()


def _runs_in(scope: SQLColumnExpression[str]) -> ColumnElement[bool]:
    """Return the condition on a step that it runs there; what a batch holds is on no machine of the service."""
    return AT_A_WORKER & ((scope == SERVICE) | (Step.lease_owner == scope))


def drained_scopes(session: Session) -> frozenset[str]:
    """Return the names of what is drained; :data:`SERVICE` among them means everything."""
    return frozenset(session.scalars(select(Drain.scope)))


def is_drained(session: Session, worker: str) -> bool:
    """Return whether a worker is to take nothing new."""
    return session.scalar(select(Drain.scope).where(Drain.scope.in_([worker, SERVICE])).limit(1)) is not None


def prune_drains(session: Session) -> None:
    """Forget drains of workers that are gone: those until a restart at once, others after :data:`KEPT`."""
    workers, old = select(WorkerRow.name), Drain.since < func.now() - KEPT
    session.execute(delete(Drain).where(Drain.scope != SERVICE, Drain.scope.not_in(workers), Drain.until_restart | old))
