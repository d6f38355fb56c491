"""The judge's kernel times against Nsight Compute's ``gpu__time_duration``: ``python -m benchmarks.judge_against_ncu``.

For each kernel: the evaluation's time; Nsight Compute's, of the same binary launched over rotating slots as the judge
launches it, caches left as launches leave them; Nsight Compute's with caches flushed and invalidated before each
launch, its default; and the same replay timed by events without a profiler. Clocks are left alone. The flushed duration
leaves out what a launch still owes to memory when it ends: output that lies in the cache and is written back during the
next.
Needs ``ncu`` and a driver that lets it in.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import rotating_replay
from benchmarks.judge_kernels import NamedKernel, kernels_for, problem_of
from benchmarks.judge_run import Record, arguments, judge, say
from cupilot.domain.evaluation import Preparation
from cupilot.domain.header import render
from cupilot.domain.kernel import ResolvedPlan, resolve
from cupilot.domain.problem import DType, NumericsPolicy, Role, Target
from gpu_worker.build import Builder
from gpu_worker.evaluator import Evaluator
from gpu_worker.sandbox.files import SOURCE_ROOT
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.cuda import counters
from gpu_worker.targets.cuda.toolchain import CudaToolchain

PROBLEMS = (
    "gelu:8192x4096", "softmax:8192x4096", "layer_norm:8192x4096", "row_sum:16384x4096", "row_maximum:32768x4096",
    "log_softmax:24576x4096", "relu:49152x4096", "square:2048x2048",
)  # fmt: skip
"""From about 60 to 400 us on an H200: what is mostly read, what is read and written, and what computes."""

DURATION = "gpu__time_duration.sum"
CACHES = 6
"""Slots of a replay together hold this many last-level caches."""

BLOCK_SECONDS = 2e-3
"""Length of a block, the judge's own."""

SECONDS = 60.0
"""Longest that a profiler may take."""


@dataclass(frozen=True)
class _Replayed:
    """A kernel, built, and the environment that shows its GPU."""

    specification: dict[str, Any]
    names: Sequence[str]
    environment: dict[str, str]
    ncu: Path | None

    def measure(self) -> dict[str, float | None]:
        """Return microseconds a launch sequence: by events, and by the profiler with caches as left and flushed."""
        with tempfile.TemporaryDirectory(prefix="cupilot-ncu-") as folder:
            path = Path(folder) / "block.json"
            path.write_text(json.dumps(self.specification), encoding="utf-8")
            argv = [sys.executable, "-I", rotating_replay.__file__, str(SOURCE_ROOT), str(path)]
            return {
                "events_us": self._events(argv),
                "ncu_rotating_us": self._profiled(argv, "none"),
                "ncu_flushed_us": self._profiled(argv, "all"),
            }

    def _events(self, argv: Sequence[str]) -> float | None:
        done = self._run(argv)
        return statistics.median(json.loads(done)) * 1e6 if done else None

    def _profiled(self, argv: Sequence[str], caches: str) -> float | None:
        if self.ncu is None:
            return None
        names = "|".join(re.escape(name) for name in sorted(set(self.names)))
        block = len(self.names) * self.specification["slots"]
        table = self._run([
            str(self.ncu), "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
            "--cache-control", caches, "--kernel-name-base", "function", "--kernel-name", f"regex:^({names})$",
            "--launch-skip", str(block), "--launch-count", str(block), "--metrics", DURATION, *argv,
        ])  # fmt: skip
        return sequence_us(table, len(self.names))

    def _run(self, argv: Sequence[str]) -> str:
        try:
            done = subprocess.run(
                argv, env=self.environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            say(f"  {error}")
            return ""
        if done.returncode != 0:
            say(f"  {Path(argv[0]).name} ended with {done.returncode}: {(done.stderr or done.stdout)[-300:].strip()}")
            return ""
        return done.stdout


def main(argv: list[str] | None = None) -> int:
    """Run the comparison; 0 when every kernel was measured both ways."""
    options = _options(argv)
    record = Record(options, "judge_against_ncu")
    began = time.monotonic()
    rows: list[dict[str, Any]] = []
    say(
        f"{'kernel':<26}{'judge us':>10}{'ncu us':>10}{'added':>8}{'flushed':>10}{'added':>8}{'events':>10}{'added':>8}"
    )
    ncu = counters.profiler()
    with judge(options) as evaluator:
        for name in options.problems:
            if time.monotonic() - began > options.seconds:
                say(f"stopped before {name}")
                break
            row = _compare(evaluator, name, options, record, ncu)
            if row is not None:
                rows.append(row)
                record.add(kernels=rows)
    added = [row["added_over_rotating"] for row in rows if row["added_over_rotating"] is not None]
    if added:
        say(f"\nworst     {max(added, key=abs):+.2%} against rotating slots, of {len(added)} kernels")
    record.add(complete=True, summary={"kernels": len(rows), "worst": max(added, key=abs) if added else None})
    return 0 if len(added) == len(options.problems) else 1


def sequence_us(table: str, launches: int) -> float | None:
    """Return median microseconds of a launch sequence from ``ncu``'s table, a row a launch; None without one."""
    lines = [line for line in table.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))[1:]  # the first row holds units
    times = [float(row[DURATION].replace(",", "")) * 1e-3 for row in rows if row.get(DURATION)]
    whole = [sum(times[at : at + launches]) for at in range(0, len(times) - launches + 1, launches)]
    return statistics.median(whole) if whole else None


