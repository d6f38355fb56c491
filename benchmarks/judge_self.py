"""A kernel against itself: how far the judge's speedup moves by itself: ``python -m benchmarks.judge_self``.

One and the same kernel is evaluated again and again, in a fresh runner each time, always against PyTorch; the ratio of
each two successive speedups would be exactly 1 for a perfect clock. Prints the quantiles of its distance from 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import pairwise
from typing import Any

from benchmarks.judge_kernels import kernels_for, problem_of
from benchmarks.judge_run import Record, arguments, judge, quantile, say
from cupilot.domain.problem import NumericsPolicy, Target
from gpu_worker.evaluator import Evaluator

PROBLEMS = ("gelu:1536x4096", "softmax:8192x4096", "layer_norm:49152x4096")
"""About 12, 65 and 400 us on an H200."""

WITHIN = 0.005
SHARES = (0.5, 0.9, 0.95, 1.0)


def main(argv: list[str] | None = None) -> int:
    """Run the measurement; 0 when something could be measured, whatever the result."""
    options = _options(argv)
    record = Record(options, "judge_self")
    began = time.monotonic()
    kernels: list[dict[str, Any]] = []
    with judge(options) as evaluator:
        for place, name in enumerate(options.problems, start=1):
            end = began + options.seconds * place / len(options.problems)
            kernel = _repeat(evaluator, name, options, record, end)
            if kernel is not None:
                kernels.append(kernel)
                record.add(kernels=kernels)
    ratios = [ratio for kernel in kernels for ratio in kernel["ratios"]]
    if not ratios:
        say("nothing could be measured")
        return 1
    say(f"\n{'all':<28}{_distances(ratios)}")
    record.add(complete=True, summary=_numbers(ratios))
    return 0


def _repeat(
    evaluator: Evaluator, name: str, options: argparse.Namespace, record: Record, end: float
) -> dict[str, Any] | None:
    problem = problem_of(name, options.size, NumericsPolicy(options.policy))
    result = evaluator.prepare(problem)
    preparation = result.preparation
    kernels = kernels_for(problem, preparation, Target(options.target), 1) if preparation else []
    if preparation is None or not kernels:
        say(f"{name}: {result.failure.message[:200] if result.failure else 'no kernel is known for it'}")
        return None
    record.machine(preparation)
    speedups: list[float] = []
    times: list[float] = []
    pairs: list[int] = []
    while len(speedups) <= options.repetitions and time.monotonic() < end:
        evaluation = evaluator.evaluate(problem, preparation, kernels[0].kernel)
        comparison = evaluation.comparison()
        if comparison is None:
            say(f"{name}: {evaluation.verdict.value}: {evaluation.failure and evaluation.failure.message[:200]}")
            break
        speedups.append(comparison.speedup.median)
        times.append(comparison.kernel_us.median)
        pairs.append(comparison.pairs)
        record.add(running={"problem": problem.name, "speedups": speedups, "kernel_us": times, "pairs": pairs})
    ratios = _ratios(speedups)
    if not ratios:
        return None
    say(f"{problem.name:<28}{_distances(ratios)}; {times[0]:.1f} us, kernel time alone: {_distances(_ratios(times))}")
    return {"problem": problem.name, "kernel": kernels[0].name, "speedups": speedups, "kernel_us": times,
            "pairs": pairs, "ratios": ratios, "summary": _numbers(ratios)}  # fmt: skip


def _ratios(values: list[float]) -> list[float]:
    return [second / first for first, second in pairwise(values)]


def _numbers(ratios: list[float]) -> dict[str, float]:
    distances = [abs(ratio - 1) for ratio in ratios]
    shares = {f"p{share * 100:.0f}": quantile(distances, share) for share in SHARES}
    return {"repetitions": len(ratios), "within_half_percent": sum(d <= WITHIN for d in distances) / len(ratios),
            **shares}  # fmt: skip


def _distances(ratios: list[float]) -> str:
    numbers = _numbers(ratios)
    quantiles = ", ".join(f"p{share * 100:.0f} {numbers[f'p{share * 100:.0f}']:.3%}" for share in SHARES)
    return f"{len(ratios)} ratios, {numbers['within_half_percent']:.0%} within 0.5 % of 1; {quantiles}"


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = arguments("judge_self", __doc__, PROBLEMS)
    parser.add_argument("--repetitions", type=int, default=50, help="ratios for each kernel")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
