"""Whether a block's first launches do the work of those to come: then they are dear where the block ends early.

Times nothing itself.
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Sequence

from cupilot.evaluation import FailureKind
from gpu_worker.judge.runner_link import KernelFailed

OPENING_SHARE = 8
"""A block's opening: its first launch, and then one in so many. Nobody has worked ahead for the first."""

OPENINGS = 5
"""Timed where the first one is slow."""

OPENING_FACTOR = 1.25
"""How much longer a launch may take in an opening than in whole blocks, besides what starting a block costs."""


def refuse_heavy_openings(
    count: int, seconds: float, slack: float, timed: Callable[[Sequence[int]], Sequence[float]]
) -> None:
    """Raise for launches that work for later ones, wherever they keep the results.

    ``seconds`` is what a launch takes in blocks of ``count``, ``slack`` what starting a block may cost. ``timed`` gives
    the seconds of blocks of the lengths that it is given.
    """
    lengths = sorted({1, max(1, count // OPENING_SHARE)})
    allowed = [OPENING_FACTOR * length * seconds + slack for length in lengths]
    took = timed(lengths)
    if any(map(operator.gt, took, allowed)):
        more = [timed(lengths) for _ in range(OPENINGS - 1)]
        took = [statistics.median(each) for each in zip(took, *more, strict=True)]
    for length, duration, most in zip(lengths, took, allowed, strict=True):
        if duration > most:
            message = (
                f"a launch takes {seconds * 1e6:.3g} us in blocks of {count}, and {duration / length * 1e6:.3g} us "
                f"in their first {length} where no others follow: they do the work of launches to come"
            )
            raise KernelFailed(FailureKind.CLOCK_MISMATCH, message, launches=length)