def slots_for(slot_bytes: int, cache_bytes: int, kernel_seconds: float, memory_bytes: int) -> int:
    """Return how many slots a block needs to exceed the cache and to last as long as one of the judge's."""
    wanted = max(math.ceil(CACHES * cache_bytes / slot_bytes), math.ceil(BLOCK_SECONDS / kernel_seconds), 4)
    return max(2, min(wanted, int(0.4 * memory_bytes) // slot_bytes))


def _compare(
    evaluator: Evaluator, name: str, options: argparse.Namespace, record: Record, ncu: Path | None
) -> dict[str, Any] | None:
    problem = problem_of(name, options.size, NumericsPolicy(options.policy))
    result = evaluator.prepare(problem)
    preparation = result.preparation
    kernels = kernels_for(problem, preparation, Target(options.target), 1) if preparation else []
    if preparation is None or not kernels:
        say(f"{name}: {result.failure.message[:200] if result.failure else 'no kernel is known for it'}")
        return None
    record.machine(preparation)
    evaluation = evaluator.evaluate(problem, preparation, kernels[0].kernel)
    comparison = evaluation.comparison()
    if comparison is None:
        say(f"{name}: {evaluation.verdict.value}: {evaluation.failure and evaluation.failure.message[:200]}")
        return None
    evaluator.close()
    judged = comparison.kernel_us.median
    replayed = _replayed(kernels[0], preparation, judged * 1e-6, options, ncu)
    times = replayed.measure() if replayed else {}
    row = {"problem": problem.name, "kernel": kernels[0].name, "judge_us": judged, "pairs": comparison.pairs, **times}
    for key in ("rotating", "flushed"):
        row[f"added_over_{key}"] = _added(judged, times.get(f"ncu_{key}_us"))
    row["added_over_events"] = _added(judged, times.get("events_us"))
    say(f"{problem.name:<26}{judged:>10.2f}{_pair(row, 'ncu_rotating_us', 'rotating')}"
        f"{_pair(row, 'ncu_flushed_us', 'flushed')}{_pair(row, 'events_us', 'events')}")  # fmt: skip
    return row


def _replayed(
    named: NamedKernel, preparation: Preparation, seconds: float, options: argparse.Namespace, ncu: Path | None
) -> _Replayed | None:
    """Return the judge's own binary, from the same cache; None on a target that no profiler can watch."""
    device, facts, kernel = preparation.environment.device, preparation.facts, named.kernel
    if device.target is not Target.CUDA:
        return None
    builder = Builder(CudaToolchain(device.arch), Sandbox(), options.work_dir.resolve() / "builds", device.arch)
    build = builder.build(kernel.source, render(facts, kernel.plan.values()))
    assert build.binary is not None
    plan: ResolvedPlan = resolve(kernel, facts)
    sizes = {spec.name: spec.storage_elements * spec.dtype.itemsize for spec in facts.tensors} | plan.workspace
    floats = [spec for spec in facts.tensors if spec.role is not Role.OUTPUT and spec.dtype is DType.FLOAT32]
    slots = slots_for(sum(sizes.values()), device.cache_bytes, seconds, device.memory_bytes)
    specification = {
        "binary": str(build.binary),
        "launches": [launch.model_dump(mode="json") for launch in plan.launches],
        "buffers": sizes,
        "floats": [spec.name for spec in floats],
        "slots": slots,
        "blocks": 9,
    }
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": device.uid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return _Replayed(specification, [launch.kernel for launch in plan.launches], environment, ncu)


def _added(judged: float, other: float | None) -> float | None:
    return judged / other - 1 if other else None


def _pair(row: dict[str, Any], value: str, added: str) -> str:
    if row.get(value) is None:
        return f"{'-':>10}{'-':>8}"
    return f"{row[value]:>10.2f}{row[f'added_over_{added}']:>+8.2%}"


def _options(argv: list[str] | None) -> argparse.Namespace:
    return arguments("judge_against_ncu", __doc__, PROBLEMS).parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
