"""Search-and-replace patches in models' answers: a part of a source is replaced where it stands exactly once.

The form is the one of merge conflicts, which models know well (Aider and OpenEvolve ask for it, too). A patch that
could be applied in two places, or in none, is refused with the reason, never guessed at.
"""

from __future__ import annotations

import re

from agents.llm.gateway import AnswerError

_PART = re.compile(
    r"^<{5,9} SEARCH[ \t]*\n(?P<search>.*?)^={5,9}[ \t]*\n(?P<replace>.*?)^>{5,9} REPLACE[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
_SHOWN = 120
"""Characters of a part that a complaint shows."""


def is_patch(text: str) -> bool:
    """Return whether the answer has at least one complete part."""
    return _PART.search(text) is not None


def patched(source: str, text: str) -> str:
    """Return the source with every part of the answer applied, in order; raises AnswerError where one does not fit."""
    for number, match in enumerate(_PART.finditer(text), 1):
        search, replace = match["search"], match["replace"]
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


def _count(source: str, part: str) -> int:
    """Count occurrences, overlapping ones too: ``aa`` occurs in ``aaa`` twice."""
    return sum(source.startswith(part, place) for place in range(len(source)))
