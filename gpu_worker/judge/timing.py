"""Times a kernel against a baseline in ABBA pairs of blocks, on fresh data, and verifies what the timed launches wrote.

A block is a number of launches, each in a slot of its own, after the cache was flushed; a kernel block and a baseline
block over the same slots make a pair. What the baseline gives for a few random slots is what the kernel must have
written there. First launches are timed by themselves too: nobody can have worked ahead for them. All slots' inputs are
watched, since data that a kernel has spoilt could make the baseline slow. While the baseline runs the runner is held,
so that a kernel's background threads can slow nothing down.
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
from gpu_worker.judge.baseline_link import BaselineLink
from gpu_worker.judge.clocks import LATE_SECONDS, LATE_SHARE, Clocks
from gpu_worker.judge.cold_start import ColdStart
from gpu_worker.judge.conditions import BlockLog
from gpu_worker.judge.deviation import Expected, Unit, deviation
from gpu_worker.judge.rotation import Content, Rotation
from gpu_worker.judge.runner_link import KernelFailed, RunnerLink
from gpu_worker.judge.slots import Slots, Watch
from gpu_worker.judge.statistics import half_width, median_interval
from gpu_worker.judge.timed_outputs import OutputBounds, timed_error
from gpu_worker.targets.base import GraphUnavailable, JudgeDevice

FLUSH_BELOW_CACHES = 8
"""A block that touches less than this many last-level caches is preceded by a flush."""

MIN_PAIRS = 6
"""The bootstrap of fewer pairs says little."""

CHECKED_LAUNCHES = 3
"""Of each pair. A kernel that saves the work of one launch in ten is caught within six pairs six times in seven."""

PROBED_SLOTS = 8
PROBED_ELEMENTS = 64
HANDOVER_BLOCKS = 5
DECOYS = 4
"""Poisoned slots that no launch of a block is given. A launch that works for later ones, whose place it knows from
earlier blocks, cannot tell them from those that come; slots with and without a launch change with each block."""

DECOY_SHARE = 4
"""At most one slot in so many is a decoy: where there are few, each is so large that working ahead saves nothing."""


@dataclass(frozen=True)
class Effort:
    """When to stop measuring."""

    seconds: float
    """Soft limit of the whole comparison."""
    half_width: float
    """Stop when the speedup's interval is this tight (relative)."""
    hopeless: float
    """Stop when the speedup is certainly below this."""
    max_pairs: int = 200
    one_filling: bool = False
    """Time all pairs on one filling of the slots; launches of the first alone are checked. What is found so is a hint,
    and no result."""


@dataclass
class _Filling:
    """Contents of some slots for the blocks to come."""

    order: Sequence[int]
    contents: Mapping[int, Content]
    watch: Watch
    checked: bool = False
    """True if launches on it have been checked."""


Hold = Callable[[bool], float | None]
"""Stops or continues the runner; the moment since or until which it stands still, None where it holds no host code."""


