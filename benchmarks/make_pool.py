"""Makes a real strategy pool with playbook jobs on built-in problems: ``python -m benchmarks.make_pool --out FILE``.

Each job is a generation of the playbook's first strategies, judged as always; jobs do not learn from each other, so
that what one problem has measured says nothing about what retrieval picked for another. Kernels are judged as they are
written, without sweeps, and no winner is confirmed: every strategy counts alike. The entries are written as they come,
as lines that ``cupilot pool import`` and ``python -m benchmarks.retrieval`` read.
"""

from __future__ import annotations

import argparse
import re
import sys
import uuid
from pathlib import Path
from typing import Literal

from agents.playbook import agents
from benchmarks.evolve_local import Progress, say
from benchmarks.plain_judge import plain_judge
from cupilot.domain import problems
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import Budgets, JobSpec
from cupilot.domain.pool import PoolEntry
from cupilot.domain.problem import Problem, Target
from cupilot.storage.pool.transfer import line_of
from workers.local.job import LocalJob
from workers.local.pool import LocalPool

PROBLEMS = (
    "softmax",
    "relu",
    "log_softmax",
    "gelu",
    "layer_norm_rows",
    "sigmoid",
    "rms_norm_rows",
    "swish",
    "l2_norm",
    "tanh",
    "l1_norm",
    "sum_reduction",
    "max_reduction",
    "mean_reduction",
)
LEAST = 32
"""Smallest size that a shrunken problem has along any axis."""
NAMESPACE = uuid.UUID(int=0xC0)


class Collector(LocalPool):
    """A listener that keeps entries, and writes all of them each time."""

    def __init__(self, out: Path) -> None:
        super().__init__()
        self._out = out
        self._kept: dict[str, PoolEntry] = {}

    def add(self, entry: PoolEntry) -> None:
        """Remember an entry, under an id that a pool takes."""
        key = str(uuid.uuid5(NAMESPACE, entry.id))
        self._kept[key] = entry.model_copy(update={"id": key})
        self._out.write_text("".join(line_of(entry) + "\n" for entry in self._kept.values()), encoding="utf-8")


def main() -> int:
    """Run the jobs one after the other; 0 when all were run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.make_pool", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where the entries go, as lines of JSON")
    parser.add_argument("--problem", nargs="+", default=list(PROBLEMS), help="names of built-in problems")
    parser.add_argument("--population", type=int, default=10, help="strategies a problem")
    parser.add_argument("--seconds", type=float, default=600, help="begin no strategy after this time, a problem")
    parser.add_argument("--target", choices=[target.value for target in Target], default=Target.CPU.value)
    parser.add_argument("--size", choices=["small", "full"], default="small", help="of the problems")
    parser.add_argument("--shrink", type=int, default=1, help="divide the problems' small sizes by this")
    parser.add_argument("--device", help="GPU UUID or index")
    parser.add_argument("--threads", type=int, help="CPU threads for kernel and baseline alike")
    parser.add_argument("--work-dir", type=Path, default=Path(".cupilot/local"))
    options = parser.parse_args()
    target = Target(options.target)
    method = SceConfig(population=options.population, generations=1, elites=1, pool=False)
    collector = Collector(options.out)
    with plain_judge(target, options.work_dir, device=options.device, threads=options.threads) as judge:
        for name in options.problem:
            problem = _sized(name, options.size, options.shrink)
            say(f"\n#### {name}")
            budgets = Budgets(wall_seconds=options.seconds)
            spec = JobSpec(problem=problem, target=target, method=method, budgets=budgets)
            LocalJob(spec, judge, agents(), collector, Progress(lambda: None), confirms=False).run()
    return 0


def _sized(name: str, size: Literal["small", "full"], shrink: int) -> Problem:
    """Return a built-in problem with divided sizes: slow machines need many evaluations, not large ones."""
    problem = problems.load(name, size=size)
    sizes = re.compile(r"^([A-Z]+ = )(\d+)(?=  # small|$)", re.MULTILINE)
    source = sizes.sub(lambda match: f"{match[1]}{max(int(match[2]) // shrink, LEAST)}", problem.source)
    return Problem(name=name, source=source, policy=problem.policy)


if __name__ == "__main__":
    sys.exit(main())
