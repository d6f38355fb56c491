"""The judge's line to the reference process: questions about a reference, with tensors both ways.

What comes back is checked for form (types, shapes, sizes) and copied to private memory; whether it is true nobody can
check, since it is the user's own statement of what the operator is. The judge itself runs no code of users.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from pydantic import ValidationError

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.problem import Graph, NumericsPolicy, Problem, ProblemFacts, Role, TensorSpec
from gpu_worker.channel import (
    MAX_MESSAGE_BYTES,
    Channel,
    ChannelClosed,
    ChannelError,
    ChannelTimeout,
)
from gpu_worker.judge.deviation import Selection
from gpu_worker.judge.dtypes import TORCH_DTYPES
from gpu_worker.judge.exchange import NotALayout, TensorLayout, layouts_from_json, places, write
from gpu_worker.judge.facts import InvalidFacts, check_facts
from gpu_worker.judge.refusal import UnusableReference
from gpu_worker.judge.room import Room
from gpu_worker.messages import reference as messages
from gpu_worker.signature import NotPortable
from gpu_worker.targets.base import Arena, GraphUnavailable, JudgeDevice

ANSWER_SECONDS = 600.0
"""Longest wait for one answer. The supervisor ends the reference process earlier, where the stage's own time is up."""

ANSWER_BYTES = 2**18
"""Largest answer: layouts of as many tensors as one message may bring take half of it."""

LIMITS = {"trace": MAX_MESSAGE_BYTES, "describe": 2**20}
"""Largest answer by question, where it is not :data:`ANSWER_BYTES`: a traced graph, a constructor's arguments."""

LEAST_BYTES = 2**20
"""Of the memory for tensors in either direction."""

KEPT_SHARE = 1 / 32
"""Of the device's memory: where that is short, memory for larger tensors is released after each answer."""

_A = TypeVar("_A", bound=messages.Answer)
_T = TypeVar("_T")


class ReferenceLost(Exception):
    """The reference process ended, or sent something that makes no sense; the supervisor knows how it ended."""


