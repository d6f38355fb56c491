"""Draw figures of jobs as SVG: no scripts and no inline styles, CSS classes name what is what.

Drawn on the server, so that a figure needs no library in the browser, follows the page's theme, is read aloud by its
labels, and its points are links.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from markupsafe import Markup

from api.pages.words import number, times
from cupilot.domain.evaluation import Preparation
from cupilot.storage.jobs.best_so_far import Improvement
from cupilot.storage.jobs.members import Member

WIDTH, HEIGHT = 720.0, 260.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 16.0, 22.0, 34.0
MOST_DOTS = 300
"""Of a figure; of more candidates the last that were the best, and every so many of the others."""
SPARK_WIDTH, SPARK_HEIGHT = 96.0, 22.0

Point = tuple[float, float]


@dataclass(frozen=True)
class Dot:
    """A point of a figure."""

    x: float
    y: float
    kind: str
    """CSS classes."""
    title: str
    low: float | None = None
    high: float | None = None
    href: str | None = None


@dataclass(frozen=True)
class Level:
    """A horizontal line with its name."""

    y: float
    name: str
    kind: str = ""


@dataclass(frozen=True)
class Series:
    """Data of a figure."""

    across: str
    up: str
    points: Sequence[Point] = ()
    """A line through these."""
    dots: Sequence[Dot] = ()
    levels: Sequence[Level] = field(default=())


def progress(
    candidates: Sequence[Member],
    best: Sequence[Improvement],
    base: str,
    levels: Sequence[Level] = (),
) -> Markup:
    """Draw each measured candidate's speedup by its number, and the highest median so far with its intervals.

    Empty where no candidate is measured; ``base`` is the URL of the candidates' pages.
    """
    measured = [(candidate, candidate.speedup) for candidate in candidates if candidate.speedup is not None]
    if not measured:
        return Markup()
    intervals = {point.ordinal: eager.speedup for point in best if (eager := point.evaluation.comparison()) is not None}
    line: list[Point] = []
    highest = 0.0
    for candidate, speedup in measured:
        if speedup > highest:
            at = float(candidate.ordinal)
            line += [(at, highest), (at, speedup)] if line else [(at, speedup)]
            highest = speedup
    line.append((float(measured[-1][0].ordinal), highest))
    dots = []
    for candidate in _thinned([candidate for candidate, _ in measured], set(intervals)):
        speedup = candidate.speedup or 0.0
        interval = intervals.get(candidate.ordinal)
        extent = f" ({interval.low:.2f} to {interval.high:.2f})" if interval else ""
        dots.append(
            Dot(
                float(candidate.ordinal),
                speedup,
                _kind(candidate),
                f"candidate {candidate.ordinal}: {times(speedup)}{extent}, {_outcome(candidate)}",
                low=interval.low if interval else None,
                high=interval.high if interval else None,
                href=f"{base}/{candidate.ordinal}",
            )
        )
    # A bound far above everything would press the points flat: it is named in the legend instead.
    near = [level for level in levels if level.y <= 3 * highest]
    return _chart(Series("candidate", "speedup over PyTorch eager", line, dots, [Level(1.0, "PyTorch eager"), *near]))


def population(candidates: Sequence[Member], base: str) -> Markup:
    """Draw each measured candidate by the two terms of its fitness; those that selection kept are ringed.

    Empty where nothing has counters, and so no utilisation.
    """
    dots = [
        Dot(
            100 * candidate.utilisation,
            candidate.speedup,
            _kind(candidate),
            f"candidate {candidate.ordinal}: {times(candidate.speedup)} at {100 * candidate.utilisation:.3g} %",
            href=f"{base}/{candidate.ordinal}",
        )
        for candidate in _thinned([each for each in candidates if each.speedup and each.utilisation], set())
        if candidate.speedup is not None and candidate.utilisation is not None
    ]
    if not dots:
        return Markup()
    return _chart(
        Series("% of the hardware used", "speedup over PyTorch eager", dots=dots, levels=[Level(1.0, "PyTorch eager")])
    )


def line(points: Sequence[Point], across: str, up: str) -> Markup:
    """Draw a line; empty where there is nothing to draw."""
    return _chart(Series(across, up, points)) if len(points) > 1 else Markup()


def spark(points: Sequence[Point], last: float) -> Markup:
    """Draw how a job's highest median rose, without axes, up to its candidate number ``last``."""
    if not points:
        return Markup()
    high = max(y for _, y in points)
    low = min(1.0, *(y for _, y in points))
    steps = [points[0]]
    for (_, before), (x, y) in pairwise(points):
        steps += [(x, before), (x, y)]
    steps.append((max(last, points[-1][0] + 1), high))
    span = max(steps[-1][0] - steps[0][0], 1.0)
    drawn = " ".join(
        f"{2 + (x - steps[0][0]) / span * (SPARK_WIDTH - 4):.1f},"
        f"{SPARK_HEIGHT - 2 - (y - low) / max(high - low, 1e-9) * (SPARK_HEIGHT - 4):.1f}"
        for x, y in steps
    )
    label = f"highest median, from {times(points[0][1])} to {times(high)}"
    return _svg(
        SPARK_WIDTH, SPARK_HEIGHT, label, Markup('<polyline class="series" points="{}"/>').format(drawn), "spark"
    )


