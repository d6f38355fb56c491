"""Judge the playbook's kernels of all built-in problems: ``python -m benchmarks.judged_coverage``.

Prepares each problem (on ``cpu`` at its small size, on ``cuda`` at its full one) and judges the first kernels of the
playbook, as a job would. Resumable: what the record already holds is not judged again, so a run may end
(``--seconds``) and be started anew; ``--again`` judges what was not audited once more. ``--part 1/2`` takes every
second problem, for a process a card; ``--merge`` puts the records of such processes into one. Each row names the commit
that it was judged at. Writes ``benchmarks/results/judged_coverage.json``, which ``docs/coverage.md`` shows beside what
was rendered and compiled. Needs torch and g++, or torch, cuda-bindings and a card; no service.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.judge_kernels import playbook_kernels
from benchmarks.judge_run import say
from cupilot.domain import problems
from cupilot.domain.evaluation import Baseline, Evaluation, Verdict
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.problems import Size
from cupilot.domain.roofline import Placement
from gpu_worker.evaluator import Evaluator

OUT = records.RESULTS / "judged_coverage.json"


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 when every problem of the chosen suites has an audited kernel in the record."""
    options = _options(argv)
    if options.merge:
        records.write(options.out, _merged(options.merge, options.machine))
        return 0
    record = _resumed(options.out)
    rows: dict[str, dict[str, Any]] = {row["problem"]: row for row in record["problems"]}
    wanted = _wanted(options)
    end = time.monotonic() + options.seconds
    with Evaluator(Target(options.target), options.work_dir, device=options.device) as evaluator:
        for suite, name in wanted:
            if name in rows and not (options.again and rows[name]["verdict"] not in _HELD):
                continue
            if time.monotonic() > end:
                break
            judged = _judged(evaluator, name, options)
            rows[name] = {"suite": suite, "problem": name, **judged, "commit": record["commit"][:_COMMIT_CHARACTERS]}
            say(json.dumps(rows[name]))
            record["problems"] = sorted(rows.values(), key=lambda row: (row["suite"], row["problem"]))
            record["complete"] = all(name in rows for _, name in wanted)
            records.write(options.out, record)
    return 0 if all(name in rows and rows[name]["verdict"] in _HELD for _, name in wanted) else 1


def _merged(parts: list[Path], machine: str) -> dict[str, Any]:
    """Return one record of all parts' rows, of a problem that several have the last one's, without what each took."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in parts]
    rows = {row["problem"]: row for part in found for row in part["problems"]}
    kept = [{key: value for key, value in row.items() if not key.endswith("_seconds")} for row in rows.values()]
    return {
        "command": "; ".join(sorted({part["command"] for part in found})),
        "commit": "; ".join(sorted({part["commit"] for part in found})),
        "machine": machine or found[-1]["machine"],
        "begun": min(part["begun"] for part in found),
        "problems": sorted(kept, key=lambda row: (row["suite"], row["problem"])),
    }


_COMMIT_CHARACTERS = 12
_SIZES: dict[Target, Size] = {Target.CPU: "small", Target.CUDA: "full"}
_HELD = frozenset(verdict.value for verdict in Verdict if verdict.counts)


def _wanted(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return suite and name of the problems to judge, those of the chosen part."""
    part, parts = (int(number) for number in options.part.split("/"))
    chosen = [
        (suite, name if _typed(name) else name + options.suffix)
        for suite in options.suites
        for name in problems.names(suite)
        if not options.problems or name in options.problems
    ]
    return chosen[part - 1 :: parts]


def _typed(name: str) -> bool:
    """Return whether a problem's tensors have 16 bits by its own file, so that no name asks for another type."""
    return name.startswith("half_")


def _judged(evaluator: Evaluator, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the best of a problem's first kernels: techniques, verdict, times and speedup over eager."""
    target = Target(options.target)
    problem = problems.load(name, size=_SIZES[target], policy=NumericsPolicy(options.policy))
    began = time.monotonic()
    prepared = evaluator.prepare(problem)
    seconds = round(time.monotonic() - began, 1)
    if prepared.preparation is None:
        assert prepared.failure is not None
        return {"kernel": "", "verdict": "not prepared", "failure": prepared.failure.message[:200]}
    placement = prepared.preparation.placement
    try:
        kernels = playbook_kernels(problem, prepared.preparation, target, options.kernels)
    except Exception as error:
        return {"kernel": "", "verdict": "no kernel", "failure": repr(error)[:200]}
    rows: list[dict[str, Any]] = [
        {"kernel": kernel.name, **_row(evaluator.evaluate(problem, prepared.preparation, kernel.kernel), placement)}
        for kernel in kernels
    ]
    best = max(rows, key=lambda row: (row["verdict"] in _HELD, row.get("speedup", [0.0])[0]), default=None)
    took = {"prepared_seconds": seconds, "judged_seconds": round(time.monotonic() - began - seconds, 1)}
    return {**(best or {"kernel": "", "verdict": "no kernel"}), **took}


def _row(evaluation: Evaluation, placement: Placement) -> dict[str, Any]:
    row: dict[str, Any] = {"verdict": evaluation.verdict.value}
    if evaluation.failure is not None:
        row["failure"] = f"{evaluation.failure.kind.value}: {evaluation.failure.message[:200]}"
    comparison = evaluation.comparison(Baseline.EAGER)
    if comparison is not None:
        row["speedup"] = [comparison.speedup.low, comparison.speedup.median, comparison.speedup.high]
        row["eager_us"] = comparison.baseline_us.median
        row["of_bound"] = placement.floor_share(comparison.kernel_us.median)
    return row


def _resumed(path: Path) -> dict[str, Any]:
    """Return the record so far, under today's command and commit."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"problems": []}
    return {**records.stamp(), "complete": False, "problems": before["problems"]}


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judged_coverage", description=(__doc__ or "")[:80])
    parser.add_argument("--suites", nargs="+", default=list(problems.SUITES), choices=list(problems.SUITES))
    parser.add_argument("--problems", nargs="+", default=[], help="names within the suites; all without")
    parser.add_argument("--suffix", default="", help="_bfloat16 or _float16: problems with tensors of that type")
    parser.add_argument("--part", default="1/1", help="I/N: every N-th problem, from the I-th on")
    parser.add_argument("--target", choices=[target.value for target in Target], default=Target.CPU.value)
    parser.add_argument("--policy", choices=[item.value for item in NumericsPolicy], default=NumericsPolicy.FP32.value)
    parser.add_argument("--device", help="GPU UUID or index")
    parser.add_argument(
        "--kernels", type=int, default=1, help="kernels of the playbook that are judged of each problem"
    )
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="records to put into one, judging nothing")
    parser.add_argument("--machine", default="", help="with --merge: the machine, in words")
    parser.add_argument("--seconds", type=float, default=3_600.0, help="begin no problem after so many")
    parser.add_argument("--again", action="store_true", help="judge anew what has no audited kernel yet")
    parser.add_argument("--work-dir", type=Path, default=Path(".cupilot/coverage"), help="builds and measured peaks")
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
