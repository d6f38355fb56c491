"""The cuda half of the judge process: shared arenas, PyTorch under a policy, the judge's own clock.

Holds no laws, tolerances or verdicts. The process sees one GPU only (``CUDA_VISIBLE_DEVICES`` names it by UUID).
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from cupilot.domain.errors import CupilotError
from cupilot.domain.problem import NumericsPolicy
from gpu_worker.targets.base import DeviceState
from gpu_worker.targets.cuda import driver
from gpu_worker.targets.cuda.graphs import Capturer
from gpu_worker.targets.cuda.head_start import FLUSHES_TIMED, JUDGE_SECONDS, RUNNER_SECONDS, HeadStart
from gpu_worker.targets.cuda.nvml import Nvml

MEMORY_SHARE = 0.4
"""Of the memory that is free at the start, for cases and slots; the rest is for the runner, draws of inputs and float64
temporaries, of which a problem with 8 GB of inputs needs 60 GB."""

MESSAGE_SECONDS = 1e-3 + RUNNER_SECONDS
"""Longest that a command to the runner takes apart from its launches: a message each way, cache flushes, one wait."""

BLOCK_SECONDS = 2e-3
"""Length of a timed block: long against a submission and the events' resolution, short against drifts of clocks."""

COLD_START_SECONDS = 8e-6
"""Instructions to be fetched, and dirty lines of the flush in front of a block to be written back."""

PRECISION = 0.002
"""So that the ratio of two measurements of one kernel is within half a percent of 1."""

SUBMIT_SECONDS = 10e-6
"""Longest that the host takes to submit one launch; measured 3.5 us on an H200 box."""

GRAPH_BELOW_SECONDS = 50e-6
"""A launch costs the host 3.5 us in the runner and 5 to 10 us an operator in PyTorch: below a few times that, the side
that is the shorter would wait for its host."""

CLOCK_TOLERANCE = 0.02
"""Relative; rates of the device's and the host's clock differ by far less."""

PROBES = 12
"""Blocks of the judge's own work that tell whether it is alone on the device."""

WALL_BLOCK_SECONDS = 20e-3
"""Length of a block that the judge's clock times: a message and a wait (0.1 to 0.2 ms) are 1 % of it."""

WALL_SLACK_SECONDS = 2e-3
"""Longest that it takes to start a block, messages and scheduling included."""


class _Mapping:
    """Shared device memory, mapped as bytes."""

    def __init__(self, memory: driver.SharedMemory, size: int, device: torch.device) -> None:
        self._memory: driver.SharedMemory | None = memory
        self.bytes = torch.as_tensor(driver.Adoptable(memory.pointer, size), device=device)

    def close(self) -> None:
        """Unmap it; tensors that lie in it must not be used any more."""
        if self._memory is not None:
            torch.cuda.synchronize(self.bytes.device)
            self.bytes = torch.empty(0, dtype=torch.uint8)
            self._memory.close()
            self._memory = None


class CudaArena(_Mapping):
    """Device memory that the judge owns and the runner maps."""

    def __init__(self, size: int, device: torch.device) -> None:
        memory = driver.SharedMemory.create(size)
        super().__init__(memory, size, device)
        self.handle: dict[str, Any] = {"bytes": size}
        self.descriptors: tuple[int, ...] = (memory.export(),)

    def close(self) -> None:
        """Release the memory; a runner's mapping keeps it alive until the runner ends."""
        super().close()
        descriptors, self.descriptors = self.descriptors, ()
        for descriptor in descriptors:
            os.close(descriptor)


class CudaArenaView(_Mapping):
    """An arena of another process; see :class:`gpu_worker.targets.base.AttachedArena`."""

    def __init__(self, handle: dict[str, Any], descriptors: Sequence[int], device: torch.device) -> None:
        size = int(handle["bytes"])
        memory = driver.SharedMemory.attach(descriptors[0], size)
        for descriptor in descriptors:
            os.close(descriptor)
        super().__init__(memory, size, device)


