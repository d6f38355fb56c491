"""Compare the judge's clock with the runner's, and decide which process a disagreement is charged to.

Measures nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cupilot.domain.evaluation import FailureKind
from gpu_worker.judge.runner_link import KernelFailed

MISMATCHED_SHARE = 0.75
MISMATCHED_BLOCKS = 6
"""Fewer say nothing: a busy machine's scheduler spoils many blocks (all of six were seen at six processes a core)."""

BUSY = "this machine is too busy to time a kernel; run less beside the worker, or give it a machine of its own"
"""Advice for a machine on which blocks had to wait."""
BUSY_BLOCKS = 60
"""So many, mostly spoilt by waiting, and the machine cannot time at all now."""

LATE_SECONDS = 3e-4
LATE_SHARE = 0.02
"""A runner is stopped 0.15 ms after its answer. Where it takes this long, threads of the kernel's could have gone on
meanwhile: the block says nothing."""

AWAKE_SECONDS = 2e-4
"""Processor time of a runner that was stopped: none at all, once each of its threads stands still."""

LYING_SHARE = 0.5
PROPORTIONAL = 0.1
"""A clock lies where it reports less than this share of the judge's time in every block, and always the same share to
within this. Waiting is erratic. So does one that reports more than the judge waited."""


class Clocks:
    """The blocks of one comparison that say nothing, because the clocks disagree or the end is late.

    ``shared`` says whether other processes' work keeps the judge's own waiting.
    """

    def __init__(self, shared: Callable[[], bool]) -> None:
        self._shared = shared
        self._disagreements: list[tuple[float, float]] = []

    def disagree(self, judge: float, runner: float) -> None:
        """Remember a block by its seconds on both clocks."""
        self._disagreements.append((judge, runner))

    def check(self, good: int) -> None:
        """Raise where, beside so many good blocks, the runner's clock lies, or the machine is too busy for any.

        Two processes on one device take turns of a fixed length: each block waits for about as long as the others.
        """
        mismatched = len(self._disagreements)
        if mismatched < MISMATCHED_BLOCKS or mismatched <= MISMATCHED_SHARE * (mismatched + good):
            return
        lies = clock_lies(self._disagreements)
        if not lies and mismatched < BUSY_BLOCKS:
            return
        said = "the runner's clock disagreed with the judge's, or it was stopped late, in"
        message = f"{said} {mismatched} of {mismatched + good} blocks"
        if self._shared():
            message += ", and the judge's own work waited as well: another process uses the device; stop that one, or"
            message += " give this worker another device"
            raise KernelFailed(FailureKind.INFRASTRUCTURE, message, blocks=mismatched)
        if lies:
            raise KernelFailed(FailureKind.CLOCK_MISMATCH, message, blocks=mismatched)
        message += f", by waiting: {BUSY}"
        raise KernelFailed(FailureKind.INFRASTRUCTURE, message, blocks=mismatched)


def refuse_awake(seconds: float) -> None:
    """Raise for a runner that worked for so long while it was stopped."""
    if seconds > AWAKE_SECONDS:
        message = f"the kernel's process worked for {seconds:.3g} s while it was stopped: it continues itself"
        raise KernelFailed(FailureKind.CLOCK_MISMATCH, message, awake_seconds=seconds)


def clock_lies(disagreements: Sequence[tuple[float, float]]) -> bool:
    """Return whether blocks of (judge's seconds, runner's seconds) tell of a false clock, and not of a busy machine."""
    shares = [reported / host for host, reported in disagreements]
    slow = max(shares) < LYING_SHARE and max(shares) - min(shares) <= PROPORTIONAL * max(shares)
    return slow or sum(share > 1 for share in shares) > len(shares) / 2
