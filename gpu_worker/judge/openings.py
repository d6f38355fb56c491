"""Finds blocks whose first launches do the work of those to come: such cold-start blocks are slow when they end early.

Times nothing itself. Openings are timed when a comparison could end, which no kernel foresees, and held against whole
blocks. Where they are dear another pair is timed first, so that blocks of the same moment count: other work on the
machine slows launches for a while, and a kernel that slows blocks down once it has met an opening is measured so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cupilot.domain.evaluation import FailureKind
from gpu_worker.judge.runner_link import KernelFailed

OPENING_SHARE = 8
"""A block's opening: its first launch, and then one in so many. Nobody has worked ahead for the first."""

OPENINGS = 20
"""Tried at most. Other work on the machine delays many a short block; what works ahead takes long in each."""

OPENING_FACTOR = 1.25
"""How much longer a launch may take in an opening than in whole blocks, besides what starting a block costs."""


class Openings:
    """What is known of the openings of one kernel's blocks."""

    def __init__(self, count: int, slack: float) -> None:
        """``count``: launches of a whole block; ``slack``: seconds that starting a block may cost."""
        self.lengths = sorted({1, max(1, count // OPENING_SHARE)}) if count > 1 else []
        """Launches of the openings that are still to be timed."""
        self._count = count
        self._slack = slack
        self._least = dict.fromkeys(self.lengths, math.inf)
        self._tried = 0

    def saw(self, took: Sequence[float], launch: float) -> None:
        """Record seconds of cold-start blocks, ordered as :attr:`lengths`; a launch in whole blocks takes ``launch``.

        Raises where an opening was dear each time.
        """
        self._tried += 1
        heavy = []
        for length, seconds in zip(self.lengths, took, strict=True):
            self._least[length] = min(self._least[length], seconds)
            if seconds > OPENING_FACTOR * length * launch + self._slack:
                heavy.append(length)
        self.lengths = heavy
        if heavy and self._tried >= OPENINGS:
            alone = self._least[heavy[0]] / heavy[0]
            message = (
                f"a launch takes {launch * 1e6:.3g} us in blocks of {self._count}, and {alone * 1e6:.3g} us at least "
                f"in their first {heavy[0]} where no others follow: they do the work of launches to come"
            )
            raise KernelFailed(FailureKind.CLOCK_MISMATCH, message, launches=heavy[0])
