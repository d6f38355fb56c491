"""Record techniques that a team's agents invent, and count the results of techniques in the pool's entries.

Standings are :mod:`cupilot.domain.standing`'s business. Only what the team itself measured counts: nothing that was
imported, nothing of other teams, whose words would come into this team's prompts otherwise.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from sqlalchemy import Subquery, func, literal, select
from sqlalchemy.dialects.postgresql import array, insert
from sqlalchemy.orm import Session

from cupilot.domain.errors import InvalidInput
from cupilot.domain.evaluation import FailureKind
from cupilot.domain.pool import FAILURE_GAIN
from cupilot.domain.problem import Target
from cupilot.domain.standing import GainSums, LearnedTechnique, Place, Record, Standing, effect_of
from cupilot.domain.states import StrategyOrigin
from cupilot.domain.strategy import Strategy, shortened_meaning
from cupilot.domain.technique import catalogue
from cupilot.storage.db.scope import scoped
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.pool import NovelTechnique, PoolReference, PoolRow

MAX_LEARNED = 12
"""Promoted techniques that a prompt lists, those of the largest effect."""

UNINFORMATIVE = (FailureKind.INFRASTRUCTURE.value, FailureKind.INVALID_PROBLEM.value)


class UnknownTechnique(InvalidInput):
    """A name that neither the catalogue nor the team's agents use."""

    code = "unknown_technique"

    def __init__(self, technique: str, near: Sequence[str]) -> None:
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        hint += "GET /v1/techniques lists all; any_name bans it anyway"
        super().__init__(f"no technique is called {technique}", hint=hint, where="technique")


Key = tuple[str, str]
"""Technique and target: what helps on one may hurt on the other."""


def enter_techniques(session: Session, job: Job, strategies: Sequence[Strategy], origin: StrategyOrigin) -> None:
    """Enter what the catalogue does not know as novel, once for the job's team and target; known ones stay as they are.

    Call it once a transaction: rows are written in order of their names, so that two jobs never wait for each other.
    """
    meanings: dict[str, str] = {}
    for strategy in strategies:
        for use in strategy.techniques:
            if use.id not in catalogue():
                meanings.setdefault(use.id, shortened_meaning(use.meaning or strategy.rationale))
    named = select(NovelTechnique.technique).where(
        NovelTechnique.team_id == job.team_id,
        NovelTechnique.target == job.target.value,
        NovelTechnique.technique.in_(meanings),
    )
    new = sorted(set(meanings) - set(session.scalars(named))) if meanings else []
    if not new:
        return
    shared = {"team_id": job.team_id, "target": job.target.value, "origin": origin.value, "job_id": job.id}
    rows = [{"id": uuid.uuid4(), "technique": name, "meaning": meanings[name], **shared} for name in new]
    session.execute(insert(NovelTechnique).values(rows).on_conflict_do_nothing())


def check_known(session: Session, team: uuid.UUID, technique: str) -> None:
    """Raise :class:`UnknownTechnique`, with similar names, where the catalogue and the team lack a technique."""
    invented = session.scalars(select(NovelTechnique.technique).where(NovelTechnique.team_id == team).distinct())
    names = sorted({technique.id for technique in catalogue()} | set(invented))
    if technique not in names:
        raise UnknownTechnique(technique, get_close_matches(technique, names, n=3))


def learned_techniques(
    session: Session, team: uuid.UUID, target: Target, before: datetime
) -> tuple[LearnedTechnique, ...]:
    """Return techniques that results before a time promoted for a target, best first; at most :data:`MAX_LEARNED`."""
    query = scoped(select(NovelTechnique), team).where(
        NovelTechnique.target == target.value, NovelTechnique.created_at < before
    )
    rows = [novel for novel in session.scalars(query) if novel.technique not in catalogue()]
    results = records(session, team, [novel.technique for novel in rows], before=before) if rows else {}
    learned = [
        LearnedTechnique(
            id=row.technique, meaning=row.meaning, record=results.get((row.technique, row.target), Record())
        )
        for row in rows
    ]
    promoted = [technique for technique in learned if technique.record.standing is Standing.PROMOTED]
    return tuple(sorted(promoted, key=_best_proven)[:MAX_LEARNED])


