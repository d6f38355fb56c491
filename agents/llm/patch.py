"""Search-and-replace patches in models' answers: a part of a source is replaced where it stands exactly once.

The form is the one of merge conflicts, which models know well (Aider and OpenEvolve ask for it, too). A patch that
could be applied in two places, or in none, or of which a part is not whole, is refused with the reason, never guessed
at. Answers are read line by line: however a model goes astray, that takes time in proportion to what it wrote.
"""

from __future__ import annotations

import re

from agents.llm.gateway import AnswerError

_OPEN = re.compile(r"<{5,9} SEARCH[ \t]*\n?")
_DIVIDER = re.compile(r"={5,9}[ \t]*\n?")
_CLOSE = re.compile(r">{5,9} REPLACE[ \t]*\n?")
_MARKER = re.compile(r"[ \t]*(?:<{5}|>{5})")
"""Begin of a line that code does not have: a marker, if perhaps a misspelt one."""
_SHOWN = 120
"""Characters of a part that a complaint shows."""

Part = tuple[str, str]
"""Text to search for, and the text that replaces it."""


def is_patch(text: str) -> bool:
    """Return whether the answer has at least one complete part."""
    return bool(_read(text)[0])


def patched(source: str, text: str) -> str:
    """Return the source with every part of the answer applied, in order; raises AnswerError where one does not fit."""
    parts, complaint = _read(text)
    if complaint is not None:
        raise AnswerError(complaint)
    if not source.endswith("\n"):  # else a part that ends with its last line would not stand in it
        source += "\n"
    for number, (search, replace) in enumerate(parts, 1):
        if not search.strip():
            raise AnswerError(f"part {number} of the patch searches for nothing")
        occurrences = _count(source, search)
        if occurrences != 1:
            shown = search.strip().splitlines()[0][:_SHOWN]
            how = "does not stand in the source" if occurrences == 0 else f"stands in the source {occurrences} times"
            raise AnswerError(
                f"part {number} of the patch, which begins with {shown!r}, {how}; it must stand there once"
            )
        source = source.replace(search, replace, 1)
    return source


def _read(text: str) -> tuple[list[Part], str | None]:
    """Return the complete parts of an answer, and what is wrong with the first one that is not whole."""
    parts: list[Part] = []
    complaint: str | None = None
    sides: list[list[str]] = []  # of the part that is being read: what it searches for, then what replaces that
    for line in text.splitlines(keepends=True):
        if _CLOSE.fullmatch(line) and len(sides) == 2:
            parts.append(("".join(sides[0]), "".join(sides[1])))
            sides = []
        elif _OPEN.fullmatch(line):
            complaint = complaint or (_not_whole(parts) if sides else None)
            sides = [[]]
        elif _DIVIDER.fullmatch(line) and len(sides) == 1:
            sides.append([])
        elif _MARKER.match(line) or (_DIVIDER.fullmatch(line) and sides):
            complaint = complaint or _not_whole(parts)
        elif sides:
            sides[-1].append(line)
    return parts, complaint or (_not_whole(parts) if sides else None)


def _not_whole(parts: list[Part]) -> str:
    return (
        f"part {len(parts) + 1} of the patch is not whole: each part is <<<<<<< SEARCH, =======, >>>>>>> REPLACE, each"
        " once and on a line of its own"
    )


def _count(source: str, part: str) -> int:
    """Count occurrences, overlapping ones too: ``aa`` occurs in ``aaa`` twice."""
    return sum(source.startswith(part, place) for place in range(len(source)))
