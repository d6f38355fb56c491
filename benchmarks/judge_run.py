"""Common parts of the judge's own benchmarks: options, the judge they open, records that survive a stop.

Hardware counters are no part of an evaluation's checks and timing, and take a profiler's start each; ``--counters``
includes them.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import records
from benchmarks.local_report import machine
from cupilot.domain.evaluation import Evaluation, Preparation
from cupilot.domain.problem import NumericsPolicy, Target
from gpu_worker.evaluator import Evaluator
from gpu_worker.targets.cuda import counters


def say(line: str) -> None:
    """Print a line at once: runs are watched through pipes, and may be cut off."""
    print(line, flush=True)


def arguments(name: str, doc: str, problems: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return a parser with the options of every script; ``problems`` are the default of those to choose."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=doc.splitlines()[0])
    parser.add_argument("--target", choices=[target.value for target in Target], default=Target.CUDA.value)
    parser.add_argument(
        "--policy", choices=[policy.value for policy in NumericsPolicy], default=NumericsPolicy.FP32.value
    )
    parser.add_argument("--size", choices=["small", "full"], default="full", help="size of built-in problems")
    parser.add_argument("--device", help="GPU UUID or index")
    parser.add_argument("--counters", action="store_true", help="read hardware counters in each evaluation too")
    parser.add_argument("--sweep", type=int, default=0, help="values of a kernel's tunables to try beside its own")
    parser.add_argument("--seconds", type=float, default=3_600, help="begin nothing new after this time")
    parser.add_argument("--work-dir", type=Path, default=Path(".cupilot/numbers"), help="builds and measured peaks")
    parser.add_argument("--out", type=Path, required=True, help="the record, as JSON, rewritten after every step")
    if problems:
        words = "built-in names, files, or gelu:8192x4096"
        parser.add_argument("--problems", nargs="+", default=list(problems), help=words)
    return parser


@contextmanager
def judge(options: argparse.Namespace) -> Iterator[Evaluator]:
    """Return an evaluator with a cold build cache, and without counters unless they were asked for."""
    shutil.rmtree(options.work_dir / "builds", ignore_errors=True)
    with ExitStack() as stack:
        if not options.counters:
            stack.enter_context(mock.patch.object(counters, "profiler", return_value=None))
        evaluator = Evaluator(Target(options.target), options.work_dir, device=options.device, sweep=options.sweep)
        yield stack.enter_context(evaluator)


class Record:
    """A JSON file that is complete after each write."""

    def __init__(self, options: argparse.Namespace, what: str, *, tables: bool = False) -> None:
        """Begin a record; ``tables`` as :func:`benchmarks.records.write` takes it."""
        shown = {
            name: str(value) for name, value in vars(options).items() if name not in ("out", "work_dir", "from_pytest")
        }
        head = {name: value for name, value in records.stamp().items() if name != "machine"}
        self.data: dict[str, Any] = {**head, "what": what, "options": shown, "complete": False}
        self._out: Path = options.out
        self._tables = tables

    def add(self, **more: Any) -> None:
        """Say more, and write all."""
        self.data.update(more)
        records.write(self._out, self.data, tables=self._tables)

    def machine(self, preparation: Preparation) -> None:
        """Name the machine, once."""
        if "machine" not in self.data:
            line = machine(preparation.environment)
            say(f"machine  {line}")
            self.add(machine=line)


def phases(evaluation: Evaluation) -> dict[str, float]:
    """Return seconds by phase; phases that come twice are added up."""
    seconds: dict[str, float] = {}
    for phase in evaluation.phases:
        seconds[phase.name] = seconds.get(phase.name, 0.0) + phase.seconds
    return seconds


def phase_shares(
    evaluations: Sequence[dict[str, float]], totals: Sequence[float]
) -> list[tuple[str, float, float, float]]:
    """Return where the time of several evaluations went, the longest phase first.

    A row a phase: name, mean and median seconds, share of all.
    """
    names = sorted(
        {name for seconds in evaluations for name in seconds},
        key=lambda name: -sum(seconds.get(name, 0.0) for seconds in evaluations),
    )
    rest = [total - sum(seconds.values()) for seconds, total in zip(evaluations, totals, strict=True)]
    columns = [*((name, [seconds.get(name, 0.0) for seconds in evaluations]) for name in names), ("conclusion", rest)]
    whole = sum(totals) or 1.0
    return [
        (name, statistics.fmean(values), statistics.median(values), sum(values) / whole) for name, values in columns
    ]


def phase_table(evaluations: Sequence[dict[str, float]], totals: Sequence[float]) -> list[str]:
    """Return the lines of a table of :func:`phase_shares`."""
    lines = [f"{'phase':<18}{'mean s':>8}{'median s':>10}{'share':>8}"]
    for name, mean, median, share in phase_shares(evaluations, totals):
        lines.append(f"{name:<18}{mean:>8.3f}{median:>10.3f}{share:>8.1%}")
    return lines


def quantile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that at least this share of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]
