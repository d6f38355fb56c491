"""Answers the judge's questions about one reference; tensors come and go in memory that the judge owns.

The other end of :class:`gpu_worker.judge.reference_link.ReferenceLink`. The user's code lives in this process and may
have taken it over, so the judge believes no form of an answer, decides everything, and keeps its own clock.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from cupilot.domain.problem import NumericsPolicy, Role, TensorSpec
from gpu_worker.channel import Channel, ChannelClosed, finite
from gpu_worker.judge.copies import shortened
from gpu_worker.judge.exchange import TensorLayout, layouts_from_json, places, write
from gpu_worker.judge.refusal import UnusableReference, out_of_memory
from gpu_worker.reference.reference import Chosen, Reference
from gpu_worker.signature import NotPortable
from gpu_worker.targets.base import AttachedArena, GraphUnavailable, JudgeDevice

EAGER = "eager"
COMPILING_CALLS = 2
"""The first compiles; the second may compile again, for what the first has shown."""

_LARGE = frozenset({"draw", "run", "run_exact", "run_selecting", "reads"})
"""Questions that take much memory once. What timed calls use stays in PyTorch's pool, as in a user's program."""

Caller = Callable[[Sequence[torch.Tensor]], Callable[[], Any]]
Answer = dict[str, Any]


class ReferenceServer:
    """Serves one judge and one reference."""

    def __init__(self, channel: Channel, device: JudgeDevice) -> None:
        self._channel = channel
        self._device = device
        self._reference: Reference | None = None
        self._specs: tuple[TensorSpec, ...] = ()
        self._memory: dict[str, AttachedArena] = {}
        self._results: list[torch.Tensor] = []
        """For the judge, until there is memory that they fit in."""
        self._slots: list[dict[str, int]] = []
        self.callers: dict[str, Caller] = {}
        """What is timed, by the baseline's name."""
        self._graph: Callable[[], object] | None = None
        self._last: Any = None
        """What the last call of the last block returned."""

    def serve(self) -> None:
        """Answer until the judge hangs up."""
        torch.set_grad_enabled(False)
        while True:
            try:
                message, descriptors = self._channel.receive(descriptors=1)
            except ChannelClosed:
                return
            answer = self._answer(message, descriptors)
            try:
                self._channel.send(finite(answer))
            except ChannelClosed:
                return

    def _answer(self, message: dict[str, Any], descriptors: Sequence[int]) -> Answer:
        try:
            if message["op"] == "attach":
                return {"ok": True, **self._attach(message, descriptors)}
            answer = getattr(self, f"_op_{message['op']}")(message)
            if message["op"] in _LARGE and self._device.is_nearly_full():
                self._device.release_unused()
            return {"ok": True, **answer}
        except UnusableReference as error:
            return _failed("unusable", error, kind=error.kind.value)
        except NotPortable as error:
            return _failed("not_portable", error)
        except GraphUnavailable as error:
            return _failed("uncapturable", error)
        except BaseException as error:  # whatever the user's code raises, SystemExit included
            if out_of_memory(error):
                return _failed("out_of_memory", error)
            return _failed("unusable", f"the reference failed: {type(error).__name__}: {error}")

    @property
    def reference(self) -> Reference:
        """The reference that was loaded."""
        if self._reference is None:
            raise UnusableReference("no reference was loaded")
        return self._reference

    def _op_ready(self, _: dict[str, Any]) -> Answer:
        return {}

    def _op_load(self, message: dict[str, Any]) -> Answer:
        policy = NumericsPolicy(message["policy"])
        self._reference = Reference(message["source"], policy, self._device, message["seed"])
        self.callers = {EAGER: self._reference.caller}
        return {}

    def _op_trace(self, message: dict[str, Any]) -> Answer:
        facts = self.reference.facts(message["problem_hash"])
        self._specs = facts.tensors
        return {"facts": facts.model_dump(mode="json"), "writes_inputs": self.reference.writes_inputs}

    def _op_check_scalars(self, _: dict[str, Any]) -> Answer:
        self.reference.refuse_random_scalars()
        return {}

    def _op_signature(self, _: dict[str, Any]) -> Answer:
        return {"signature": self.reference.signature(self._specs).as_json()}

    def _op_draw(self, message: dict[str, Any]) -> Answer:
        return self._deliver(self.reference.draw(message["seed"]))

    def _op_run(self, message: dict[str, Any]) -> Answer:
        if message["seed"] is not None:
            torch.manual_seed(message["seed"])
        return self._deliver(self.reference.run(self._given(message)))

    def _op_run_exact(self, message: dict[str, Any]) -> Answer:
        outputs = self.reference.run_exact(self._given(message), in_pieces="again" in message)
        if message["rounded"]:
            outputs = [shortened(tensor) for tensor in outputs]
        return {**self._deliver(outputs), "exact": self.reference.exact}

    def _op_run_selecting(self, message: dict[str, Any]) -> Answer:
        chosen = self.reference.run_selecting(self._given(message), in_pieces="again" in message)
        return {**self._deliver_chosen(chosen), "exact": self.reference.exact}

    def _op_reads(self, message: dict[str, Any]) -> Answer:
        return self._deliver(self.reference.reads(self._given(message), message["names"]))

    def _op_settle(self, message: dict[str, Any]) -> Answer:
        if message["notice"]:
            self.reference.notice()
        self.reference.restore()
        self._graph = self._last = None
        return {"changes_state": self.reference.changes_state}

    def _op_assume(self, message: dict[str, Any]) -> Answer:
        """The judge's memory may be written again, so the state that is assumed is kept in a copy."""
        self.reference.assume([tensor.clone() for tensor in self._given(message)])
        return {}

    def _op_bind(self, message: dict[str, Any]) -> Answer:
        self._slots = message["slots"]
        self._graph = self._last = None
        return {}

    def _op_compile(self, message: dict[str, Any]) -> Answer:
        """Compile the module; why that cannot be, where it cannot."""
        given = self._given(message)
        try:
            compiled = self.reference.compiled(message["mode"])
            with self._device.policy(self.reference.policy), time_limit(message["seconds"]):
                for _ in range(COMPILING_CALLS):
                    compiled(given)()
        except Exception as error:  # whatever the compiler stack raises: there is no such baseline then
            return {"reason": f"{type(error).__name__}: {str(error)[:500]}"}
        self.callers[message["baseline"]] = compiled
        return {}

    def _op_capture(self, message: dict[str, Any]) -> Answer:
        """Make a block's calls one graph, for :meth:`_op_replay`."""
        calls = self._calls(message)
        with self._device.policy(self.reference.policy):
            self._graph = self._device.captured(calls)
        return {}

    def _op_block(self, message: dict[str, Any]) -> Answer:
        """Call the baseline once for each slot of an order; the seconds of all calls, by this process's clock."""
        calls = self._calls(message)
        with self._device.policy(self.reference.policy):
            return {"seconds": self._device.baseline_seconds(calls)}

    def _op_replay(self, _: dict[str, Any]) -> Answer:
        if self._graph is None:
            raise UnusableReference("nothing was captured")
        with self._device.policy(self.reference.policy):
            return {"seconds": self._device.baseline_seconds([self._graph])}

    def _op_last(self, _: dict[str, Any]) -> Answer:
        return self._deliver(self.reference.outputs_of(self._last))

    def _op_answer(self, message: dict[str, Any]) -> Answer:
        slot = self._slot_tensors(message["slot"])
        return self._deliver(self.reference.outputs_of(self.reference.answer(slot)))

    def _op_choices(self, message: dict[str, Any]) -> Answer:
        return self._deliver_chosen(self.reference.choices(self._slot_tensors(message["slot"])))

    def _op_detach(self, _: dict[str, Any]) -> Answer:
        for use in ("given", "results"):
            if use in self._memory:
                self._memory.pop(use).close()
        self._device.release_unused()
        return {}

    def _attach(self, message: dict[str, Any], descriptors: Sequence[int]) -> Answer:
        """Map memory of the judge's in the place of an earlier one; results that waited for it are written."""
        use = message["use"]
        if use in self._memory:
            self._memory.pop(use).close()
        self._memory[use] = self._device.attach(message["handle"], descriptors)
        if use == "results":
            self._place()
        return {}

    def _given(self, message: dict[str, Any]) -> list[torch.Tensor]:
        memory = self._memory["given"].bytes
        layouts = layouts_from_json(message["given"], memory.numel())
        return [layout.view(memory, place) for layout, place in zip(layouts, places(layouts)[0], strict=True)]

    def _deliver(self, tensors: Sequence[torch.Tensor]) -> Answer:
        self._results = list(tensors)
        self._place()
        return {"results": [TensorLayout.of(tensor).as_json() for tensor in tensors]}

    def _deliver_chosen(self, chosen: Sequence[Chosen]) -> Answer:
        """Outputs first, then what some of them select from."""
        selections = [selection for _, selection in chosen]
        values = [selection.values for selection in selections if selection is not None]
        told = [
            None if selection is None else {"dim": selection.dim, "keepdim": selection.keepdim}
            for selection in selections
        ]
        return {**self._deliver([*(tensor for tensor, _ in chosen), *values]), "selections": told}

    def _place(self) -> None:
        """Write the results, if there is room; else the judge, who is told their layouts, sends larger memory."""
        needed = places([TensorLayout.of(tensor) for tensor in self._results])[1]
        memory = self._memory.get("results")
        if memory is not None and needed <= memory.bytes.numel():
            write(self._results, memory.bytes)
            self._device.synchronize()
            self._results = []

    def _slot_tensors(self, slot: int) -> list[torch.Tensor]:
        memory, offsets = self._memory["slots"].bytes, self._slots[slot]
        given = [spec for spec in self._specs if spec.role is not Role.OUTPUT]
        return [TensorLayout.of_spec(spec).view(memory, offsets[spec.name]) for spec in given]

    def _calls(self, message: dict[str, Any]) -> list[Callable[[], object]]:
        """One call for each slot; the last one's result is kept."""
        caller = self.callers[message["baseline"]]
        calls = [caller(self._slot_tensors(slot)) for slot in message["order"]]
        last = calls[-1]

        def keep() -> None:
            self._last = last()

        return [*calls[:-1], keep]


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the main thread when the block takes longer, and again each second: compilers catch it."""

    def expire(*_: object) -> None:
        raise TimeoutError(f"not finished within {seconds} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _failed(error: str, what: object, **more: Any) -> Answer:
    return {"ok": False, "error": error, "message": str(what)[:4000], **more}
