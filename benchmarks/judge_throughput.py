"""Full evaluations of distinct kernels an hour, and where their time goes: ``python -m benchmarks.judge_throughput``.

A warm judge prepares a problem and evaluates several kernels of it, as a job does: build from a cold cache (on spare
cores, ahead of a kernel's turn), every law, audit, timing, verdict. Prints a line a kernel, the time by phase, build
times, and the rate with and without preparations. Needs torch, numpy, pydantic and a compiler (``cuda``:
cuda-bindings), no service.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.judge_kernels import NamedKernel, kernels_for, problem_of
from benchmarks.judge_run import Record, arguments, judge, phase_table, phases, say
from cupilot.domain.evaluation import Evaluation, Preparation
from cupilot.domain.problem import NumericsPolicy, Problem, Target
from gpu_worker.evaluator import Evaluator
from gpu_worker.sweep import PHASES, SCREENING

PROBLEMS = (
    "layer_norm_rows", "matmul", "cross_entropy_loss", "gelu", "max_pool2d", "softmax", "sum_reduction",
    "conv2d_alexnet", "mse_loss", "cumsum",
)  # fmt: skip
"""One or two of each family of level 1; at full size from 0.2 to 13 GB of compulsory traffic."""


def main(argv: list[str] | None = None) -> int:
    """Run the measurement; 0 when every kernel was judged and the machine never failed."""
    options = _options(argv)
    record = Record(options, "judge_throughput")
    run = _Throughput(options, record)
    with judge(options) as evaluator:
        for name in options.problems:
            if run.over():
                say(f"stopped before {name}: {options.seconds:.0f} s are over")
                break
            run.problem(evaluator, problem_of(name, options.size, NumericsPolicy(options.policy)))
    record.add(complete=True, summary=run.summary())
    return 0 if run.rows and not run.broken else 1


class _Throughput:
    """Measurements so far."""

    def __init__(self, options: argparse.Namespace, record: Record) -> None:
        self._options = options
        self._record = record
        self._began = time.monotonic()
        self._preparing: list[float] = []
        self._judging: list[float] = []
        """Wall seconds of each problem's kernels together."""
        self.rows: list[dict[str, Any]] = []
        self.broken = False

    def over(self) -> bool:
        """Return True if no evaluation may begin any more."""
        return time.monotonic() - self._began > float(self._options.seconds)

    def problem(self, evaluator: Evaluator, problem: Problem) -> None:
        """Prepare a problem and evaluate its kernels."""
        started = time.monotonic()
        result = evaluator.prepare(problem)
        seconds = time.monotonic() - started
        if result.preparation is None:
            assert result.failure is not None
            say(f"\n{problem.name}: not prepared in {seconds:.1f} s: {result.failure.message[:200]}")
            self.broken = True
            return
        preparation = result.preparation
        kernels = kernels_for(problem, preparation, Target(self._options.target), self._options.kernels)
        self._record.machine(preparation)
        say(f"\n{problem.name}: prepared in {seconds:.1f} s, {len(preparation.laws)} laws, "
            f"{preparation.facts.compulsory_bytes / 1e9:.2f} GB, eager {preparation.baseline_us.median:.1f} us, "
            f"{len(kernels)} kernels")  # fmt: skip
        started, before = time.monotonic(), len(self.rows)
        if not self._options.no_ahead:
            evaluator.build_ahead(preparation, [named.kernel for named in kernels])
        for kernel in kernels:
            if self.over():
                break
            self._kernel(evaluator, problem, preparation, kernel)
        if len(self.rows) > before:
            self._preparing.append(seconds)
            self._judging.append(time.monotonic() - started)
        self._record.add(kernels=self.rows, summary=self._numbers())

    def _kernel(self, evaluator: Evaluator, problem: Problem, preparation: Preparation, named: NamedKernel) -> None:
        began = time.monotonic()
        evaluation = evaluator.evaluate(problem, preparation, named.kernel)
        seconds = time.monotonic() - began
        row = _row(problem.name, named, evaluation, seconds)
        self.rows.append(row)
        say(_line(row))
        self._record.add(kernels=self.rows)

    def summary(self) -> dict[str, Any]:
        """Print the conclusion; the same numbers."""
        numbers = self._numbers()
        if not self.rows:
            say("no kernel was judged")
            return numbers
        say("")
        for line in phase_table([row["phases"] for row in self.rows], [row["seconds"] for row in self.rows]):
            say(line)
        say(f"\nverdicts  {', '.join(f'{count} {verdict}' for verdict, count in numbers['verdicts'].items())}")
        if numbers["build_seconds_median"] is not None:
            say(f"build     {numbers['build_seconds_median']:.3f} s median of {numbers['builds']} from a cold cache, "
                f"{numbers['build_phase_median']:.3f} s with reading the machine code")  # fmt: skip
        if numbers["sweep_points"]:
            say(f"sweep     {numbers['sweep_ms_a_point']:.0f} ms a point, the whole judgement of the fastest included, "
                f"over {numbers['sweep_points']} points of {numbers['swept_kernels']} kernels; "
                f"{numbers['sweep_ms_screened']:.0f} ms to screen one")  # fmt: skip
        say(f"rate      {numbers['per_hour']:.0f} evaluations an hour, median {numbers['seconds_median']:.2f} s each")
        say(f"          {numbers['per_hour_with_preparation']:.0f} an hour with the preparations of "
            f"{numbers['problems']} problems, {numbers['preparation_median']:.1f} s each")  # fmt: skip
        return numbers

    def _numbers(self) -> dict[str, Any]:
        if not self.rows:
            return {"evaluations": 0}
        builds = [row["build_seconds"] for row in self.rows if row["built_cold"]]
        judging, preparing = sum(self._judging), sum(self._preparing)
        counted = len(self.rows)
        return {
            "evaluations": counted,
            "problems": len(self._preparing),
            "distinct_binaries": len({row["binary"] for row in self.rows}),
            "verdicts": dict(Counter(row["verdict"] for row in self.rows)),
            "seconds_median": statistics.median(row["seconds"] for row in self.rows),
            "builds": len(builds),
            "build_seconds_median": statistics.median(builds) if builds else None,
            "build_phase_median": statistics.median(row["phases"].get("build", 0.0) for row in self.rows),
            "preparation_median": statistics.median(self._preparing) if self._preparing else 0.0,
            "per_hour": 3600 * counted / judging if judging else 0.0,
            **swept(self.rows),
            "per_hour_with_preparation": 3600 * counted / (judging + preparing) if judging else 0.0,
        }


