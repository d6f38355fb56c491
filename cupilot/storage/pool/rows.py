"""Store the pool's entries: one row an evaluation, with the columns that it is searched by.

Decides which entries other teams may see. A reference that a team wrote may lie about its operator, for example sleep,
so that every kernel looks fast; so only entries on built-in problems are ever shared. Imported claims are not: nobody
here measured that they are about the problem whose hash they name.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from math import log
from typing import Any

from sqlalchemy import ColumnElement, select, union_all
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from cupilot.domain.attribution import Credit
from cupilot.domain.evaluation import Evaluation
from cupilot.domain.pool import PoolEntry, Sharing
from cupilot.domain.value import in_utc
from cupilot.storage.db.tables.jobs import Candidate, EvaluationRow
from cupilot.storage.db.tables.pool import PoolReference, PoolRow
from cupilot.storage.jobs.problems import builtin_name
from cupilot.storage.pool.references import FORMER, drop_unused, ensure_reference, reference_of, shared_reference_of


def remember(session: Session, entry: PoolEntry, sharing: Sharing | None = None) -> None:
    """Store an evaluation's entry, or correct it; ``sharing`` stays as it is where None.

    An entry that may not be shared becomes private, whatever ``sharing`` says.
    """
    key = uuid.UUID(entry.id)
    if sharing is None:
        stored = session.scalars(select(PoolRow.sharing).where(PoolRow.id == key)).one_or_none()
        sharing = Sharing(stored) if stored else Sharing.PRIVATE
    values = {"team_id": uuid.UUID(entry.team), **_columns(session, entry, sharing)}
    row = insert(PoolRow).values(id=key, **values)
    session.execute(row.on_conflict_do_update(index_elements=["id"], set_=values))


def recall(session: Session, evaluation_id: uuid.UUID) -> PoolEntry | None:
    """Return the pool's entry of an evaluation; None where nothing was learned from it."""
    row = session.get(PoolRow, evaluation_id, populate_existing=True)
    return None if row is None else row.body


def is_known(session: Session, team: uuid.UUID, evaluation: Evaluation) -> bool:
    """Return whether the team has an entry of the run of the judge that an evaluation rests on."""
    query = (
        select(PoolRow.id)
        .join(EvaluationRow, EvaluationRow.id == PoolRow.id)
        .where(PoolRow.team_id == team, PoolRow.problem_hash == evaluation.problem_hash)
        .where(EvaluationRow.body["measurement"].astext == evaluation.measurement)
    )
    return session.execute(select(query.exists())).scalar_one()


def sharings_of(session: Session, candidate: Candidate) -> Sequence[Sharing]:
    """Return the audiences of the entries about a candidate's kernel."""
    query = (
        select(PoolRow.sharing)
        .join(EvaluationRow, EvaluationRow.id == PoolRow.id)
        .where(EvaluationRow.candidate_id == candidate.id, EvaluationRow.kernel_hash == candidate.kernel_hash)
        .distinct()
    )
    return [Sharing(sharing) for sharing in session.scalars(query)]


def credit_entry(session: Session, evaluation_id: uuid.UUID, credits: Sequence[Credit]) -> None:
    """Store the credits of the techniques in an entry's strategy, where the pool has one."""
    entry = recall(session, evaluation_id)
    if entry is None:
        return
    remember(session, entry.model_copy(update={"credits": tuple(credits)}))


def may_be_shared(session: Session, entry: PoolEntry) -> bool:
    """Return whether other teams may see the entry: this cluster measured it, on a built-in problem."""
    return _shared_name(session, entry) is not None


def share(session: Session, rows: Sequence[PoolRow], sharing: Sharing) -> None:
    """Show entries to all teams, or withdraw them; those that may not be shared stay private."""
    for row in rows:
        remember(session, row.body, sharing)
    drop_unused(session)


def read_old(session: Session, limit: int) -> int:
    """Rewrite entries of earlier releases: their columns and their visibility; return how many there were."""
    unread = select(PoolRow.id).where(PoolRow.reference_id.is_(None))
    shared = (
        select(PoolRow.id)
        .join(PoolReference, PoolReference.id == PoolRow.shared_reference_id)
        .where(PoolReference.scope == FORMER, PoolRow.sharing != Sharing.PRIVATE.value)
    )
    rows = session.scalars(select(PoolRow).where(PoolRow.id.in_(union_all(unread, shared).limit(limit)))).all()
    for row in rows:
        remember(session, row.body, Sharing(row.sharing))
    if session.execute(select(_has_former_references())).scalar_one():
        drop_unused(session)
    return len(rows)


def anything_unindexed(session: Session) -> bool:
    """Return whether the vector index lacks something, or entries are still as a release before wrote them."""
    unread = select(PoolRow.id).where(PoolRow.reference_id.is_(None)).exists()
    unindexed = select(PoolReference.id).where(PoolReference.indexed_at.is_(None)).exists()
    return session.execute(select(unread | unindexed | _has_former_references())).scalar_one()


def _has_former_references() -> ColumnElement[bool]:
    return select(PoolReference.id).where(PoolReference.scope == FORMER).exists()


def _shared_name(session: Session, entry: PoolEntry) -> str | None:
    """Return the built-in problem's name, of an entry that may be shared."""
    return builtin_name(session, entry.problem_hash) if entry.measured_here else None


def _columns(session: Session, entry: PoolEntry, wanted: Sharing) -> dict[str, Any]:
    counts = entry.verdict.counts and entry.speedup is not None and entry.speedup > 0
    name = None if wanted is Sharing.PRIVATE else _shared_name(session, entry)
    sharing = wanted if name is not None else Sharing.PRIVATE
    shared = None if name is None else ensure_reference(session, shared_reference_of(entry, sharing, name))
    return {
        "body": entry,
        "sharing": sharing.value,
        "reference_id": ensure_reference(session, reference_of(entry)),
        "shared_reference_id": shared,
        "problem_hash": entry.problem_hash[:64],
        "signature": entry.strategy.signature(),
        "techniques": list(entry.strategy.ids()),
        "device_class": entry.device_class[:64],
        "gain": log(entry.speedup) if counts and entry.speedup else None,
        "failure": entry.failure.value if entry.failure else None,
        "imported": not entry.evidence,
        "measured_at": in_utc(datetime.fromisoformat(entry.created_at)),
    }
