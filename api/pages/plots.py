"""Draw a job's figures as SVG, from its candidates. No scripts, no inline styles (the pages' policy forbids both): CSS
classes name what is what.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from cupilot.schemas import CandidateSummary

WIDTH, HEIGHT = 720.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 12.0, 12.0, 28.0
COLUMN, ROW, RADIUS = 170.0, 26.0, 9.0
LABEL = 84.0
"""Room for what stands beside a node, which no edge crosses."""

Point = tuple[float, float]
Dot = tuple[float, float, str, str]
"""Where, its classes, and what it says when pointed at."""


def progress(candidates: Sequence[CandidateSummary]) -> Markup:
    """Draw each measured candidate's speedup by its number, and the best so far.

    Empty where no candidate is measured.
    """
    measured = [
        (float(candidate.ordinal), candidate.speedup) for candidate in candidates if candidate.speedup is not None
    ]
    if not measured:
        return Markup()
    best, line = 0.0, list[Point]()
    for ordinal, speedup in measured:
        if speedup > best:
            line += [(ordinal, best), (ordinal, speedup)] if line else [(ordinal, speedup)]
            best = speedup
    line.append((measured[-1][0], best))
    dots = [
        _dot(candidate, float(candidate.ordinal), candidate.speedup)
        for candidate in candidates
        if candidate.speedup is not None
    ]
    return _chart(line, "candidate", "times PyTorch eager", dots=dots, level=1.0)


def population(candidates: Sequence[CandidateSummary]) -> Markup:
    """Draw each measured candidate by the two terms of its fitness; those that selection kept are ringed."""
    dots = [
        _dot(candidate, 100 * candidate.utilisation, candidate.speedup)
        for candidate in candidates
        if candidate.speedup is not None and candidate.utilisation is not None
    ]
    return _chart((), "% of the hardware used", "times PyTorch eager", dots=dots, level=1.0) if dots else Markup()


def line(points: Sequence[Point], across: str, up: str) -> Markup:
    """Draw a line; empty where there is nothing to draw."""
    return _chart(points, across, up) if len(points) > 1 else Markup()


def lineage(candidates: Sequence[CandidateSummary], base: str) -> Markup:
    """Draw the family tree.

    One column for each generation, a line from each parent; ``base`` is the URL of the candidates' pages.
    """
    places: dict[object, Point] = {}
    rows: dict[int, int] = {}
    for candidate in candidates:
        row = rows.get(candidate.generation, 0)
        rows[candidate.generation] = row + 1
        places[candidate.id] = (24 + candidate.generation * COLUMN, 24 + row * ROW)
    if not places:
        return Markup()
    edges, nodes = Markup(), Markup()
    for candidate in candidates:
        x, y = places[candidate.id]
        for parent in candidate.parents:
            if parent in places:
                px, py = places[parent]
                edges += Markup('<line class="edge" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(px + LABEL, py, x, y)
        outcome = candidate.verdict.value if candidate.verdict else candidate.reason or candidate.state
        title = f"candidate {candidate.ordinal}, {candidate.operator}: {outcome}"
        if candidate.speedup is not None:
            title += f", {candidate.speedup:.2f}x"
        nodes += Markup(
            '<a href="{}/{}"><title>{}</title><circle class="node {}{}" cx="{}" cy="{}" r="{}"/>'
            '<text class="tick" x="{}" y="{}">{}</text></a>'
        ).format(
            base,
            candidate.ordinal,
            title,
            candidate.verdict.value if candidate.verdict else "none",
            " kept" if candidate.survives else "",
            x,
            y,
            RADIUS,
            x + RADIUS + 4,
            y + 4,
            f"{candidate.ordinal}" if candidate.speedup is None else f"{candidate.ordinal}: {candidate.speedup:.2f}x",
        )
    width = max(x for x, _ in places.values()) + COLUMN
    height = max(y for _, y in places.values()) + ROW
    return _svg(width, height, "Lineage", edges + nodes)


def _chart(
    points: Sequence[Point],
    across: str,
    up: str,
    *,
    dots: Sequence[Dot] = (),
    level: float | None = None,
) -> Markup:
    places = [*points, *((x, y) for x, y, *_ in dots)]
    low = min(x for x, _ in places)
    high = max(*(x for x, _ in places), low + 1e-9)
    step, steps = _ticks(max(*(y for _, y in places), level or 0.0) or 1.0)
    top = step * steps

    def at(x: float, y: float) -> Point:
        return (
            round(LEFT + (x - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1),
            round(HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM), 1),
        )

    drawn = Markup()
    for tick in range(steps + 1):
        y = at(low, tick * step)[1]
        drawn += Markup('<line class="grid" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(LEFT, y, WIDTH - RIGHT, y)
        drawn += Markup('<text class="tick right" x="{}" y="{}">{}</text>').format(
            LEFT - 6, y + 4, f"{tick * step:.4g}"
        )
    if level:
        y = at(low, level)[1]
        drawn += Markup('<line class="level" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(LEFT, y, WIDTH - RIGHT, y)
    for start, end in pairwise(points):
        drawn += Markup('<line class="series" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(*at(*start), *at(*end))
    for x, y, kind, title in dots:
        cx, cy = at(x, y)
        drawn += Markup('<circle class="node {}" cx="{}" cy="{}" r="3.5"><title>{}</title></circle>').format(
            kind, cx, cy, title
        )
    for x, anchor in {low: "middle", high: "right"}.items():
        drawn += Markup('<text class="tick {}" x="{}" y="{}">{}</text>').format(
            anchor, at(x, 0)[0], HEIGHT - 12, f"{x:.3g}"
        )
    names = Markup('<text class="tick middle" x="{}" y="{}">{}</text><text class="tick" x="{}" y="{}">{}</text>')
    drawn += names.format(WIDTH / 2, HEIGHT - 2, across, LEFT + 4, TOP + 8, up)
    return _svg(WIDTH, HEIGHT, f"{up} by {across}", drawn)


def _dot(candidate: CandidateSummary, x: float, y: float) -> Dot:
    kind = f"{candidate.verdict.value if candidate.verdict else 'none'}{' kept' if candidate.survives else ''}"
    return x, y, kind, f"candidate {candidate.ordinal}: {y:.2f}x"


def _ticks(highest: float) -> tuple[float, int]:
    """Return distance and number of three to five round ticks above zero that reach ``highest``."""
    scale = 10.0 ** math.floor(math.log10(highest / 4))
    step = next(scale * round_one for round_one in (1, 2, 2.5, 5, 10) if scale * round_one * 4.999 >= highest)
    return step, math.ceil(highest / step)


def _svg(width: float, height: float, label: str, inner: Markup) -> Markup:
    frame = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}">{}</svg>'
    )
    return frame.format(label, width, height, width, inner)
