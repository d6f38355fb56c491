"""Times a kernel against a baseline in ABBA pairs of blocks, on fresh data, and verifies what the timed launches wrote.

A block is a number of launches, each in a slot of its own, after the cache was flushed; a kernel block and a baseline
block over the same slots make a pair. Which launches are compared is drawn for each pair, in this process alone, and
they are held to the tolerances of the laws that their slots were drawn under. Audits come between pairs and after them.
First launches are
timed by themselves too: nobody can have worked ahead for them. All slots' inputs are watched, since data that a kernel
has spoilt could make the baseline slow. While the baseline runs the runner is held, so that a kernel's background
threads can slow nothing down.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from cupilot.domain.evaluation import Baseline, Comparison, FailureKind, Interval
from gpu_worker.judge.audit import Auditor
from gpu_worker.judge.baseline_link import BaselineLink
from gpu_worker.judge.blocks import Blocks, BlockTime, Choose, Filling
from gpu_worker.judge.clocks import BUSY, Clocks
from gpu_worker.judge.cold_start import ColdStart
from gpu_worker.judge.comparison import Comparer
from gpu_worker.judge.conditions import BlockLog
from gpu_worker.judge.fillings import weights
from gpu_worker.judge.runner_link import KernelFailed
from gpu_worker.judge.statistics import half_width, median_interval
from gpu_worker.targets.base import GraphUnavailable, JudgeDevice

MIN_PAIRS = 6
"""The bootstrap of fewer pairs says little."""

CHECKED_LAUNCHES = 3
"""Of each pair. A kernel that saves the work of one launch in ten is caught within six pairs six times in seven."""

WIDEST = 2.5
"""Ratio of the ends of a speedup's interval above which more pairs are timed, and nothing is confirmed."""

PATIENCE = 6.0
"""Multiple of an effort's seconds after which an interval that is still wider ends the timing."""

WIDE_PAIRS = 24
"""Pairs after which it does: the median of so many stands still on a machine that is only now and then busy."""

SPOT_CHECKS = 1
"""Audits between a comparison's first pairs, at random; another follows the last pair."""

TOO_SHORT = 0.5
"""Blocks of less than this share of the launches that they should have are timed anew, longer: the clocks' slack would
hide a false one in them. So it is where a launch was first timed while the machine was busy."""

HANDOVER_BLOCKS = 5


@dataclass(frozen=True)
class Effort:
    """Limits of a measurement."""

    seconds: float
    """Soft limit of the whole comparison."""
    half_width: float
    """Stop when the speedup's interval is this tight (relative)."""
    hopeless: float
    """Stop when the speedup is certainly below this."""
    max_pairs: int = 200
    refuses_scatter: bool = False
    """Raise an infrastructure failure for an interval that stays wider than :data:`WIDEST`."""
    one_filling: bool = False
    """Time all pairs on one filling of the slots; launches of the first alone are checked, few pairs are enough, and
    nothing is audited. What is found so is a hint, and no result."""


