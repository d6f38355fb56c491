"""The strategy pool as the REST boundary shows it."""

from __future__ import annotations

import uuid
from collections import Counter
from math import exp
from statistics import median
from typing import Any

from sqlalchemy import ColumnElement, Select, Subquery, func, or_, select, tuple_
from sqlalchemy.orm import Session

from cupilot.domain.attribution import Credit
from cupilot.domain.errors import Conflict, NotFound
from cupilot.domain.pool import PoolQuestion, Sharing, question_of
from cupilot.domain.problem import Target
from cupilot.domain.technique import catalogue
from cupilot.schemas import PoolEntryView, PoolPage, PoolShareResult, PoolStatistics, TechniqueStatistics
from cupilot.storage.db.changes import note
from cupilot.storage.db.cursor import decode_cursor, encode_cursor
from cupilot.storage.db.json_columns import part
from cupilot.storage.db.scope import scoped
from cupilot.storage.db.tables.pool import PoolReference, PoolRow
from cupilot.storage.jobs.jobs import get_job, problem_of
from cupilot.storage.jobs.progress import preparation_of
from cupilot.storage.pool.references import shown_to_all
from cupilot.storage.pool.rows import may_be_shared, share
from cupilot.storage.pool.search import visible_entry

MAX_TECHNIQUE_ROWS = 500
MAX_WINNERS = 5_000


def list_entries(
    session: Session,
    team: uuid.UUID,
    *,
    shared: bool,
    target: Target | None,
    op_class: str | None,
    technique: str | None,
    job: uuid.UUID | None,
    cursor: str | None,
    limit: int,
) -> PoolPage:
    """Return the team's entries, and with ``shared`` those that other teams share, newest first."""
    query = _visible(team) if shared else scoped(select(PoolRow), team)
    if target is not None:
        query = query.where(PoolRow.body["target"].astext == target.value)
    if op_class is not None:
        query = query.where(PoolRow.body["op_class"].astext == op_class)
    if technique is not None:
        query = query.where(PoolRow.techniques.contains([technique]))
    if job is not None:
        query = query.where(PoolRow.team_id == team, _made_by(job))
    if cursor:
        query = query.where(tuple_(PoolRow.created_at, PoolRow.id) < decode_cursor(cursor))
    rows = session.scalars(query.order_by(PoolRow.created_at.desc(), PoolRow.id.desc()).limit(limit + 1)).all()
    page = rows[:limit]
    return PoolPage(
        items=[_view(session, row, team) for row in page],
        next_cursor=encode_cursor(page[-1].created_at, page[-1].id) if len(rows) > limit else None,
    )


def entry_view(session: Session, team: uuid.UUID, entry: uuid.UUID) -> PoolEntryView:
    """Return one entry; NotFound where the team has none such and nobody shares it."""
    row = session.scalars(_visible(team).where(PoolRow.id == entry)).one_or_none()
    if row is None:
        raise NotFound("the pool has no such entry", hint="GET /v1/pool/entries lists all entries", where="entry")
    return _view(session, row, team)


def question_of_job(session: Session, team: uuid.UUID, job_id: uuid.UUID, limit: int) -> PoolQuestion:
    """Return what a job would ask; Conflict where its problem is not prepared yet."""
    job = get_job(session, team, job_id)
    if job.preparation is None:
        raise Conflict("the job's problem is not prepared yet", hint="ask again once the job is evolving")
    preparation = preparation_of(job)
    return question_of(
        preparation.facts,
        problem_of(session, job).name,
        target=job.target,
        zone=preparation.placement.zone,
        device_class=preparation.environment.device.device_class,
        limit=limit,
    )


def share_entries(
    session: Session, team: uuid.UUID, sharing: Sharing, *, entries: list[uuid.UUID], job: uuid.UUID | None
) -> PoolShareResult:
    """Share or withdraw entries of the team, but for those that may not be. NotFound where one is not the team's."""
    query = scoped(select(PoolRow), team)
    if job is not None:
        get_job(session, team, job)
        query = query.where(_made_by(job))
    else:
        query = query.where(PoolRow.id.in_(entries))
    rows = session.scalars(query.order_by(PoolRow.id).with_for_update(key_share=True)).all()
    if job is None and len(rows) < len(set(entries)):
        raise NotFound("your team has no such entry", hint="only own entries can be shared", where="body.entries")
    allowed = [row for row in rows if sharing is Sharing.PRIVATE or may_be_shared(session, row.body)]
    changed = [row for row in allowed if row.sharing != sharing.value]
    before = Counter(row.sharing for row in changed)
    note(session, "pool.sharing", before, Counter({sharing.value: len(changed)}))
    share(session, changed, sharing)
    return PoolShareResult(changed=len(changed), withheld=len(rows) - len(allowed))


