"""Search the strategy pool: similar descriptions, the results of strategies on them, ranked, with reasons.

All entries are weighed in Postgres, grouped by strategy; what comes to Python is one row for each strategy of the 64
most similar descriptions, however many entries there are. A weight is similarity times decay with age, less for other
classes of device and for imported claims (:mod:`cupilot.storage.pool.ranking`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import DateTime, Double, Subquery, Uuid, case, cast, column, func, literal, select, union_all, values
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.pool import (
    ANONYMOUS_NAME,
    FAILURE_GAIN,
    MatchReasons,
    PoolAnswer,
    PoolEntry,
    PoolMatch,
    PoolQuestion,
    Sharing,
    TechniqueAdvice,
    related_classes,
    unfit,
)
from cupilot.domain.strategy import Strategy
from cupilot.domain.technique import catalogue
from cupilot.storage.db.tables.pool import PoolRow
from cupilot.storage.jobs.problems import known_name
from cupilot.storage.pool.ranking import IMPORTED, OTHER_DEVICE, Group, Ranked, pick, scored
from cupilot.storage.pool.references import shown_to_all
from cupilot.storage.pool.similar import Index, Place, Similar, Similarity, similar

GROUPS = 500
"""Strategies that are ranked in Python, those with the most to say; a neighbourhood rarely has as many."""

TECHNIQUES = 12

UNINFORMATIVE = (FailureKind.INFRASTRUCTURE.value, FailureKind.INVALID_PROBLEM.value)

SECONDS_A_DAY = 86_400.0

MOST_HALF_LIVES = 100
"""Evidence older than that weighs nothing either way; halving it on would underflow, which Postgres refuses."""

Unfit = Callable[[Strategy], str | None]
"""Why a strategy cannot be applied to the problem, or None."""


def search(
    session: Session,
    index: Index,
    team: uuid.UUID,
    question: PoolQuestion,
    *,
    half_life_days: float,
    applicable: Unfit | None = None,
) -> PoolAnswer:
    """Return what the team may learn: promising strategies, then some to avoid, then what techniques are worth.

    Of problems of the same operator class; where nothing that fits counts there, of those with the same shape of
    computation too; then of the same roofline zone. ``applicable`` may refuse more than the catalogue does. An index
    that is away costs the similarity by meaning, and is said.
    """
    nearest: PoolAnswer | None = None
    answer = PoolAnswer()
    for place in _places(question):
        answer = _answer(session, index, team, question, place, half_life_days, applicable)
        if any(match.entry.speedup is not None for match in answer.matches):
            return answer
        nearest = nearest or (answer if answer.matches or answer.left_out else None)
    return nearest or answer


def _places(question: PoolQuestion) -> list[Place]:
    places: list[Place] = [{"op_class": question.op_class}]
    related = related_classes(question.op_class)
    places += [{"op_class": related}] if len(related) > 1 else []
    return places + ([{"zone": question.zone.value}] if question.zone else [])


def _answer(  # noqa: PLR0917 - the search's own arguments
    session: Session,
    index: Index,
    team: uuid.UUID,
    question: PoolQuestion,
    place: Place,
    half_life_days: float,
    applicable: Unfit | None,
) -> PoolAnswer:
    """Return what is known in one place, nothing where that has no entries."""
    near = similar(session, index, team, question, place)
    rows = _weighed(team, question, near, half_life_days) if near.found else None
    groups = _groups(session, rows) if rows is not None else []
    if rows is None or not groups:
        return PoolAnswer(notes=near.notes)
    ranked = scored(groups)
    entries = _entries(session, team, [entry.id for entry in ranked])
    fitting, left_out = _fitting(ranked, entries, question, applicable)
    return PoolAnswer(
        matches=_matches(session, rows, near, entries, pick(fitting, question.limit)),
        techniques=_advice(session, rows),
        left_out=left_out,
        notes=near.notes,
    )


def _matches(
    session: Session, rows: Subquery, near: Similar, entries: Mapping[str, _Found], chosen: Sequence[Ranked]
) -> tuple[PoolMatch, ...]:
    counts = _counts(session, rows, rows.c.signature, [entry.group.key for entry in chosen])
    return tuple(
        PoolMatch(
            entry=entries[entry.id].entry,
            similarity=entry.similarity,
            score=entry.score,
            why=_why(entry, near.found.get(entries[entry.id].reference), counts.get(entry.group.key, ())),
        )
        for entry in chosen
    )


def _advice(session: Session, rows: Subquery) -> tuple[TechniqueAdvice, ...]:
    best = [technique for technique in scored(_technique_groups(session, rows)) if technique.group.counted][:TECHNIQUES]
    uses = _by_technique(rows)
    counts = _counts(session, uses, uses.c.technique, [technique.group.key for technique in best])
    return tuple(
        TechniqueAdvice(
            technique=technique.group.key,
            score=technique.score,
            why=_why(technique, None, counts.get(technique.group.key, ())),
        )
        for technique in best
    )


def _weighed(team: uuid.UUID, question: PoolQuestion, near: Similar, half_life_days: float) -> Subquery:
    """Return every entry that the team may see of the similar descriptions, with its weight: a query, not yet asked."""
    table = values(column("reference", Uuid), column("similarity", Double), name="near").data(
        [(key, similarity.value) for key, similarity in near.found.items()]
    )
    near_by = table.c.similarity
    asked_at = literal(question.before, DateTime(timezone=True)) if question.before else func.now()
    age = func.extract("epoch", asked_at - PoolRow.measured_at) / (half_life_days * SECONDS_A_DAY)
    device = case((PoolRow.device_class == question.device_class, 1.0), else_=OTHER_DEVICE)
    weight = near_by * func.power(cast(0.5, Double), func.greatest(func.least(age, MOST_HALF_LIVES), 0))
    weight = weight * (device if question.device_class else 1.0)
    weight = weight * case((PoolRow.imported, IMPORTED), else_=1.0)
    gain = func.coalesce(PoolRow.gain, FAILURE_GAIN)
    columns = [
        PoolRow.id,
        PoolRow.signature,
        PoolRow.techniques,
        PoolRow.gain,
        PoolRow.failure,
        PoolRow.imported,
        cast(near_by, Double).label("similarity"),
        cast(weight, Double).label("weight"),
        cast(gain, Double).label("value"),
    ]
    own = select(*columns, literal(False).label("foreign")).join(table, table.c.reference == PoolRow.reference_id)
    others = select(*columns, literal(True).label("foreign")).join(
        table, table.c.reference == PoolRow.shared_reference_id
    )
    # With a technique that another team invented, that team's words would enter this one's prompts and catalogue.
    sayable = PoolRow.techniques.contained_by([technique.id for technique in catalogue()])
    parts = [own.where(PoolRow.team_id == team), others.where(PoolRow.team_id != team, shown_to_all(), sayable)]
    telling = PoolRow.failure.is_(None) | PoolRow.failure.not_in(UNINFORMATIVE)
    parts = [part.where(telling) for part in parts]
    if question.before is not None:
        parts = [part.where(PoolRow.created_at < question.before) for part in parts]
    if question.without_problem is not None:
        parts = [part.where(PoolRow.problem_hash != question.without_problem) for part in parts]
    return union_all(*parts).subquery("rows")


def _sums(rows: Subquery) -> list[Any]:
    first = aggregate_order_by(
        rows.c.id,
        rows.c.gain.is_(None),
        (rows.c.similarity * func.coalesce(rows.c.gain, 1.0)).desc(),
        rows.c.id,
    )
    return [
        func.array_agg(first)[1],
        func.bool_or(rows.c.gain.is_not(None)),
        func.max(rows.c.similarity),
        func.sum(rows.c.weight),
        func.sum(rows.c.weight * rows.c.value),
        func.sum(rows.c.weight * rows.c.value * rows.c.value),
    ]


def _groups(session: Session, rows: Subquery) -> list[Group]:
    promise = func.sum(rows.c.weight * rows.c.value) / (1 + func.sum(rows.c.weight))
    counted = func.bool_or(rows.c.gain.is_not(None))
    query = select(rows.c.signature, *_sums(rows)).group_by(rows.c.signature)
    groups = []
    for condition, order in ((counted, promise.desc()), (~counted, func.sum(rows.c.weight).desc())):
        part = query.having(condition).order_by(order, rows.c.signature).limit(GROUPS)
        groups += [_group(*row) for row in session.execute(part)]
    return groups


def _technique_groups(session: Session, rows: Subquery) -> list[Group]:
    uses = _by_technique(rows)
    query = select(uses.c.technique, *_sums(uses)).group_by(uses.c.technique)
    return [_group(*row) for row in session.execute(query)]


def _by_technique(rows: Subquery) -> Subquery:
    name = func.jsonb_array_elements_text(rows.c.techniques).label("technique")
    return select(rows, name).subquery("each")


def _group(  # noqa: PLR0917 - a row
    key: str, first: uuid.UUID, counted: bool, similarity: float, weight: float, total: float, squares: float
) -> Group:
    return Group(key, str(first), similarity, counted, weight, total, squares)


@dataclass(frozen=True)
class _Found:
    entry: PoolEntry
    """As the team may see it."""
    reference: uuid.UUID
    """The description that the team finds it by."""


def _entries(session: Session, team: uuid.UUID, ids: Iterable[str]) -> dict[str, _Found]:
    query = select(PoolRow).where(PoolRow.id.in_([uuid.UUID(identity) for identity in ids]))
    entries = {}
    for row in session.scalars(query):
        reference = row.reference_id if row.team_id == team else row.shared_reference_id
        assert reference is not None
        entries[str(row.id)] = _Found(visible_entry(session, row, team), reference)
    return entries


def visible_entry(session: Session, row: PoolRow, team: uuid.UUID) -> PoolEntry:
    """Return an entry as this team may see it."""
    entry = row.body
    if row.team_id == team:
        return entry
    return entry.shown_to_others(Sharing(row.sharing), known_name(session, row.problem_hash) or ANONYMOUS_NAME)


def _fitting(
    ranked: Sequence[Ranked],
    entries: Mapping[str, _Found],
    question: PoolQuestion,
    applicable: Unfit | None,
) -> tuple[list[Ranked], dict[str, str]]:
    fitting: list[Ranked] = []
    left_out: dict[str, str] = {}
    for candidate in ranked:
        strategy = entries[candidate.id].entry.strategy
        reason = unfit(strategy, question) or (applicable(strategy) if applicable else None)
        if reason is None:
            fitting.append(candidate)
        else:
            left_out[candidate.id] = reason
    return fitting, left_out


def _counts(session: Session, rows: Subquery, key: Any, keys: Sequence[str]) -> dict[str, list[Any]]:
    """Return the counts by failure, import and team, for each of the keys."""
    query = (
        select(key, rows.c.failure, rows.c.imported, rows.c.foreign, func.count(), func.count(rows.c.gain))
        .where(key.in_(keys))
        .group_by(key, rows.c.failure, rows.c.imported, rows.c.foreign)
    )
    by_key: dict[str, list[Any]] = {}
    for name, *counts in session.execute(query):
        by_key.setdefault(name, []).append(counts)
    return by_key


def _why(ranked: Ranked, near: Similarity | None, counts: Iterable[Sequence[Any]]) -> MatchReasons:
    tries = wins = imported = shared = 0
    failures: dict[str, int] = {}
    for failure, from_outside, foreign, number, counted in counts:
        if from_outside:
            imported += number
            continue
        tries, wins, shared = tries + number, wins + counted, shared + (number if foreign else 0)
        if failure is not None:
            failures[failure] = failures.get(failure, 0) + number
    return MatchReasons(
        embedding=near.meaning if near else None,
        lexical=near.words if near else 0.0,
        tries=tries,
        wins=wins,
        failures=failures,
        imported=imported,
        shared=shared,
        weight=ranked.group.weight,
        mean_gain=ranked.group.mean,
        shrunk_gain=ranked.shrunk,
    )
