"""Entry vectors: apart from each other, and at exactly the similarity of their references."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupilot.storage.pool.vectors import entry_vector, query_vector, similarity


def unit(values: list[float]) -> list[float]:
    length = sqrt(sum(x * x for x in values))
    return [x / length for x in values]


def cosine(one: list[float], other: list[float]) -> float:
    return sum(x * y for x, y in zip(unit(one), unit(other), strict=True))


embeddings = st.lists(st.floats(-1, 1), min_size=8, max_size=8).filter(lambda v: sum(x * x for x in v) > 1e-3).map(unit)


@given(embeddings, embeddings, st.text())
def test_the_references_similarity_is_restored_exactly(query: list[float], stored: list[float], key: str) -> None:
    distance = 1.0 - cosine(query_vector(query), entry_vector(stored, key))
    assert similarity(distance) == pytest.approx(max(cosine(query, stored), 0.0), abs=1e-9)


@given(embeddings, st.lists(st.text(), min_size=2, max_size=20, unique=True))
def test_entries_of_one_reference_are_apart(embedding: list[float], keys: list[str]) -> None:
    vectors = [entry_vector(embedding, key) for key in keys]
    assert all(cosine(one, other) < 0.9999 for place, one in enumerate(vectors) for other in vectors[:place])


def test_an_entrys_vector_never_changes() -> None:
    assert entry_vector([1.0, 0.0], "e1") == entry_vector([1.0, 0.0], "e1")
