"""The ``cpu`` target in the judge: shared memory in a sealed memory file, PyTorch on the CPU, the wall clock."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from cupilot.domain.problem import NumericsPolicy
from gpu_worker.judge.refusal import out_of_memory
from gpu_worker.targets.base import DeviceState, GraphUnavailable
from gpu_worker.targets.cpu_memory import keep_freed_memory, map_arena

FLUSH_FACTOR = 2
"""Twice the last-level cache is read and written to evict it, as triton's and nvbench's flushes do."""

CLOCK_TOLERANCE = 0.1
"""The runner's own clock may differ from the judge's by this share..."""

WAIT_FACTOR = 4.0
WAIT_QUANTILE = 0.9
"""...and by so many times what messages and scheduling take now: this quantile of the waits for PyTorch's blocks, which
go through a process without any code of the kernel's. An order is told in up to three parts."""

LEAST_SLACK_SECONDS = 2e-4
"""Of an idle machine, where a message and its answer take 0.05 ms."""

CLOCK_SLACK_SECONDS = 0.002
"""At most, and as long as fewer than :data:`FEWEST_WAITS` are known: a quarter of a block, which a kernel could use."""

WAITS = 64
FEWEST_WAITS = 6
"""The last so many waits count, where there are as many as this."""

BLOCK_SECONDS = 0.008
"""A message to the runner and back takes 0.05 ms on an idle machine: under 1 % of this."""

LEAST_COLD_START_SECONDS = 5e-4
"""Besides a block's order and answer, a first launch wakes the kernel's threads and finds its code in no cache."""

PRECISION = 0.015
"""A machine with other work to do seldom times more exactly within a second."""


class CpuArena:
    """Shared memory of judge and runner: a memory file that nobody can shrink under the other."""

    def __init__(self, size: int) -> None:
        descriptor = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._close = weakref.finalize(self, os.close, descriptor)
        os.ftruncate(descriptor, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.bytes = torch.frombuffer(memory, dtype=torch.uint8)
        self.handle: dict[str, Any] = {"size": size}
        self.descriptors = (descriptor,)

    def close(self) -> None:
        """Drop the file; the mapping goes with its last tensor."""
        self._close()
        self.bytes = torch.empty(0, dtype=torch.uint8)


class CpuArenaView:
    """An arena of another process; see :class:`gpu_worker.targets.base.AttachedArena`."""

    def __init__(self, handle: dict[str, Any], descriptors: Sequence[int]) -> None:
        self.bytes = map_arena(handle, descriptors)

    def close(self) -> None:
        """Drop this reference to the mapping."""
        self.bytes = torch.empty(0, dtype=torch.uint8)


class CpuJudgeDevice:
    """See :class:`gpu_worker.targets.base.JudgeDevice`."""

    def __init__(self, threads: int, cache_bytes: int, memory_bytes: int) -> None:
        self.torch_device = torch.device("cpu")
        self.cache_bytes = cache_bytes
        self.memory_bytes = memory_bytes
        self.block_seconds = BLOCK_SECONDS
        self.precision = PRECISION
        self._waits: deque[float] = deque(maxlen=WAITS)
        self._slack = self.cold_start_seconds = CLOCK_SLACK_SECONDS
        self.graph_below_seconds = 0.0
        self.lends = False
        torch.set_num_threads(threads)
        keep_freed_memory()
        self._flush = torch.zeros(FLUSH_FACTOR * cache_bytes // 4, dtype=torch.float32)

    def allocate(self, size: int) -> CpuArena:
        """Return a new arena. Raises :class:`torch.OutOfMemoryError`."""
        try:
            return CpuArena(size)
        except OSError as error:
            if not out_of_memory(error):
                raise
            raise torch.OutOfMemoryError(f"out of memory: no room for {size} bytes to share") from error

    def attach(self, handle: dict[str, Any], descriptors: Sequence[int]) -> CpuArenaView:
        """Map a memory file."""
        return CpuArenaView(handle, descriptors)

    def release_unused(self) -> None:
        """Do nothing: freed memory is kept on purpose (:func:`gpu_worker.targets.cpu_memory.keep_freed_memory`)."""

    def free_bytes(self) -> float:
        """Return no bound: each process has a limit of its own."""
        return math.inf

    @contextmanager
    def policy(self, policy: NumericsPolicy) -> Iterator[None]:
        """Set PyTorch's numerics: ``tf32`` changes nothing without such units; ``half`` is autocast to bfloat16."""
        torch.set_float32_matmul_precision("highest" if policy is NumericsPolicy.FP32 else "high")
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=policy is NumericsPolicy.HALF):
            yield

    def synchronize(self) -> None:
        """Do nothing: no call is asynchronous here."""

    def flush_cache(self) -> None:
        """Read and write more than the last-level cache holds, on all threads."""
        self._flush.add_(1.0)

    def baseline_seconds(self, calls: Sequence[Callable[[], object]]) -> float:
        """Return wall time of the calls."""
        started = time.perf_counter()
        for call in calls:
            call()
        return time.perf_counter() - started

    def captured(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:  # noqa: ARG002
        """Raise: calls on a CPU have no graph."""
        raise GraphUnavailable("the cpu has no graphs")

    def distrusting(self) -> CpuJudgeDevice:
        """Return this device: here the judge's clock counts anyway."""
        return self

    def state(self) -> DeviceState:
        """Return nothing: a virtual CPU reports none, and the baseline beside each block is slowed alike."""
        return DeviceState()

    def shared(self) -> bool:
        """Return False: processes that share a core wait now and then, for which the check of clocks allows."""
        return False

    def baseline_time(self, host: float, reported: float) -> float | None:
        """Return the judge's wall time, as for kernels: one clock for both sides. Learn how noisy waiting is."""
        self._waits.append(max(0.0, host - reported))
        if len(self._waits) >= FEWEST_WAITS:
            wait = sorted(self._waits)[int(WAIT_QUANTILE * (len(self._waits) - 1))]
            self._slack = min(CLOCK_SLACK_SECONDS, max(LEAST_SLACK_SECONDS, WAIT_FACTOR * wait))
            self.cold_start_seconds = max(LEAST_COLD_START_SECONDS, self._slack)
        return host

    def kernel_seconds(
        self,
        host: float,
        runner: float,
        launches: int,  # noqa: ARG002
        overhead: float = 0.0,  # noqa: ARG002
    ) -> float | None:
        """Return the judge's wall time: the runner's clock is in the kernel's hands and only has to agree."""
        if abs(host - runner) > CLOCK_TOLERANCE * host + self._slack:
            return None
        return host
