"""The report's figures, in the shapes of the cuPilot paper (arXiv 2512.16465) where it has them.

``convergence``: time against generations, one panel a problem, one line an arm, as the paper draws its ablations
(Figures 6 and 7). ``outcomes``: what became of each arm's candidates, stacked, as in its Figure 1; that figure's own
study is :mod:`benchmarks.crossover_study`. ``speedups`` and ``comparisons``: the report's medians and paired ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from textwrap import fill
from typing import TYPE_CHECKING

from cupilot.domain.counted import counted
from cupilot.reports.canvas import Format, colour, drawn, empty, marker
from cupilot.schemas import CellReport, ExperimentReport

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = (3.4, 2.7)
"""Inches of one panel."""
PANELS_A_ROW = 3
CHARACTERS_AN_INCH = 13
"""Of a title's letters, rather fewer than fit."""
BUILD = frozenset({"compile_error", "invalid_plan", "launch_error"})
VALUES = frozenset({"wrong_value", "unwritten_output", "non_deterministic", "insensitive", "input_mutated"})
_PARTS = (
    ("counts", "#009E73"),
    ("does not build or launch", "#D55E00"),
    ("wrong result", "#E69F00"),
    ("other failure", "#999999"),
)


class FigureName(StrEnum):
    """Name of a figure."""

    CONVERGENCE = "convergence"
    SPEEDUPS = "speedups"
    COMPARISONS = "comparisons"
    OUTCOMES = "outcomes"


def figure(report: ExperimentReport, name: FigureName, form: Format) -> bytes:
    """Return a figure as a file. The same report makes the same bytes."""
    paint, size = _FIGURES[name]
    return drawn(lambda canvas: paint(report, canvas), size(report), form)


def _convergence(report: ExperimentReport, canvas: Figure) -> None:
    problems = report.experiment.problems
    panels = _panels(canvas, len(problems))
    for place, (axes, problem) in enumerate(zip(panels, problems, strict=True)):
        x_end = 0
        for number, arm in enumerate(report.experiment.arms):
            points = [point for point in report.convergence if (point.arm, point.problem) == (arm.name, problem)]
            if not points:
                continue
            x = [point.generation for point in points]
            x_end = max(x_end, *x)
            (line,) = axes.plot(
                x, [1 / point.speedup for point in points], color=colour(number), marker=marker(number), label=arm.name
            )
            line.set_gid(f"line-{place}-{number}")
            axes.fill_between(
                x,
                [1 / point.high for point in points],
                [1 / point.low for point in points],
                color=colour(number),
                alpha=0.12,
            )
        axes.set_title(problem)
        if not x_end:
            empty(axes, "no proven kernel yet")
            continue
        axes.axhline(1.0, color="#666666", linewidth=0.8, linestyle="--")
        axes.set_xlabel("generation")
        axes.set_ylabel("time relative to PyTorch eager")
        axes.set_xticks(range(1, x_end + 1))
    _legend(report, canvas, "Highest median so far: median over seeds, band from the fastest to the slowest")


def _speedups(report: ExperimentReport, canvas: Figure) -> None:
    axes = canvas.subplots()
    arms, problems = report.experiment.arms, report.experiment.problems
    width = 0.8 / len(arms)
    cells = {(cell.arm, cell.problem): cell for cell in report.cells}
    for number, arm in enumerate(arms):
        for place, problem in enumerate(problems):
            x = place - 0.4 + (number + 0.5) * width
            _cell(axes, cells[arm.name, problem], x, width, number, gid=f"bar-{place}-{number}")
            seeds = [
                outcome.speedup.median
                for outcome in report.outcomes
                if (outcome.arm, outcome.problem) == (arm.name, problem)
                and outcome.speedup
                and outcome.standing == "solved"
            ]
            axes.plot([x] * len(seeds), seeds, linestyle="none", marker=".", color="#333333", markersize=4)
        axes.bar([0], [0], color=colour(number), alpha=0.75, label=arm.name)
    axes.axhline(1.0, color="#666666", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(problems)), problems)
    axes.set_ylabel("speedup over PyTorch eager")
    _legend(report, canvas, "Best kernel: median, dots are seeds; whiskers are 95 % intervals where there are enough")


def _cell(axes: Axes, cell: CellReport, x: float, width: float, number: int, *, gid: str) -> None:
    if cell.speedup is None:
        axes.text(x, 0.02, "none", rotation=90, ha="center", va="bottom", fontsize=7, color="#666666")
        return
    (bar,) = axes.bar([x], [cell.speedup], width=width * 0.92, color=colour(number), alpha=0.75)
    bar.set_gid(gid)
    if cell.interval is not None:
        low, high = cell.speedup - cell.interval.low, cell.interval.high - cell.speedup
        axes.errorbar([x], [cell.speedup], yerr=[[low], [high]], color="#000000", capsize=3, linewidth=1)


