"""An imported file in the runner: a process with torch, which holds one ``ModelNew`` (or one function of a torch
extension in its place) and nothing of the judge's.

Every rule here is for honest files: what keeps dishonest ones from earning anything is outside of this process (the
judge's clock, poison and comparison, the sandbox, and that the process is stopped whenever it has nothing to do).
What is looked up before the file runs stays what it was, whatever the file replaces in torch or time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from gpu_worker import signature as signatures
from gpu_worker.messages.runner import COPIED
from gpu_worker.returned import keyed, leaves
from gpu_worker.signature import Signature
from gpu_worker.targets import extension, user_errors
from gpu_worker.targets.base import RunnerError
from gpu_worker.targets.imported_memory import CpuMemory, CudaMemory, Memory

if TYPE_CHECKING:
    from gpu_worker.targets.cuda.lent import Lent

MODULE = "modelnew"

FIRST_CALLS = 4
"""Calls of forward that allocate outside of lent memory: a file's own buffers, graphs and counters are made there."""

_tensor_types = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class _Slot:
    """A slot's tensors, ready to be used."""

    arguments: tuple[Any, ...]
    parameters: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    """(the module's own, the slot's)."""
    buffers: tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], ...]
    """(the module's own, the slot's, a copy of that for a module that changes its buffers)."""
    outputs: tuple[torch.Tensor, ...]


