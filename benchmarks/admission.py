"""Admits the built-in problems and prints the table: ``python -m benchmarks.admission``.

For each problem: the input laws that are meaningful for its reference with the tolerance that was calibrated for each,
the null kernels that were tried (all must be rejected), and what the judge noted. Times nothing that is worth quoting.
Needs torch, numpy, pydantic and a compiler, no service. One JSON record a problem goes to ``--out``; with ``--resume``
problems that stand admitted there, unchanged, are not admitted again.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.local_report import machine
from cupilot.domain import problems
from cupilot.domain.evaluation import PreparationResult
from cupilot.domain.problem import NumericsPolicy, Target
from gpu_worker.evaluator import Evaluator

HASH_CHARACTERS = 12


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 when every problem was admitted."""
    options = _options(arguments)
    rows: list[dict[str, Any]] = []
    head = {**records.stamp(), "size": options.size, "policy": options.policy}
    known = _known(options)
    with Evaluator(Target(options.target), options.work_dir, device=options.device) as evaluator:
        print(f"{'problem':<50}{'class':<12}{'laws: tolerance':<146}null kernels rejected")
        for name in options.problems or problems.names("level1"):
            problem = problems.load(name, size=options.size, policy=NumericsPolicy(options.policy))
            record = known.pop((name, problem.content_hash()[:HASH_CHARACTERS]), None)
            if record is None:
                result = evaluator.prepare(problem, timeout=options.timeout)
                record = _record(name, problem.content_hash(), result)
                if result.preparation is not None:
                    head["machine"] = machine(result.preparation.environment)
            rows.append(record)
            print("\n".join(_lines(record)), flush=True)
            if options.out:
                records.write(options.out, {**head, "problems": [*rows, *known.values()]}, tables=True)
    refused = [record["problem"] for record in rows if record["failure"]]
    print(f"{len(rows) - len(refused)} of {len(rows)} admitted, {datetime.now(UTC).date()}")
    if refused:
        print(f"refused: {', '.join(refused)}")
    return 1 if refused else 0


def _known(options: argparse.Namespace) -> dict[tuple[str, str], dict[str, Any]]:
    """Return records of problems admitted earlier under the same size and policy, by name and content."""
    if not options.resume or not options.out or not options.out.exists():
        return {}
    run = records.load(options.out)
    if (run["size"], run["policy"]) != (options.size, options.policy):
        return {}
    return {
        (problem["problem"], problem["problem_hash"]): problem for problem in run["problems"] if not problem["failure"]
    }


def _lines(record: dict[str, Any]) -> list[str]:
    name, failure, admission = record["problem"], record["failure"], record["admission"]
    if failure:
        return [f"{name:<50}REFUSED ({failure['kind']}): {failure['message']}"]
    tolerances = ", ".join(f"{law} {tolerance:.1e}" for law, tolerance in record["tolerances"].items())
    nulls = f"{sum(admission.values())}/{len(admission)} {' '.join(admission)}"
    notes = [f"{'':6}{note}" for note in record["notes"]]
    return [f"{name:<50}{record['op_class']:<12}{tolerances:<146}{nulls}", *notes]


def _record(name: str, problem_hash: str, result: PreparationResult) -> dict[str, Any]:
    known = result.preparation
    return {
        "problem": name,
        "problem_hash": problem_hash[:HASH_CHARACTERS],
        "failure": result.failure.model_dump(mode="json") if result.failure else None,
        "op_class": known.facts.op_class if known else None,
        "tolerances": {law: float(f"{most:.5g}") for law, most in known.tolerances.items()} if known else {},
        "admission": known.admission if known else {},
        "notes": list(known.notes) if known else [],
    }


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admission", description=__doc__)
    parser.add_argument("problems", nargs="*", help="names of built-in problems (default: all of level 1)")
    parser.add_argument("--target", default=Target.CPU.value, choices=[target.value for target in Target])
    parser.add_argument("--size", default="small", choices=["small", "full"], help="full needs a data-centre GPU")
    parser.add_argument("--policy", default="fp32", choices=[policy.value for policy in NumericsPolicy])
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a problem may take")
    parser.add_argument("--device", help="GPU UUID or index")
    parser.add_argument("--work-dir", type=Path, default=Path(".cupilot/work"), help="scratch and measured peaks")
    parser.add_argument("--resume", action="store_true", help="keep what stands admitted in --out")
    parser.add_argument("--out", type=Path, help="where the records go, as JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
