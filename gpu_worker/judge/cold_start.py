"""Finds kernels whose first launches of a block do the work of those to come: they are slow where the block ends early.

Times nothing itself. A *cold-start block* holds the first launches of a block alone. They are timed when a comparison
could end, which no kernel foresees, and compared with whole blocks. Where one is slow, another pair is timed first, so
that blocks of the same moment count: other work on the machine slows launches for a while, and a kernel that slows
blocks down once it has met a cold-start block is measured so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cupilot.domain.evaluation import FailureKind
from gpu_worker.judge.runner_link import KernelFailed

COLD_START_SHARE = 8
"""Cold-start blocks have one launch, and then one in so many of a whole block. Nobody worked ahead for the first."""

COLD_START_TRIES = 20
"""Tries at most. Other work on the machine delays many a short block; what works ahead takes long in each."""

COLD_START_FACTOR = 1.25
"""Factor by which a launch may take longer than in whole blocks, besides what starting a block costs."""


class ColdStart:
    """Cold-start blocks of one kernel: those that are still to be timed, and the least time of each."""

    def __init__(self, count: int, slack: float) -> None:
        """Plan blocks of ``count`` launches; ``slack`` is how many seconds starting a block may cost."""
        self.lengths = sorted({1, max(1, count // COLD_START_SHARE)}) if count > 1 else []
        """Launches of the cold-start blocks that are still to be timed."""
        self._count = count
        self._slack = slack
        self._least = dict.fromkeys(self.lengths, math.inf)
        self._tries = 0

    def record(self, times: Sequence[float], launch: float) -> None:
        """Record seconds of blocks, in the order of :attr:`lengths`; a launch in whole blocks takes ``launch``.

        Raises :class:`KernelFailed` where a block was slow each time.
        """
        self._tries += 1
        slow = []
        for length, seconds in zip(self.lengths, times, strict=True):
            self._least[length] = min(self._least[length], seconds)
            if seconds > COLD_START_FACTOR * length * launch + self._slack:
                slow.append(length)
        self.lengths = slow
        if slow and self._tries >= COLD_START_TRIES:
            alone = self._least[slow[0]] / slow[0]
            message = (
                f"a launch takes {launch * 1e6:.3g} us in blocks of {self._count}, and {alone * 1e6:.3g} us at least "
                f"in their first {slow[0]} where no others follow: they do the work of launches to come"
            )
            raise KernelFailed(FailureKind.CLOCK_MISMATCH, message, launches=slow[0])
