"""Draw figures without a screen, a network or a clock: equal data make equal bytes.

The object interface of matplotlib only: no pyplot, no global figures. matplotlib is imported at the first figure, and
is not thread-safe, so one figure is drawn at a time.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
"""Okabe and Ito's, which people with any kind of colour vision can tell apart; with markers for more arms than that."""
MARKERS = "osD^vP*X"
STYLE: Any = {
    "svg.hashsalt": "cupilot",
    "svg.fonttype": "none",  # text stays text: small, searchable
    "text.parse_math": False,  # names are others' text, and $ is a letter in them
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
_METADATA: dict[str, dict[str, Any]] = {"svg": {"Date": None, "Creator": "cuPilot"}, "png": {"Software": "cuPilot"}}
_one_at_a_time = threading.Lock()


class Format(StrEnum):
    """File format of a figure."""

    SVG = "svg"
    PNG = "png"

    @property
    def media_type(self) -> str:
        """As HTTP calls it."""
        return "image/svg+xml" if self is Format.SVG else "image/png"


def drawn(paint: Callable[[Figure], None], size: tuple[float, float], form: Format) -> bytes:
    """Return what ``paint`` draws on an empty figure of that size (in inches), as a file."""
    with _style() as figure_class:
        figure = figure_class(figsize=size, layout="constrained")
        paint(figure)
        out = io.BytesIO()
        figure.savefig(out, format=form.value, dpi=150, metadata=_METADATA[form.value])
        return out.getvalue()


def colour(place: int) -> str:
    """Return the colour of the arm (or part) at this place."""
    return COLOURS[place % len(COLOURS)]


def marker(place: int) -> str:
    """Return the marker of the arm (or part) at this place; it differs where colours repeat."""
    return MARKERS[(place + place // len(COLOURS)) % len(MARKERS)]


def empty(axes: Axes, words: str) -> None:
    """Write in the middle of a panel why nothing is drawn in it."""
    axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes, color="#666666")
    axes.set_xticks([])
    axes.set_yticks([])


@contextmanager
def _style() -> Iterator[type[Figure]]:
    with _one_at_a_time:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        with mpl.rc_context(STYLE):
            yield Figure
