"""Writes ``docs/study.md`` from the studies' records: ``python -m benchmarks.study_page --write``.

Reads ``study_cpu.json``, ``study_parts_cpu.json`` and ``study_agents_cpu.json`` in ``benchmarks/results``, which
``benchmarks.study`` wrote. The page's figures are drawn beside it, each with its matrix's name. Without ``--write`` it
prints the page, and ends with status 1 where the file differs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks import pages, records
from benchmarks.study import MATRICES
from cupilot.domain.evaluation import Interval
from cupilot.reports.canvas import Format
from cupilot.reports.figures import FigureName, figure
from cupilot.schemas import ArmReport, CellReport, ComparisonReport, ExperimentReport

PAGE = Path(__file__).parents[1] / "docs/study.md"

_HEAD = """# The study

With this page you can see what crossing strategies was worth against crossing code, and against asking the same model
again and again; what the pool of earlier runs, roofline guidance and alignment were worth, and how an agent with tools
and EvoEngineer did; and what so few runs can and cannot show.

All agents were played by {model}.
Each arm got the same problems at small size on a CPU, one job each, in which it might make as many kernels as the
others, by [experiments](experiments.md). Each job's best was measured again in fresh processes; speedups are those.
Alignment was off except in one arm, since it costs a call for each kernel.
"""

_CROSSOVER = """
## Crossover of strategies, of code, and best of n

- *strategies* is the method `sce`: three first kernels, each from a strategy, then a child of two parents' strategies.
- *code* is the same with crossover of code: the child is written from the two parents' sources.
- *best of n* asks for six kernels from nothing, and keeps the best (`eoh` with one generation).

Each might make {budget} kernels a job; with two elites of three, the first two made at most {few}. The pool was empty.
"""

_PARTS = """
## The pool, roofline guidance, and best of n

- *strategies* is `sce` with three first kernels and one elite, so two children; its pool holds what the study above
  taught.
- *without the pool* and *without roofline guidance* are the same without the one or the other. The prompts of the
  latter still told each kernel's share of the roofline bound when this was run: it had less guidance, not none.
- *best of n* asks for five kernels from nothing.

Each made at most {budget} kernels a job. The problems are others than above, of the same families. The jobs ran on two
occasions on one machine.
"""

_AGENTS = """
## Alignment, an agent with tools, and EvoEngineer

- *strategies* is `sce` with three first kernels and one elite, so two children.
- *with alignment* is the same, with a call for each kernel that compares its strategy with what its code shows.
- *agentic* is one model that works on one kernel with tools, over at most five measurements.
- *evoengineer-full* asks for three kernels from nothing, then for two by crossover and mutation of code, with insights.

Each might measure {budget} kernels a job. The pool was empty.
"""

_SOURCE = """
{problems} problems on {begun}, on {device}:
`{command}`, [record](../benchmarks/results/{record}.json).{cut}
All {answers} prompts and answers, with every kernel, are in [an archive](../benchmarks/results/{record}.tar.xz).
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

_FIGURE = """
![Speedups of each arm on each problem]({matrix}.svg)
"""

_TAIL = """
## What they show

{findings}
- **The model made few mistakes that the judge found**: {valid} of {judged} candidates count. Hardly anything had to be
  repaired, so these problems cannot tell a crossover that keeps kernels right from one that breaks them.

## What they cannot show

One seed a problem, one model, and small problems on two cores, where the interval of a single kernel is wide. The
answers are not independent: a conversation with the model answered prompts of several arms in turn and could remember
the ones before, which makes arms more alike than separate calls would. In the second study some had seen measured
kernels of another arm before they wrote first ones, and varied repeated prompts of best of n on purpose; in the third
some used again what they had written for other prompts of a problem. An arm takes up to {minutes:.0f} minutes of
measuring here. Longer searches, in which children have better parents, may come out otherwise.
"""

_ORDER = ("first", "second", "third")
_INTRODUCTIONS = dict(zip(MATRICES, (_CROSSOVER, _PARTS, _AGENTS), strict=True))