class PairedTimer:
    """Times one loaded kernel; the slots are bound in the runner."""

    def __init__(
        self,
        link: RunnerLink,
        device: JudgeDevice,
        pytorch: BaselineLink,
        *,
        slots: Slots,
        rotation: Rotation,
        bounds: Sequence[OutputBounds],
        hold: Hold,
        launch_timeout: float,
    ) -> None:
        self._link = link
        self._device = device
        self._pytorch = pytorch
        self._slots = slots
        self._rotation = rotation
        self._bounds = bounds
        self._hold = hold
        self._launch_timeout = launch_timeout
        self._random = random.Random()
        self._clocks = Clocks(device.shared)
        self._graphs = False
        """True if blocks go through graphs, those of both sides."""
        self._decoys = min(DECOYS, slots.count // DECOY_SHARE)
        self._baseline = Baseline.EAGER
        """The one under way."""
        self._kept: _Filling | None = None
        """The one filling, where all pairs are to be timed on it."""
        self._blocks = BlockLog(device.state)
        self.notes: list[str] = []

    def compare(self, baseline: Baseline, kernel_hint: float, effort: Effort) -> Comparison:
        """Measure until the effort is spent. Raises :class:`KernelFailed` for wrong timed outputs and false clocks.

        Where either side is so short that its launches would be part of its time, both go through graphs, or neither.
        """
        self._graphs = False
        self._baseline = baseline
        self._pytorch.use(self._slots.count)
        self._kept = None
        if effort.one_filling:
            self._kept = self._fill(self._block_length(kernel_hint))
        kernel, reference = self._warm_up(kernel_hint)
        if min(kernel, reference) < self._device.graph_below_seconds:
            try:
                self._graphs = True
                return self._compare(baseline, self._warm_up(kernel), effort)
            except GraphUnavailable as reason:
                self._graphs = False
                self._hold(False)
                self.notes.append(f"{baseline.value}: timed by single launches: {reason}")
        return self._compare(baseline, (kernel, reference), effort)

    def _warm_up(self, kernel_hint: float) -> tuple[float, float]:
        """Return seconds a launch of kernel and baseline, of one pair, which is verified too."""
        reference: float | None = None
        while reference is None:
            kernel, reference = self._pair(self._block_length(kernel_hint), 1, kernel_leads=True)
        return kernel or kernel_hint, reference

    def _compare(self, baseline: Baseline, seconds: tuple[float, float], effort: Effort) -> Comparison:
        kernel_count, baseline_count = map(self._block_length, seconds)
        kernel_times: list[float] = []
        baseline_times: list[float] = []
        self._clocks = Clocks(self._device.shared)
        self._blocks.begin()
        cold_start = self._cold_start_of(baseline, kernel_count)
        started = time.monotonic()
        while True:
            leads = len(kernel_times) % 2 == 0
            kernel, reference = self._pair(kernel_count, baseline_count, kernel_leads=leads)
            if not self._blocks.end_pair(timed=kernel is not None and reference is not None):
                continue
            if kernel is not None and reference is not None:
                kernel_times.append(kernel)
                baseline_times.append(reference)
            self._clocks.check(len(kernel_times))
            if self._enough(kernel_times, baseline_times, time.monotonic() - started, effort):
                if cold_start.lengths:
                    took = self._time_cold_start(kernel_count, cold_start.lengths)
                    cold_start.record(took, statistics.median(kernel_times))
                if not cold_start.lengths:
                    break
        if self._blocks.dropped_pairs:
            dropped = self._blocks.dropped_pairs
            self.notes.append(f"{baseline.value}: {dropped} pairs were dropped, the device was throttled")
        return Comparison(
            baseline=baseline,
            kernel_us=_microseconds(kernel_times),
            baseline_us=_microseconds(baseline_times),
            speedup=_speedup(kernel_times, baseline_times),
            pairs=len(kernel_times),
            launches=len(kernel_times) * kernel_count,
            graphs=self._graphs,
            conditions=self._blocks.conditions(),
        )

    def _cold_start_of(self, baseline: Baseline, count: int) -> ColdStart:
        """Return the cold-start blocks to time: only beside eager, and not where one filling is timed repeatedly."""
        once = baseline is Baseline.EAGER and self._kept is None
        return ColdStart(count if once else 1, self._device.cold_start_seconds)

    def _time_cold_start(self, count: int, lengths: Sequence[int]) -> list[float]:
        """Time a block's first launches, so many and then so many more; all slots are filled as for the whole.

        Where the clocks disagree about one, both are timed anew: it is not taken for fast.
        """
        while True:
            filling = self._fill(count)
            self._lay_decoys(filling.order)
            order = iter(filling.order)
            blocks = [list(itertools.islice(order, length)) for length in lengths]
            took = [(self._kernel_block(block, filling.watch), len(block)) for block in blocks]
            self._hold(False)
            times = [seconds * length for seconds, length in took if seconds is not None]
            if len(times) == len(lengths):
                return times
            self._clocks.check(0)

    def handover_seconds(self) -> float:
        """Time copying one slot's outputs from memory to memory; return the median of blocks."""
        count = self._slots.count
        pairs = [(self._slots.outputs(slot), self._slots.outputs((slot + 1) % count)) for slot in range(count)]
        calls = [partial(_copy_all, into, source) for into, source in pairs]
        self._hold(True)
        times = []
        for _ in range(HANDOVER_BLOCKS):
            self._flush(count)
            times.append(self._device.baseline_seconds(calls) / count)
        self._hold(False)
        return statistics.median(times)

    def _block_length(self, seconds: float) -> int:
        most = len(self._kept.order) if self._kept else self._slots.count - self._decoys
        return max(1, min(most, math.ceil(self._device.block_seconds / max(seconds, 1e-7))))

    def _pair(self, kernel_count: int, baseline_count: int, *, kernel_leads: bool) -> tuple[float | None, float | None]:
        """Return seconds a launch of kernel and baseline (None: clocks disagree), on one filling of the slots."""
        filling = self._kept or self._fill(max(kernel_count, baseline_count))
        self._hold(True)
        order, watch = filling.order, filling.watch
        kernel_order = order[:kernel_count]
        decoys = [] if filling.checked else self._lay_decoys(kernel_order)
        checked, *further = self._random.sample(kernel_order, min(CHECKED_LAUNCHES, kernel_count))
        baseline_order = [*[slot for slot in order if slot != checked][: baseline_count - 1], checked]
        if kernel_leads:
            kernel = self._kernel_block(kernel_order, watch)
            self._blocks.read()
            reference = self._baseline_block(baseline_order)
        else:
            reference = self._baseline_block(baseline_order)
            self._blocks.read()
            kernel = self._kernel_block(kernel_order, watch)
        self._blocks.read()
        if not filling.checked:
            self._refuse_work_ahead(decoys)
            # a compiler's mistakes are not the kernel's
            timed = self._baseline is Baseline.EAGER and self._pytorch.answers_are_right
            self._verify(
                checked, filling.contents[checked], self._pytorch.last() if timed else self._pytorch.answer(checked)
            )
            for slot in further:
                self._verify(slot, filling.contents[slot], self._pytorch.answer(slot))
        filling.checked = True
        self._hold(False)
        return kernel, reference

    def _fill(self, count: int) -> _Filling:
        """Return new mixtures in so many slots, taken at random."""
        order = self._random.sample(range(self._slots.count), count)
        self._hold(True)  # what lies in the slots is seen when the clock runs, and not before
        return _Filling(order, self._prepare(order), self._slots.watch(order))

    def _lay_decoys(self, kernel_order: Sequence[int]) -> list[int]:
        """Poison some slots that the kernel's block leaves out."""
        others = sorted(set(range(self._slots.count)) - set(kernel_order))
        decoys = self._random.sample(others, min(self._decoys, len(others)))
        for slot in decoys:
            self._slots.poison(slot)
        return decoys

    def _refuse_work_ahead(self, decoys: Sequence[int]) -> None:
        if not all(self._slots.untouched(slot) for slot in decoys):
            message = "the kernel wrote the output of a launch that never came: it works ahead of its turn"
            raise KernelFailed(FailureKind.OUT_OF_BOUNDS_WRITE, message, law="timed")

    def _prepare(self, order: Sequence[int]) -> dict[int, Content]:
        state = self._rotation.choose_state()
        self._pytorch.assume(state)
        contents = {}
        for slot in order:
            contents[slot] = self._rotation.fill(self._slots, slot, state)
            self._slots.poison(slot)
            self._pytorch.fill(slot, self._slots.storages(slot))
        return contents

    def _kernel_block(self, order: Sequence[int], watch: Watch) -> float | None:
        timeout = self._launch_timeout * len(order)
        if self._graphs:
            self._link.capture(order)
        self._flush(len(order))
        release = partial(self._hold, False)
        link = self._link
        host, reported = link.replay(timeout, release) if self._graphs else link.run(order, timeout, release)
        late = self._late(time.perf_counter())
        self._probe(order)
        self._refuse_change(self._slots.changed(watch))
        seconds = self._device.kernel_seconds(host, reported, len(order))
        if seconds is None or late > LATE_SECONDS + LATE_SHARE * host:
            self._clocks.disagree(host, reported)
            return None
        return seconds / len(order)

    def _late(self, answered: float) -> float:
        """Stop the runner; return the seconds after its answer in which it could still work."""
        stopped = self._hold(True)
        return 0.0 if stopped is None else stopped - answered

    def _baseline_block(self, order: Sequence[int]) -> float | None:
        if self._graphs:
            self._pytorch.capture(self._baseline.value, order)
        self._flush(len(order))
        seconds = self._pytorch.replay() if self._graphs else self._pytorch.block(self._baseline.value, order)
        return None if seconds is None else seconds / len(order)

    def _flush(self, launches: int) -> None:
        if launches * self._slots.tensor_bytes < FLUSH_BELOW_CACHES * self._device.cache_bytes:
            self._device.flush_cache()
        self._device.synchronize()

    def _probe(self, order: Sequence[int]) -> None:
        """Look at once for outputs that are still to come, the last one's first."""
        for slot in [order[-1], *self._random.sample(order, min(PROBED_SLOTS, len(order)))]:
            if self._slots.probe_unwritten(slot, PROBED_ELEMENTS):
                message = "a timed launch had not written its output when it was reported as done"
                raise KernelFailed(FailureKind.UNWRITTEN_OUTPUT, message, law="timed")

    @staticmethod
    def _refuse_change(changed: str | None) -> None:
        if changed is not None:
            message = f"the kernel changed {changed} in a timed launch, which it is only given to read"
            raise KernelFailed(FailureKind.INPUT_MUTATED, message, tensor=changed, law="timed")

    def _verify(self, checked: int, content: Content, wanted: Sequence[torch.Tensor]) -> None:
        self._refuse_change(self._rotation.intact(self._slots, checked, content))
        for place, (values, got, bounds) in enumerate(
            zip(wanted, self._slots.outputs(checked), self._bounds, strict=True)
        ):
            error = timed_error(values, got, bounds, self._random)
            if error > bounds.tolerance and not (bounds.ties and self._equally_good(checked, place)):
                message = (
                    f"a timed launch gave wrong values (error {error:.3g} of the spread, allowed "
                    f"{bounds.tolerance:.3g}) although the same kernel passed on other data: it seems to reuse results"
                )
                raise KernelFailed(FailureKind.WRONG_VALUE, message, law="timed", error=min(error, 1e300))
            if self._slots.broken_guard(checked) is not None:
                message = "a timed launch wrote outside of its buffers"
                raise KernelFailed(FailureKind.OUT_OF_BOUNDS_WRITE, message, law="timed")

    def _equally_good(self, slot: int, place: int) -> bool:
        """Return whether an output holds indices of values that are equal to those which the reference selects."""
        values, selection = self._pytorch.choices(slot)[place]
        expected = Expected(values, Unit(), selection)
        return deviation(expected, self._slots.outputs(slot)[place]) == 0.0

    @staticmethod
    def _enough(kernel: Sequence[float], baseline: Sequence[float], elapsed: float, effort: Effort) -> bool:
        count = len(kernel)
        if count >= effort.max_pairs or (count >= 2 and elapsed > 2 * effort.seconds):
            return True
        if count < MIN_PAIRS:
            return False
        if elapsed > effort.seconds:
            return True
        speedup = _speedup(kernel, baseline)
        return half_width(speedup) < effort.half_width or speedup.high < effort.hopeless


def _copy_all(into: Sequence[torch.Tensor], source: Sequence[torch.Tensor]) -> None:
    for target, tensor in zip(into, source, strict=True):
        target.copy_(tensor)


def _speedup(kernel: Sequence[float], baseline: Sequence[float]) -> Interval:
    return median_interval([reference / mine for mine, reference in zip(kernel, baseline, strict=True)])


def _microseconds(seconds: Sequence[float]) -> Interval:
    return median_interval([value * 1e6 for value in seconds])
