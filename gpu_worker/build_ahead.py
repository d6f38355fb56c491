"""Builds kernels before their turn, on the cores that no timing needs; an evaluation then finds its build done.

Nothing is returned: the build cache is where results go. A build that is under way is waited for, never made twice, and
may be ended at any time: nothing is then kept of it, least of all a failure.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from cupilot.domain.errors import InvalidPlan
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import ProblemFacts, Target
from cupilot.domain.value import digest
from gpu_worker.build import Builder
from gpu_worker.sandbox.child import Child, Finished
from gpu_worker.sandbox.limits import Limits
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.base import HostTarget, Program

BUILDS_AHEAD = {Target.CUDA: 4, Target.CPU: 0}
"""A build takes less than a measurement on a GPU; on a CPU it would disturb one."""

TIMING_CORES = 2
"""Judge and runner, where kernels do not run on the CPU."""

REMEMBERED = 256
"""Builds of which it is remembered that they were begun: many times what waits for one device."""


class BuildsEnded(OSError):
    """Builds were ended from outside; they say nothing about their kernels."""


def spare_cores(host: HostTarget) -> tuple[int, ...]:
    """Return cores that neither a timed kernel nor its baseline nor their hosts use."""
    available = sorted(os.sched_getaffinity(0))
    if host.cpus is None:
        return tuple(available[TIMING_CORES:])
    return tuple(core for core in available if core not in host.cpus)


class BuildAhead:
    """A queue of builds for one target; works on nothing where there are no spare cores. Threads may share it."""

    def __init__(self, builder: Builder, cores: tuple[int, ...]) -> None:
        self._builder = builder
        self._cores = cores
        self._lock = threading.Lock()
        self._builds: _Builds | None = None
        self._begun: dict[str, Future[None]] = {}

    def begin(self, kernels: Iterable[Kernel], facts: ProblemFacts) -> int:
        """Queue builds, in this order; how many. What was begun already is left out."""
        if not self._cores:
            return 0
        with self._lock:
            wanted = {_key(kernel, facts): kernel for kernel in kernels}
            fresh = {key: kernel for key, kernel in wanted.items() if key not in self._begun}
            if fresh and self._builds is None:
                self._builds = _Builds(self._builder, self._cores)
            for key, kernel in fresh.items():
                assert self._builds is not None
                self._begun[key] = self._builds.submit(kernel, facts)
            for key in list(self._begun)[:-REMEMBERED]:
                del self._begun[key]
        return len(fresh)

    def taken(self, kernel: Kernel, facts: ProblemFacts) -> bool:
        """Note that a kernel's turn has come: whether its build was begun before. One that only waits is called off."""
        with self._lock:
            begun = self._begun.pop(_key(kernel, facts), None)
        return begun is not None and not begun.cancel()

    def end(self, *, wait: bool = False) -> None:
        """Forget what is queued, and kill what is being built; with ``wait``, until nothing runs any more."""
        with self._lock:
            builds, self._builds, self._begun = self._builds, None, {}
        if builds is not None:
            builds.end(wait=wait)


class _Builds:
    """Threads that build, until they are ended."""

    def __init__(self, builder: Builder, cores: tuple[int, ...]) -> None:
        self._sandbox = _EndableSandbox(builder.sandbox.kind)
        self._builder = builder.within(self._sandbox)
        self._cores = cores
        self._pool = ThreadPoolExecutor(len(cores), "build-ahead")

    def submit(self, kernel: Kernel, facts: ProblemFacts) -> Future[None]:
        return self._pool.submit(self._build, kernel, facts)

    def end(self, *, wait: bool) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._sandbox.end()
        if wait:
            self._pool.shutdown(wait=True)

    def _build(self, kernel: Kernel, facts: ProblemFacts) -> None:
        with suppress(InvalidPlan, OSError):  # its evaluation will say so
            self._builder.build_kernel(kernel, facts, cores=self._cores)


class _EndableSandbox(Sandbox):
    """A sandbox whose programs can all be ended by another thread; then none says how it ended."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self._lock = threading.Lock()
        self._children: set[Child] = set()
        self._ended = False

    def run(self, program: Program, limits: Limits, timeout: float) -> Finished:
        child = self.start(program, limits)
        try:
            finished = child.wait(timeout)
        finally:
            with self._lock:
                self._children.discard(child)
            child.kill()
        if self._ended:
            raise BuildsEnded
        return finished

    def start(self, program: Program, limits: Limits, descriptors: Sequence[int] = ()) -> Child:
        with self._lock:
            if self._ended:
                raise BuildsEnded
            child = super().start(program, limits, descriptors)
            self._children.add(child)
        return child

    def end(self) -> None:
        """Kill what runs, and start nothing any more."""
        with self._lock:
            self._ended = True
            for child in self._children:
                child.end()


def _key(kernel: Kernel, facts: ProblemFacts) -> str:
    return digest([kernel.content_hash(), facts.content_hash()])
