"""Reads the device's state after each timed block, and drops pairs of blocks for it.

A pair one of whose blocks was slowed by heat or a failing supply says how a hot device does, and is dropped whole: a
speedup is the ratio of its two blocks. Reads between blocks only, never while a clock runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.hardware import Conditions, Span
from gpu_worker.judge.runner_link import KernelFailed
from gpu_worker.targets.base import DeviceState

THROTTLED_PAIRS = 60
"""So many measured while heat or the supply held the device back, and it cannot time at all now."""


class BlockLog:
    """The readings of one comparison."""

    def __init__(self, read: Callable[[], DeviceState]) -> None:
        self._read = read
        self._kept: list[DeviceState] = []
        self._dropped: list[DeviceState] = []
        self._pair: list[DeviceState] = []
        self.dropped_pairs = 0

    def begin(self) -> None:
        """Forget an earlier comparison, and the blocks that only told how long a launch takes."""
        self._kept.clear()
        self._dropped.clear()
        self._pair.clear()
        self.dropped_pairs = 0

    def read(self) -> None:
        """Look at the device: a block of the pair under way has just ended."""
        self._pair.append(self._read())

    def end_pair(self, *, timed: bool) -> bool:
        """Return whether the pair is to be kept, as far as heat and supply go; ``timed`` is whether its clocks agreed.

        Raises where too many were not: the machine cannot time.
        """
        throttled = any(state.throttled for state in self._pair)
        if throttled:
            self._dropped += self._pair
        elif timed:
            self._kept += self._pair
        self._pair.clear()
        self.dropped_pairs += throttled
        if self.dropped_pairs >= THROTTLED_PAIRS:
            message = (
                f"heat or the power supply held the device back in {self.dropped_pairs} pairs of blocks: check its"
                " cooling and its power limit (nvidia-smi -q -d PERFORMANCE)"
            )
            raise KernelFailed(FailureKind.INFRASTRUCTURE, message, blocks=self.dropped_pairs)
        return not throttled

    def conditions(self) -> Conditions | None:
        """Return the conditions of the comparison; None where the device reports none."""
        return summarise(self._kept, self._dropped)


def summarise(kept: Sequence[DeviceState], dropped: Sequence[DeviceState]) -> Conditions | None:
    """Return ranges over the blocks that count, and how often clocks were held down for each reason, in all blocks."""
    every = [*kept, *dropped]
    if all(state == DeviceState() for state in every):
        return None
    clocks = sorted({name for state in kept for name in state.clocks_mhz})
    spans = {name: _span(state.clocks_mhz.get(name) for state in kept) for name in clocks}
    return Conditions(
        blocks=len(kept),
        clocks_mhz={name: span for name, span in spans.items() if span is not None},
        temperature_c=_span(state.temperature_c for state in kept),
        power_w=_span(state.power_w for state in kept),
        slowed_by=dict(Counter(reason for state in every for reason in state.slowed_by)),
        throttled_blocks=sum(bool(state.throttled) for state in dropped),
    )


def _span(values: Iterable[float | None]) -> Span | None:
    known = [value for value in values if value is not None]
    return Span(low=min(known), high=max(known)) if known else None
