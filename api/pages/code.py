"""Colour source code and diffs for pages, as escaped text in spans of CSS classes. Reads text only."""

from __future__ import annotations

from functools import lru_cache

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from api.pages.sides import side_by_side

LONGEST = 200_000
"""Characters; a longer text is shown plain."""

_FORMATTER = HtmlFormatter(nowrap=True, classprefix="k-")


@lru_cache(maxsize=256)
def coloured(text: str, language: str) -> Markup:
    """Return the text with its syntax in spans; ``language`` is one of Pygments' names."""
    if len(text) > LONGEST:
        return Markup(text.translate({38: "&amp;", 60: "&lt;", 62: "&gt;"}))
    # Pygments escapes what it is given. It keeps every line, so that numbers fit, and wants a line's end to know a
    # comment by: what it adds is taken away again.
    shown = highlight(text, get_lexer_by_name(language, stripnl=False, ensurenl=True), _FORMATTER)
    return Markup(shown if text.endswith("\n") else shown.removesuffix("\n"))


def coloured_diff(diff: str, language: str) -> list[dict[str, object]]:
    """Return the rows of a unified diff with both sides coloured, for either view; ``gap`` where lines are left out."""
    return [
        {
            "gap": row.first is None and row.second is None,
            "changed": bool((row.first and row.first.changed) or (row.second and row.second.changed)),
            **{
                name: None
                if line is None
                else {"number": line.number, "changed": line.changed, "text": coloured(line.text, language)}
                for name, line in (("first", row.first), ("second", row.second))
            },
        }
        for row in side_by_side(diff)
    ]