def roofline(known: Preparation, eager_us: float, best: Sequence[Improvement], base: str) -> Markup:
    """Draw the device's roofs with both ridge points, PyTorch's place, and the way of the highest medians.

    PyTorch stands at ``eager_us``, and each kernel as far above it as its speedup says: kernels were compared with
    eager at different times, and the device's speed may have changed in between.

    All stand at the problem's intensity: operations as they are written per byte that has to be moved, so that a
    faster algorithm may stand above a roof.
    """
    placement, peaks, flops = known.placement, known.peaks, known.facts.flops
    if not flops or placement.intensity <= 0 or placement.ridge_scalar <= 0:
        return Markup()
    matrix = placement.ridge_tensor * peaks.bandwidth
    points: list[tuple[str, float, str, str | None]] = [
        (f"PyTorch eager, {number(eager_us)} us", 1.0, "baseline", None)
    ]
    points += [
        (
            f"candidate {point.ordinal}: {times(eager.speedup.median)},"
            f" {number(eager.kernel_us.median)} us against {number(eager.baseline_us.median)} us",
            eager.speedup.median,
            point.verdict.value,
            f"{base}/{point.ordinal}",
        )
        for point in best
        if (eager := point.evaluation.comparison()) is not None
    ]
    rates = [flops / (eager_us * 1e-6) * speedup for _, speedup, *_ in points]
    ridges = sorted({placement.ridge_scalar, placement.ridge_tensor})
    x0 = 10 ** math.floor(math.log10(min(placement.intensity, ridges[0]) / 3))
    x1 = 10 ** math.ceil(math.log10(max(placement.intensity, ridges[-1]) * 3))
    y0 = 10 ** math.floor(math.log10(min(*rates, peaks.bandwidth * x0 * 3)))
    y1 = 10 ** math.ceil(math.log10(max(*rates, matrix, peaks.scalar_flops) * 1.05))
    axes = _Logs(x0, x1, y0, y1)
    drawn = axes.grid("operations per byte", "operations a second")
    bend = max(ridges)
    drawn += axes.line("roof", (x0, x0 * peaks.bandwidth), (bend, bend * peaks.bandwidth))
    names = {placement.ridge_scalar: "scalar units", placement.ridge_tensor: "matrix units"}
    for ridge in ridges:
        name = "scalar units" if len(ridges) == 1 else names[ridge]
        top = ridge * peaks.bandwidth
        drawn += axes.line("roof", (ridge, top), (x1, top))
        drawn += axes.line("level", (ridge, y0), (ridge, top))
        drawn += axes.text(x1, top, f"{name}, ridge at {number(ridge)}", "tick right", -6)
    drawn += axes.line("level here", (placement.intensity, y0), (placement.intensity, y1))
    trail = [(placement.intensity, rate) for rate in rates]
    for start, end in pairwise(trail):
        drawn += axes.line("series", start, end)
    for (title, _, kind, href), rate in zip(points, rates, strict=True):
        drawn += axes.dot(Dot(placement.intensity, rate, kind, title, href=href))
    return _svg(WIDTH, HEIGHT, f"Roofline: {number(placement.intensity)} operations per byte", drawn)


def _thinned(candidates: Sequence[Member], needed: set[int]) -> list[Member]:
    """Return at most about :data:`MOST_DOTS` of them, among them those of the ordinals that are needed."""
    if len(candidates) <= MOST_DOTS:
        return list(candidates)
    every = math.ceil(len(candidates) / MOST_DOTS)
    return [drawn for place, drawn in enumerate(candidates) if place % every == 0 or drawn.ordinal in needed]


def _kind(candidate: Member) -> str:
    return f"{candidate.verdict.value if candidate.verdict else 'none'}{' kept' if candidate.survives else ''}"


def _outcome(candidate: Member) -> str:
    return candidate.verdict.value if candidate.verdict else candidate.reason or candidate.state


