"""Chooses which elements of a large output are compared."""

from __future__ import annotations

import itertools
import random

WINDOW_ELEMENTS = 2**22
"""So many of a larger timed output are compared,"""
WINDOWS = 64
"""in stretches: its first, its last, and one at a random place in each of the parts that all of it is cut into."""


def windows_of(count: int, chance: random.Random) -> list[slice]:
    """Choose which of ``count`` elements of a flattened output are compared: all, or stretches from first to last."""
    if count <= WINDOW_ELEMENTS:
        return [slice(0, count)]
    size = WINDOW_ELEMENTS // WINDOWS
    edges = [part * count // (WINDOWS - 2) for part in range(WINDOWS - 1)]
    random_places = [chance.randrange(start, end - size + 1) for start, end in itertools.pairwise(edges)]
    return [slice(start, start + size) for start in (0, *random_places, count - size)]