class ReferenceLink:
    """One reference process, as the judge asks it. Names and order of tensors are those of the problem's facts."""

    def __init__(self, channel: Channel, device: JudgeDevice, *, sparing: bool = False) -> None:
        """Speak over the channel; ``sparing``: both processes keep no memory that they do not use."""
        self.device = device
        self._room = Room(device, sparing)
        self._channel = channel
        self._arenas: dict[messages.Use, Arena] = {}
        """By use, ``given`` and ``results``: memory for tensors in either direction."""
        self._specs: tuple[TensorSpec, ...] = ()
        self._policy = NumericsPolicy.FP32
        self.graph = Graph(nodes=(), outputs=())
        """Of the traced forward pass; empty until :meth:`facts`."""
        self.exact = True
        """False where the reference cannot run in float64; then float32 stands in for it."""
        self.short = False
        """True where float32 stood in for the last exact answer for lack of memory."""
        self.changes_state = False
        """True if calls change parameters or buffers; after :meth:`settle`."""

    def wait_ready(self) -> None:
        """Wait until the process has imported what it needs."""
        self.ask(messages.Begin(sparing=self._room.sparing), messages.Answer)

    def load(self, problem: Problem, seed: int) -> None:
        """Run the problem file and construct its model. Raises :class:`UnusableReference`, as all questions may."""
        self._policy = problem.policy
        self.ask(messages.Load(source=problem.source, policy=problem.policy, seed=seed), messages.Answer)

    def facts(self, problem_hash: str) -> ProblemFacts:
        """Run and trace forward once."""
        answer = self.ask(messages.Trace(problem_hash=problem_hash), messages.Facts)
        try:
            facts = ProblemFacts.model_validate(answer.facts)
            check_facts(facts, self.device.memory_bytes)
        except (ValidationError, InvalidFacts) as error:
            raise UnusableReference(f"the facts of the reference make no sense: {str(error)[:500]}") from error
        self._specs, self.graph = facts.tensors, facts.graph
        return facts.model_copy(update={"problem_hash": problem_hash, "policy": self._policy})

    def check_scalars(self) -> None:
        """Raise where the model draws numbers at random that kernels know as constants."""
        self.ask(messages.CheckScalars(), messages.Answer)

    def signature(self) -> dict[str, Any]:
        """Describe how an imported file is called in the reference's place, as JSON. Raises :class:`NotPortable`."""
        return self.ask(messages.Describe(), messages.Described).signature

    def draw(self, seed: int) -> list[torch.Tensor]:
        """Return all given tensors of one draw: fresh inputs, and the model's own parameters and buffers."""
        answer = self.ask(messages.Draw(seed=seed), messages.Tensors)
        wanted = [spec for spec in self._specs if spec.role is not Role.OUTPUT]
        if self._layouts(answer) != [TensorLayout.of_spec(spec) for spec in wanted]:
            raise UnusableReference("get_inputs() returns other shapes, strides or dtypes when it is called again")
        return self._tensors(answer)

    def run(self, tensors: Sequence[torch.Tensor], *, seed: int | None = None) -> list[torch.Tensor]:
        """Return the outputs under the policy, in the dtypes of the facts; shapes may differ from theirs.

        ``seed`` is for the random numbers that forward draws, if it does.
        """
        question = messages.Run(given=self._hand_over(tensors), seed=seed)
        return self._checked(self._tensors(self.ask(question, messages.Tensors)))

    def run_exact(
        self,
        tensors: Sequence[torch.Tensor],
        *,
        rounded: bool = False,
        nudge: float = 0.0,
        seed: int = 0,
        of_largest: bool = False,
        ties: messages.Ties | None = None,
        near_ties: messages.Side | None = None,
    ) -> list[torch.Tensor]:
        """Return the outputs in float64, or in float32 where memory is short; ``rounded``: wherever they are large.

        With ``nudge``, each given value is moved by that share of itself, or ``of_largest`` in its tensor, up or down
        by ``seed``. ``ties``: which of equal elements is sorted and selected first. ``near_ties``: the
        side to which values next to a tie are rounded.
        """
        question = messages.RunExact(
            given=self._hand_over(tensors),
            rounded=rounded,
            nudge=nudge,
            nudge_seed=seed,
            nudge_of_largest=of_largest,
            ties=ties,
            near_ties=near_ties,
        )
        answer = self.ask(question, messages.ExactTensors)
        self._note_exactness(answer)
        return self._counted(self._tensors(answer))

    def run_selecting(self, tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, Selection | None]]:
        """Run as :meth:`run_exact` does, rounded, and return what index outputs select from too."""
        answer = self.ask(messages.RunSelecting(given=self._hand_over(tensors)), messages.SelectedTensors)
        self._note_exactness(answer)
        return self._with_selections(answer)

    def _note_exactness(self, answer: messages.ExactTensors | messages.SelectedTensors) -> None:
        self.short = answer.short
        self.exact = self.exact and (answer.exact or answer.short)

    def reads(self, tensors: Sequence[torch.Tensor], names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Mark the elements of the named tensors that one forward pass reads, as truth values."""
        if not names:
            return {}
        answer = self.ask(messages.Reads(given=self._hand_over(tensors), names=list(names)), messages.Tensors)
        shapes = {spec.name: spec.shape for spec in self._specs}
        masks = [(layout.shape, layout.dtype) for layout in self._layouts(answer)]
        if masks != [(shapes[name], torch.bool) for name in names]:
            raise ReferenceLost("masks of other shapes")
        return dict(zip(names, self._tensors(answer), strict=True))

    def operator_seconds(self, tensors: Sequence[torch.Tensor]) -> float:
        """Return the time of a forward pass's operators by the reference process's clock."""
        return self.ask(messages.OperatorTime(given=self._hand_over(tensors)), messages.Timed).seconds

    def settle(self, *, notice: bool = False) -> None:
        """Restore the first values of parameters and buffers; with ``notice``, note first whether calls moved them."""
        answer = self.ask(messages.Settle(notice=notice), messages.Settled)
        if notice:
            self.changes_state = answer.changes_state

    def assume(self, state: Sequence[torch.Tensor]) -> None:
        """Set the module's parameters and buffers (flat storages, in the order of the specs)."""
        self.ask(messages.Assume(given=self._hand_over(state)), messages.Answer)

    def compile(self, baseline: str, mode: str, tensors: Sequence[torch.Tensor], seconds: int) -> str | None:
        """Make ``torch.compile`` of the module the baseline of this name; return the reason where that cannot be."""
        layouts = self._hand_over(tensors)
        question = messages.Compile(given=layouts, baseline=baseline, mode=mode, seconds=seconds)
        return self.ask(question, messages.Compiled).reason

    def shared_outputs(self, slot: int) -> list[torch.Tensor]:
        """Return the outputs for a slot where the other process wrote them: they may change at any time.

        For comparisons that copy what they look at; in the shapes of the facts.
        """
        layouts, memory = self._answered(self.ask(messages.Output(slot=slot), messages.Tensors))
        outputs = [spec for spec in self._specs if spec.role is Role.OUTPUT]
        if [layout.shape for layout in layouts] != [spec.shape for spec in outputs]:
            raise UnusableReference("forward gives outputs of other shapes when it is called again")
        return [layout.view(memory, place) for layout, place in zip(layouts, places(layouts)[0], strict=True)]

    def ask(self, question: messages.Question, answer: type[_A], descriptors: Sequence[int] = ()) -> _A:
        """Ask one question, and return its answer. Raises what the reference process reports."""
        if descriptors:
            return self._accepted(self._exchange(question.as_json(), descriptors), answer)
        return self._with_memory(question, lambda message: self._accepted(self._exchange(message.as_json()), answer))

    def timed(self, question: messages.Block | messages.Replay) -> tuple[float, float]:
        """Ask for a block of calls; return the seconds on the judge's clock and as the process reports them."""
        return self._with_memory(question, self._timed)

    def _timed(self, question: messages.Question) -> tuple[float, float]:
        message = question.as_json()
        started = time.perf_counter()
        data = self._exchange(message)
        host = time.perf_counter() - started
        return host, self._accepted(data, messages.Timed).seconds

    def _with_memory(self, question: messages.Question, ask: Callable[[messages.Question], _T]) -> _T:
        """Ask again where the process finds too little memory, after this one has given back what it can spare."""
        try:
            return ask(question)
        except UnusableReference as error:
            if error.kind is not FailureKind.OUT_OF_MEMORY:
                raise
        self._release([use for use in self._arenas if use == "results" or not getattr(question, "given", None)])
        self.device.release_unused()
        return ask(question.model_copy(update={"again": True}))

    def release_memory(self) -> None:
        """Release the memory that tensors were handed over in; the next ones get other memory."""
        self._release(list(self._arenas))

    def _release(self, uses: Sequence[messages.Use]) -> None:
        if uses:
            self._accepted(self._exchange(messages.Detach(uses=list(uses)).as_json()), messages.Answer)
        for use in uses:
            self._arenas.pop(use).close()

    def close(self) -> None:
        """Hang up, which ends the process."""
        self._channel.close()
        self._drop_arenas()

    def _drop_arenas(self) -> None:
        while self._arenas:
            self._arenas.popitem()[1].close()

    def _exchange(self, question: dict[str, Any], descriptors: Sequence[int] = ()) -> Any:
        try:
            self._channel.send(question, descriptors)
            data, _ = self._channel.receive(ANSWER_SECONDS, limit=LIMITS.get(question["op"], ANSWER_BYTES))
        except (ChannelClosed, ChannelTimeout, ChannelError) as error:
            raise ReferenceLost(str(error)) from error
        return data

    @staticmethod
    def _accepted(data: Any, answer: type[_A]) -> _A:
        """Return a valid answer; raises what the process reports, and ReferenceLost for anything else."""
        if not isinstance(data, dict) or not isinstance(data.get("ok"), bool):
            raise ReferenceLost("not an answer")
        try:
            if not data["ok"]:
                raise _reported(messages.Failed.model_validate(data))
            return answer.model_validate(data)
        except ValidationError as error:
            raise ReferenceLost(f"not an answer: {str(error)[:500]}") from error

    def _hand_over(self, tensors: Sequence[torch.Tensor]) -> messages.Layouts:
        if not tensors:
            return []
        layouts = [TensorLayout.of(tensor) for tensor in tensors]
        write(tensors, self._arena("given", places(layouts)[1]).bytes)
        self.device.synchronize()
        return [layout.as_json() for layout in layouts]

    def _arena(self, use: messages.Use, needed: int) -> Arena:
        """Return memory of at least this size that both processes have; a larger one replaces an earlier one."""
        earlier = self._arenas.get(use)
        if earlier is not None and earlier.bytes.numel() >= needed:
            return earlier
        if earlier is not None:
            self._release([use])
        size = max(needed, LEAST_BYTES)
        self._arenas[use] = arena = self.with_room(lambda: self.device.allocate(size))
        question = messages.Attach(use=use, handle=arena.handle)
        try:
            self._accepted(self._exchange(question.as_json(), arena.descriptors), messages.Answer)
        except BaseException:
            self._arenas.pop(use).close()
            raise
        return arena

    def with_room(self, take: Callable[[], _T]) -> _T:
        """Take memory, again after the other process has given back what it can spare."""
        try:
            return take()
        except torch.OutOfMemoryError:
            pass  # outside of this block nothing holds on to what was taken before it failed
        self._accepted(self._exchange(messages.Detach(uses=[]).as_json()), messages.Answer)
        return take()

    def _layouts(self, answer: messages.Tensors) -> list[TensorLayout]:
        """Return the layouts of the tensors that an answer brings, before any of them is read."""
        try:
            return layouts_from_json(answer.results, self.device.memory_bytes)
        except NotALayout as error:
            raise UnusableReference(f"the reference gives what cannot be handed to a kernel: {error}") from error

    def _answered(self, answer: messages.Tensors) -> tuple[list[TensorLayout], torch.Tensor]:
        """Return the layouts of the tensors that an answer brings, and the memory that they lie in."""
        layouts = self._layouts(answer)
        return layouts, self._arena("results", places(layouts)[1]).bytes

    def _tensors(self, answer: messages.Tensors) -> list[torch.Tensor]:
        layouts, memory = self._answered(answer)
        at = zip(layouts, places(layouts)[0], strict=True)
        copies = [self.with_room(partial(layout.copy, memory, place)) for layout, place in at]
        handed_over = sum(arena.bytes.numel() for arena in self._arenas.values())
        if self._room.is_tight(self._specs) or self._room.is_short(self._specs, handed_over):
            kept = KEPT_SHARE * self.device.memory_bytes
            self._release([use for use, arena in self._arenas.items() if arena.bytes.numel() > kept])
        return copies

    def _counted(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        if len(outputs) != sum(spec.role is Role.OUTPUT for spec in self._specs):
            raise UnusableReference("forward gives another number of outputs when it is called again")
        return outputs

    def _checked(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        wanted = [TORCH_DTYPES[spec.dtype] for spec in self._specs if spec.role is Role.OUTPUT]
        if [tensor.dtype for tensor in self._counted(outputs)] != wanted:
            raise UnusableReference("forward gives outputs of other dtypes when it is called again")
        return outputs

    def _with_selections(self, answer: messages.SelectedTensors) -> list[tuple[torch.Tensor, Selection | None]]:
        """Return outputs with what those that are indices select from; that lies behind the outputs."""
        tensors = self._tensors(answer)
        outputs = [spec for spec in self._specs if spec.role is Role.OUTPUT]
        if len(answer.selections) != len(outputs):
            raise ReferenceLost("selections of other outputs")
        values = iter(tensors[len(outputs) :])
        selections = [_selection(item, values) for item in answer.selections]
        return list(zip(self._counted(tensors[: len(outputs)]), selections, strict=True))


def _selection(selected: messages.Selected | None, values: Iterator[torch.Tensor]) -> Selection | None:
    if selected is None:
        return None
    source, dim = next(values, None), selected.dim
    if source is None or not (dim is None or -source.dim() <= dim < source.dim()):
        raise ReferenceLost("a selection that makes no sense")
    return Selection(
        source, dim, selected.keepdim, distinct=selected.distinct, running=selected.running, error=selected.error
    )


def _reported(failed: messages.Failed) -> Exception:
    message = failed.message[:4000]
    if failed.error == "uncapturable":
        return GraphUnavailable(message)
    if failed.error == "not_portable":
        return NotPortable(message)
    if failed.error == "out_of_memory":
        return UnusableReference(message, FailureKind.OUT_OF_MEMORY)
    allowed = (FailureKind.OUT_OF_MEMORY.value, FailureKind.TIMEOUT.value)
    kind = FailureKind(failed.kind) if failed.kind in allowed else FailureKind.INVALID_PROBLEM
    return UnusableReference(message, kind)
