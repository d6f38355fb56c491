"""Writes ``docs/study.md`` from the study's record: ``python -m benchmarks.study_page --write``.

Reads ``benchmarks/results/study_cpu.json``, which ``benchmarks.study`` wrote. The page's figure is drawn beside it, as
``docs/study.svg``. Without ``--write`` it prints the page, and ends with status 1 where the file differs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks import pages, records
from cupilot.domain.evaluation import Interval
from cupilot.reports.canvas import Format
from cupilot.reports.figures import FigureName, figure
from cupilot.schemas import ArmReport, CellReport, ComparisonReport, ExperimentReport

PAGE = Path(__file__).parents[1] / "docs/study.md"
FIGURE = PAGE.with_suffix(".svg")

_HEAD = """# The study

With this page you can see what crossing strategies was worth against crossing code, and against asking the same model
again and again; and what so few runs can and cannot show.

All agents were played by {model}. Each arm got the same
{problems} problems at small size on a CPU ({device}), one job each, by [an experiment](experiments.md)
on {begun} (`{command}`, [record](../benchmarks/results/study_cpu.json)). All
{answers} prompts and answers, with every kernel, are in [an archive](../benchmarks/results/study_cpu.tar.xz).

- *strategies* is the method `sce`: three first kernels, each from a strategy, then a child of two parents' strategies.
- *code* is the same with crossover of code: the child is written from the two parents' sources.
- *best of n* asks for six kernels from nothing, and keeps the best (`eoh` with one generation).

The arms are matched by what they may spend, {budget} kernels a job; with two elites of three, the first two made at
most {few}. Alignment was off, since it costs a call a kernel, and the strategy pool was empty. Each job's best was
measured again in fresh processes; speedups are those.
"""

_ARMS = """
| arm | jobs with a kernel | geometric mean | over 2x | candidates that count | tokens in, out | device seconds |
|---|---|---|---|---|---|---|
"""

_COMPARISONS = """
| arm | against | better, worse, equal | ratio | p | the report's claim |
|---|---|---|---|---|---|
"""

_CELLS = """
| problem | {arms} |
|---|{rules}|
"""

_TAIL = """
![Speedups of each arm on each problem](study.svg)

## What it shows

- **No difference between the arms.** Both intervals contain 1. Whether crossing strategies is worth 1.15 over
  best of n, which is a goal of this project, is neither shown nor excluded.
- **A child was measured faster than its job's first kernels** in {children} jobs with crossover, before the best were
  measured again: not in all of them is it the kernel that the job gave. With three parents and one child there is
  little to cross.
- **The model made no mistake that the judge found**: {valid} of {judged} kernels count. Nothing had to be repaired, so
  these problems cannot tell a crossover that keeps kernels right from one that breaks them.

## What it cannot show

One seed a problem, one model, and small problems on two cores, where the interval of a single kernel is wide. The
answers are not independent: a conversation with the model answered prompts of several arms in turn and could remember
the ones before, which makes arms more alike than separate calls would. Whether roofline guidance, the pool or alignment
help was not tried; an arm of eight jobs takes {minutes:.0f} minutes of measuring here. Longer searches, in which
children have better parents, may come out otherwise.
"""


def page() -> str:
    """Return the text of the page."""
    record = records.read("study_cpu")
    report = ExperimentReport.model_validate(record["report"])
    outcomes = report.outcomes
    judged = {arm.arm: max(row.judged for row in outcomes if row.arm == arm.arm) for arm in report.arms}
    head = _HEAD.format(
        model=record["model"],
        problems=len(report.experiment.problems),
        device=outcomes[0].device,
        command=record["command"],
        begun=record["begun"][:10],
        answers=record["answers"],
        few=min(judged.values()),
        budget=max(judged.values()),
    )
    return head + arms(report) + comparisons(report) + cells(report) + _tail(report)


def _tail(report: ExperimentReport) -> str:
    crossed = [[best or 0.0 for best in row.best_by_generation] for row in report.outcomes]
    crossed = [best for best in crossed if len(best) > 1]
    return _TAIL.format(
        children=f"{sum(best[-1] > best[0] for best in crossed)} of {len(crossed)}",
        valid=sum(row.valid for row in report.outcomes),
        judged=sum(row.judged for row in report.outcomes),
        minutes=max(arm.gpu_seconds for arm in report.arms) / 60,
    )


def arms(report: ExperimentReport) -> str:
    """Return the table of the arms."""
    return _ARMS + "".join(_arm(row) for row in report.arms)


def _arm(row: ArmReport) -> str:
    speeds = row.speeds
    mean = f"{speeds.geometric_mean:.2f}x" if speeds and speeds.geometric_mean else ""
    counted = "" if row.validity is None else f"{row.validity:.0%} of {row.judged}{_between(row.validity_interval)}"
    return (
        f"| {row.arm} | {row.solved} of {row.finished} | {mean} | {speeds.over_2x if speeds else ''} | {counted} |"
        f" {row.prompt_tokens / 1000:,.0f}k, {row.completion_tokens / 1000:,.0f}k | {row.gpu_seconds:,.0f} |\n"
    )


def comparisons(report: ExperimentReport) -> str:
    """Return the table of arms against the reference."""
    return _COMPARISONS + "".join(_comparison(row) for row in report.comparisons)


def _comparison(row: ComparisonReport) -> str:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}{_between(row.interval, '.2f')}"
    return (
        f"| {row.subject} | {row.reference} | {row.wins}, {row.losses}, {row.ties} | {ratio} | {row.adjusted_p:.2f} |"
        f" {row.claim} |\n"
    )


def cells(report: ExperimentReport) -> str:
    """Return the table of problems, a column an arm."""
    names = [arm.arm for arm in report.arms]
    found = {(cell.problem, cell.arm): cell for cell in report.cells}
    rows = [
        f"| {problem} | " + " | ".join(_cell(found[problem, name]) for name in names) + " |\n"
        for problem in report.experiment.problems
    ]
    return _CELLS.format(arms=" | ".join(names), rules="|".join("---" for _ in names)) + "".join(rows)


def _cell(cell: CellReport) -> str:
    return "none" if cell.speedup is None else f"{cell.speedup:.2f}x"


def _between(interval: Interval | None, form: str = ".0%") -> str:
    return "" if interval is None else f" ({interval.low:{form}} to {interval.high:{form}})"


def main(arguments: list[str] | None = None) -> int:
    """Print or write the page; the figure is written with it."""
    status = pages.main("study_page", (__doc__ or "").splitlines()[0], PAGE, page, arguments)
    if "--write" in (arguments if arguments is not None else sys.argv[1:]):
        report = ExperimentReport.model_validate(records.read("study_cpu")["report"])
        FIGURE.write_bytes(figure(report, FigureName.SPEEDUPS, Format.SVG))
    return status


if __name__ == "__main__":
    sys.exit(main())