def _comparisons(report: ExperimentReport, canvas: Figure) -> None:
    axes = canvas.subplots()
    rows = [comparison for comparison in report.comparisons if comparison.ratio is not None]
    if not rows:
        empty(axes, "nothing to compare yet")
        return
    for place, comparison in enumerate(rows):
        ratio = comparison.ratio or 1.0
        if comparison.interval is None:
            axes.plot([ratio], [place], marker="o", markerfacecolor="white", color="#666666", gid=f"ratio-{place}")
        else:
            axes.plot(
                [comparison.interval.low, comparison.interval.high], [place, place], color="#000000", linewidth=1.2
            )
            axes.plot([ratio], [place], marker="o", color="#0072B2", gid=f"ratio-{place}")
    axes.axvline(1.0, color="#666666", linewidth=0.8, linestyle="--")
    labels = [
        f"{comparison.subject}\nagainst {comparison.reference}\n{comparison.claim} (n={comparison.blocks})"
        for comparison in rows
    ]
    axes.set_yticks(range(len(rows)), labels, fontsize=7)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("speedup relative to the reference: above 1 is faster")
    words = "Matched jobs: ratio with its 95 % interval; hollow where there is none"
    canvas.suptitle(_title(report, words, canvas), fontsize=9)


def _outcomes(report: ExperimentReport, canvas: Figure) -> None:
    axes = canvas.subplots()
    arms = [arm for arm in report.arms if arm.judged]
    if not arms:
        empty(axes, "no candidate is judged yet")
        return
    bottoms = [0.0] * len(arms)
    for part, (label, shade) in enumerate(_PARTS):
        shares = [_parts(arm.failures, arm.judged)[part] / arm.judged for arm in arms]
        bars = axes.bar(range(len(arms)), shares, bottom=bottoms, color=shade, label=label, width=0.6)
        for place, bar in enumerate(bars):
            bar.set_gid(f"part-{place}-{part}")
        bottoms = [below + share for below, share in zip(bottoms, shares, strict=True)]
    axes.set_xticks(
        range(len(arms)), [f"{fill(arm.arm, 24)}\n{counted(arm.judged, 'candidate')}" for arm in arms], fontsize=7
    )
    axes.set_ylim(0, 1)
    axes.set_ylabel("share of candidates")
    _legend(report, canvas, "What became of the candidates")


def _parts(failures: Mapping[str, int], judged: int) -> tuple[int, int, int, int]:
    build = sum(count for kind, count in failures.items() if kind in BUILD)
    values = sum(count for kind, count in failures.items() if kind in VALUES)
    failed = sum(failures.values())
    return judged - failed, build, values, failed - build - values


def _panels(canvas: Figure, count: int) -> list[Axes]:
    columns = min(count, PANELS_A_ROW)
    return [canvas.add_subplot(-(-count // columns), columns, place + 1) for place in range(count)]


def _legend(report: ExperimentReport, canvas: Figure, title: str) -> None:
    handles: dict[str, Artist] = {}
    for axes in canvas.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        canvas.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=2)
    canvas.suptitle(_title(report, title, canvas), fontsize=9)


def _title(report: ExperimentReport, words: str, canvas: Figure) -> str:
    experiment = report.experiment
    state = "" if experiment.final else f" (not final: {experiment.finished} of {counted(experiment.jobs, 'job')})"
    width = int(canvas.get_figwidth() * CHARACTERS_AN_INCH)
    return "\n".join(fill(line, width) for line in (f"{experiment.name}{state}", words))


def _panel_size(report: ExperimentReport) -> tuple[float, float]:
    count = len(report.experiment.problems)
    columns = min(count, PANELS_A_ROW)
    rows = -(-count // columns)
    return max(PANEL[0] * columns, 6.0), PANEL[1] * rows + 0.9 + 0.12 * len(report.experiment.arms)


def _speedups_size(report: ExperimentReport) -> tuple[float, float]:
    return min(max(6.0, 0.35 * len(report.cells) + 2), 20.0), 4.0 + 0.1 * len(report.experiment.arms)


def _comparisons_size(report: ExperimentReport) -> tuple[float, float]:
    return 7.0, 1.6 + 0.6 * max(len(report.comparisons), 1)


def _by_arms(report: ExperimentReport) -> tuple[float, float]:
    return max(6.0, 1.7 * len(report.arms)), 3.8


_FIGURES: Mapping[
    FigureName,
    tuple[Callable[[ExperimentReport, Figure], None], Callable[[ExperimentReport], tuple[float, float]]],
] = {
    FigureName.CONVERGENCE: (_convergence, _panel_size),
    FigureName.SPEEDUPS: (_speedups, _speedups_size),
    FigureName.COMPARISONS: (_comparisons, _comparisons_size),
    FigureName.OUTCOMES: (_outcomes, _by_arms),
}
