"""Memory and clock of an imported file's process, by target: the judge's arena, memory for results, a block's time.

What the clock says is in the file's hands; the judge believes it within bounds (:mod:`gpu_worker.judge.overheads`).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from gpu_worker.targets.base import RunnerError
from gpu_worker.targets.cpu_memory import keep_freed_memory, map_arena
from gpu_worker.targets.cuda.head_start import FLUSHES_TIMED

if TYPE_CHECKING:
    from gpu_worker.targets.cuda.lent import Lent

HEAD_START_SECONDS = 1.2e-3
"""A file's first call takes 0.2 to 0.6 ms of the host after its process stood still, later ones a tenth of that;
twice as much is left for slower hosts."""

_clock = time.perf_counter


class Memory(Protocol):
    """The judge's arena, memory for results, and the clock of a block."""

    device: torch.device

    def map(self, handle: dict[str, Any], descriptors: Sequence[int]) -> torch.Tensor:
        """Return the arena as bytes; closes the descriptors."""
        ...

    def begin(self) -> None:
        """Start the clock of a block."""
        ...

    def end(self) -> float:
        """Wait for all that was launched, on every stream; return the seconds since the block began."""
        ...

    def touch(self) -> None:
        """Launch the least that can be launched."""
        ...

    def lend(self, handle: dict[str, Any], descriptors: Sequence[int]) -> Lent:
        """Map memory for results; closes the descriptors."""
        ...

    def apply(self, policy: str) -> None:
        """Apply the baseline's settings of PyTorch under this policy."""
        ...


class CpuMemory:
    """Shared memory in a file."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        keep_freed_memory()

    def map(self, handle: dict[str, Any], descriptors: Sequence[int]) -> torch.Tensor:
        """See :class:`Memory`."""
        return map_arena(handle, descriptors)

    def begin(self) -> None:
        """See :class:`Memory`."""
        self._began = _clock()

    def end(self) -> float:
        """Return the seconds; no call is asynchronous here, and the file's own threads are stopped from outside."""
        return _clock() - self._began

    def touch(self) -> None:
        """Do nothing: a call launches nothing."""

    def lend(self, handle: dict[str, Any], descriptors: Sequence[int]) -> Lent:  # noqa: ARG002
        """See :class:`Memory`."""
        raise RunnerError("infrastructure", "results on a CPU are copied")

    def apply(self, policy: str) -> None:
        """See :class:`Memory`."""
        torch.set_float32_matmul_precision("highest" if policy == "fp32" else "high")


class CudaMemory:
    """Device memory that the judge exported."""

    def __init__(self) -> None:
        from gpu_worker.targets.cuda import driver

        self.device = torch.device("cuda", 0)
        torch.cuda.set_device(self.device)
        self._driver = driver
        context = driver.Context()
        self._wait = context.synchronize
        self._shared: Any = None
        self._flush = torch.empty(2 * context.attribute("L2_CACHE_SIZE"), dtype=torch.uint8, device=self.device)
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._flushes = self._flushes_of_a_head_start()

    def map(self, handle: dict[str, Any], descriptors: Sequence[int]) -> torch.Tensor:
        """See :class:`Memory`."""
        size = int(handle["bytes"])
        self._shared = self._driver.SharedMemory.attach(descriptors[0], size)
        os.close(descriptors[0])
        return torch.as_tensor(self._driver.Adoptable(self._shared.pointer, size), device=self.device)

    def begin(self) -> None:
        """Keep the device busy while a file's first call is on its way, and start the clock behind that."""
        for _ in range(self._flushes):
            self._flush.fill_(0)
        self._start.record()

    def end(self) -> float:
        """See :class:`Memory`."""
        self._end.record()
        self._wait()
        return float(self._start.elapsed_time(self._end)) * 1e-3

    def touch(self) -> None:
        """See :class:`Memory`."""
        torch.zeros(1, device=self.device)

    def _flushes_of_a_head_start(self) -> int:
        self._flushes = FLUSHES_TIMED
        self.begin()  # once, before it is timed
        self.end()
        self._start.record()
        for _ in range(FLUSHES_TIMED):
            self._flush.fill_(0)
        return max(1, math.ceil(HEAD_START_SECONDS * FLUSHES_TIMED / self.end()))

    def lend(self, handle: dict[str, Any], descriptors: Sequence[int]) -> Lent:
        """See :class:`Memory`."""
        from gpu_worker.targets.cuda.lent import Lent

        size = int(handle["bytes"])
        shared = self._driver.SharedMemory.attach(descriptors[0], size)
        os.close(descriptors[0])
        return Lent(shared, size)

    def apply(self, policy: str) -> None:
        """See :class:`Memory`."""
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = policy != "fp32"