class ImportedRunner:
    """Runs one imported file; see :class:`gpu_worker.targets.base.RunnerDevice`."""

    def __init__(self, memory: Callable[[], Memory]) -> None:
        self._open = memory
        self._memory: Memory | None = None
        self._arena: torch.Tensor | None = None
        self._signature: Signature | None = None
        self._model: torch.nn.Module | None = None
        self._in_order = False
        """True if a result without dicts is taken in its own order."""
        self._slots: list[_Slot] = []
        self._lent: Lent | None = None
        self._places: list[list[int]] = []
        self._calls = 0

    def attach(self, handle: dict[str, Any], descriptors: Sequence[int]) -> None:
        """Map the judge's arena; replaces an earlier one."""
        assert self._memory is not None
        self._slots = []
        self._arena = self._memory.map(handle, descriptors)

    def load(self, binary: str, launches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Run the file and construct its class; ``launches`` is one :class:`Signature` as JSON."""
        self._memory = self._memory or self._open()
        self._signature = signature = Signature.from_json(launches[0])
        self._memory.apply(signature.policy)
        path = Path(binary)
        self._model = _module(path, signature, self._memory.device)
        self._in_order = not signature.output_paths or path.suffix != ".py"  # an extension may return a tuple
        check_state(_parameters(self._model), _buffers(self._model), signature)
        return {}

    def reset(self) -> None:
        """Do nothing: what a file keeps between calls is state of a Python process."""

    def run_empty(self) -> float:
        """See :class:`gpu_worker.targets.borrowing.BorrowingRunnerDevice`."""
        self._memory = self._memory or self._open()
        self._memory.begin()
        self._memory.touch()
        return self._memory.end()

    def lend(self, handle: dict[str, Any], descriptors: Sequence[int]) -> None:
        """Map memory in which results may stay."""
        assert self._memory is not None
        self._lent = self._memory.lend(handle, descriptors)

    def free(self) -> list[list[int]]:
        """See :class:`gpu_worker.targets.borrowing.BorrowingRunnerDevice`."""
        assert self._lent is not None
        return self._lent.free()

    def places(self) -> list[list[int]]:
        """See :class:`gpu_worker.targets.borrowing.BorrowingRunnerDevice`."""
        return self._places

    def bind(self, slots: Sequence[Mapping[str, int]]) -> None:
        """Make views of each slot's tensors, in the places where the file wants them."""
        self._slots = [self._bound(slot) for slot in slots]

    def _bound(self, slot: Mapping[str, int]) -> _Slot:
        assert self._arena is not None
        assert self._signature is not None
        assert self._model is not None
        views = {layout.name: layout.view(self._arena, slot[layout.name]) for layout in self._signature.tensors}
        state = {key: views[name] for key, name in self._signature.state.items()}
        parameters, buffers = _parameters(self._model), _buffers(self._model)
        return _Slot(
            signatures.filled(self._signature.arguments, views),
            tuple((own, state[key]) for key, own in parameters.items() if key in state),
            tuple((own, state[key], torch.empty_like(state[key])) for key, own in buffers.items() if key in state),
            tuple(views[layout.name] for layout in self._signature.outputs()),
        )

    def run(self, order: Sequence[int]) -> float:
        """Call forward for each slot, with its parameters and buffers, and hand over what it returns; all is timed."""
        assert self._memory is not None
        slots = [self._slots[index] for index in order]
        self._memory.begin()
        with user_errors.reported(None, "forward_failed", "forward"):
            with torch.no_grad(), self._autocast():
                self._copy_buffers(slots)
                first = max(0, FIRST_CALLS - self._calls)
                self._calls += len(slots)
                places = [self._call(slot) for slot in slots[:first]]
                with self._lent.routed() if self._lent is not None else nullcontext():
                    places += [self._call(slot) for slot in slots[first:]]
            seconds = self._memory.end()  # waits: what came before took its time while the device worked
        self._places = places if self._lent is not None else []
        return seconds

    def _call(self, slot: _Slot) -> list[int]:
        """Call forward for a slot; return where its results lie."""
        assert self._model is not None
        for own, values in slot.parameters:
            own.data = values
        for own, _, copy in slot.buffers:
            own.data = copy
        return self._hand_over(self._model(*slot.arguments), slot.outputs)

    @staticmethod
    def _copy_buffers(slots: Sequence[_Slot]) -> None:
        values = [values for slot in slots for _, values, _ in slot.buffers]
        if values:
            torch._foreach_copy_([copy for slot in slots for _, _, copy in slot.buffers], values)

    def _autocast(self) -> AbstractContextManager[Any]:
        assert self._signature is not None
        assert self._memory is not None
        half = self._signature.policy == "half"
        return torch.autocast(self._memory.device.type, torch.bfloat16, enabled=half)

    def _results(self, result: Any) -> list[Any]:
        """Return what forward returned in the order of the reference's outputs."""
        assert self._signature is not None
        if self._in_order and type(result) in _tensor_types:
            return [result]
        if self._in_order and not keyed(result):
            return [item for _, item in leaves(result)]
        return by_keys(dict(leaves(result)), self._signature.output_paths)

    def _hand_over(self, result: Any, outputs: Sequence[torch.Tensor]) -> list[int]:
        """Leave results where they are or copy them to the slot; return their places."""
        results = self._results(result)
        check_results(results, outputs, self._signature.policy if self._signature else "")
        places = []
        for output, item in zip(outputs, results, strict=True):
            kept = self._lent.keep(item, output) if self._lent is not None else None
            places.append(COPIED if kept is None else kept)
            if kept is not None:
                continue
            if any(_overlap(item, place) for place in outputs):
                message = "forward returned memory that the judge reads its results from; return a tensor of your own"
                raise RunnerError("policy_breach", message, code="output_aliased")
            output.copy_(item)
        return places


def _overlap(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether the ranges that two tensors span in memory overlap."""
    (start, end), (first, last) = _span(left), _span(right)
    return start < last and first < end


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return first and last address; strides are never negative."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (reach + 1) * tensor.element_size() if tensor.numel() else start


def by_keys(found: Mapping[str, Any], wanted: Sequence[str]) -> list[Any]:
    """Return results in the order of the reference's outputs; raises :class:`RunnerError` where their keys differ."""
    missing = [path for path in wanted if path not in found]
    extra = [path for path in found if path not in wanted]
    if missing or extra:
        differences = [f"it lacks {', '.join(missing)}"] if missing else []
        differences += [f"the reference has no {', '.join(extra)}"] if any(extra) else []  # '' is a tensor alone
        message = f"forward returned other keys than the reference: {'; '.join(differences)}"[:2000]
        raise RunnerError("wrong_value", message, code="wrong_output_keys")
    return [found[path] for path in wanted]


def check_results(results: Sequence[Any], outputs: Sequence[torch.Tensor], policy: str) -> None:
    """Refuse what is not the reference's outputs in number, kind, shape and dtype; raises :class:`RunnerError`."""
    if len(results) != len(outputs):
        message = f"forward returned {len(results)} tensors; the reference returns {len(outputs)}"
        raise RunnerError("wrong_value", message, code="wrong_output_count")
    for index, (got, want) in enumerate(zip(results, outputs, strict=True)):
        if type(got) not in _tensor_types:
            message = f"output {index} is a {type(got).__name__}; only plain tensors are taken"
            raise RunnerError("wrong_value", message, code="wrong_output_type")
        if got.shape != want.shape:
            message = f"output {index} has shape {list(got.shape)}; the reference's has {list(want.shape)}"
            raise RunnerError("wrong_value", message, code="wrong_shape")
        lowered = policy == "half" and got.is_floating_point() and want.is_floating_point()
        if got.dtype != want.dtype and not lowered:
            message = f"output {index} has dtype {got.dtype}; the reference's has {want.dtype}"
            raise RunnerError("wrong_value", message, code="wrong_dtype")
        if got.device != want.device:
            message = f"output {index} is on {got.device}; it belongs on {want.device}"
            raise RunnerError("wrong_value", message, code="wrong_device")


def check_state(
    parameters: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor], signature: Signature
) -> None:
    """Refuse a module whose parameters are not the reference's by name, shape and dtype; raises :class:`RunnerError`.

    Buffers may be missing, or be the file's own.
    """
    wanted = {key: signature.layout(name) for key, name in signature.state.items()}
    needed = {key for key, layout in wanted.items() if layout.role == "parameter"}
    problems = [f"it lacks {key} {list(wanted[key].shape)}" for key in sorted(needed - set(parameters))]
    problems += [f"the reference has no {key}" for key in sorted(set(parameters) - needed)]
    for key, own in {**parameters, **buffers}.items():
        layout = wanted.get(key)
        if layout is not None and (tuple(own.shape), str(own.dtype)) != (layout.shape, f"torch.{layout.dtype}"):
            problems.append(f"{key} is {own.dtype}{list(own.shape)}, not torch.{layout.dtype}{list(layout.shape)}")
    if problems:
        message = (
            "ModelNew's parameters are not the reference's, whose values it is given by name: " + "; ".join(problems)
        )[:2000]
        raise RunnerError("launch_error", message, code="parameters_differ")


def _module(path: Path, signature: Signature, device: torch.device) -> torch.nn.Module:
    """Construct the module that the file is called through, on the device."""
    if path.suffix != ".py":
        with user_errors.reported(path, "import_failed", "building the extension"), torch.no_grad():
            return extension.load(path, signature).to(device)
    with user_errors.reported(path, "import_failed", "running the file"):
        module = _run(path)
    with user_errors.reported(path, "constructor_failed", "constructing ModelNew"), torch.no_grad():
        return _construct(module, signature).to(device)


def _run(path: Path) -> ModuleType:
    """Return the file as a module under its own name, with its source where ``inspect`` and Triton look for it."""
    module = ModuleType(MODULE)
    module.__file__ = str(path)
    sys.modules[MODULE] = module
    sys.argv = [str(path)]
    exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), module.__dict__)
    return module


def _construct(module: ModuleType, signature: Signature) -> torch.nn.Module:
    model_new = getattr(module, "ModelNew", None)
    if not (isinstance(model_new, type) and issubclass(model_new, torch.nn.Module)):
        raise RunnerError("launch_error", "the file has no class ModelNew(nn.Module)", code="no_model_new")
    args, kwargs = signature.constructor
    user_errors.check_arguments(model_new, args, kwargs)
    torch.manual_seed(0)
    return model_new(*args, **kwargs)


def _parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters())


def _buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_buffers())


def cpu() -> ImportedRunner:
    """Return the factory for the ``cpu`` target."""
    return ImportedRunner(CpuMemory)


def cuda() -> ImportedRunner:
    """Return the factory for the ``cuda`` target."""
    return ImportedRunner(CudaMemory)
