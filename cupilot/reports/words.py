"""Write the report as Markdown, and as a zip with all its numbers. Words claim no more than intervals show."""

from __future__ import annotations

from collections.abc import Sequence

from cupilot.domain.counted import counted, size_words
from cupilot.domain.evaluation import Interval
from cupilot.reports.canvas import Format
from cupilot.reports.figures import FigureName, figure
from cupilot.reports.packing import packed
from cupilot.reports.speeds import fast_words
from cupilot.reports.spreadsheet import Table, table
from cupilot.schemas import ArmReport, CellReport, ComparisonReport, ExperimentReport, SpeedSummary


def bundle(report: ExperimentReport) -> bytes:
    """Return a zip of the report as JSON and Markdown, its tables as CSV, its figures as SVG and PNG."""
    files: dict[str, str | bytes] = {
        "report.json": report.model_dump_json(indent=2) + "\n",
        "REPORT.md": markdown(report),
    }
    files |= {f"{which.value}.csv": table(report, which) for which in Table}
    files |= {f"{name.value}.{form.value}": figure(report, name, form) for name in FigureName for form in Format}
    return packed(files)


def markdown(report: ExperimentReport) -> str:
    """Return the report for people.

    What may be claimed first, then the numbers, then what to know before using them.
    """
    experiment = report.experiment
    sections = [
        f"# {experiment.name}",
        f"{size_words(len(experiment.arms), len(experiment.problems), len(experiment.seeds))} on"
        f" {experiment.target.value}: {experiment.finished} of {counted(experiment.jobs, 'job')} final.",
        "## What it shows\n\n"
        + ("\n".join(f"- {claim(comparison)}" for comparison in report.comparisons) or "One arm: nothing."),
        "## Arms\n\n"
        "| arm | jobs | with a kernel | candidates that count | cost | tokens | on the device | wall time |\n"
        "|---|---|---|---|---|---|---|---|\n" + "\n".join(_arm(arm) for arm in report.arms),
        _method_notes(report.arms),
        _speeds(report.arms),
        "## Best speedup over PyTorch eager\n\n| problem | arm | jobs | median | 95 % interval | range |\n"
        "|---|---|---|---|---|---|\n" + "\n".join(_cell(cell) for cell in report.cells),
        "## Before you use a number\n\n" + "\n".join(f"- {note}" for note in report.notes),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def claim(comparison: ComparisonReport) -> str:
    """Return one comparison in a sentence."""
    blocks = counted(comparison.blocks, "matched job")
    split = f"{comparison.wins} won, {comparison.losses} lost, {comparison.ties} tied of {blocks}"
    if comparison.ratio is None:
        return f"`{comparison.subject}` against `{comparison.reference}`: {comparison.claim}; {split}."
    typical = "typically" if comparison.interval else "observed"
    return (
        f"`{comparison.subject}` against `{comparison.reference}`: **{comparison.claim}**;"
        f" {typical} {comparison.ratio:.3f}x"
        f" its speed{_between(comparison.interval)}; {split}; p = {comparison.adjusted_p:.3g} after adjustment."
    )


def _arm(arm: ArmReport) -> str:
    validity = "-" if arm.validity is None else f"{arm.validity:.0%}"
    if arm.validity_interval is not None:
        validity += f" ({arm.validity_interval.low:.0%} to {arm.validity_interval.high:.0%})"
    wall = "-" if arm.wall_seconds_median is None else f"{arm.wall_seconds_median:.0f} s"
    return (
        f"| {arm.arm} | {arm.finished} of {arm.jobs}{', too few' if arm.too_few else ''} | {arm.solved} |"
        f" {validity} of {arm.judged} | {arm.cost_usd:.4f} USD | {arm.prompt_tokens + arm.completion_tokens} |"
        f" {arm.gpu_seconds:.0f} s | {wall} |"
    )


def _method_notes(arms: Sequence[ArmReport]) -> str:
    """Return what the columns of the arms add up, and the money that is in none of them."""
    beside = [text for arm in arms if (text := _beside(arm))]
    columns = "Cost, tokens and time on the device are those of the finished jobs added up, wall time is their median."
    return " ".join([columns, *beside])


def _beside(arm: ArmReport) -> str:
    parts = []
    if arm.left_out_usd:
        parts.append(f"{arm.left_out_usd:.4f} USD were charged for jobs that are left out here")
    if arm.reserved_usd:
        parts.append(f"{arm.reserved_usd:.4f} USD are reserved for calls whose cost is not known")
    return f"Of `{arm.arm}`, besides, {' and '.join(parts)}." if parts else ""


def _speeds(arms: Sequence[ArmReport]) -> str:
    """Return fast_p, counts and quantiles of each arm."""
    head = "| arm | fast_p | over 2x | geometric mean | quantiles (10, 25, 50, 75, 90 %) |\n|---|---|---|---|---|\n"
    lines = [_speed_row(arm.arm, arm.speeds) for arm in arms if arm.speeds is not None]
    if not lines:
        return ""
    return "## How many are how fast\n\n" + head + "\n".join(lines)


def _speed_row(arm: str, speeds: SpeedSummary) -> str:
    mean = "-" if speeds.geometric_mean is None else f"{speeds.geometric_mean:.3f}x"
    quantiles = ", ".join(f"{value:.2f}x" for value in speeds.quantiles.values()) or "-"
    return f"| {arm} | {fast_words(speeds)} | {speeds.over_2x} | {mean} | {quantiles} |"


def _cell(cell: CellReport) -> str:
    if cell.speedup is None or cell.low is None or cell.high is None:
        return f"| {cell.problem} | {cell.arm} | {cell.jobs} | none | - | - |"
    spread = f"{cell.low:.3f} to {cell.high:.3f}"
    interval = f"{cell.interval.low:.3f} to {cell.interval.high:.3f}" if cell.interval else "too few"
    return f"| {cell.problem} | {cell.arm} | {cell.jobs} | {cell.speedup:.3f}x | {interval} | {spread} |"


def _between(interval: Interval | None) -> str:
    return f" (95 % interval {interval.low:.3f} to {interval.high:.3f})" if interval else " (no interval)"
