"""Judge the playbook's kernels of all built-in problems on ``cpu``: ``python -m benchmarks.judged_coverage``.

Prepares each problem at its small size and judges the first kernels of the playbook, as a job would. Resumable: what
the record already holds is not judged again, so a run may end (``--seconds``) and be started anew; ``--again`` judges
what was not audited once more. Each row names the commit that it was judged at. Writes
``benchmarks/results/judged_coverage.json``, which ``docs/coverage.md`` shows beside what was rendered and compiled.
Needs torch and g++, no card and no service.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.judge_kernels import kernels_for
from benchmarks.judge_run import say
from cupilot.domain import problems
from cupilot.domain.evaluation import Baseline, Evaluation, Verdict
from cupilot.domain.problem import Target
from gpu_worker.evaluator import Evaluator

OUT = records.RESULTS / "judged_coverage.json"


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 when every problem of the chosen suites has an audited kernel in the record."""
    options = _options(argv)
    record = _resumed(options.out)
    rows: dict[str, dict[str, Any]] = {row["problem"]: row for row in record["problems"]}
    wanted = [(suite, name) for suite in options.suites for name in problems.names(suite)]
    end = time.monotonic() + options.seconds
    with Evaluator(Target.CPU, options.work_dir) as evaluator:
        for suite, name in wanted:
            if name in rows and not (options.again and rows[name]["verdict"] not in _HELD):
                continue
            if time.monotonic() > end:
                break
            judged = _judged(evaluator, name, options.kernels)
            rows[name] = {"suite": suite, "problem": name, **judged, "commit": record["commit"][:_COMMIT_CHARACTERS]}
            say(json.dumps(rows[name]))
            record["problems"] = sorted(rows.values(), key=lambda row: (row["suite"], row["problem"]))
            record["complete"] = all(name in rows for _, name in wanted)
            records.write(options.out, record)
    return 0 if all(name in rows and rows[name]["verdict"] in _HELD for _, name in wanted) else 1


_COMMIT_CHARACTERS = 12
_HELD = frozenset(verdict.value for verdict in Verdict if verdict.counts)


def _judged(evaluator: Evaluator, name: str, count: int) -> dict[str, Any]:
    """Return the best of a problem's first kernels: techniques, verdict, times and speedup over eager."""
    problem = problems.load(name, size="small")
    prepared = evaluator.prepare(problem)
    if prepared.preparation is None:
        assert prepared.failure is not None
        return {"kernel": "", "verdict": "not prepared", "failure": prepared.failure.message[:200]}
    rows: list[dict[str, Any]] = [
        {"kernel": kernel.name, **_row(evaluator.evaluate(problem, prepared.preparation, kernel.kernel))}
        for kernel in kernels_for(problem, prepared.preparation, Target.CPU, count)
    ]
    best = max(rows, key=lambda row: (row["verdict"] in _HELD, row.get("speedup", [0.0])[0]), default=None)
    return best or {"kernel": "", "verdict": "no kernel"}


def _row(evaluation: Evaluation) -> dict[str, Any]:
    row: dict[str, Any] = {"verdict": evaluation.verdict.value}
    if evaluation.failure is not None:
        row["failure"] = f"{evaluation.failure.kind.value}: {evaluation.failure.message[:200]}"
    comparison = evaluation.comparison(Baseline.EAGER)
    if comparison is not None:
        row["speedup"] = [comparison.speedup.low, comparison.speedup.median, comparison.speedup.high]
        row["eager_us"] = comparison.baseline_us.median
    return row


def _resumed(path: Path) -> dict[str, Any]:
    """Return the record so far, under today's command and commit."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"problems": []}
    return {**records.stamp(), "complete": False, "problems": before["problems"]}


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judged_coverage", description=(__doc__ or "")[:80])
    parser.add_argument("--suites", nargs="+", default=list(problems.SUITES), choices=list(problems.SUITES))
    parser.add_argument(
        "--kernels", type=int, default=1, help="kernels of the playbook that are judged of each problem"
    )
    parser.add_argument("--seconds", type=float, default=3_600.0, help="begin no problem after so many")
    parser.add_argument("--again", action="store_true", help="judge anew what has no audited kernel yet")
    parser.add_argument("--work-dir", type=Path, default=Path(".cupilot/coverage"), help="builds and measured peaks")
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
