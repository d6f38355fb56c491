"""Resource limits of sandboxed programs."""

from __future__ import annotations

import os
from dataclasses import dataclass

COMPILER_PROCESSES = 200
"""Processes and threads of a compiler; compilers of an extension need about twenty."""

KERNEL_THREADS = 64 + 4 * (os.cpu_count() or 1)
"""Threads of a runner, whose kernel starts a team of threads or two."""

TORCH_THREADS = 512 + 4 * (os.cpu_count() or 1)
"""Processes and threads of a program with PyTorch, which has several pools, and compilers."""

STACK_BYTES = 64 * 2**20
"""The most that a program may raise its stack limit to (g++ does): stacks are not counted as data."""


@dataclass(frozen=True)
class Limits:
    """Resource limits of a sandboxed program. None means: not limited."""

    cpu_seconds: int | None = None
    memory_bytes: int | None = None
    """Private writable memory of each process (RLIMIT_DATA); the shared arena does not count."""
    total_bytes: int | None = None
    """Private memory in use by all processes together, by default ``memory_bytes``; watched from outside."""
    file_bytes: int | None = None
    open_files: int = 256
    processes: int | None = None
    """Processes and threads of the program together."""
    cpus: tuple[int, ...] | None = None
    """The CPUs that the program's threads may run on."""

    def by_name(self) -> dict[str, int]:
        """Return ``{rlimit name: value}``, without the stack and ``processes``, which the system counts by user."""
        values = {
            "core": 0,
            "cpu": self.cpu_seconds,
            "data": self.memory_bytes,
            "as": None if self.memory_bytes is None else self.memory_bytes + 4 * _physical_memory(),
            "fsize": self.file_bytes,
            "nofile": self.open_files,
        }
        return {name: value for name, value in values.items() if value is not None}

    def total(self) -> int | None:
        """Return the memory that all processes together may use."""
        return self.memory_bytes if self.total_bytes is None else self.total_bytes


def half_of_memory() -> int:
    """Bound, in bytes, for programs that have no other: CUDA reserves address space without using it."""
    return _physical_memory() // 2


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
