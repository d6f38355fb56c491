"""Loads a problem file and makes models and inputs from it, with seeds. Everything user code raises is the user's."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from cupilot.domain.problem import DType
from gpu_worker.judge.dtypes import DTYPES
from gpu_worker.judge.refusal import REFERENCE_FILE, UnusableReference, blaming_reference, out_of_memory
from gpu_worker.reference.naming import argument_names, identifier, unique

MAX_TENSORS = 512
"""KernelBench's largest model has about 300 parameters and buffers."""

RESERVED_NAMES = ("out",)


def seed_everything(seed: int) -> None:
    """Seed every generator that a reference may draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def load_module(source: str) -> ModuleType:
    """Run the problem file as a module. It lies in a file, because torch.compile and TorchScript read sources.

    The source itself is compiled, not the file imported: an import takes a cached module of the same length, written
    within the same second, for this one.
    """
    path = Path(tempfile.gettempdir()) / REFERENCE_FILE
    path.write_text(source)
    module = ModuleType("reference")
    module.__file__ = str(path)
    with blaming_reference("running the problem file"):
        exec(compile(source, path, "exec"), module.__dict__)
    missing = [name for name in ("Model", "get_inputs", "get_init_inputs") if not hasattr(module, name)]
    if missing:
        raise UnusableReference(f"the problem file does not define {', '.join(missing)}")
    return module


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""


def constructor_arguments(module: ModuleType, seed: int) -> Arguments:
    """Return the result of ``get_init_inputs()``, in any of KernelBench's three forms."""
    seed_everything(seed)
    with blaming_reference("get_init_inputs()"):
        arguments = module.get_init_inputs()
        if isinstance(arguments, dict):
            return (), arguments
        if len(arguments) == 2 and isinstance(arguments[0], list | tuple) and isinstance(arguments[1], dict):
            return tuple(arguments[0]), arguments[1]
        return tuple(arguments), {}


def build_model(module: ModuleType, arguments: Arguments, device: torch.device) -> torch.nn.Module:
    """Construct ``Model(*get_init_inputs())`` (in training mode, like KernelBench runs it)."""
    with blaming_reference("constructing Model"):
        model = module.Model(*arguments[0], **arguments[1])
        if not isinstance(model, torch.nn.Module):
            raise UnusableReference("Model is not a torch.nn.Module")
        return model.to(device)


def attributes(model: torch.nn.Module) -> dict[str, int | float | bool]:
    """Return numeric attributes of the module and its submodules, upper case, submodule names in front."""
    numbers: dict[str, int | float | bool] = {}
    for path, module in model.named_modules():
        prefix = f"{path.replace('.', '_')}_" if path else ""
        for name, value in vars(module).items():
            if name.startswith("_") or name == "training":
                continue
            values = value if isinstance(value, list | tuple) and len(value) <= 8 else [value]
            for index, item in enumerate(values):
                if isinstance(item, bool | int | float) and abs(item) < 2**63:
                    label = name if item is value else f"{name}_{index}"
                    numbers[identifier(f"{prefix}{label}").upper()] = item
    return numbers


def attributes_again(module: ModuleType, seed: int) -> dict[str, int | float | bool]:
    """Return :func:`attributes` of a model constructed again, without memory; none if that cannot be done."""
    try:
        with torch.device("meta"):
            return attributes(build_model(module, constructor_arguments(module, seed), torch.device("meta")))
    except UnusableReference:
        return {}


