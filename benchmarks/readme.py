"""The README's table of results, from ``benchmarks/results/*.json``: ``python -m benchmarks.readme [--write]``.

Measures nothing: it reads what :mod:`benchmarks.evolve_local` recorded. A test holds the README against this output.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.local_report import speedup_over
from cupilot.domain.evaluation import Baseline, Evaluation

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- results -->\n", "<!-- /results -->\n"
HEAD = "| problem | policy | over PyTorch eager | over `torch.compile` | of the floor | verdict |"


def section(folder: Path = RESULTS) -> str:
    """What stands between the README's two marks: a table a device, a row for each job that has a proven kernel."""
    rows: dict[str, list[str]] = {}
    for job in _jobs(folder):
        row = _row(job)
        if row is not None:
            rows.setdefault(_device(job), []).append(row)
    tables = [
        "\n".join([f"On {device}:", "", HEAD, "|---|---|---|---|---|---|", *rows[device]]) for device in sorted(rows)
    ]
    return "\n\n".join(tables) + "\n"


def updated(readme: str, folder: Path = RESULTS) -> str:
    """The README with the present results."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{section(folder)}{END}{after}"


def _jobs(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.json")):
        yield from json.loads(path.read_text(encoding="utf-8"))["jobs"]


def _device(job: dict[str, Any]) -> str:
    device, threads = job["environment"]["device"], job["environment"]["threads"]
    return f"{device['name']}, {threads} threads" if threads else f"one {device['name']}"


def _row(job: dict[str, Any]) -> str | None:
    evaluation = _winner(job)
    eager = evaluation.comparison(Baseline.EAGER) if evaluation else None
    if evaluation is None or eager is None:
        return None
    share = job["placement"]["floor_us"] / eager.kernel_us.median
    return (
        f"| {job['problem']} | {job['policy']} | {speedup_over(evaluation, Baseline.EAGER)}"
        f" | {speedup_over(evaluation, Baseline.COMPILE)} | {share:.0%} | {evaluation.verdict.value} |"
    )


def _winner(job: dict[str, Any]) -> Evaluation | None:
    """The last evaluation of the job's best candidate, where it counts."""
    best = next((one for one in job["candidates"] if one["id"] == job["best"]), None)
    if best is None:
        return None
    latest = best["confirmation"] or best["attempts"][-1]
    evaluation = Evaluation.model_validate({**latest, "environment": None, "placement": None})
    return evaluation if evaluation.verdict.counts else None


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        README.write_text(updated(README.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(section())
