"""Markdown tables of one evaluation, to be pasted into a pull request. Says only what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from cupilot.domain.evaluation import Baseline, Comparison, Evaluation, Failure, Interval, Verdict
from cupilot.domain.imported import KernelKind

_HEAD = ("verdict", "PyTorch eager, us", "kernel, us", "speedup (95 % interval)")


def workloads(evaluation: Evaluation) -> list[str]:
    """Return a table of the workloads and, where all were judged, of their weighted geometric mean."""
    rows = [_row(("workload", "values", "weight", *_HEAD)), _row(["---"] * 7)]
    for part in evaluation.workloads:
        numbers = _numbers(part.verdict, part.comparisons, part.failure)
        rows.append(_row((part.workload.name, part.workload.text, f"{part.workload.weight:g}", *numbers)))
    if evaluation.comparisons:
        numbers = _numbers(evaluation.verdict, evaluation.comparisons, evaluation.failure)
        rows.append(_row(("**all**", "weighted geometric mean", "", *numbers)))
    return rows


def pull_request(evaluation: Evaluation, problem: str) -> str:
    """Return the evaluation as a table, with what it was measured on and what it does not say below."""
    if evaluation.workloads:
        rows = workloads(evaluation)
    else:
        numbers = _numbers(evaluation.verdict, evaluation.comparisons, evaluation.failure)
        rows = [_row(("problem", *_HEAD)), _row(["---"] * 5), _row((problem, *numbers))]
    return "\n".join([*rows, "", *_further(evaluation.comparisons), *_notes(evaluation)])


def _further(comparisons: Sequence[Comparison]) -> list[str]:
    others = [item for item in comparisons if item.baseline is not Baseline.EAGER]
    return [f"- against {item.baseline.value}: {_interval(item.speedup)}x" for item in others]


def _notes(evaluation: Evaluation) -> list[str]:
    notes = []
    environment = evaluation.environment
    if environment is not None:
        notes.append(f"- judged by cuPilot on {environment.device.name}, PyTorch {environment.torch or 'unknown'}")
    if evaluation.laws:
        names = ", ".join(law.law for law in evaluation.laws)
        notes.append(f"- values compared with a float64 reference under these input distributions: {names}")
    if evaluation.kernel_kind is KernelKind.IMPORTED:
        notes += [f"- not checked: {text}" for text in evaluation.unchecked]
    return notes


def _numbers(
    verdict: Verdict | None, comparisons: Sequence[Comparison], failure: Failure | None
) -> tuple[str, str, str, str]:
    """Return the four cells of a result; a kernel that does not count has a reason in place of a speedup."""
    eager = next((item for item in comparisons if item.baseline is Baseline.EAGER), None)
    word = verdict.value if verdict is not None else "not judged"
    times = ("", "") if eager is None else (_time(eager.baseline_us), _time(eager.kernel_us))
    if eager is not None and failure is None:
        return (word, *times, f"{_interval(eager.speedup)}x")
    return (word, *times, f"none: {failure.kind.value}" if failure is not None else "")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _time(value: Interval) -> str:
    return f"{value.median:.4g}"


def _interval(value: Interval) -> str:
    return f"{value.median:.3g} [{value.low:.3g}, {value.high:.3g}]"
