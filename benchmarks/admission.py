"""Admits the built-in problems and prints the table: ``python -m benchmarks.admission``.

For each problem: the input laws that are meaningful for its reference with the tolerance that was calibrated for each,
the null kernels that were tried (all must be rejected), and what the judge noted. Times nothing that is worth quoting.
Needs torch, numpy, pydantic and a compiler, no service. One JSON record a problem goes to ``--out``.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.local_report import machine, write_json
from cupilot import problems
from cupilot.evaluation import PreparationResult
from cupilot.problem import NumericsPolicy, Target
from gpu_worker.evaluator import Evaluator


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 when every problem was admitted."""
    options = _options(arguments)
    records: list[dict[str, Any]] = []
    with Evaluator(Target(options.target), options.work_dir) as evaluator:
        print(f"{'problem':<50}{'class':<12}{'laws: tolerance':<146}null kernels rejected")
        for name in options.problems or problems.names("level1"):
            problem = problems.load(name, size=options.size, policy=NumericsPolicy(options.policy))
            result = evaluator.prepare(problem, timeout=options.timeout)
            records.append(_record(name, problem.content_hash(), result))
            print("\n".join(_lines(name, result)), flush=True)
            if options.out:
                write_json(options.out, {"size": options.size, "policy": options.policy, "problems": records})
    refused = [record["problem"] for record in records if record["failure"]]
    print(f"{len(records) - len(refused)} of {len(records)} admitted, {datetime.now(UTC).date()}")
    if refused:
        print(f"refused: {', '.join(refused)}")
    return 1 if refused else 0


def _lines(name: str, result: PreparationResult) -> list[str]:
    if result.preparation is None:
        assert result.failure is not None
        return [f"{name:<50}REFUSED ({result.failure.kind.value}): {result.failure.message}"]
    known = result.preparation
    tolerances = ", ".join(f"{law} {tolerance:.1e}" for law, tolerance in known.tolerances.items())
    nulls = f"{sum(known.admission.values())}/{len(known.admission)} {' '.join(known.admission)}"
    return [f"{name:<50}{known.facts.op_class:<12}{tolerances:<146}{nulls}", *(f"{'':6}{note}" for note in known.notes)]


def _record(name: str, problem_hash: str, result: PreparationResult) -> dict[str, Any]:
    known = result.preparation
    return {
        "problem": name,
        "problem_hash": problem_hash,
        "failure": result.failure.model_dump(mode="json") if result.failure else None,
        "op_class": known.facts.op_class if known else None,
        "tolerances": known.tolerances if known else {},
        "admission": known.admission if known else {},
        "notes": list(known.notes) if known else [],
        "machine": machine(known.environment) if known else None,
    }


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admission", description=__doc__)
    parser.add_argument("problems", nargs="*", help="names of built-in problems (default: all of level 1)")
    parser.add_argument("--target", default=Target.CPU.value, choices=[one.value for one in Target])
    parser.add_argument("--size", default="small", choices=["small", "full"], help="full needs a data-centre GPU")
    parser.add_argument("--policy", default="fp32", choices=[one.value for one in NumericsPolicy])
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a problem may take")
    parser.add_argument("--work-dir", type=Path, default=Path(".cupilot/work"), help="scratch and measured peaks")
    parser.add_argument("--out", type=Path, help="where the records go, as JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
