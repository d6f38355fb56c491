"""Answers the judge's questions about one reference; tensors come and go in memory that the judge owns.

The other end of :class:`gpu_worker.judge.reference_link.ReferenceLink`. The user's code lives in this process and may
have taken it over, so the judge believes no form of an answer, decides everything, and keeps its own clock.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial, singledispatchmethod
from typing import Any, Literal

import torch

from cupilot.domain.problem import Role, TensorSpec
from gpu_worker.channel import Channel, ChannelClosed
from gpu_worker.judge.exchange import TensorLayout, layouts_from_json, places, write
from gpu_worker.judge.refusal import UnusableReference, out_of_memory
from gpu_worker.judge.room import Room
from gpu_worker.judge.roundings import nudge
from gpu_worker.messages import reference as messages
from gpu_worker.messages.reference import Answer
from gpu_worker.reference.near_ties import NearTies
from gpu_worker.reference.reference import Chosen, Reference
from gpu_worker.reference.selections import OrderedTies
from gpu_worker.signature import NotPortable
from gpu_worker.targets.base import AttachedArena, GraphUnavailable, JudgeDevice

EAGER = "eager"
COMPILING_CALLS = 2
"""The first compiles; the second may compile again, for what the first has shown."""

_LARGE = (messages.Draw, messages.Run, messages.RunExact, messages.RunSelecting, messages.Reads)
"""Questions that take much memory once. What timed calls use stays in PyTorch's pool, as in a user's program."""

_ROOM_AFTER = (*_LARGE, messages.Attach)
"""After these, memory is left to the judge: results wait for memory that is attached for them."""

Caller = Callable[[Sequence[torch.Tensor]], Callable[[], Any]]


class ReferenceServer:
    """Serves one judge and one reference."""

    def __init__(self, channel: Channel, device: JudgeDevice) -> None:
        self._channel = channel
        self._device = device
        self._room = Room(device)
        self._reference: Reference | None = None
        self._specs: tuple[TensorSpec, ...] = ()
        self._memory: dict[str, AttachedArena] = {}
        self._results: list[torch.Tensor] = []
        """For the judge, until there is memory that they fit in."""
        self._slots: list[dict[str, int]] = []
        self.callers: dict[str, Caller] = {}
        """The calls that are timed, by the baseline's name."""
        self._graph: Callable[[], object] | None = None
        """The result of the last call of the last block."""

    def serve(self) -> None:
        """Answer until the judge hangs up."""
        torch.set_grad_enabled(False)
        while True:
            try:
                question, descriptors = self._channel.receive(descriptors=1)
            except ChannelClosed:
                return
            answer = self._answer(question, descriptors)
            try:
                self._channel.send(answer)
            except ChannelClosed:
                return

    def _answer(self, data: dict[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:
        try:
            return self._answered(messages.QUESTIONS.validate_python(data), descriptors).as_json()
        except UnusableReference as error:
            failed = _failed("unusable", error, kind=error.kind.value)
        except NotPortable as error:
            failed = _failed("not_portable", error)
        except GraphUnavailable as error:
            failed = _failed("uncapturable", error)
        except BaseException as error:  # whatever the user's code raises, SystemExit included
            if out_of_memory(error):
                failed = _failed("out_of_memory", error)
            else:
                failed = _failed("unusable", f"the reference failed: {type(error).__name__}: {error}")
        return failed.as_json()

    def _answered(self, question: messages.AnyQuestion, descriptors: Sequence[int]) -> Answer:
        answer = self._attach(question, descriptors) if isinstance(question, messages.Attach) else self._reply(question)
        if isinstance(question, _ROOM_AFTER) and self._room.is_short(self._specs):
            self._device.release_unused()
        return answer

    @property
    def reference(self) -> Reference:
        """The reference that was loaded."""
        if self._reference is None:
            raise UnusableReference("no reference was loaded")
        return self._reference

    @property
    def _short(self) -> bool:
        """True where float32 stood in for the last exact answer for lack of memory."""
        return self.reference.exact and not self.reference.answered_exactly

    @singledispatchmethod
    def _reply(self, question: messages.Question) -> Answer:
        raise TypeError(f"no answer to {type(question).__name__}")

    @_reply.register
    def _begin(self, question: messages.Begin) -> Answer:
        self._room.sparing = question.sparing
        return Answer()

    @_reply.register
    def _load(self, question: messages.Load) -> Answer:
        self._reference = Reference(question.source, question.policy, self._device, question.seed)
        self.callers = {EAGER: self._reference.caller}
        return Answer()

    @_reply.register
    def _trace(self, question: messages.Trace) -> messages.Facts:
        facts = self.reference.facts(question.problem_hash)
        self._specs = facts.tensors
        return messages.Facts(facts=facts.model_dump(mode="json"))

    @_reply.register
    def _check_scalars(self, _: messages.CheckScalars) -> Answer:
        self.reference.refuse_random_scalars()
        return Answer()

    @_reply.register
    def _describe(self, _: messages.Describe) -> messages.Described:
        return messages.Described(signature=self.reference.signature(self._specs).as_json())

    @_reply.register
    def _draw(self, question: messages.Draw) -> messages.Tensors:
        return messages.Tensors(results=self._deliver(self.reference.draw(question.seed)))

    @_reply.register
    def _run(self, question: messages.Run) -> messages.Tensors:
        if question.seed is not None:
            torch.manual_seed(question.seed)
        return messages.Tensors(results=self._deliver(self.reference.run(self._given(question.given))))

    @_reply.register
    def _run_exact(self, question: messages.RunExact) -> messages.ExactTensors:
        moved = None
        if question.nudge:
            by, seed, largest = question.nudge, question.nudge_seed, question.nudge_of_largest
            moved = partial(nudge, relative=by, seed=seed, of_largest=largest)
        ordered = OrderedTies(last=question.ties == "last") if question.ties else nullcontext()
        rounding = NearTies(up=question.near_ties == "up") if question.near_ties else nullcontext()
        with ordered, rounding:
            outputs = self.reference.run_exact(self._given(question.given), in_pieces=question.again, change=moved)
        if question.rounded:
            outputs = self.reference.rounded(outputs)
        exact = self.reference.answered_exactly
        return messages.ExactTensors(results=self._deliver(outputs), exact=exact, short=self._short)

    @_reply.register
    def _run_selecting(self, question: messages.RunSelecting) -> messages.SelectedTensors:
        return self._selected(self.reference.run_selecting(self._given(question.given), in_pieces=question.again))

    @_reply.register
    def _reads(self, question: messages.Reads) -> messages.Tensors:
        masks = self.reference.reads(self._given(question.given), question.names)
        return messages.Tensors(results=self._deliver(masks))

    @_reply.register
    def _operator_time(self, question: messages.OperatorTime) -> messages.Timed:
        return messages.Timed(seconds=self.reference.operator_seconds(self._given(question.given)))

    @_reply.register
    def _settle(self, question: messages.Settle) -> messages.Settled:
        if question.notice:
            self.reference.notice()
        self.reference.restore()
        self._graph = None
        return messages.Settled(changes_state=self.reference.changes_state)

    @_reply.register
    def _assume(self, question: messages.Assume) -> Answer:
        """Keep the assumed state in a copy, since the judge may write its memory again."""
        self.reference.assume([tensor.clone() for tensor in self._given(question.given)])
        self._device.synchronize()
        return Answer()

    @_reply.register
    def _bind(self, question: messages.Bind) -> Answer:
        self._slots = question.slots
        self._graph = None
        return Answer()

    @_reply.register
    def _compile(self, question: messages.Compile) -> messages.Compiled:
        tensors = self._given(question.given)
        try:
            compiled = self.reference.compiled(question.mode)
            with self._device.policy(self.reference.policy), time_limit(question.seconds):
                for _ in range(COMPILING_CALLS):
                    compiled(tensors)()
        except Exception as error:  # whatever the compiler stack raises: there is no such baseline then
            return messages.Compiled(reason=f"{type(error).__name__}: {str(error)[:500]}")
        self.callers[question.baseline] = compiled
        return messages.Compiled()

    @_reply.register
    def _capture(self, question: messages.Capture) -> Answer:
        calls = self._calls(question)
        with self._device.policy(self.reference.policy):
            self._graph = self._device.captured(calls)
        return Answer()

    @_reply.register
    def _block(self, question: messages.Block) -> messages.Timed:
        calls = self._calls(question)
        with self._device.policy(self.reference.policy):
            return messages.Timed(seconds=self._device.baseline_seconds(calls))

    @_reply.register
    def _replay(self, _: messages.Replay) -> messages.Timed:
        if self._graph is None:
            raise UnusableReference("nothing was captured")
        with self._device.policy(self.reference.policy):
            return messages.Timed(seconds=self._device.baseline_seconds([self._graph]))

    @_reply.register
    def _output(self, question: messages.Output) -> messages.Tensors:
        outputs = self.reference.outputs_of(self.reference.answer(self._slot_tensors(question.slot)))
        return messages.Tensors(results=self._deliver(outputs))

    @_reply.register
    def _detach(self, question: messages.Detach) -> Answer:
        for use in question.uses:
            if use in self._memory:
                self._memory.pop(use).close()
            if use == "slots":
                self._graph = None
        self._device.release_unused()
        return Answer()

    def _attach(self, question: messages.Attach, descriptors: Sequence[int]) -> Answer:
        """Map memory of the judge's in the place of an earlier one, and write results that waited for it."""
        if question.use in self._memory:
            self._memory.pop(question.use).close()
        self._memory[question.use] = self._device.attach(question.handle, descriptors)
        if question.use == "results":
            self._place()
        return Answer()

    def _given(self, layouts_as_json: messages.Layouts) -> list[torch.Tensor]:
        if not layouts_as_json:
            return []
        memory = self._memory["given"].bytes
        layouts = layouts_from_json(layouts_as_json, memory.numel())
        return [layout.view(memory, place) for layout, place in zip(layouts, places(layouts)[0], strict=True)]

    def _deliver(self, tensors: Sequence[torch.Tensor]) -> messages.Layouts:
        """Place tensors in the judge's memory, as soon as it is large enough, and return their layouts."""
        self._results = list(tensors)
        self._place()
        return [TensorLayout.of(tensor).as_json() for tensor in tensors]

    def _selected(self, chosen: Sequence[Chosen]) -> messages.SelectedTensors:
        """Deliver outputs first, then what some of them select from."""
        selections = [selection for _, selection in chosen]
        values = [selection.values for selection in selections if selection is not None]
        return messages.SelectedTensors(
            results=self._deliver([*(tensor for tensor, _ in chosen), *values]),
            selections=[
                None
                if selection is None
                else messages.Selected(
                    dim=selection.dim,
                    keepdim=selection.keepdim,
                    distinct=selection.distinct,
                    running=selection.running,
                    error=selection.error,
                )
                for selection in selections
            ],
            exact=self.reference.answered_exactly,
            short=self._short,
        )

    def _place(self) -> None:
        """Write the results if there is room; otherwise the judge sends larger memory for their layouts."""
        needed = places([TensorLayout.of(tensor) for tensor in self._results])[1]
        memory = self._memory.get("results")
        if memory is not None and needed <= memory.bytes.numel():
            write(self._results, memory.bytes)
            self._device.synchronize()
            self._results = []

    def _slot_tensors(self, slot: int) -> list[torch.Tensor]:
        memory, offsets = self._memory["slots"].bytes, self._slots[slot]
        specs = [spec for spec in self._specs if spec.role is not Role.OUTPUT]
        return [TensorLayout.of_spec(spec).view(memory, offsets[spec.name]) for spec in specs]

    def _calls(self, question: messages.Block | messages.Capture) -> list[Callable[[], object]]:
        """Return one call for each slot."""
        caller = self.callers[question.baseline]
        return [caller(self._slot_tensors(slot)) for slot in question.order]


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


def _failed(
    error: Literal["unusable", "not_portable", "uncapturable", "out_of_memory"], why: object, kind: str | None = None
) -> messages.Failed:
    return messages.Failed(error=error, message=str(why)[:4000], kind=kind)
