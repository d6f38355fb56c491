"""Blocks of a kernel's launches: filled slots, one message to the runner, the judge's clock around it.

Audits and timings use the same blocks, so that a kernel cannot tell one from the other. Says how long a block took, and
refuses what can be seen at once: outputs that are still to come, inputs that changed. Compares no values.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from cupilot.domain.evaluation import FailureKind
from gpu_worker.judge.clocks import LATE_SECONDS, LATE_SHARE
from gpu_worker.judge.fillings import Fillings
from gpu_worker.judge.lent import LentMemory
from gpu_worker.judge.overheads import Overheads
from gpu_worker.judge.runner_link import KernelFailed, Ran, RunnerLink
from gpu_worker.judge.slots import Digests, Slots, Watch
from gpu_worker.messages.runner import COPIED
from gpu_worker.targets.base import JudgeDevice

FLUSH_BELOW_CACHES = 8
"""A block that touches less than this many last-level caches is preceded by a flush."""

GLANCED_BYTES = 128
"""Bytes of a block's results that are read as soon as it is reported as done, before the runner is stopped, and must be
the same afterwards. On `cuda`, reading waits for all launches, and results in lent memory have a look of their own."""

PROBED_SLOTS = 8
PROBED_ELEMENTS = 64

DECOYS = 4
"""Poisoned slots that no launch of a block is given. A launch that works for later ones, whose place it knows from
earlier blocks, cannot tell them from those that come; slots with and without a launch change with each block."""

DECOY_SHARE = 4
"""At most one slot in so many is a decoy: where there are few, each is so large that working ahead saves nothing."""

Choose = Callable[[Mapping[int, str]], Sequence[int]]
"""Chooses, by the laws that slots were filled under, those whose launches will be compared."""

Hold = Callable[[bool], float | None]
"""Stops or continues the runner; the moment since or until which it stands still, None where it holds no host code."""


@dataclass(frozen=True)
class Filling:
    """Contents of some slots for a block."""

    order: Sequence[int]
    laws: Mapping[int, str]
    """By slot."""
    compared: Sequence[int]
    """Slots whose launches will be compared, which nothing outside of this process tells."""
    digests: Digests
    """Of those."""
    watch: Watch
    """Of all."""


@dataclass(frozen=True)
class BlockTime:
    """Seconds of a block on both clocks."""

    host: float
    reported: float
    seconds: float | None
    """Seconds a launch; None where the clocks disagree, or the runner was stopped too late after its answer."""


class Blocks:
    """Runs blocks of one loaded kernel; the slots are bound in the runner."""

    def __init__(
        self,
        link: RunnerLink,
        device: JudgeDevice,
        slots: Slots,
        fillings: Fillings,
        *,
        hold: Hold,
        launch_timeout: float,
        slowest: float,
        lent: LentMemory | None = None,
        overheads: Overheads | None = None,
    ) -> None:
        """``slowest`` is the longest of a launch that works, in seconds; one of a block may take ``launch_timeout``.

        ``lent`` is the memory that the runner was lent for results, ``overheads`` are those of its blocks.
        """
        self.slots = slots
        self.fillings = fillings
        self.copied = False
        """True once a runner of an imported file copied a result to its slot, in the time of a block."""
        self.graphs = False
        """True if blocks go through graphs."""
        self._link = link
        self._device = device
        self._hold = hold
        self._launch_timeout = launch_timeout
        self._slowest = slowest
        self._lent = lent
        self._overheads = overheads or Overheads()
        self._random = random.Random()
        self._decoys = min(DECOYS, slots.count // DECOY_SHARE)
        self._laid: list[int] = []

    def length(self, seconds: float) -> int:
        """Return the launches of a block, where one takes so many seconds."""
        wanted = math.ceil(self._device.block_seconds / max(seconds, 1e-7))
        return max(1, min(self.slots.count - self._decoys, wanted))

    def some_slots(self, count: int) -> list[int]:
        """Return so many slots at random, in random order."""
        return self._random.sample(range(self.slots.count), count)

    def stop(self) -> None:
        """Stop the runner: what lies in the slots is seen when the clock runs, and not before."""
        self._hold(True)

    def release(self) -> None:
        """Let the runner go on."""
        self._hold(False)

    def fill(
        self,
        order: Sequence[int],
        weights: Mapping[str, float],
        choose: Choose,
        placed: Mapping[int, tuple[str, Sequence[torch.Tensor]]] | None = None,
    ) -> Filling:
        """Fill and poison slots, with laws drawn by weight; ``placed`` are slots given certain tensors, and their laws.

        The kernel's static memory becomes what it was after loading; the runner is stopped afterwards. Of slots to be
        compared, inputs are digested while they are in the cache from being written, as those of all others are.
        """
        self._link.reset()
        free = self._link.free() if self._lent is not None else []
        self.stop()
        if self._lent is not None:
            self._lent.poison(free)
        self.fillings.renew()
        names = self._random.choices(list(weights), list(weights.values()), k=len(order))
        laws = dict(zip(order, names, strict=True)) | {slot: law for slot, (law, _) in (placed or {}).items()}
        compared = choose(laws)
        own = placed or {}
        digests = {}
        for start in range(0, len(order), self.fillings.at_once):
            group = order[start : start + self.fillings.at_once]
            self.fillings.fill(self.slots, {slot: laws[slot] for slot in group if slot not in own})
            for slot in group:
                if slot in own:
                    self.slots.fill(slot, own[slot][1])
                if slot in compared:
                    digests[slot] = self.slots.digest(slot)
                self.slots.poison(slot)
        return Filling(order, laws, compared, digests, self.slots.watch(order))

    def run(self, order: Sequence[int], timeout: float | None = None) -> BlockTime:
        """Launch the kernel once for each slot, the slowest within ``timeout``; the runner is stopped afterwards."""
        self._lay_decoys(order)
        seconds = (timeout or self._launch_timeout) + (len(order) - 1) * self._slowest
        if self.graphs:
            self._link.capture(order)
        self.flush(len(order))
        usual = max(self._lent.rehearse(len(order)), self._overheads.look) if self._lent is not None else 0.0
        places = self.slots.places_in_outputs(order, GLANCED_BYTES) if self._device.torch_device.type == "cpu" else None
        release = partial(self._hold, False)
        link = self._link
        ran = link.replay(seconds, release) if self.graphs else link.run(order, seconds, release)
        seen = None if places is None else self.slots.at(places)
        late = self._late(time.perf_counter())  # what is written before that is seen to change
        if places is not None and seen is not None and not torch.equal(self.slots.at(places), seen):
            message = "a launch went on writing its output after it had been reported as done"
            raise KernelFailed(FailureKind.UNWRITTEN_OUTPUT, message, law="timed")
        host = ran.host + self._taken_over(order, ran, usual)
        overhead = self._overheads.blocks.get(ran.parts, 0.0)
        taken = self._device.kernel_seconds(host, ran.reported, len(order), overhead)
        if taken is None or late > LATE_SECONDS + LATE_SHARE * host:
            return BlockTime(host, ran.reported, None)
        return BlockTime(host, ran.reported, taken / len(order))

    def _taken_over(self, order: Sequence[int], ran: Ran, usual: float) -> float:
        """Take over results from lent memory; return the seconds for which the device was busy instead of showing them.

        They count beyond what noise would explain; ``usual`` is what a look takes.
        """
        if self._lent is None:
            self.copied = True
            return 0.0
        look = self._lent.look(ran.places)
        self._lent.adopt(order, ran.places, look)
        self.copied |= any(COPIED in launch for launch in ran.places)
        waited = look.seconds - usual
        return waited if waited > LATE_SECONDS else 0.0

    def flush(self, launches: int) -> None:
        """Evict the cache where so many launches would not."""
        if launches * self.slots.tensor_bytes < FLUSH_BELOW_CACHES * self._device.cache_bytes:
            self._device.flush_cache()
        self._device.synchronize()

    def probe(self, order: Sequence[int]) -> None:
        """Raise for outputs that are still to come: looks at the last one first, and at some others."""
        for slot in [order[-1], *self._random.sample(order, min(PROBED_SLOTS, len(order)))]:
            if self.slots.probe_unwritten(slot, PROBED_ELEMENTS):
                message = "a launch had not written its output when it was reported as done"
                raise KernelFailed(FailureKind.UNWRITTEN_OUTPUT, message, law="timed")

    def refuse_trespass(self, filling: Filling) -> None:
        """Raise for inputs that changed in any slot, and for outputs of launches that never came."""
        refuse_change(self.slots.changed(filling.watch), "timed")
        if not all(self.slots.untouched(slot) for slot in self._laid):
            message = "the kernel wrote the output of a launch that never came: it works ahead of its turn"
            raise KernelFailed(FailureKind.OUT_OF_BOUNDS_WRITE, message, law="timed")

    def _lay_decoys(self, order: Sequence[int]) -> None:
        """Poison some slots that a block leaves out."""
        others = sorted(set(range(self.slots.count)) - set(order))
        self._laid = self._random.sample(others, min(self._decoys, len(others)))
        for slot in self._laid:
            self.slots.poison(slot)

    def _late(self, answered: float) -> float:
        """Stop the runner; return the seconds after its answer in which it could still work."""
        stopped = self._hold(True)
        return 0.0 if stopped is None else stopped - answered


def refuse_change(changed: str | None, law: str) -> None:
    """Raise for a given tensor that a launch changed."""
    if changed is not None:
        message = f"the kernel changed {changed}, which it is only given to read"
        raise KernelFailed(FailureKind.INPUT_MUTATED, message, tensor=changed, law=law)
