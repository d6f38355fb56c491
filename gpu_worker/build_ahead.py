"""Builds kernels before their turn, on the cores that no timing needs; an evaluation then finds its build done.

Nothing is returned: the build cache is where results go. A build that is under way is waited for, never made twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from cupilot.errors import InvalidPlan
from cupilot.kernel import Kernel
from cupilot.problem import ProblemFacts
from gpu_worker.build import Builder
from gpu_worker.targets.base import HostTarget

TIMING_CORES = 2
"""Judge and runner, where kernels do not run on the CPU."""


def spare_cores(host: HostTarget) -> tuple[int, ...]:
    """Cores that neither a timed kernel nor its baseline nor their hosts use."""
    available = sorted(os.sched_getaffinity(0))
    if host.cpus is None:
        return tuple(available[TIMING_CORES:])
    return tuple(core for core in available if core not in host.cpus)


class BuildAhead:
    """A queue of builds for one target; works on nothing where there are no spare cores."""

    def __init__(self, builder: Builder, cores: tuple[int, ...]) -> None:
        self._builder = builder
        self._cores = cores
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, kernels: Iterable[Kernel], facts: ProblemFacts) -> int:
        """Queue builds, in this order; how many."""
        if not self._cores:
            return 0
        if self._pool is None:
            self._pool = ThreadPoolExecutor(len(self._cores), "build-ahead")
        return len([self._pool.submit(self._build, kernel, facts) for kernel in kernels])

    def close(self) -> None:
        """Forget what is queued, and wait for what is being built."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = None

    def _build(self, kernel: Kernel, facts: ProblemFacts) -> None:
        with suppress(InvalidPlan, OSError):  # its evaluation will say so
            self._builder.build_kernel(kernel, facts, cores=self._cores)
