"""The judge's line to the reference process: questions about a reference, with tensors both ways.

What comes back is checked for form (types, shapes, sizes) and copied to private memory; whether it is true nobody can
check, since it is the user's own statement of what the operator is. The judge itself runs no code of users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
from gpu_worker.signature import NotPortable
from gpu_worker.targets.base import Arena, GraphUnavailable, JudgeDevice

ANSWER_SECONDS = 600.0
"""Longest wait for one answer. The supervisor ends the reference process earlier, where the stage's own time is up."""

ANSWER_BYTES = 2**18
"""Largest answer: layouts of as many tensors as one message may bring take half of it."""

LIMITS = {"trace": MAX_MESSAGE_BYTES, "signature": 2**20}
"""Largest answer by question, where it is not :data:`ANSWER_BYTES`: a traced graph, a constructor's arguments."""

LEAST_BYTES = 2**20
"""Of the memory for tensors in either direction."""


class ReferenceLost(Exception):
    """The reference process has gone, or said something that makes no sense; the supervisor knows how it ended."""


class ReferenceLink:
    """One reference process, as the judge asks it. Names and order of tensors are those of the problem's facts."""

    def __init__(self, channel: Channel, device: JudgeDevice) -> None:
        self.device = device
        self._channel = channel
        self._arenas: dict[str, Arena] = {}
        """By use, ``given`` and ``results``: memory for tensors in either direction."""
        self._specs: tuple[TensorSpec, ...] = ()
        self._policy = NumericsPolicy.FP32
        self.graph = Graph(nodes=(), outputs=())
        """Of the traced forward pass; empty until :meth:`facts`."""
        self.exact = True
        """False where the reference cannot run in float64; then float32 stands in for it."""
        self.writes_inputs = False
        """Whether forward changes its arguments, as an activation in place does; after :meth:`facts`."""
        self.changes_state = False
        """Whether calls change parameters or buffers; after :meth:`settle`."""

    def wait_ready(self) -> None:
        """Wait until the process has imported what it needs."""
        self.ask("ready")

    def load(self, problem: Problem, seed: int) -> None:
        """Run the problem file and construct its model. Raises :class:`UnusableReference`, as all questions may."""
        self._policy = problem.policy
        self.ask("load", source=problem.source, policy=problem.policy.value, seed=seed)

    def facts(self, problem_hash: str) -> ProblemFacts:
        """Run and trace forward once."""
        answer = self.ask("trace", problem_hash=problem_hash)
        try:
            told = ProblemFacts.model_validate(answer["facts"])
            check_facts(told, self.device.memory_bytes)
        except (KeyError, ValidationError, InvalidFacts) as error:
            raise UnusableReference(f"the facts of the reference make no sense: {str(error)[:500]}") from error
        self._specs, self.graph = told.tensors, told.graph
        self.writes_inputs = answer.get("writes_inputs") is True
        return told.model_copy(update={"problem_hash": problem_hash, "policy": self._policy})

    def check_scalars(self) -> None:
        """Raise where the model draws numbers at random that kernels know as constants."""
        self.ask("check_scalars")

    def signature(self) -> dict[str, Any]:
        """How an imported file is called in the reference's place, as JSON. Raises :class:`NotPortable`."""
        answer = self.ask("signature").get("signature")
        if not isinstance(answer, dict):
            raise ReferenceLost("no signature")
        return answer

    def draw(self, seed: int) -> list[torch.Tensor]:
        """All given tensors of one draw: fresh inputs, and the model's own parameters and buffers."""
        answer = self.ask("draw", seed=seed)
        wanted = [spec for spec in self._specs if spec.role is not Role.OUTPUT]
        if self._layouts(answer) != [TensorLayout.of_spec(spec) for spec in wanted]:
            raise UnusableReference("get_inputs() returns other shapes, strides or dtypes when it is called again")
        return self._tensors(answer)

    def run(self, tensors: Sequence[torch.Tensor], *, seed: int | None = None) -> list[torch.Tensor]:
        """The outputs under the policy, in the dtypes of the facts; shapes may differ from theirs.

        ``seed`` is for the random numbers that forward draws, if it does.
        """
        return self._checked(self._tensors(self.ask("run", tensors, seed=seed)))

    def run_exact(self, tensors: Sequence[torch.Tensor], *, rounded: bool = False) -> list[torch.Tensor]:
        """The outputs in float64, or in float32 where memory is short; ``rounded``: wherever they are large."""
        answer = self.ask("run_exact", tensors, rounded=rounded)
        self.exact = self.exact and answer.get("exact") is True
        return self._counted(self._tensors(answer))

    def run_selecting(self, tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, Selection | None]]:
        """As :meth:`run_exact`, rounded, with what index outputs select from."""
        answer = self.ask("run_selecting", tensors)
        self.exact = self.exact and answer.get("exact") is True
        return self._chosen(answer)

    def reads(self, tensors: Sequence[torch.Tensor], names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Which elements of the named tensors one forward pass reads, as truth values."""
        if not names:
            return {}
        answer = self.ask("reads", tensors, names=list(names))
        shapes = {spec.name: spec.shape for spec in self._specs}
        told = [(layout.shape, layout.dtype) for layout in self._layouts(answer)]
        if told != [(shapes[name], torch.bool) for name in names]:
            raise ReferenceLost("masks of other shapes")
        return dict(zip(names, self._tensors(answer), strict=True))

    def settle(self, *, notice: bool = False) -> None:
        """Give parameters and buffers their first values again; with ``notice``, see first whether calls moved them."""
        answer = self.ask("settle", notice=notice)
        if notice:
            self.changes_state = answer.get("changes_state") is True

    def chosen(self, question: str, **fields: Any) -> list[tuple[torch.Tensor, Selection | None]]:
        """The answer to a question about outputs and what they select from."""
        return self._chosen(self.ask(question, **fields))

    def shared(self, question: str, **fields: Any) -> list[torch.Tensor]:
        """The outputs that answer a question, where the other process wrote them: they may change at any time.

        For comparisons that copy what they look at; in the shapes of the facts.
        """
        layouts, memory = self._answered(self.ask(question, **fields))
        outputs = [spec for spec in self._specs if spec.role is Role.OUTPUT]
        if [layout.shape for layout in layouts] != [spec.shape for spec in outputs]:
            raise UnusableReference("forward gives outputs of other shapes when it is called again")
        return [layout.view(memory, place) for layout, place in zip(layouts, places(layouts)[0], strict=True)]

    def ask(
        self, question: str, tensors: Sequence[torch.Tensor] = (), descriptors: Sequence[int] = (), **fields: Any
    ) -> dict[str, Any]:
        """Put one question, with tensors; its answer. Raises what the reference process reports.

        Where that process finds too little memory it is asked again, after this one has given back what it can spare.
        """
        message = {"op": question, **fields}
        if tensors:
            message["given"] = self._hand_over(tensors)
        try:
            return self._exchange(message, descriptors)
        except UnusableReference as error:
            if error.kind is not FailureKind.OUT_OF_MEMORY or descriptors:
                raise
        self.device.release_unused()
        return self._exchange({**message, "again": True}, ())

    def release_memory(self) -> None:
        """Give back the memory that tensors were handed over in; the next ones get other."""
        if self._arenas:
            self._exchange({"op": "detach"}, ())
        self._drop_arenas()

    def close(self) -> None:
        """Hang up, which ends the process."""
        self._channel.close()
        self._drop_arenas()

    def _drop_arenas(self) -> None:
        while self._arenas:
            self._arenas.popitem()[1].close()

    def _exchange(self, message: dict[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:
        try:
            self._channel.send(message, descriptors)
            answer, _ = self._channel.receive(ANSWER_SECONDS, limit=LIMITS.get(message["op"], ANSWER_BYTES))
        except (ChannelClosed, ChannelTimeout, ChannelError) as error:
            raise ReferenceLost(str(error)) from error
        if not isinstance(answer, dict):
            raise ReferenceLost("not an answer")
        if answer.get("ok") is not True:
            raise _reported(answer)
        return answer

    def _hand_over(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        layouts = [TensorLayout.of(tensor) for tensor in tensors]
        write(tensors, self._arena("given", places(layouts)[1]).bytes)
        self.device.synchronize()
        return [layout.as_json() for layout in layouts]

    def _arena(self, use: str, needed: int) -> Arena:
        """Memory of at least this size that both processes have; larger one takes the place of an earlier one."""
        earlier = self._arenas.get(use)
        if earlier is not None and earlier.bytes.numel() >= needed:
            return earlier
        if earlier is not None:
            self._arenas.pop(use).close()
        self._arenas[use] = arena = self.device.allocate(max(needed, LEAST_BYTES))
        try:
            self._exchange({"op": "attach", "use": use, "handle": arena.handle}, arena.descriptors)
        except BaseException:
            self._arenas.pop(use).close()
            raise
        return arena

    def _layouts(self, answer: dict[str, Any]) -> list[TensorLayout]:
        """Those of the tensors that an answer brings, of which none is taken over yet."""
        try:
            return layouts_from_json(answer.get("results"), self.device.memory_bytes)
        except NotALayout as error:
            raise UnusableReference(f"the reference gives what cannot be handed to a kernel: {error}") from error

    def _answered(self, answer: dict[str, Any]) -> tuple[list[TensorLayout], torch.Tensor]:
        """Layouts of the tensors that an answer brings, and the memory that they lie in."""
        layouts = self._layouts(answer)
        return layouts, self._arena("results", places(layouts)[1]).bytes

    def _tensors(self, answer: dict[str, Any]) -> list[torch.Tensor]:
        layouts, memory = self._answered(answer)
        return [layout.copy(memory, place) for layout, place in zip(layouts, places(layouts)[0], strict=True)]

    def _counted(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        if len(outputs) != sum(spec.role is Role.OUTPUT for spec in self._specs):
            raise UnusableReference("forward gives another number of outputs when it is called again")
        return outputs

    def _checked(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        wanted = [TORCH_DTYPES[spec.dtype] for spec in self._specs if spec.role is Role.OUTPUT]
        if [tensor.dtype for tensor in self._counted(outputs)] != wanted:
            raise UnusableReference("forward gives outputs of other dtypes when it is called again")
        return outputs

    def _chosen(self, answer: dict[str, Any]) -> list[tuple[torch.Tensor, Selection | None]]:
        """Outputs, and behind them what those that are indices select from."""
        tensors = self._tensors(answer)
        outputs = [spec for spec in self._specs if spec.role is Role.OUTPUT]
        told = answer.get("selections")
        if not isinstance(told, list) or len(told) != len(outputs):
            raise ReferenceLost("selections of other outputs")
        values = iter(tensors[len(outputs) :])
        selections = [_selection(item, values) for item in told]
        return list(zip(self._counted(tensors[: len(outputs)]), selections, strict=True))


def _selection(told: Any, values: Any) -> Selection | None:
    if told is None:
        return None
    source = next(values, None)
    dim = told.get("dim") if isinstance(told, Mapping) else -1
    if source is None or not (dim is None or (type(dim) is int and -source.dim() <= dim < source.dim())):
        raise ReferenceLost("a selection that makes no sense")
    return Selection(source, dim, told.get("keepdim") is True)


def _reported(answer: dict[str, Any]) -> Exception:
    message = str(answer.get("message", ""))[:4000]
    error = answer.get("error")
    if error == "uncapturable":
        return GraphUnavailable(message)
    if error == "not_portable":
        return NotPortable(message)
    if error == "out_of_memory":
        return UnusableReference(message, FailureKind.OUT_OF_MEMORY)
    if error == "unusable":
        kind = answer.get("kind")
        allowed = (FailureKind.OUT_OF_MEMORY.value, FailureKind.TIMEOUT.value)
        return UnusableReference(message, FailureKind(kind) if kind in allowed else FailureKind.INVALID_PROBLEM)
    return ReferenceLost(message or "no reason given")