def _chart(series: Series) -> Markup:
    places = [*series.points, *((dot.x, dot.y) for dot in series.dots)]
    low = min(x for x, _ in places)
    high = max(*(x for x, _ in places), low + 1e-9)
    highest = max(
        *(y for _, y in places), *(dot.high or 0.0 for dot in series.dots), *(level.y for level in series.levels), 0.0
    )
    step, steps = _ticks(highest or 1.0)
    top = step * steps

    def at(x: float, y: float) -> Point:
        return (
            round(LEFT + (x - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1),
            round(HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM), 1),
        )

    drawn = Markup()
    for tick in range(steps + 1):
        y = at(low, tick * step)[1]
        drawn += _segment("grid", (LEFT, y), (WIDTH - RIGHT, y)) + _text(LEFT - 6, y + 4, number(tick * step), "right")
    for level in series.levels:
        y = at(low, level.y)[1]
        drawn += _segment(f"level {level.kind}", (LEFT, y), (WIDTH - RIGHT, y))
        drawn += _text(WIDTH - RIGHT, y - 4, level.name, "right")
    if len(series.points) > 1:
        drawn += _path([at(*point) for point in series.points])
    for dot in series.dots:
        if dot.low is not None and dot.high is not None:
            drawn += _segment("extent", at(dot.x, dot.low), at(dot.x, dot.high))
        drawn += _mark(dot, at(dot.x, dot.y))
    for x, anchor in {low: "middle", high: "right"}.items():
        drawn += _text(at(x, 0)[0], HEIGHT - 18, number(round(x, 2)), anchor)
    drawn += _text(WIDTH / 2, HEIGHT - 4, series.across, "middle") + _text(LEFT, TOP - 8, series.up, "")
    return _svg(WIDTH, HEIGHT, f"{series.up} by {series.across}", drawn)


@dataclass(frozen=True)
class _Logs:
    """Axes of a figure whose both directions are logarithmic."""

    x0: float
    x1: float
    y0: float
    y1: float

    def at(self, x: float, y: float) -> Point:
        across = math.log(x / self.x0) / math.log(self.x1 / self.x0)
        up = math.log(y / self.y0) / math.log(self.y1 / self.y0)
        return (
            round(LEFT + across * (WIDTH - LEFT - RIGHT), 1),
            round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1),
        )

    def grid(self, across: str, up: str) -> Markup:
        drawn = Markup()
        for x in _decades(self.x0, self.x1):
            place = self.at(x, self.y0)
            drawn += _segment("grid", place, self.at(x, self.y1)) + _text(place[0], place[1] + 14, _decade(x), "middle")
        for y in _decades(self.y0, self.y1):
            place = self.at(self.x0, y)
            drawn += _segment("grid", place, self.at(self.x1, y)) + _text(
                place[0] - 6, place[1] + 4, _decade(y), "right"
            )
        return drawn + _text(WIDTH / 2, HEIGHT - 4, across, "middle") + _text(LEFT, TOP - 8, up, "")

    def line(self, kind: str, start: Point, end: Point) -> Markup:
        return _segment(kind, self.at(*start), self.at(*end))

    def text(self, x: float, y: float, words: str, kind: str, lift: float) -> Markup:
        place = self.at(x, y)
        return _text(place[0], place[1] + lift, words, kind)

    def dot(self, dot: Dot) -> Markup:
        return _mark(dot, self.at(dot.x, dot.y))


def _decades(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]


def _decade(value: float) -> str:
    power = round(math.log10(value))
    if -2 <= power < 3:
        return f"{value:g}"
    prefix = {1: "k", 2: "M", 3: "G", 4: "T", 5: "P"}.get(power // 3)
    return f"{10 ** (power % 3)}{prefix}" if prefix else f"{value:.0e}"


def _ticks(highest: float) -> tuple[float, int]:
    """Return distance and number of three to five round ticks above zero that reach ``highest``."""
    scale = 10.0 ** math.floor(math.log10(highest / 4))
    step = next(scale * round_one for round_one in (1, 2, 2.5, 5, 10) if scale * round_one * 4.999 >= highest)
    return step, math.ceil(highest / step)


def _segment(kind: str, start: Point, end: Point) -> Markup:
    return Markup('<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(kind, *start, *end)


def _path(points: Sequence[Point]) -> Markup:
    return Markup('<polyline class="series" points="{}"/>').format(" ".join(f"{x},{y}" for x, y in points))


def _text(x: float, y: float, words: str, kind: str) -> Markup:
    return Markup('<text class="tick {}" x="{}" y="{}">{}</text>').format(kind, x, y, words)


def _mark(dot: Dot, place: Point) -> Markup:
    mark = Markup('<circle class="node {}" cx="{}" cy="{}" r="4"><title>{}</title></circle>').format(
        dot.kind, *place, dot.title
    )
    if dot.href is None:
        return mark
    return Markup('<a href="{}" data-panel aria-label="{}">{}</a>').format(dot.href, dot.title, mark)


def _svg(width: float, height: float, label: str, inner: Markup, kind: str = "chart") -> Markup:
    frame = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" class="{}" role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}"'
        ' height="{}">{}</svg>'
    )
    return frame.format(kind, label, width, height, width, height, inner)
