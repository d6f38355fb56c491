"""Find descriptions that are similar to a question: by meaning (vectors, Chroma) and by words (BM25, Postgres).

The words are weighted as Okapi BM25 has them (Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and
Beyond", 2009), over the descriptions that the asking team may see, so that no other team's can move a weight. Both
similarities are normalised by their theoretical bounds (a cosine's 0 and 1; BM25's 0, and the question scored against
itself) and averaged: a convex combination of bounded scores ranks better than reciprocal ranks and keeps the distances
(Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval", ACM TOIS 42, 2023).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Protocol

from sqlalchemy import Float, Select, String, column, func, select, values
from sqlalchemy.orm import Session

from cupilot.domain.errors import Unavailable
from cupilot.domain.pool import PoolQuestion
from cupilot.domain.problem import NumericsPolicy
from cupilot.storage.db.tables.pool import PoolReference, PoolTerm
from cupilot.storage.pool.references import SHARED, text_of, words

SATURATION, LENGTH = 1.2, 0.75
"""BM25's k1 and b, the usual values."""

MEANING = 0.5
"""Weight of the vectors' similarity; the rest is the words'."""

KEPT = 64
"""Most similar descriptions whose entries are looked at."""

COMPATIBLE = {
    NumericsPolicy.FP32: (NumericsPolicy.FP32,),
    NumericsPolicy.TF32: (NumericsPolicy.FP32, NumericsPolicy.TF32),
    NumericsPolicy.HALF: (NumericsPolicy.FP32, NumericsPolicy.TF32, NumericsPolicy.HALF),
}
"""Policies whose kernels a policy admits: itself and stricter ones."""


Place = Mapping[str, str | Sequence[str]]
"""``op_class``, one or several, or ``zone``; empty for anywhere."""


class Index(Protocol):
    """The part of :class:`cupilot.storage.pool.index.StrategyPool` that a question needs."""

    def nearest(
        self, text: str, scopes: Sequence[str], *, target: str, policies: Sequence[str], **place: str | Sequence[str]
    ) -> dict[str, float]:
        """Return ids of near descriptions with their cosines."""
        ...


@dataclass(frozen=True)
class Similarity:
    """Similarity of a description to the question, each 0 to 1."""

    meaning: float | None
    """None where the index did not answer, or does not know the description yet."""
    words: float

    @property
    def value(self) -> float:
        """Both together."""
        if self.meaning is None:
            return self.words
        return MEANING * self.meaning + (1 - MEANING) * self.words


@dataclass(frozen=True)
class Similar:
    """Descriptions that are similar to a question, best first, and warnings."""

    found: dict[uuid.UUID, Similarity]
    notes: tuple[str, ...] = ()


def similar(session: Session, index: Index, team: uuid.UUID, question: PoolQuestion, place: Place) -> Similar:
    """Return the :data:`KEPT` most similar descriptions that the team may see, of some operator classes or a zone."""
    lexical = _by_words(session, team, question, place)
    notes: tuple[str, ...] = ()
    meaning: dict[str, float] | None
    try:
        meaning = index.nearest(
            text_of(question),
            [str(team), SHARED],
            target=question.target.value,
            policies=[policy.value for policy in COMPATIBLE[question.policy]],
            **place,
        )
    except Unavailable as error:
        meaning, notes = None, (f"by words only: {error.message}",)
    keys = {*lexical, *(uuid.UUID(key) for key in meaning or {})}
    found = {key: Similarity((meaning or {}).get(str(key)), lexical.get(key, 0.0)) for key in keys}
    best = sorted(found.items(), key=lambda item: (-item[1].value, item[0]))[:KEPT]
    return Similar(dict(best), notes)


def _visible(team: uuid.UUID, question: PoolQuestion, place: Place) -> Select[uuid.UUID, int]:
    policies = [policy.value for policy in COMPATIBLE[question.policy]]
    query = select(PoolReference.id, PoolReference.length).where(
        PoolReference.scope.in_([str(team), SHARED]),
        PoolReference.target == question.target.value,
        PoolReference.policy.in_(policies),
    )
    for name, value in place.items():
        column_of = getattr(PoolReference, name)
        query = query.where(column_of == value if isinstance(value, str) else column_of.in_(value))
    return query


def _by_words(session: Session, team: uuid.UUID, question: PoolQuestion, place: Place) -> dict[uuid.UUID, float]:
    """Return BM25 of the visible descriptions over that of the question itself, the best of them."""
    terms = words(text_of(question))
    visible = _visible(team, question, place).cte("visible")
    count, mean = session.execute(select(func.count(), func.avg(visible.c.length)).select_from(visible)).one()
    if not count or not terms:
        return {}
    holding = (
        select(PoolTerm.term, func.count())
        .join(visible, visible.c.id == PoolTerm.reference_id)
        .where(PoolTerm.term.in_(terms))
        .group_by(PoolTerm.term)
    )
    documents: dict[str, int] = {term: number for term, number in session.execute(holding).all()}  # noqa: C416 - typed
    weights = {term: log(1 + (count - documents.get(term, 0) + 0.5) / (documents.get(term, 0) + 0.5)) for term in terms}
    average = float(mean)
    own = sum(weight * _saturated(terms[term], terms.total(), average) for term, weight in weights.items())
    table = values(column("term", String), column("weight", Float), name="weights").data(list(weights.items()))
    shrink = SATURATION * (1 - LENGTH + LENGTH * visible.c.length / average)
    part = table.c.weight * PoolTerm.occurrences * (SATURATION + 1) / (PoolTerm.occurrences + shrink)
    score = func.sum(part)
    query = (
        select(PoolTerm.reference_id, score)
        .join(visible, visible.c.id == PoolTerm.reference_id)
        .join(table, table.c.term == PoolTerm.term)
        .group_by(PoolTerm.reference_id)
        .order_by(score.desc(), PoolTerm.reference_id)
        .limit(4 * KEPT)
    )
    return {key: min(float(value) / own, 1.0) for key, value in session.execute(query)}


def _saturated(occurrences: int, length: int, average: float) -> float:
    shrink = SATURATION * (1 - LENGTH + LENGTH * length / average)
    return occurrences * (SATURATION + 1) / (occurrences + shrink)