class PairedTimer:
    """Times one loaded kernel; the slots are bound in the runner."""

    def __init__(
        self,
        blocks: Blocks,
        device: JudgeDevice,
        *,
        pytorch: BaselineLink,
        comparer: Comparer,
        auditor: Auditor,
        admitted: Sequence[str],
    ) -> None:
        """Time under the laws that the problem was ``admitted`` with."""
        self._blocks = blocks
        self._device = device
        self._pytorch = pytorch
        self._comparer = comparer
        self._auditor = auditor
        self._admitted = admitted
        blocks.copied = False
        self._random = random.Random()
        self._clocks = Clocks(device.shared)
        self._baseline = Baseline.EAGER
        """The one under way."""
        self._kept: Filling | None = None
        """The one filling, where all pairs are to be timed on it."""
        self._kept_is_checked = False
        self._fastest = math.inf
        """Seconds of the kernel's fastest launch since the warm-up began, by the judge's clock alone."""
        self._fastest_baseline = math.inf
        """The same of the baseline, by both clocks: a first launch that waited says nothing of how long blocks are."""
        self._log = BlockLog(device.state)
        self.notes: list[str] = []

    def compare(self, baseline: Baseline, kernel_hint: float, effort: Effort) -> Comparison:
        """Measure until the effort is spent. Raises :class:`KernelFailed` for wrong timed outputs and false clocks.

        Where either side is so short that its launches would be part of its time, both go through graphs, or neither.
        """
        self._blocks.graphs = False
        self._baseline = baseline
        self._pytorch.use(self._blocks.slots.count)
        length = self._blocks.length(kernel_hint)
        self._kept = self._fill_for(length, length) if effort.one_filling else None
        if self._kept is not None:
            self._give_pytorch(self._kept.order)
        self._kept_is_checked = False
        kernel, reference = self._warm_up(kernel_hint)
        if min(kernel, reference) < self._device.graph_below_seconds:
            try:
                self._blocks.graphs = True
                return self._compare(baseline, self._warm_up(kernel), effort)
            except GraphUnavailable as reason:
                self._blocks.graphs = False
                self._blocks.release()
                self.notes.append(f"{baseline.value}: timed by single launches: {reason}")
        return self._compare(baseline, (kernel, reference), effort)

    def _warm_up(self, kernel_hint: float) -> tuple[float, float]:
        """Return seconds a launch of kernel and baseline, of one pair, which is verified too."""
        reference: float | None = None
        self._fastest = self._fastest_baseline = math.inf
        while reference is None:
            kernel, reference = self._pair(self._length(kernel_hint), 1, kernel_leads=True)
        return kernel or kernel_hint, reference

    def _compare(self, baseline: Baseline, seconds: tuple[float, float], effort: Effort) -> Comparison:
        kernel_count, baseline_count = map(self._length, seconds)
        kernel_times: list[float] = []
        baseline_times: list[float] = []
        self._clocks = Clocks(self._device.shared)
        self._log.begin()
        cold_start = self._cold_start_of(baseline, kernel_count)
        audits = self._random.sample(range(MIN_PAIRS), SPOT_CHECKS) if baseline is Baseline.EAGER else []
        started = time.monotonic()
        while True:
            leads = len(kernel_times) % 2 == 0
            kernel, reference = self._pair(kernel_count, baseline_count, kernel_leads=leads)
            if self._is_too_short(kernel_count, self._fastest):
                return self._compare(baseline, (self._fastest, seconds[1]), effort)
            if self._is_too_short(baseline_count, self._fastest_baseline):
                return self._compare(baseline, (seconds[0], self._fastest_baseline), effort)
            if not self._log.end_pair(timed=kernel is not None and reference is not None):
                continue
            if kernel is not None and reference is not None:
                kernel_times.append(kernel)
                baseline_times.append(reference)
            self._clocks.check(len(kernel_times))
            if audits and len(kernel_times) > audits[-1]:
                audits.pop()
                self._spot_check(seconds[0])
            if self._enough(kernel_times, baseline_times, time.monotonic() - started, effort):
                if cold_start.lengths:
                    took = self._time_cold_start(kernel_count, cold_start.lengths)
                    cold_start.record(took, statistics.median(kernel_times))
                if not cold_start.lengths:
                    break
        if baseline is Baseline.EAGER:
            self._spot_check(seconds[0])
            if effort.refuses_scatter:
                _refuse_scatter(_speedup(kernel_times, baseline_times), len(kernel_times))
        if self._log.dropped_pairs:
            dropped = self._log.dropped_pairs
            self.notes.append(f"{baseline.value}: {dropped} pairs were dropped, the device was throttled")
        return Comparison(
            baseline=baseline,
            kernel_us=_microseconds(kernel_times),
            baseline_us=_microseconds(baseline_times),
            speedup=_speedup(kernel_times, baseline_times),
            pairs=len(kernel_times),
            launches=len(kernel_times) * kernel_count,
            graphs=self._blocks.graphs,
            conditions=self._log.conditions(),
        )

    def _is_too_short(self, count: int, fastest: float) -> bool:
        return count < TOO_SHORT * self._length(fastest)

    def _spot_check(self, seconds: float) -> None:
        if self._kept is None:
            self._auditor.spot_check(seconds)

    def _cold_start_of(self, baseline: Baseline, count: int) -> ColdStart:
        """Return the cold-start blocks to time: only beside eager, and not where one filling is timed repeatedly."""
        once = baseline is Baseline.EAGER and self._kept is None
        return ColdStart(count if once else 1, self._device.cold_start_seconds)

    def _time_cold_start(self, count: int, lengths: Sequence[int]) -> list[float]:
        """Time a block's first launches, so many and then so many more; all slots are filled as for the whole.

        Where the clocks disagree about one, both are timed anew: it is not taken for fast.
        """
        while True:
            order = self._blocks.some_slots(count)
            rest = iter(order)
            blocks = [list(itertools.islice(rest, length)) for length in lengths]
            some = [self._random.choice(block) for block in blocks]
            filling = self._fill(order, partial(_always, some))
            times: list[float] = []
            for block, compared in zip(blocks, filling.compared, strict=True):
                seconds = self._kernel_block(block, filling)
                if seconds is not None:
                    times.append(seconds * len(block))
                self._comparer.with_pytorch(compared, filling)
            self._blocks.release()
            if len(times) == len(lengths):
                return times
            self._clocks.check(0)

    def handover_seconds(self) -> float:
        """Time copying one slot's outputs from memory to memory; return the median of blocks."""
        slots = self._blocks.slots
        count = slots.count
        pairs = [(slots.outputs(slot), slots.outputs((slot + 1) % count)) for slot in range(count)]
        calls = [partial(_copy_all, into, source) for into, source in pairs]
        self._blocks.stop()
        times = []
        for _ in range(HANDOVER_BLOCKS):
            self._blocks.flush(count)
            times.append(self._device.baseline_seconds(calls) / count)
        self._blocks.release()
        return statistics.median(times)

    def _length(self, seconds: float) -> int:
        length = self._blocks.length(seconds)
        return min(length, len(self._kept.order)) if self._kept else length

    def _pair(self, kernel_count: int, baseline_count: int, *, kernel_leads: bool) -> tuple[float | None, float | None]:
        """Return seconds a launch of kernel and baseline (None: clocks disagree), on one filling of the slots."""
        filling = self._kept or self._fill_for(max(kernel_count, baseline_count), kernel_count)
        self._blocks.stop()
        kernel_order = filling.order[:kernel_count]
        baseline_order = self._random.sample(filling.order, baseline_count)
        if self._kept is None:
            self._give_pytorch(baseline_order)
        sides: list[Callable[[], float | None]] = [
            partial(self._kernel_block, kernel_order, filling),
            partial(self._baseline_block, baseline_order),
        ]
        times = []
        for side in sides if kernel_leads else reversed(sides):
            times.append(side())
            self._log.read()
        kernel, reference = times if kernel_leads else reversed(times)
        if not self._kept_is_checked:
            for slot in filling.compared:
                self._comparer.with_pytorch(slot, filling)
        self._kept_is_checked = self._kept is not None
        self._blocks.release()
        return kernel, reference

    def _fill_for(self, count: int, launches: int) -> Filling:
        """Fill so many slots, taken at random; of the first ``launches``, some will be compared."""
        order = self._blocks.some_slots(count)
        return self._fill(order, partial(self._least_compared, order[:launches]))

    def _fill(self, order: Sequence[int], choose: Choose) -> Filling:
        return self._blocks.fill(order, weights(self._admitted, self._comparer.compared), choose)

    def _give_pytorch(self, order: Sequence[int]) -> None:
        """Copy what PyTorch is timed on; what it is compared on follows once a kernel left it as it was."""
        for slot in order:
            self._pytorch.fill(slot, self._blocks.slots.storages(slot))

    def _least_compared(self, order: Sequence[int], drawn: Mapping[int, str]) -> list[int]:
        """Choose launches of a block: one under the law that was compared least, so that none is left out.

        The others are drawn as blocks are: half of them are of the problem's own law.
        """
        compared = self._comparer.compared
        first, *others = self._random.sample(order, len(order))
        least = min([first, *others], key=lambda slot: compared[drawn[slot]])
        rest = [slot for slot in (first, *others) if slot != least]
        return [least, *rest[: CHECKED_LAUNCHES - 1]]

    def _kernel_block(self, order: Sequence[int], filling: Filling) -> float | None:
        block = self._blocks.run(order)
        self._fastest = min(self._fastest, block.host / len(order))
        self._blocks.probe(order)
        self._blocks.refuse_trespass(filling)
        return self._agreed(block)

    def _agreed(self, block: BlockTime) -> float | None:
        if block.seconds is None:
            self._clocks.disagree(block.host, block.reported)
        return block.seconds

    def _baseline_block(self, order: Sequence[int]) -> float | None:
        if self._blocks.graphs:
            self._pytorch.capture(self._baseline.value, order)
        self._blocks.flush(len(order))
        graphs = self._blocks.graphs
        seconds = self._pytorch.replay() if graphs else self._pytorch.block(self._baseline.value, order)
        if seconds is None:
            return None
        self._fastest_baseline = min(self._fastest_baseline, seconds / len(order))
        return seconds / len(order)

    @staticmethod
    def _enough(kernel: Sequence[float], baseline: Sequence[float], elapsed: float, effort: Effort) -> bool:
        """Return whether to stop."""
        count = len(kernel)
        if count >= effort.max_pairs:
            return True
        if count < MIN_PAIRS:
            return False
        speedup = _speedup(kernel, baseline)
        if speedup.high < effort.hopeless:
            return True
        if _is_scattered(speedup) and count < WIDE_PAIRS and elapsed < PATIENCE * effort.seconds:
            return False
        return elapsed > effort.seconds or half_width(speedup) < effort.half_width


def _always(slots: Sequence[int], laws: Mapping[int, str]) -> Sequence[int]:  # noqa: ARG001
    return slots


def _refuse_scatter(speedup: Interval, pairs: int) -> None:
    """Raise where the times of a comparison scatter too widely to mean anything."""
    if _is_scattered(speedup):
        message = f"the speedup scatters from {speedup.low:.3g} to {speedup.high:.3g} in {pairs} pairs of blocks"
        raise KernelFailed(FailureKind.INFRASTRUCTURE, f"{message}: {BUSY}")


def _is_scattered(speedup: Interval) -> bool:
    return speedup.high > WIDEST * speedup.low


def _copy_all(into: Sequence[torch.Tensor], source: Sequence[torch.Tensor]) -> None:
    for target, tensor in zip(into, source, strict=True):
        target.copy_(tensor)


def _speedup(kernel: Sequence[float], baseline: Sequence[float]) -> Interval:
    return median_interval([reference / mine for mine, reference in zip(kernel, baseline, strict=True)])


def _microseconds(seconds: Sequence[float]) -> Interval:
    return median_interval([value * 1e6 for value in seconds])
