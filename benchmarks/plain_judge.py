"""A judge for benchmarks that need verdicts and times only: it neither sweeps tunables nor counts by hardware counters.

Both would take most of a card's time, and say nothing about how a kernel as it was written does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from cupilot.domain.problem import Target
from gpu_worker.evaluator import Evaluator
from gpu_worker.targets.cuda import counters


@contextmanager
def plain_judge(
    target: Target, work_dir: Path, *, device: str | None = None, threads: int | None = None
) -> Iterator[Evaluator]:
    """Yield the judge; ``device`` is a GPU's UUID or index, ``threads`` are those of a CPU kernel."""
    with (
        mock.patch.object(counters, "profiler", return_value=None),
        Evaluator(target, work_dir, device=device, threads=threads, sweep=0) as judge,
    ):
        yield judge
