"""Vectors of descriptions: their embeddings plus dimensions that keep equal ones of several teams apart. Pure.

Many teams work on the same operators, and an HNSW graph cannot hold many equal vectors: of 533 equal ones among
20,000, Chroma found 190 (others: 105 of 544; once 2 of 254). So each description gets extra dimensions
of fixed length in a direction of its own. A query has zeros there, hence every entry's cosine shrinks by the same
factor: the order of similarities is untouched and their values are restored exactly. Found then: all, also for a team
with one entry in a hundred among 30,000.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import sqrt

APART_DIMENSIONS = 16
APART_LENGTH = 0.3
"""Against the embedding's length of 1."""

_SHRINKAGE = sqrt(1 + APART_LENGTH**2)


def entry_vector(embedding: Sequence[float], key: str) -> list[float]:
    """Return the vector of the entry with this id, whose reference has this embedding of length 1."""
    digest = hashlib.sha256(key.encode()).digest()
    raw = [int.from_bytes(digest[2 * place : 2 * place + 2], "big") - 32_767.5 for place in range(APART_DIMENSIONS)]
    scale = APART_LENGTH / sqrt(sum(x * x for x in raw))
    return [*embedding, *(x * scale for x in raw)]


def query_vector(embedding: Sequence[float]) -> list[float]:
    """Return the vector that finds the entries of references near this embedding."""
    return [*embedding, *([0.0] * APART_DIMENSIONS)]


def similarity(distance: float) -> float:
    """Return the cosine of two references' embeddings, 0 to 1, from Chroma's cosine distance of query and entry."""
    return min(max((1.0 - distance) * _SHRINKAGE, 0.0), 1.0)
