"""A runner that leaves results in memory of the judge's; see :mod:`gpu_worker.judge.lent`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from gpu_worker.targets.base import RunnerDevice


@runtime_checkable
class BorrowingRunnerDevice(RunnerDevice, Protocol):
    """A runner of imported files, whose results may stay in memory that the judge lends it."""

    def run_empty(self) -> float:
        """Launch next to nothing and wait for it, before a file is loaded; return the seconds that it took."""
        ...

    def lend(self, handle: dict[str, Any], descriptors: Sequence[int]) -> None:
        """Map the memory; closes the descriptors."""
        ...

    def free(self) -> list[list[int]]:
        """Let go of all results; return the ranges of the memory in which nothing lies, in bytes."""
        ...

    def places(self) -> list[list[int]]:
        """Return where each launch of the last run left its results, in bytes, or that they were copied."""
        ...