def page() -> str:
    """Return the text of the page."""
    whole = {matrix: records.read(f"{matrix}_cpu") for matrix in MATRICES}
    head = _HEAD.format(model=whole[MATRICES[0]]["model"])
    return head + "".join(_study(matrix, record) for matrix, record in whole.items()) + _tail(list(whole.values()))


def report_of(record: dict[str, Any]) -> ExperimentReport:
    """Return the report that a record holds, without its convergence."""
    return ExperimentReport.model_validate({**record["report"], "convergence": []})


def problems_of(report: ExperimentReport) -> list[str]:
    """Return the problems that every arm has ended a job on."""
    ended = {cell.problem for cell in report.cells if cell.jobs}
    return [problem for problem in report.experiment.problems if problem in ended]


def _cut(report: ExperimentReport) -> str:
    cut = ", ".join(problem for problem in report.experiment.problems if problem not in problems_of(report))
    more = (
        f"\nThe matrix has more, which were cancelled for want of time: {cut}; the archive has what their jobs asked."
    )
    return more if cut else ""


def _study(matrix: str, record: dict[str, Any]) -> str:
    report = report_of(record)
    judged = {arm.arm: max(row.judged for row in report.outcomes if row.arm == arm.arm) for arm in report.arms}
    source = _SOURCE.format(
        problems=len(problems_of(report)),
        cut=_cut(report),
        device=report.outcomes[0].device,
        command=record["command"],
        begun=record["begun"][:10],
        answers=record["answers"],
        record=f"{matrix}_cpu",
    )
    introduction = _INTRODUCTIONS[matrix].format(few=min(judged.values()), budget=max(judged.values()))
    tables = arms(report) + comparisons(report) + cells(report)
    return introduction + source + tables + _FIGURE.format(matrix=matrix)


def _tail(whole: list[dict[str, Any]]) -> str:
    reports = [report_of(record) for record in whole]
    return _TAIL.format(
        findings="\n".join(
            finding for name, report in zip(_ORDER, reports, strict=True) for finding in _findings(name, report)
        ),
        valid=sum(row.valid for report in reports for row in report.outcomes),
        judged=sum(row.judged for report in reports for row in report.outcomes),
        minutes=max(arm.gpu_seconds for report in reports for arm in report.arms) / 60,
    )


def _findings(name: str, report: ExperimentReport) -> list[str]:
    lines = []
    for row in report.comparisons:
        ratio = "too few pairs" if row.ratio is None else f"{row.ratio:.2f} times{_between(row.interval, '.2f')}"
        lines.append(f"- **{row.subject[0].upper()}{row.subject[1:]} against {row.reference}**: {ratio}, {row.claim}.")
    crossed = [[best or 0.0 for best in row.best_by_generation] for row in report.outcomes]
    crossed = [best for best in crossed if len(best) > 1]
    ahead = sum(best[-1] > best[0] for best in crossed)
    lines += [
        f"- **A child was measured faster than its job's first kernels** in {ahead} of {len(crossed)} jobs with",
        f"  crossover of the {name} study, before the best were measured again.",
    ]
    return lines


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
        for problem in problems_of(report)
    ]
    return _CELLS.format(arms=" | ".join(names), rules="|".join("---" for _ in names)) + "".join(rows)


def _cell(cell: CellReport) -> str:
    return "none" if cell.speedup is None else f"{cell.speedup:.2f}x"


def _between(interval: Interval | None, form: str = ".0%") -> str:
    return "" if interval is None else f" ({interval.low:{form}} to {interval.high:{form}})"


def main(arguments: list[str] | None = None) -> int:
    """Print or write the page; the figures are written with it."""
    status = pages.main("study_page", (__doc__ or "").splitlines()[0], PAGE, page, arguments)
    if "--write" in (arguments if arguments is not None else sys.argv[1:]):
        for matrix in MATRICES:
            drawn = figure(report_of(records.read(f"{matrix}_cpu")), FigureName.SPEEDUPS, Format.SVG)
            PAGE.with_name(f"{matrix}.svg").write_bytes(drawn)
    return status


if __name__ == "__main__":
    sys.exit(main())