class CudaJudge:
    """A :class:`gpu_worker.targets.base.JudgeDevice` on the only visible GPU."""

    def __init__(self) -> None:
        self.torch_device = torch.device("cuda", 0)
        torch.cuda.set_device(self.torch_device)
        self._context = driver.Context()
        self._nvml = _nvml(driver.device_uuid(self._context.device))
        self.block_seconds = BLOCK_SECONDS
        self.precision = PRECISION
        self.cold_start_seconds = COLD_START_SECONDS
        self.graph_below_seconds = GRAPH_BELOW_SECONDS
        self.lends = True
        self._capturer = Capturer(self.torch_device)
        self._trusting = True
        self.cache_bytes = self._context.attribute("L2_CACHE_SIZE")
        self._flush = torch.empty(2 * self.cache_bytes, dtype=torch.uint8, device=self.torch_device)
        flush_seconds = self._flush_seconds()
        self._head_start = HeadStart(flush_seconds, JUDGE_SECONDS)
        self._probe_flushes = math.ceil(BLOCK_SECONDS / flush_seconds)
        self.memory_bytes = int(torch.cuda.mem_get_info(self.torch_device)[0] * MEMORY_SHARE)

    def allocate(self, size: int) -> CudaArena:
        """Allocate an arena outside of PyTorch's pool, which therefore releases what it does not use.

        Raises :class:`torch.OutOfMemoryError`, as an allocation of PyTorch's own does.
        """
        torch.cuda.empty_cache()
        try:
            return CudaArena(size, self.torch_device)
        except driver.DriverError as error:
            if error.code != "OUT_OF_MEMORY":
                raise
            raise torch.OutOfMemoryError(f"CUDA out of memory: no room for {size} bytes to share") from error

    def attach(self, handle: dict[str, Any], descriptors: Sequence[int]) -> CudaArenaView:
        """Map another process's arena."""
        return CudaArenaView(handle, descriptors, self.torch_device)

    def release_unused(self) -> None:
        """Empty PyTorch's pool."""
        torch.cuda.empty_cache()

    def free_bytes(self) -> float:
        """Return how much memory is free, as the driver says."""
        return float(torch.cuda.mem_get_info(self.torch_device)[0])

    @contextmanager
    def policy(self, policy: NumericsPolicy) -> Iterator[None]:
        """Set PyTorch's numerics under a policy: TF32 off under ``fp32``; bf16 autocast under ``half``."""
        tf32 = policy is not NumericsPolicy.FP32
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        before = matmul.allow_tf32, cudnn.allow_tf32
        matmul.allow_tf32 = cudnn.allow_tf32 = tf32
        half = policy is NumericsPolicy.HALF
        try:
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=half):
                yield
        finally:
            matmul.allow_tf32, cudnn.allow_tf32 = before

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        torch.cuda.synchronize(self.torch_device)

    def flush_cache(self) -> None:
        """Evict the L2 cache by writing twice its size."""
        self._flush.zero_()

    def baseline_seconds(self, calls: Sequence[Callable[[], object]]) -> float:
        """Run the calls back to back behind cache flushes, as the runner does; device seconds for all of them."""
        self.synchronize()
        for _ in range(self._head_start.flushes()):
            self.flush_cache()
        start, end = _event(), _event()
        start.record()
        submitting = time.perf_counter()
        for call in calls:
            call()
        end.record()
        self._head_start.record(time.perf_counter() - submitting)
        return _seconds(start, end)

    def _flush_seconds(self) -> float:
        self.flush_cache()
        start, end = _event(), _event()
        start.record()
        for _ in range(FLUSHES_TIMED):
            self.flush_cache()
        end.record()
        return _seconds(start, end) / FLUSHES_TIMED

    def captured(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """See :class:`gpu_worker.targets.base.JudgeDevice`."""
        return self._capturer.capture(calls)

    def state(self) -> DeviceState:
        """Return NVML's readings."""
        return DeviceState() if self._nvml is None else self._nvml.state()

    def distrusting(self) -> CudaJudge:
        """Return the same device for a runner whose clock is in the kernel's hands: the judge's wall clock decides."""
        other = copy.copy(self)
        other.block_seconds = WALL_BLOCK_SECONDS
        other.cold_start_seconds = WALL_SLACK_SECONDS
        other.graph_below_seconds = 0.0
        other._trusting = False
        return other

    def kernel_seconds(self, host: float, runner: float, launches: int, overhead: float = 0.0) -> float | None:
        """Return the runner's device time, if the judge's wall clock bears it out; all in seconds.

        Where it is in a file's hands, it is believed as far as an empty block's ``overhead`` explains the difference.
        """
        longest = host * (1 + CLOCK_TOLERANCE)
        if not self._trusting:
            return max(runner, host - overhead) if 0 < runner <= longest else None
        shortest = host * (1 - CLOCK_TOLERANCE) - (MESSAGE_SECONDS + launches * SUBMIT_SECONDS)
        return runner if shortest <= runner <= longest else None

    def baseline_time(self, host: float, reported: float) -> float | None:
        """Return the reference process's device time, unless it is longer than the judge waited; both in seconds."""
        return reported if 0 < reported <= host * (1 + CLOCK_TOLERANCE) else None

    def shared(self) -> bool:
        """Return whether the judge's own work has to wait for its turn, too, as kernels of another process make it.

        False where the runner holds others' host code: that process may be the runner itself.
        """
        if not self._trusting:
            return False
        return sum(self._waits() for _ in range(PROBES)) > PROBES / 2

    def _waits(self) -> bool:
        self.synchronize()
        began = time.perf_counter()
        start, end = _event(), _event()
        start.record()
        for _ in range(self._probe_flushes):
            self.flush_cache()
        end.record()
        seconds = _seconds(start, end)
        return self.kernel_seconds(time.perf_counter() - began, seconds, self._probe_flushes) is None


def _nvml(uuid: str) -> Nvml | None:
    """Open NVML; None where it is missing or does not know the card: then throttling goes unseen."""
    try:
        return Nvml(uuid)
    except CupilotError:
        return None


def _event() -> torch.Event:
    return torch.Event("cuda", enable_timing=True)


def _seconds(start: torch.Event, end: torch.Event) -> float:
    """Wait for the later event, and return the seconds between the two."""
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3
