"""The report as Markdown, and as a zip with everything that was counted. Words claim no more than intervals show."""

from __future__ import annotations

from collections.abc import Sequence

from cupilot.domain.evaluation import Interval
from cupilot.reports.canvas import Format
from cupilot.reports.figures import FigureName, figure
from cupilot.reports.packing import packed
from cupilot.reports.spreadsheet import Table, table
from cupilot.schemas import ArmReport, CellReport, ComparisonReport, ExperimentReport


def bundle(report: ExperimentReport) -> bytes:
    """Report as JSON and Markdown, every table as CSV, every figure as SVG and PNG."""
    files: dict[str, str | bytes] = {
        "report.json": report.model_dump_json(indent=2) + "\n",
        "REPORT.md": markdown(report),
    }
    files |= {f"{which.value}.csv": table(report, which) for which in Table}
    files |= {f"{name.value}.{form.value}": figure(report, name, form) for name in FigureName for form in Format}
    return packed(files)


def markdown(report: ExperimentReport) -> str:
    """Return the report for people: what may be claimed first, then the numbers, then what to know before using
    them.
    """
    experiment = report.experiment
    sections = [
        f"# {experiment.name}",
        f"{len(experiment.arms)} arms x {len(experiment.problems)} problems x {len(experiment.seeds)} seeds on"
        f" {experiment.target.value}: {experiment.finished} of {experiment.jobs} jobs are final.",
        "## What it shows\n\n" + ("\n".join(f"- {claim(one)}" for one in report.comparisons) or "One arm: nothing."),
        "## Arms\n\n"
        "| arm | jobs | with a kernel | candidates that count | cost | tokens | on the device | wall time |\n"
        "|---|---|---|---|---|---|---|---|\n" + "\n".join(_arm(one) for one in report.arms),
        _reckoning(report.arms),
        "## Best speedup over PyTorch eager\n\n| problem | arm | jobs | median | 95 % interval | range |\n"
        "|---|---|---|---|---|---|\n" + "\n".join(_cell(one) for one in report.cells),
        "## Before you use a number\n\n" + "\n".join(f"- {note}" for note in report.notes),
    ]
    return "\n\n".join(sections) + "\n"


def claim(one: ComparisonReport) -> str:
    """Return one comparison in a sentence."""
    split = f"{one.wins} won, {one.losses} lost, {one.ties} tied of {one.blocks} matched jobs"
    if one.ratio is None:
        return f"`{one.subject}` against `{one.reference}`: {one.claim}; {split}."
    typical = "typically" if one.interval else "observed"
    return (
        f"`{one.subject}` against `{one.reference}`: **{one.claim}**; {typical} {one.ratio:.3f}x its speed"
        f"{_between(one.interval)}; {split}; p = {one.adjusted_p:.3g} after adjustment."
    )


def _arm(one: ArmReport) -> str:
    validity = "-" if one.validity is None else f"{one.validity:.0%}"
    if one.validity_interval is not None:
        validity += f" ({one.validity_interval.low:.0%} to {one.validity_interval.high:.0%})"
    wall = "-" if one.wall_seconds_median is None else f"{one.wall_seconds_median:.0f} s"
    return (
        f"| {one.arm} | {one.finished} of {one.jobs}{', too few' if one.too_few else ''} | {one.solved} |"
        f" {validity} of {one.judged} | {one.cost_usd:.4f} USD | {one.prompt_tokens + one.completion_tokens} |"
        f" {one.gpu_seconds:.0f} s | {wall} |"
    )


def _reckoning(arms: Sequence[ArmReport]) -> str:
    """Return what the columns of the arms add up, and the money that is in none of them."""
    beside = [text for one in arms if (text := _beside(one))]
    columns = "Cost, tokens and time on the device are those of the finished jobs added up, wall time is their median."
    return " ".join([columns, *beside])


def _beside(one: ArmReport) -> str:
    parts = []
    if one.left_out_usd:
        parts.append(f"{one.left_out_usd:.4f} USD were charged for jobs that are left out here")
    if one.reserved_usd:
        parts.append(f"{one.reserved_usd:.4f} USD are reserved for calls whose cost is not known")
    return f"Of `{one.arm}`, besides, {' and '.join(parts)}." if parts else ""


def _cell(one: CellReport) -> str:
    if one.speedup is None or one.low is None or one.high is None:
        return f"| {one.problem} | {one.arm} | {one.jobs} | none | - | - |"
    spread = f"{one.low:.3f} to {one.high:.3f}"
    interval = f"{one.interval.low:.3f} to {one.interval.high:.3f}" if one.interval else "too few"
    return f"| {one.problem} | {one.arm} | {one.jobs} | {one.speedup:.3f}x | {interval} | {spread} |"


def _between(interval: Interval | None) -> str:
    return f" (95 % interval {interval.low:.3f} to {interval.high:.3f})" if interval else " (no interval)"
