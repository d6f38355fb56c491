"""PyTorch as one side of a comparison: timed blocks in the reference process, on copies of the kernel's inputs.

The reference has slots of its own, with inputs alone: it never sees the memory that a kernel writes. The judge's clock
runs around every block.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cupilot.domain.evaluation import Baseline, FailureKind
from cupilot.domain.problem import NumericsPolicy, Role, TensorSpec
from gpu_worker.judge.clocks import BUSY
from gpu_worker.judge.reference_link import ReferenceLink
from gpu_worker.judge.refusal import UnusableReference
from gpu_worker.judge.slots import Slots
from gpu_worker.messages import reference as messages

MISMATCHES = 60
"""So many blocks whose time cannot be what the reference process says, and it cannot be timed at all."""


COMPILE_MODES = {Baseline.COMPILE: "default", Baseline.MAX_AUTOTUNE: "max-autotune-no-cudagraphs"}
"""Without Inductor's own graphs, which copy inputs that change: the timer puts both sides into graphs, or neither."""


class BaselineLink:
    """The reference process, as it is timed."""

    def __init__(self, reference: ReferenceLink, specs: Sequence[TensorSpec]) -> None:
        self._reference = reference
        self._device = reference.device
        self._given = [spec for spec in specs if spec.role is not Role.OUTPUT]
        self._slots: Slots | None = None
        self._mismatches = 0

    def use(self, count: int) -> None:
        """Reserve at least this many slots."""
        if self._slots is not None and self._slots.count >= count:
            return
        self.release()
        self._slots = slots = self._reference.with_room(lambda: Slots(self._device, self._given, {}, count))
        attach = messages.Attach(use="slots", handle=slots.handle)
        self._reference.ask(attach, messages.Answer, slots.descriptors)
        self._reference.ask(messages.Bind(slots=slots.offsets()), messages.Answer)

    def release(self) -> None:
        """Release the slots' memory in both processes, until :meth:`use` reserves others."""
        if self._slots is not None:
            self._reference.ask(messages.Detach(uses=["slots"]), messages.Answer)
        self.close()

    def close(self) -> None:
        """Release the slots' memory in this process; the reference's ends with it."""
        if self._slots is not None:
            self._slots.close()
            self._slots = None

    def assume(self, state: Sequence[torch.Tensor]) -> None:
        """Set the module's parameters and buffers (flat storages, in the order of the specs)."""
        if state:
            self._reference.assume(state)

    def fill(self, slot: int, tensors: Sequence[torch.Tensor]) -> None:
        """Write what the reference is given in a slot: flat storages, or tensors with the specs' strides."""
        assert self._slots is not None
        self._slots.fill(slot, tensors)

    def compile(self, baseline: str, mode: str, tensors: Sequence[torch.Tensor], seconds: int) -> str | None:
        """Make ``torch.compile`` of the module the baseline of this name; return the reason where that cannot be."""
        reason = self._reference.compile(baseline, mode, tensors, seconds)
        return None if reason is None else reason[:600]

    def capture(self, baseline: str, order: Sequence[int]) -> None:
        """Make the block one graph, for :meth:`replay`. Raises GraphUnavailable."""
        self._device.synchronize()
        self._reference.ask(messages.Capture(baseline=baseline, order=list(order)), messages.Answer)

    def block(self, baseline: str, order: Sequence[int]) -> float | None:
        """Call the baseline once for each slot; return the seconds of all, None where its clock and ours disagree."""
        return self._timed(messages.Block(baseline=baseline, order=list(order)))

    def replay(self) -> float | None:
        """Run a block as :meth:`block` does, through the graph that was captured last."""
        return self._timed(messages.Replay())

    def answer(self, slot: int) -> list[torch.Tensor]:
        """Return the reference's outputs for a slot, in memory that the reference process can write; not timed."""
        self._device.synchronize()
        return self._reference.shared_outputs(slot)

    def _timed(self, question: messages.Block | messages.Replay) -> float | None:
        self._device.synchronize()
        seconds = self._device.baseline_time(*self._reference.timed(question))
        self._mismatches = self._mismatches + 1 if seconds is None else 0
        if self._mismatches >= MISMATCHES:
            message = f"the reference's clock disagreed with the judge's in {MISMATCHES} blocks in a row: {BUSY}"
            raise UnusableReference(message, FailureKind.INFRASTRUCTURE)
        return seconds


def flags(baseline: Baseline, policy: NumericsPolicy) -> dict[str, str]:
    """Return the settings under which a baseline is timed, for the record."""
    return {
        "mode": COMPILE_MODES.get(baseline, "eager"),
        "tf32": "off" if policy is NumericsPolicy.FP32 else "on",
        "autocast": "bfloat16" if policy is NumericsPolicy.HALF else "off",
    }
