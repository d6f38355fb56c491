"""Find what a team's earlier changes of kernels were worth on similar problems: the kernels before and after each.

A change is a pool entry with the kernel that it was made from: the fitter parent's, or the candidate's own before a
performance revision. Sources never leave their team, so shared entries of others teach none.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session, aliased

from cupilot.domain.errors import CupilotError
from cupilot.domain.kernel import Kernel
from cupilot.domain.pool import Lesson, PoolEntry, PoolQuestion, related_classes, unfit
from cupilot.storage.db.tables.jobs import Candidate, EvaluationRow
from cupilot.storage.db.tables.pool import PoolRow
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.progress import kernel_of
from cupilot.storage.pool.similar import Index, similar

LOOKED_AT = 200
"""Fastest entries near the question that are looked at."""


def nearest_lessons(session: Session, index: Index, team: uuid.UUID, question: PoolQuestion, limit: int) -> list[str]:
    """Return ids of the entries that teach most: of one a problem, by similarity times what the change gained.

    Of problems with the same shape of computation. Only strategies that fit the question, whose kernel was made from
    another that counts and is slower.
    """
    near = similar(session, index, team, question, {"op_class": related_classes(question.op_class)}).found
    former, measured = aliased(PoolRow), aliased(EvaluationRow)
    made_from = and_(
        measured.kernel_hash == PoolRow.body["parent_hash"].astext, measured.problem_hash == PoolRow.problem_hash
    )
    query = (
        select(PoolRow, func.max(former.gain))
        .join(measured, made_from)
        .join(former, former.id == measured.id)
        .where(PoolRow.team_id == team, PoolRow.reference_id.in_(list(near)), ~PoolRow.imported)
        .where(former.team_id == team, PoolRow.gain > former.gain)
        .group_by(PoolRow.id)
        .order_by(PoolRow.gain.desc(), PoolRow.id)
        .limit(LOOKED_AT)
    )
    if question.before is not None:
        query = query.where(PoolRow.created_at < question.before)
    best: dict[str, tuple[float, str]] = {}
    for row, gain_before in session.execute(query):
        if row.gain is None or gain_before is None or row.reference_id is None or unfit(row.body.strategy, question):
            continue
        worth = near[row.reference_id].value * (row.gain - gain_before)
        best[row.problem_hash] = max(best.get(row.problem_hash, (0.0, "")), (worth, str(row.id)))
    return [entry for _, entry in sorted(best.values(), key=lambda pair: (-pair[0], pair[1]))[:limit]]


def lessons(session: Session, team: uuid.UUID, entries: Sequence[str]) -> list[Lesson]:
    """Return the lessons of these entries, in this order, without those whose kernel is gone."""
    wanted = [uuid.UUID(entry) for entry in entries]
    query = select(PoolRow).where(PoolRow.team_id == team, PoolRow.id.in_(wanted))
    rows = {row.id: row.body for row in session.scalars(query)}
    taught = (_lesson(session, team, rows[entry]) for entry in wanted if entry in rows)
    return [lesson for lesson in taught if lesson is not None]


def _lesson(session: Session, team: uuid.UUID, entry: PoolEntry) -> Lesson | None:
    after = _tuned(session, entry)
    if after is None or entry.speedup is None:
        return None
    before = _measured_before(session, team, entry)
    return Lesson(
        problem=entry.problem_name,
        strategy=entry.strategy,
        change=_change(session, entry, before),
        before=_tuned(session, before) if before else None,
        after=after,
        speedup_before=before.speedup if before else None,
        speedup=entry.speedup,
    )


def _measured_before(session: Session, team: uuid.UUID, entry: PoolEntry) -> PoolEntry | None:
    """Return the team's entry on the kernel that this one was made from; None where that does not count."""
    query = (
        select(PoolRow.body)
        .join(EvaluationRow, EvaluationRow.id == PoolRow.id)
        .where(
            EvaluationRow.kernel_hash == entry.parent_hash,
            EvaluationRow.problem_hash == entry.problem_hash,
            PoolRow.team_id == team,
            PoolRow.gain.is_not(None),
        )
        .order_by(PoolRow.gain.desc(), PoolRow.id)
    )
    return session.scalars(query.limit(1)).one_or_none()


def _tuned(session: Session, entry: PoolEntry) -> Kernel | None:
    """Return an entry's kernel with the tunable values that its time belongs to; None where its source is gone."""
    measured = session.get(EvaluationRow, uuid.UUID(entry.id))
    if measured is None:
        return None
    try:
        return kernel_of(session, measured.kernel_hash).tuned(measured.body.tunables)
    except CupilotError:
        return None


def _change(session: Session, entry: PoolEntry, before: PoolEntry | None) -> str:
    """Return what was changed: the techniques that came and went, or what the Revisor said of its revision.

    A candidate's own kernels differ by revisions: of the last one alone the strategy was aligned.
    """
    candidate, revised = _revision(session, entry)
    if revised and before is not None and _revision(session, before)[0] == candidate:
        return revised
    old, new = (set(each.strategy.ids()) if each else set() for each in (before, entry))
    parts = [
        f"{word} {', '.join(sorted(names))}" for word, names in (("with", new - old), ("without", old - new)) if names
    ]
    return " and ".join(parts) or revised or "the same techniques in another form"


def _revision(session: Session, entry: PoolEntry) -> tuple[uuid.UUID | None, str]:
    """Return the candidate that an entry is about, and what the Revisor said of that kernel, if it made it."""
    query = (
        select(Candidate, Step.payload["round"].as_integer())
        .join(EvaluationRow, EvaluationRow.candidate_id == Candidate.id)
        .join(Step, Step.id == EvaluationRow.step_id)
        .where(EvaluationRow.id == uuid.UUID(entry.id))
    )
    found = session.execute(query).one_or_none()
    if found is None:
        return None, ""
    candidate, round_number = found
    return candidate.id, candidate.notes.change(round_number, candidate.operator)
