"""Store descriptions of references, which similar entries share, with their words, in Postgres.

The vector index over them is :mod:`cupilot.storage.pool.index`; the question of which are similar, with BM25 over the
words, :mod:`cupilot.storage.pool.similar`.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from cupilot.domain.pool import PoolEntry, PoolQuestion, Sharing
from cupilot.domain.value import digest
from cupilot.storage.db.tables.pool import PoolReference, PoolRow, PoolTerm
from cupilot.storage.pool.embedder import describe

SHARED = "builtin"
"""Scope of what every team may see: shared entries on built-in problems."""
FORMER = "cluster"
"""Scope of what the release before shared, on any problem. Searched by nobody; its entries are read again."""

MAX_TERM = 100


@dataclass(frozen=True)
class Reference:
    """Description of a reference, with its scope."""

    scope: str
    target: str
    policy: str
    op_class: str
    zone: str
    text: str

    @property
    def id(self) -> uuid.UUID:
        """Equal descriptions have equal ids."""
        fields = [self.scope, self.target, self.policy, self.op_class, self.zone, self.text]
        return uuid.UUID(digest(fields)[:32])


def reference_of(entry: PoolEntry) -> Reference:
    """Return the description by which an entry's own team finds it."""
    return _reference(entry, entry.team, entry.problem_name)


def shared_reference_of(entry: PoolEntry, sharing: Sharing, name: str) -> Reference:
    """Return the description by which all teams find an entry; ``name``: the built-in problem's, not the team's."""
    return _reference(entry, SHARED, "" if sharing is Sharing.ANONYMOUS else name)


def _reference(entry: PoolEntry, scope: str, name: str) -> Reference:
    return Reference(
        scope=scope,
        target=entry.target.value,
        policy=entry.policy.value,
        op_class=entry.op_class,
        zone=entry.zone.value,
        text=describe(name, entry.op_class, entry.operators, entry.dtype, entry.shapes),
    )


def text_of(question: PoolQuestion) -> str:
    """Return the description that a question stands for."""
    return describe(question.name, question.op_class, question.operators, question.dtype, question.shapes)


def words(text: str) -> Counter[str]:
    """Return the words of a description, with how often each occurs."""
    return Counter(word[:MAX_TERM] for word in re.findall(r"[a-z0-9]+", text.lower()))


def ensure_reference(session: Session, reference: Reference) -> uuid.UUID:
    """Return the description's row, made where there is none, locked against removal until the transaction ends."""
    terms = words(reference.text)
    made = session.execute(
        insert(PoolReference)
        .values(
            id=reference.id,
            scope=reference.scope,
            target=reference.target,
            policy=reference.policy,
            op_class=reference.op_class,
            zone=reference.zone,
            text=reference.text,
            length=sum(terms.values()),
        )
        .on_conflict_do_nothing()
        .returning(PoolReference.id)
    ).scalar_one_or_none()
    if made is not None and terms:
        session.execute(
            insert(PoolTerm), [{"reference_id": made, "term": word, "occurrences": n} for word, n in terms.items()]
        )
    if made is None:
        locked = select(PoolReference.id).where(PoolReference.id == reference.id)
        if session.scalars(locked.with_for_update(key_share=True, read=True)).one_or_none() is None:
            return ensure_reference(session, reference)  # somebody dropped it just now
    return reference.id


def shown_to_all() -> ColumnElement[bool]:
    """Return whether other teams may see a pool entry, as :mod:`cupilot.storage.pool.rows` decided at the write.

    Goes by the scope of the description, which the release before never wrote, and not by ``sharing`` alone, which it
    did.
    """
    shown = select(PoolReference.id).where(
        PoolReference.id == PoolRow.shared_reference_id, PoolReference.scope == SHARED
    )
    # Correlated explicitly: a PoolReference that the whole query joins is another one.
    return and_(PoolRow.sharing != Sharing.PRIVATE.value, shown.correlate(PoolRow).exists())


def drop_unused(session: Session) -> None:
    """Forget descriptions that no shared entry has any more, so that what was withdrawn leaves no word behind."""
    used = select(PoolRow.id).where(PoolRow.shared_reference_id == PoolReference.id)
    unused = select(PoolReference.id).where(PoolReference.scope.in_([SHARED, FORMER]), ~used.exists())
    gone = session.scalars(unused.with_for_update(skip_locked=True)).all()
    session.execute(delete(PoolReference).where(PoolReference.id.in_(gone)))


def unindexed(session: Session, limit: int) -> Sequence[PoolReference]:
    """Return descriptions that the vector index does not have."""
    query = select(PoolReference).where(PoolReference.indexed_at.is_(None)).order_by(PoolReference.id)
    return session.scalars(query.limit(limit)).all()


def mark_indexed(session: Session, ids: Sequence[uuid.UUID]) -> None:
    """Mark descriptions that the vector index holds."""
    session.execute(
        update(PoolReference)
        .where(PoolReference.id.in_(ids))
        .values(indexed_at=func.now())
        .execution_options(synchronize_session=False)
    )


def forget_index(session: Session) -> None:
    """Mark all descriptions for indexing again: for a rebuilt or lost Chroma."""
    session.execute(update(PoolReference).values(indexed_at=None).execution_options(synchronize_session=False))
