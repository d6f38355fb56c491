"""Turn a unified diff into rows of two columns, for pages. Reads the diff's text only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


@dataclass(frozen=True)
class Line:
    """A line of one side."""

    number: int
    """From 1, in that side's text."""
    text: str
    changed: bool


@dataclass(frozen=True)
class Row:
    """A pair of lines side by side; a side is None where it has no such line, and both are where lines are left out."""

    first: Line | None = None
    second: Line | None = None


def side_by_side(diff: str) -> list[Row]:
    """Return the rows of a unified diff, its two lines of names left out; none of an empty one."""
    return list(_rows(diff.splitlines()[2:]))


def _rows(lines: list[str]) -> Iterator[Row]:
    first = second = 1
    removed: list[Line] = []
    added: list[Line] = []
    for place, line in enumerate(lines):
        if line.startswith("-"):
            removed.append(Line(first, line[1:], changed=True))
            first += 1
            continue
        if line.startswith("+"):
            added.append(Line(second, line[1:], changed=True))
            second += 1
            continue
        yield from _paired(removed, added)
        removed, added = [], []
        if hunk := _HUNK.match(line):
            first, second = int(hunk[1]), int(hunk[2])
            if place:
                yield Row()
            continue
        yield Row(Line(first, line[1:], changed=False), Line(second, line[1:], changed=False))
        first, second = first + 1, second + 1
    yield from _paired(removed, added)


def _paired(removed: list[Line], added: list[Line]) -> Iterator[Row]:
    for first, second in zip_longest(removed, added):
        yield Row(first, second)