def records(
    session: Session, team: uuid.UUID, names: Collection[str], *, before: datetime | None = None
) -> dict[Key, Record]:
    """Return the results of kernels with these techniques, by technique and target; untried ones are left out."""
    if not names:
        return {}
    uses = _each(team, names, before)
    key = (uses.c.technique, uses.c.target)
    place = (uses.c.problem_hash, uses.c.device_class)
    query = select(*key, *place, func.min(uses.c.op_class), func.count(uses.c.gain), *_sums(uses))
    used: dict[Key, dict[tuple[str, str], GainSums]] = defaultdict(dict)
    wins: dict[Key, list[tuple[int, str, str]]] = defaultdict(list)
    for technique, target, problem, device, op_class, won, *sums in session.execute(query.group_by(*key, *place)):
        used[technique, target][problem, device] = GainSums(*sums)
        wins[technique, target].append((won, problem, op_class))
    everything = _everything(session, team, {problem for places in used.values() for problem, _ in places}, before)
    failures = _failures(session, uses)
    return {
        key: Record(
            tries=sum(seen.count for seen in places.values()),
            wins=sum(won for won, _, _ in wins[key]),
            problems=len({problem for won, problem, _ in wins[key] if won}),
            families=tuple(sorted({family for won, _, family in wins[key] if won})),
            failures=failures.get(key, {}),
            effect=effect_of(
                [Place(own, everything[key[1], *where].minus(own)) for where, own in sorted(places.items())]
            ),
        )
        for key, places in used.items()
    }


def _best_proven(learned_technique: LearnedTechnique) -> tuple[float, str]:
    effect = learned_technique.record.effect
    return (-(effect.gain - effect.deviation) if effect else 0.0, learned_technique.id)


def _entries(team: uuid.UUID, before: datetime | None) -> Any:
    """Return the team's entries that say something about their strategy, as a query to be narrowed."""
    query = (
        select(
            PoolReference.target,
            PoolReference.op_class,
            PoolRow.problem_hash,
            PoolRow.device_class,
            PoolRow.gain,
            PoolRow.failure,
            func.coalesce(PoolRow.gain, literal(FAILURE_GAIN)).label("value"),
        )
        .join(PoolReference, PoolReference.id == PoolRow.reference_id)
        .where(PoolRow.team_id == team, ~PoolRow.imported)
        .where(PoolRow.failure.is_(None) | PoolRow.failure.not_in(UNINFORMATIVE))
    )
    return query if before is None else query.where(PoolRow.created_at < before)


def _each(team: uuid.UUID, names: Collection[str], before: datetime | None) -> Subquery:
    """Return one row an entry and technique of these."""
    wanted = array(sorted(set(names)))
    technique = func.jsonb_array_elements_text(PoolRow.techniques).label("technique")
    every = _entries(team, before).add_columns(technique).where(PoolRow.techniques.has_any(wanted)).subquery("every")
    return select(every).where(every.c.technique.in_(set(names))).subquery("each")


def _everything(
    session: Session, team: uuid.UUID, problems: Collection[str], before: datetime | None
) -> dict[tuple[str, str, str], GainSums]:
    """Return all entries of these problems, by target, problem and class of device."""
    rows = _entries(team, before).where(PoolRow.problem_hash.in_(problems)).subquery("rows")
    key = (rows.c.target, rows.c.problem_hash, rows.c.device_class)
    return {
        (target, problem, device): GainSums(*sums)
        for target, problem, device, *sums in session.execute(select(*key, *_sums(rows)).group_by(*key))
    }


def _failures(session: Session, uses: Subquery) -> dict[Key, dict[str, int]]:
    key = (uses.c.technique, uses.c.target)
    query = select(*key, uses.c.failure, func.count()).where(uses.c.failure.is_not(None))
    failures: dict[Key, dict[str, int]] = {}
    for technique, target, failure, count in session.execute(query.group_by(*key, uses.c.failure)):
        failures.setdefault((technique, target), {})[failure] = count
    return failures


def _sums(rows: Subquery) -> tuple[Any, Any, Any]:
    return func.count(), func.sum(rows.c.value), func.sum(rows.c.value * rows.c.value)
