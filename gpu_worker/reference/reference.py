"""The user's reference: traced once, then callable under the policy and in float64.

All tensors that a kernel is given (inputs, parameters, buffers) are one ordered list here, named by their specs: that
is what cases and slots hold. A reference that writes to its arguments is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from statistics import median
from typing import Any

import torch

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.problem import Graph, NumericsPolicy, ProblemFacts, Role, TensorSpec
from gpu_worker.judge import counting
from gpu_worker.judge.copies import EXACT_ELEMENTS, Change, alike, changed_copies, copy_of, in_float64, shortened
from gpu_worker.judge.deviation import Expected, Selection, deviation, unit_of
from gpu_worker.judge.refusal import UnusableReference, blaming_reference, out_of_memory
from gpu_worker.judge.structure import zero_shares
from gpu_worker.reference import loading
from gpu_worker.reference.boundary import outputs_in, spec_of
from gpu_worker.reference.naming import argument_names
from gpu_worker.reference.reads import ReadWatch
from gpu_worker.reference.selections import SelectionWatch, with_errors
from gpu_worker.reference.trace import trace
from gpu_worker.reference.watching import OperatorClock
from gpu_worker.reference.widening import Widened, default_dtype, near
from gpu_worker.signature import Layout, Signature, TensorArgument
from gpu_worker.targets.base import JudgeDevice

SEPARABLE = 1e-4
"""Pieces of a batch must give the whole batch's float32 result to this, in units of its spread: algorithms may differ
between sizes, which costs 1e-6; batches that are not independent differ by a percent and more."""

MOST_PIECES = 64

OPERATOR_RUNS = 5

_RESULT_DTYPES = {torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64}

Chosen = tuple[torch.Tensor, Selection | None]
"""An output, and what it selects from where it holds indices."""


class Reference:
    """One problem's PyTorch model."""

    def __init__(self, source: str, policy: NumericsPolicy, device: JudgeDevice, seed: int) -> None:
        self.device = device
        self.policy = policy
        self._module = loading.load_module(source)
        self._seed = seed
        arguments = loading.constructor_arguments(self._module, seed)
        self._model = loading.build_model(self._module, arguments, device.torch_device)
        self._attributes = loading.attributes(self._model)
        self._inputs = loading.draw_inputs(self._module, seed + 1, device.torch_device)
        self._state_names = loading.state_names(self._model)
        self._input_names, self._scalars = loading.input_names(
            self._model, self._inputs, list(self._state_names.values())
        )
        self.state = self._own_state()
        self._output_dtypes: list[torch.dtype] = []
        self._output_paths: list[str] = []
        self.graph = Graph(nodes=(), outputs=())
        """Of the traced forward pass; empty until :meth:`facts`."""
        self.exact = True
        """False where the reference cannot run in float64; then float32 stands in for it."""
        self.answered_exactly = True
        """False where the last exact answer is float32's, for lack of an answer in float64 or of memory for it."""
        self.changes_state = False
        """True if calls change parameters or buffers, as an average that follows the inputs; after :meth:`notice`."""
        self._assumed: Sequence[torch.Tensor] = ()
        self._ran_exactly = False
        """True once it has: what raises in float64 from then on is the fault of its inputs."""
        self._casts: AbstractContextManager[object] = nullcontext()
        self._separable: bool | None = None
        """True if the operator treats the elements of a batch apart; None until it is asked."""

    def facts(self, problem_hash: str) -> ProblemFacts:
        """Run and trace the reference once."""
        tensors = self._input_copies(self._inputs)
        state = {key: tensor.clone() for key, tensor in self.state.items()}
        named = dict(zip(self._input_names, tensors, strict=True))
        named |= {self._state_names[key]: tensor for key, tensor in state.items()}
        arguments = self._inputs.arguments(tensors)
        with self.device.policy(NumericsPolicy.FP32), blaming_reference("forward"):
            graph, matmul_flops, least_matmul_flops, outputs, counted = trace(
                lambda: outputs_in(self._functional(state, arguments), self._output_paths), named, self._module.__file__
            )
        self._refuse_in_place(tensors)
        self.graph = graph
        self._output_dtypes = [tensor.dtype for tensor in outputs]
        specs = self._specs(outputs)
        zeros = zero_shares(specs, self._inputs.tensors)
        self._inputs = self._inputs.shapes_only()
        return ProblemFacts(
            problem_hash=problem_hash,
            policy=self.policy,
            tensors=specs,
            scalars=self._scalars | loading.attributes(self._model),
            graph=graph,
            op_class=counting.op_class(graph, tuple(tuple(tensor.shape) for tensor in outputs)),
            flops=counting.pointwise_flops(counted, specs) + matmul_flops,
            matmul_flops=matmul_flops,
            least_matmul_flops=least_matmul_flops,
            compulsory_bytes=counting.compulsory_bytes(graph, specs, zeros),
        )

    def reads(self, tensors: Sequence[torch.Tensor], names: Sequence[str]) -> list[torch.Tensor]:
        """Mark the elements of named tensors that one forward pass reads, as truth values in the tensors' shapes."""
        copies = [copy_of(tensor) for tensor in tensors]
        watch = ReadWatch(dict(zip([*self._input_names, *self._state_names.values()], copies, strict=True)), names)
        with self.device.policy(NumericsPolicy.FP32), blaming_reference("forward"), watch:
            self._functional(*self._split(copies))
        return [watch.read[name] for name in names]

    def signature(self, specs: Sequence[TensorSpec]) -> Signature:
        """Describe how an imported file's class is constructed and called in this module's place."""
        marks: list[Any] = [TensorArgument(name) for name in self._input_names]
        layouts = [Layout(item.name, item.role.value, item.dtype.value, item.shape, item.strides) for item in specs]
        arguments = loading.constructor_arguments(self._module, self._seed)  # again: Model may have changed them
        return Signature(
            arguments,
            self._inputs.arguments(marks),
            self._state_names,
            tuple(layouts),
            self.policy.value,
            tuple(argument_names(self._module.Model, len(arguments[0]))),
            tuple(self._output_paths),
        )

    def refuse_random_scalars(self) -> None:
        """Refuse a module with random numbers: kernels know them, so every process must construct it with the same."""
        others = loading.attributes_again(self._module, self._seed + 2)
        changed = sorted(name for name, value in others.items() if self._attributes.get(name, value) != value)
        if changed:
            raise UnusableReference(f"Model draws numbers at random, which kernels know as constants: {changed[0]}")

    def draw(self, seed: int) -> list[torch.Tensor]:
        """Return all given tensors of one draw: fresh inputs, and the model's own parameters and buffers."""
        inputs = loading.draw_inputs(self._module, seed, self.device.torch_device)
        same = [
            (first.shape, first.dtype, first.stride()) == (second.shape, second.dtype, second.stride())
            for first, second in zip(inputs.tensors, self._inputs.tensors, strict=False)
        ]
        if len(inputs.tensors) != len(self._inputs.tensors) or not all(same):
            raise UnusableReference("get_inputs() returns other shapes, strides or dtypes when it is called again")
        if inputs.leaves != self._inputs.leaves:
            raise UnusableReference("get_inputs() returns other numbers when it is called again: kernels know them")
        return [*inputs.tensors, *self.state.values()]

    def run(self, tensors: Sequence[torch.Tensor], policy: NumericsPolicy | None = None) -> list[torch.Tensor]:
        """Return the outputs under the problem's policy or another, in the boundary's dtypes whatever autocast does."""
        count = len(self._inputs.tensors)
        copies = [*tensors[:count], *(copy_of(tensor) for tensor in tensors[count:])]
        with self.device.policy(policy or self.policy), blaming_reference("forward"):
            outputs = outputs_in(self._functional(*self._split(copies)))
        return [tensor.to(dtype) for tensor, dtype in zip(outputs, self._output_dtypes, strict=True)]

    def run_exact(
        self, tensors: Sequence[torch.Tensor], *, in_pieces: bool = True, change: Change | None = None
    ) -> list[torch.Tensor]:
        """Return the outputs with every floating tensor, and PyTorch's default dtype, in float64.

        Where memory is too short for that and the operator treats the elements of a batch apart, it is run on pieces of
        the batch; large results are float32 then. Without ``in_pieces`` that is an :class:`UnusableReference`.
        ``change`` is made to private copies of the tensors, in place, before they are used.
        """
        self.answered_exactly = self.exact
        if not self.exact:
            return self._in_float32(tensors, change)
        try:
            outputs = self._in_float64(tensors, change)
        except RuntimeError as error:
            short, why = out_of_memory(error), str(error)
        else:
            self._ran_exactly = True
            return outputs
        self._free_memory()
        if short and not in_pieces:
            raise UnusableReference("there is too little memory for float64", FailureKind.OUT_OF_MEMORY)
        if short and (pieces := self._in_pieces(tensors, change)) is not None:
            return pieces
        if self._ran_exactly and not short:
            raise UnusableReference(f"forward has no answer in float64: {why[:500]}")
        outputs = self._in_float32(tensors, change)  # where it raises, it has no answer to these tensors at all
        if not short and (wide := self._widened(tensors, change, outputs)) is not None:
            return wide
        self.answered_exactly = False
        self.exact = short  # memory may be there the next time
        return outputs

    def run_selecting(self, tensors: Sequence[torch.Tensor], *, in_pieces: bool = True) -> list[Chosen]:
        """Run as :meth:`run_exact` does, and return what index outputs select from; large results are float32."""
        watch = SelectionWatch()
        with watch:
            outputs = self.run_exact(tensors, in_pieces=in_pieces)
        kept = self.rounded([tensor.contiguous() for tensor in outputs])
        selections = [watch.selection(tensor) for tensor in outputs]
        if any(selections):
            selections = with_errors(selections, partial(self.run, tensors), self._free_memory)
        return list(zip(kept, selections, strict=True))

    def rounded(self, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return exact outputs as they are kept: in float32 where they are large and no kernel gives float64."""
        return [
            tensor if dtype is torch.float64 else shortened(tensor)
            for tensor, dtype in zip(outputs, self._output_dtypes, strict=True)
        ]

    def _in_float32(self, tensors: Sequence[torch.Tensor], change: Change | None) -> list[torch.Tensor]:
        outputs = self.run(changed_copies(tensors, change) if change else tensors, NumericsPolicy.FP32)
        return [in_float64(tensor) for tensor in outputs]

    def _in_float64(self, tensors: Sequence[torch.Tensor], change: Change | None) -> list[torch.Tensor]:
        copies = changed_copies(tensors, change, _RESULT_DTYPES)
        with self.device.policy(NumericsPolicy.FP32), default_dtype(torch.float64), self._casts:
            return [in_float64(tensor) for tensor in outputs_in(self._functional(*self._split(copies)))]

    def _widened(
        self, tensors: Sequence[torch.Tensor], change: Change | None, rounded: Sequence[torch.Tensor]
    ) -> list[torch.Tensor] | None:
        """Run in float64 without the reference's own casts, from now on; None where that is not the same operator."""
        self._casts, outputs = Widened(), None
        with suppress(RuntimeError):
            outputs = self._in_float64(tensors, change)
        self._ran_exactly = outputs is not None and near(outputs, rounded)
        self._casts = self._casts if self._ran_exactly else nullcontext()
        return outputs if self._ran_exactly else None

    def _in_pieces(self, tensors: Sequence[torch.Tensor], change: Change | None) -> list[torch.Tensor] | None:
        """Run the batch in as many pieces as memory needs; None if the operator mixes elements of a batch."""
        count = 2
        while count <= min(MOST_PIECES, self._batch):
            try:
                if self._separable is None:
                    self._separable = self._gives_the_same(tensors, count)
                return self._joined(tensors, count, change) if self._separable else None
            except RuntimeError as error:
                if not out_of_memory(error):
                    return None
            self._free_memory()
            count *= 2
        return None

    def _joined(self, tensors: Sequence[torch.Tensor], count: int, change: Change | None) -> list[torch.Tensor]:
        """Return the exact results of the pieces, one behind the other."""
        joined: list[torch.Tensor] = []
        start = 0
        for piece in self._pieces(tensors, count):
            for index, part in enumerate(self._in_float64(piece, change)):
                if start == 0:
                    shape = (self._batch, *part.shape[1:])
                    large = part.dtype is torch.float64 and part.numel() * count > EXACT_ELEMENTS
                    dtype = torch.float32 if large and self._output_dtypes[index] is not torch.float64 else part.dtype
                    joined.append(torch.empty(shape, dtype=dtype, device=part.device))
                joined[index][start : start + part.shape[0]].copy_(part)
            start += part.shape[0]
        return joined

    def _gives_the_same(self, tensors: Sequence[torch.Tensor], count: int) -> bool:
        """Return whether the pieces of a batch give what the whole gives, under the policy."""
        whole = self.run(tensors)
        if any(tensor.dim() == 0 or tensor.shape[0] != self._batch for tensor in whole):
            return False
        if not all(tensor.is_floating_point() for tensor in whole):
            return False  # what an index was selected from would not be known
        units = [unit_of(tensor) for tensor in whole]
        start = 0
        for piece in self._pieces(tensors, count):
            for tensor, unit, part in zip(whole, units, self.run(piece), strict=True):
                expected = tensor[start : start + part.shape[0]]
                if part.shape != expected.shape:
                    return False
                if deviation(Expected(expected.contiguous(), unit), part.contiguous()) > SEPARABLE:
                    return False
            start += part.shape[0]
        return start == self._batch

    def _pieces(self, tensors: Sequence[torch.Tensor], count: int) -> Iterator[list[torch.Tensor]]:
        """Yield the given tensors for one stretch of the batch after the other: inputs of that many rows are cut."""
        step = -(-self._batch // count)
        for start in range(0, self._batch, step):
            yield [
                tensor[start : start + step] if self._has_batch(place, tensor) else tensor
                for place, tensor in enumerate(tensors)
            ]

    def _has_batch(self, place: int, tensor: torch.Tensor) -> bool:
        """Return whether this given tensor is an input with a row for each element of the batch."""
        return place < len(self._inputs.tensors) and tensor.dim() > 0 and tensor.shape[0] == self._batch

    @property
    def _batch(self) -> int:
        """Rows of the first input; 1 where it has none."""
        first = self._inputs.tensors[0]
        return first.shape[0] if first.dim() > 0 else 1

    def _free_memory(self) -> None:
        if self.device.torch_device.type == "cuda":
            torch.cuda.empty_cache()

    def caller(self, tensors: Sequence[torch.Tensor]) -> Callable[[], Any]:
        """Return the eager baseline on these input tensors, to be timed: the plain module call and nothing else.

        The parameters are the module's own; ``tensors`` may be inputs alone or all given tensors.
        """
        return self._caller(self._model, tensors)

    def _caller(self, model: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> Callable[[], Any]:
        arguments = self._inputs.arguments(list(tensors)[: len(self._inputs.tensors)])
        return lambda: model(*arguments)

    def compiled(self, mode: str) -> Callable[[Sequence[torch.Tensor]], Callable[[], Any]]:
        """Return ``torch.compile`` of the module in this mode, as :meth:`caller`."""
        return partial(self._caller, torch.compile(self._model, mode=mode))

    def operator_seconds(self, tensors: Sequence[torch.Tensor]) -> float:
        """Return the median time of a forward pass's operators, without what Python does between them."""
        times = []
        for _ in range(OPERATOR_RUNS):
            copies = [copy_of(tensor) for tensor in tensors]
            clock = OperatorClock(self.device.synchronize)
            with self.device.policy(self.policy), blaming_reference("forward"), clock:
                self._functional(*self._split(copies))
            times.append(clock.seconds)
            del copies  # before the next take as much memory
        return median(times)

    def _refuse_in_place(self, traced: Sequence[torch.Tensor]) -> None:
        """Refuse a forward that has changed the copies of its inputs: no kernel may, so an export would not."""
        for name, before, after in zip(self._input_names, self._inputs.tensors, traced, strict=True):
            if after._version or not alike(before, after):
                raise UnusableReference(
                    f"in_place_reference: forward changes its argument {name}, and a kernel may not write to its "
                    f"inputs: begin forward with {name} = {name}.clone(), and return what it changed"
                )

    def outputs_of(self, result: Any) -> list[torch.Tensor]:
        """Return the output tensors of a :meth:`caller`'s result."""
        return outputs_in(result)

    def assume(self, storages: Sequence[torch.Tensor]) -> None:
        """Set the module's own parameters and buffers (flat storages, in the order of the specs)."""
        live, self._assumed = loading.live_state(self._model), storages
        with torch.no_grad():
            for key, storage in zip(self._state_names, storages, strict=True):
                live[key].copy_(storage.as_strided(live[key].shape, self.state[key].stride(), storage.storage_offset()))

    def answer(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Call the module itself, with the state that it was given to assume: earlier calls may have changed it."""
        if self.changes_state:
            self.assume(self._assumed)
        with self.device.policy(self.policy):
            return self.caller(tensors)()

    def notice(self) -> None:
        """Note whether the calls until now have changed parameters or buffers."""
        live = loading.live_state(self._model)
        self.changes_state = not all(torch.equal(live[key], tensor) for key, tensor in self.state.items())

    def restore(self) -> None:
        """Restore the first values of parameters and buffers: a training-mode forward may have changed them."""
        with torch.no_grad():
            for key, tensor in loading.live_state(self._model).items():
                tensor.copy_(self.state[key])

    def _own_state(self) -> dict[str, torch.Tensor]:
        live = loading.live_state(self._model)
        return {key: live[key].detach().clone() for key in self._state_names}

    def _split(self, tensors: Sequence[torch.Tensor]) -> tuple[dict[str, torch.Tensor], tuple[Any, ...]]:
        count = len(self._inputs.tensors)
        state = dict(zip(self._state_names, tensors[count:], strict=True))
        return state, self._inputs.arguments(tensors[:count])

    def _functional(self, state: Mapping[str, torch.Tensor], arguments: tuple[Any, ...]) -> Any:
        if not state:
            return self._model(*arguments)
        return torch.func.functional_call(self._model, dict(state), arguments)

    @staticmethod
    def _input_copies(inputs: loading.Inputs) -> list[torch.Tensor]:
        return [copy_of(tensor) for tensor in inputs.tensors]

    def _specs(self, outputs: Sequence[torch.Tensor]) -> tuple[TensorSpec, ...]:
        names = ["out"] if len(outputs) == 1 else [f"out{index}" for index in range(len(outputs))]
        parameters = set(dict(self._model.named_parameters()))
        specs = [spec_of(n, Role.INPUT, t) for n, t in zip(self._input_names, self._inputs.tensors, strict=True)]
        for key, name in self._state_names.items():
            role = Role.PARAMETER if key in parameters else Role.BUFFER
            specs.append(spec_of(name, role, self.state[key]))
        specs += [spec_of(name, Role.OUTPUT, tensor) for name, tensor in zip(names, outputs, strict=True)]
        return tuple(specs)
