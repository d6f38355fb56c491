"""Memory that the judge lends an imported file's process for results, which so need not be copied to be read.

A memory pool of PyTorch's whose segments lie in the judge's memory serves what ``forward`` allocates. What it returns
is kept alive, and the judge reads it in place; where nothing can be kept (a static buffer, a view of an input, a result
in another layout, no room), the caller copies. The rules are for honest files: the judge believes no place that it is
told, and poisons all that is said to be free before each block.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from gpu_worker.targets.base import RunnerError
from gpu_worker.targets.cuda import driver

REUSED = (
    "forward returned memory of a result that an earlier call had returned and that was not read yet; return a new "
    "tensor from each call, or the same buffer from the first call on"
)

MOST_RANGES = 2000
"""Free ranges that are told, the largest: results in others are copied."""

_Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_Free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


class Lent:
    """Lent memory, and the results that lie in it."""

    def __init__(self, shared: driver.SharedMemory, size: int) -> None:
        self._shared = shared
        self._start, self._size = shared.pointer, size
        self._used = 0
        self._callbacks = _Allocate(self._allocate), _Free(self._release)
        allocate, release = (ctypes.cast(callback, ctypes.c_void_p).value or 0 for callback in self._callbacks)
        self._pool = torch.cuda.MemPool(torch._C._cuda_customAllocator(allocate, release))
        self._routing = ExitStack()
        self._works = True
        self._kept: list[torch.Tensor] = []
        self._taken: set[int] = set()
        """Addresses of the storages that are kept."""
        self._free: list[tuple[int, int]] = []
        self._before_captures(self.stop)

    def _allocate(self, size: int, _device: int, _stream: int | None) -> int:
        """Return a segment for PyTorch, of the process's own memory where the lent is used up; 0 if there is none."""
        if self._used + size <= self._size:
            self._used += size
            return self._start + self._used - size
        try:
            return driver.allocate(size)
        except driver.DriverError:
            return 0

    def _release(self, pointer: int, _size: int, _device: int, _stream: int | None) -> None:
        """Free a segment that lies elsewhere; PyTorch gives back what a pool holds when the pool ends."""
        if not self._start <= pointer < self._start + self._size:
            driver.free(pointer)

    @contextmanager
    def routed(self) -> Iterator[None]:
        """Serve this thread's allocations from the pool, until a graph is captured."""
        if self._works:
            self._routing.enter_context(torch.cuda.use_mem_pool(self._pool))
        try:
            yield
        finally:
            self._routing.close()

    def stop(self) -> None:
        """Serve nothing any more: a graph's memory has to stay what its own pool makes it."""
        self._works = False
        self._routing.close()

    @staticmethod
    def _before_captures(call: Callable[[], None]) -> None:
        begin = torch.cuda.CUDAGraph.capture_begin

        def capture_begin(*args: Any, **kwargs: Any) -> None:
            call()
            begin(*args, **kwargs)

        torch.cuda.CUDAGraph.capture_begin = capture_begin  # type: ignore[method-assign]

    def keep(self, result: torch.Tensor, wanted: torch.Tensor) -> int | None:
        """Keep a result that is like ``wanted`` in dtype and strides, in memory that was free when the block began.

        Returns its offset in bytes, None where it has to be copied. Raises :class:`RunnerError` where it lies in memory
        that holds an earlier result.
        """
        if result.dtype is not wanted.dtype or result.stride() != wanted.stride() or not result.numel():
            return None
        start = result.data_ptr() - self._start
        reach = sum((size - 1) * stride for size, stride in zip(result.shape, result.stride(), strict=True))
        end = start + (reach + 1) * result.element_size()
        if not any(first <= start and end <= last for first, last in self._free):
            return None
        storage = result.untyped_storage().data_ptr()
        if storage in self._taken:
            raise RunnerError("wrong_value", REUSED, code="result_reused")
        self._kept.append(result)
        self._taken.add(storage)
        return start

    def free(self) -> list[list[int]]:
        """Let go of all results, and return the ranges [start, end) of the lent memory in which nothing lies now."""
        self._kept.clear()
        self._taken.clear()
        self._free = self._ranges() if self._works else []
        return [list(item) for item in self._free]

    def _ranges(self) -> list[tuple[int, int]]:
        ranges = [(self._used, self._size)] if self._used < self._size else []
        for segment in torch.cuda.memory_snapshot(self._pool.id):  # type: ignore[no-untyped-call]
            position = segment["address"] - self._start
            if not 0 <= position < self._size:
                continue
            for block in segment["blocks"]:
                if block["state"] == "inactive":
                    ranges.append((position, position + block["size"]))
                position += block["size"]
        return sorted(joined(ranges), key=lambda item: item[0] - item[1])[:MOST_RANGES]


def joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in ascending order, those that touch made one."""
    whole: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if whole and whole[-1][1] == start:
            whole[-1] = (whole[-1][0], end)
        else:
            whole.append((start, end))
    return whole
