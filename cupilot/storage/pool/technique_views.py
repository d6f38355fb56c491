"""Techniques as the REST boundary shows them: the catalogue's, and those that the team's agents invented."""

from __future__ import annotations

import uuid

from sqlalchemy import select
from sqlalchemy.orm import Session

from cupilot.domain.problem import Target
from cupilot.domain.standing import Effect, Record, Standing
from cupilot.domain.technique import catalogue
from cupilot.schemas import TechniqueEffect, TechniquePage, TechniqueView
from cupilot.storage.db.scope import scoped
from cupilot.storage.db.tables.pool import NovelTechnique
from cupilot.storage.pool.techniques import Key, records

SEPARATOR = ":"
"""Between technique and target in a cursor; neither contains it."""


def list_techniques(
    session: Session,
    team: uuid.UUID,
    *,
    kind: Standing | None,
    target: Target | None,
    technique: str | None,
    cursor: str | None,
    limit: int,
) -> TechniquePage:
    """Return a page by id, then target; standings are computed for all, so that ``kind`` can be filtered."""
    invented = _invented(session, team)
    keys = [(technique.id, place.value) for technique in catalogue() for place in technique.targets] + list(invented)
    wanted = [
        key
        for key in sorted(keys)
        if (target is None or key[1] == target.value)
        and (technique is None or key[0] == technique)
        and (kind is None or (kind is Standing.CATALOGUED) == (key[0] in catalogue()))
        and (cursor is None or key > _position(cursor))
    ]
    if kind in (None, Standing.CATALOGUED):
        wanted = wanted[: limit + 1]
    results = records(session, team, {name for name, _ in wanted})
    views = [_view(key, results.get(key, Record()), invented.get(key)) for key in wanted]
    views = [view for view in views if kind is None or view.kind is kind]
    page = views[:limit]
    more = len(views) > limit
    return TechniquePage(items=page, next_cursor=f"{page[-1].id}{SEPARATOR}{page[-1].target.value}" if more else None)


def _invented(session: Session, team: uuid.UUID) -> dict[Key, NovelTechnique]:
    """Return the team's invented techniques; those that the catalogue has by now are left out."""
    rows = session.scalars(scoped(select(NovelTechnique), team))
    return {(row.technique, row.target): row for row in rows if row.technique not in catalogue()}


def _position(cursor: str) -> Key:
    name, _, target = cursor.partition(SEPARATOR)
    return name, target


def _view(key: Key, record: Record, row: NovelTechnique | None) -> TechniqueView:
    name, target = key
    entry = catalogue().get(name)
    return TechniqueView(
        id=name,
        target=Target(target),
        kind=Standing.CATALOGUED if entry else record.standing,
        meaning=entry.summary if entry else row.meaning if row else "",
        tries=record.tries,
        wins=record.wins,
        problems=record.problems,
        families=list(record.families),
        failures=record.failures,
        effect=_effect(record.effect) if record.effect else None,
        origin=row.origin if row else None,
        job=row.job_id if row else None,
        since=row.created_at if row else None,
    )


def _effect(effect: Effect) -> TechniqueEffect:
    low, high = effect.interval
    return TechniqueEffect(factor=effect.factor, low=low, high=high, places=effect.places)
