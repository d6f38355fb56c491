"""The next kernel's runner, started and with its device opened while the present kernel is verified.

A fresh process for each kernel costs 0.3 s of opening a GPU, more where other cards of the host open too; here that
passes beside work that is not timed. Nothing may open a device while something is timed on it: whoever is about to
time calls :meth:`SpareRunner.settle` first. Knows no kernel, and is never used by two.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu_worker.channel import ChannelClosed
from gpu_worker.runner_process import RunnerProcess

OPEN_SECONDS = 20.0
"""A card opens in 0.3 s, in 0.7 s beside three others; one that takes longer is left to the evaluation's own runner."""


class SpareRunner:
    """At most one runner that waits for a kernel. Not thread safe."""

    def __init__(self, start: Callable[[], RunnerProcess]) -> None:
        self._start = start
        self._runner: RunnerProcess | None = None
        self._opening = False

    def begin(self) -> None:
        """Start one that opens its device by itself."""
        self.close()
        self._runner = self._start()
        self._opening = True
        try:
            self._runner.begin_opening()
        except ChannelClosed:
            self.close()

    def settle(self) -> None:
        """Wait until nothing is being opened any more; a runner that could not is dropped."""
        if self._runner is not None and self._opening:
            self._opening = False
            if not self._runner.opened(OPEN_SECONDS):
                self.close()

    def take(self) -> RunnerProcess:
        """The one that waits, or a fresh one where there is none; it is the caller's from now on."""
        self.settle()
        runner, self._runner = self._runner, None
        return runner or self._start()

    def close(self) -> None:
        """End the one that waits."""
        if self._runner is not None:
            self._runner.close()
        self._runner = None
        self._opening = False
