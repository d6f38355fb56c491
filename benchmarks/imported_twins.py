"""Time kernels as files that people have: ``python -m benchmarks.imported_twins --out RECORD.json PROBLEM...``.

Each champion of a built-in problem is judged twice in one process: as device code with a launch plan, and as a
``ModelNew`` file (its export). The ratio of the two times says what it costs a file to be judged as it is. Writes the
record after each problem. Needs an NVIDIA GPU, and cuda-bindings for the files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks import records
from cupilot.domain import champions, problems
from cupilot.domain.evaluation import Baseline, Evaluation
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.problem import Target
from cupilot.exports import ExportFormat, files
from cupilot.exports.winner import Winner
from cupilot.reports.champion import report_of
from gpu_worker.evaluator import Evaluator


def main(arguments: list[str] | None = None) -> int:
    """Judge the twins of every problem; 0 when all counted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.imported_twins", description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="+", metavar="PROBLEM", help="built-in problems with a champion on cuda")
    parser.add_argument("--out", type=Path, required=True, help="the record")
    parser.add_argument("--work-dir", type=Path, default=Path(".cupilot/twins"), help="builds and peaks")
    options = parser.parse_args(arguments)
    record: dict[str, Any] = {**records.stamp(), "twins": []}
    with Evaluator(Target.CUDA, options.work_dir, sweep=0) as evaluator:  # an export has one value of each tunable
        record["device"] = evaluator.device.name
        for name in options.problems:
            row = _row(evaluator, name)
            sys.stderr.write(f"{row}\n")
            record["twins"].append(row)
            records.write(options.out, record)
    return 0 if all("ratio" in row for row in record["twins"]) else 1


def _row(evaluator: Evaluator, name: str) -> dict[str, Any]:
    """Return one problem's row; a twin that failed is told instead of a ratio."""
    champion = next(item for item in champions.champions() if item.problem == name and item.target is Target.CUDA)
    problem = problems.load(name, size=champion.size, policy=champion.policy)
    winner = Winner.of(report_of(champion))
    (text,) = files(winner, ExportFormat.KERNELBENCH).values()
    preparation = evaluator.prepare(problem).preparation
    if preparation is None:
        return {"problem": name, "failure": "the problem could not be prepared"}
    planned = evaluator.evaluate(problem, preparation, winner.kernel)
    imported = evaluator.evaluate(problem, preparation, ImportedKernel(target=Target.CUDA, source=text))
    row: dict[str, Any] = {"problem": name}
    for kind, evaluation in (("planned", planned), ("imported", imported)):
        if (times := _times(evaluation)) is None:
            return row | {"failure": f"{kind}: {evaluation.failure}"[:300]}
        row |= {f"{kind}_us": times[0], f"{kind}_speedup": times[1]}
    row |= {"handover_us": imported.handover_us, "ratio": row["imported_us"] / row["planned_us"]}
    return row


def _times(evaluation: Evaluation) -> tuple[float, float] | None:
    """Return median time and speedup; None where the kernel does not count."""
    comparison = evaluation.comparison(Baseline.EAGER)
    if comparison is None or not evaluation.verdict.counts:
        return None
    return comparison.kernel_us.median, comparison.speedup.median


if __name__ == "__main__":
    sys.exit(main())