@dataclass(frozen=True)
class Inputs:
    """The forward arguments of one draw, taken apart."""

    tensors: tuple[torch.Tensor, ...]
    leaves: tuple[Any, ...]
    """All leaves; tensors are None here."""
    structure: Any
    """Structure by which the leaves are put together again."""

    def shapes_only(self) -> Inputs:
        """Return the same without data: shapes, strides and dtypes on the meta device."""
        shapes = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in self.tensors]
        return replace(
            self,
            tensors=tuple(
                torch.empty_strided(size, strides, dtype=kind, device="meta") for size, strides, kind in shapes
            ),
        )

    def arguments(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Return the forward arguments with these tensors in place of the drawn ones."""
        rest = iter(tensors)
        leaves = [next(rest) if leaf is _TENSOR else leaf for leaf in self.leaves]
        return tuple(pytree.tree_unflatten(leaves, self.structure))


_TENSOR = object()
"""Marks the place of a tensor among leaves."""


def draw_inputs(module: ModuleType, seed: int, device: torch.device) -> Inputs:
    """Call ``get_inputs()`` under a seed, with tensors on the device."""
    with blaming_reference("get_inputs()"):
        arguments = _draw(module, seed, device)
        if isinstance(arguments, torch.Tensor) or not isinstance(arguments, list | tuple):
            raise UnusableReference("get_inputs() must return a list of forward's arguments")
    leaves, structure = pytree.tree_flatten(list(arguments))
    tensors = tuple(leaf.detach().to(device) for leaf in leaves if isinstance(leaf, torch.Tensor))
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor | int | float | bool | str | None | torch.dtype):
            raise UnusableReference(f"get_inputs() returns a {type(leaf).__name__}, which cannot be given to a kernel")
    if not tensors:
        raise UnusableReference("get_inputs() returns no tensor")
    marked = tuple(_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    return Inputs(tensors, marked, structure)


def _draw(module: ModuleType, seed: int, device: torch.device) -> Any:
    """Call ``get_inputs()`` on a GPU where that works: a CPU takes minutes for gigabytes of random numbers."""
    if device.type != "cpu":
        seed_everything(seed)
        try:
            with device:
                return module.get_inputs()
        except (RuntimeError, TypeError) as error:  # it names a CPU generator, or needs numpy
            if out_of_memory(error):
                raise
            torch.cuda.empty_cache()
    seed_everything(seed)
    return module.get_inputs()


def check_tensor(name: str, tensor: torch.Tensor) -> None:
    """Refuse what cannot cross the kernel boundary."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UnusableReference(f"{name} is not a plain strided tensor")
    if tensor.dtype not in DTYPES:
        message = f"{name} has dtype {tensor.dtype}; supported: {', '.join(item.value for item in DType)}"
        if tensor.is_complex():
            message += ". Give it as torch.view_as_real(tensor), and forward makes it complex by torch.view_as_complex"
        elif tensor.is_floating_point() and tensor.element_size() == 1:
            message += (
                f". Give it as its bytes, tensor.view(torch.uint8), and forward reads them by view({tensor.dtype}); a "
                "result too is returned as its bytes"
            )
        raise UnusableReference(message)
    if tensor.numel() == 0:
        raise UnusableReference(f"{name} has no elements")


def input_names(model: torch.nn.Module, inputs: Inputs, taken: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Return identifiers of the input tensors, and the scalar arguments by upper-case name."""
    top = argument_names(model.forward, inputs.structure.num_children)
    children = pytree.tree_unflatten(list(inputs.leaves), inputs.structure)
    names: list[str] = []
    scalars: dict[str, Any] = {}
    for name, child in zip(top, children, strict=True):
        leaves = pytree.tree_leaves(child)
        for index, leaf in enumerate(leaves):
            label = identifier(name if len(leaves) == 1 else f"{name}_{index}")
            if leaf is _TENSOR:
                names.append(label)
            elif isinstance(leaf, bool | int | float):
                scalars[label.upper()] = leaf
    return unique(names, [*RESERVED_NAMES, *taken]), scalars


def live_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the module's own parameters and buffers by their names in it."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def state_names(model: torch.nn.Module) -> dict[str, str]:
    """Return identifier of each parameter and buffer by its state_dict key, in state_dict order."""
    keys = [*dict(model.named_parameters()), *dict(model.named_buffers())]
    ordered = [key for key in model.state_dict() if key in set(keys)]
    ordered += [key for key in keys if key not in set(ordered)]  # buffers that are not persistent
    if len(ordered) > MAX_TENSORS:
        raise UnusableReference(f"the model has {len(ordered)} parameters and buffers; at most {MAX_TENSORS}")
    return dict(zip(ordered, unique((identifier(key) for key in ordered), RESERVED_NAMES), strict=True))