def statistics(session: Session, team: uuid.UUID) -> PoolStatistics:
    """Return the counts of what the team may see, and what each technique came to by operator class."""
    own = PoolRow.team_id == team
    counts = session.execute(
        select(
            func.count(),
            func.count().filter(own, ~PoolRow.imported),
            func.count().filter(own, PoolRow.imported),
            func.count().filter(own, shown_to_all()),
            func.count().filter(~own),
            func.count(func.distinct(func.nullif(PoolRow.problem_hash, ""))),
            func.count(func.distinct(PoolRow.reference_id)),
        ).where(_seen(team))
    ).one()
    names = ("entries", "measured", "imported", "shared_by_us", "shared_with_us", "problems", "references")
    return PoolStatistics(**dict(zip(names, counts, strict=True)), techniques=_techniques(session, team))


def _techniques(session: Session, team: uuid.UUID) -> list[TechniqueStatistics]:
    every = (
        select(
            (PoolRow.team_id == team).label("own"),
            PoolReference.op_class,
            PoolReference.target,
            PoolRow.gain,
            PoolRow.failure,
            PoolRow.imported,
            func.jsonb_array_elements_text(PoolRow.techniques).label("technique"),
        )
        .join(PoolReference, PoolReference.id == PoolRow.reference_id)
        .where(_seen(team))
        .subquery("every")
    )
    # Names that other teams' agents invented are prose of theirs.
    known = every.c.technique.in_([technique.id for technique in catalogue()])
    uses = select(every).where(every.c.own | known).subquery("each")
    here = ~uses.c.imported
    middle = func.percentile_cont(0.5).within_group(uses.c.gain.asc())
    key = (uses.c.technique, uses.c.op_class, uses.c.target)
    query = (
        select(
            *key,
            func.count().filter(here),
            func.count(uses.c.gain).filter(here),
            middle.filter(here),
            func.count().filter(uses.c.imported),
        )
        .group_by(*key)
        .order_by(func.count().desc(), *key)
        .limit(MAX_TECHNIQUE_ROWS)
    )
    failures, credits = _failures(session, uses), _credits(session, team)
    return [
        TechniqueStatistics(
            technique=technique,
            op_class=op_class,
            target=target,
            tries=tries,
            wins=wins,
            failures=failures.get((technique, op_class, target), {}),
            median_speedup=None if gain is None else exp(gain),
            credits=len(credits.get((technique, op_class, target), ())),
            median_credit=_median(credits.get((technique, op_class, target))),
            imported=imported,
        )
        for technique, op_class, target, tries, wins, gain, imported in session.execute(query)
    ]


def _failures(session: Session, uses: Subquery) -> dict[tuple[str, str, str], dict[str, int]]:
    key = (uses.c.technique, uses.c.op_class, uses.c.target)
    query = select(*key, uses.c.failure, func.count()).where(~uses.c.imported, uses.c.failure.is_not(None))
    failures: dict[tuple[str, str, str], dict[str, int]] = {}
    for technique, op_class, target, failure, count in session.execute(query.group_by(*key, uses.c.failure)):
        failures.setdefault((technique, op_class, target), {})[failure] = count
    return failures


def _credits(session: Session, team: uuid.UUID) -> dict[tuple[str, str, str], list[float]]:
    """Return measured credits of winners; few, so that they are sorted out here."""
    query = (
        select(PoolReference.op_class, PoolReference.target, part(PoolRow.body["credits"], tuple[Credit, ...]))
        .join(PoolReference, PoolReference.id == PoolRow.reference_id)
        .where(_seen(team), ~PoolRow.imported, func.jsonb_array_length(PoolRow.body["credits"]) > 0)
        .order_by(PoolRow.created_at.desc())
        .limit(MAX_WINNERS)
    )
    factors: dict[tuple[str, str, str], list[float]] = {}
    for op_class, target, credits in session.execute(query):
        for credit in credits:
            if credit.factor is not None:
                factors.setdefault((credit.technique, op_class, target), []).append(credit.factor.median)
    return factors


def _median(factors: list[float] | None) -> float | None:
    return median(factors) if factors else None


def _made_by(job: uuid.UUID) -> Any:
    return PoolRow.body["provenance"]["job"].astext == str(job)


def _seen(team: uuid.UUID) -> ColumnElement[bool]:
    return or_(PoolRow.team_id == team, shown_to_all())


def _visible(team: uuid.UUID) -> Select[PoolRow]:
    return select(PoolRow).where(_seen(team))


def _view(session: Session, row: PoolRow, team: uuid.UUID) -> PoolEntryView:
    entry = visible_entry(session, row, team)
    return PoolEntryView(
        id=row.id,
        own=row.team_id == team,
        sharing=Sharing(row.sharing),
        measured_here=entry.measured_here,
        created_at=row.created_at,
        entry=entry,
    )