def swept(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a point of a tunable sweep costs, in milliseconds.

    That is its phases, divided by the points that were tried beside the kernel's own, and the screening alone.
    """
    tried = [row for row in rows if row["sweep_points"]]
    points = sum(row["sweep_points"] for row in tried)
    seconds = {name: sum(row["phases"].get(name, 0.0) for row in tried) for name in PHASES}
    return {
        "swept_kernels": len(tried),
        "sweep_points": points,
        "sweep_ms_a_point": 1000 * sum(seconds.values()) / points if points else None,
        "sweep_ms_screened": 1000 * seconds[SCREENING] / points if points else None,
    }


def _row(problem: str, named: NamedKernel, evaluation: Evaluation, seconds: float) -> dict[str, Any]:
    comparison, build = evaluation.comparison(), evaluation.build
    failure = evaluation.failure
    return {
        "problem": problem,
        "kernel": named.name,
        "binary": build.binary_hash if build else None,
        "verdict": evaluation.verdict.value,
        "failure": f"{failure.kind.value}: {failure.message[:500]}" if failure else None,
        "kernel_us": comparison.kernel_us.median if comparison else None,
        "speedup": comparison.speedup.median if comparison else None,
        "pairs": comparison.pairs if comparison else 0,
        "laws": len(evaluation.laws),
        "sweep_points": max(len(evaluation.sweep) - 1, 0),
        "seconds": seconds,
        "phases": phases(evaluation),
        "build_seconds": build.seconds if build else None,
        "built_cold": bool(build and build.ok),
    }


def _line(row: dict[str, Any]) -> str:
    time_us = f"{row['kernel_us']:>10.1f} us {row['speedup']:>6.3f}x" if row["kernel_us"] else f"{'-':>21}"
    parts = " ".join(f"{name} {value:.2f}" for name, value in row["phases"].items())
    why = f"  ({row['failure'][:120]})" if row["failure"] else ""
    return f"  {row['verdict']:<12}{time_us}  {row['seconds']:5.2f} s ({parts})  {row['kernel']}{why}"


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = arguments("judge_throughput", __doc__, PROBLEMS)
    parser.add_argument("--kernels", type=int, default=6, help="distinct kernels a problem")
    parser.add_argument(
        "--no-ahead", action="store_true", help="build each kernel in its turn and by itself, as its build time wants"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
