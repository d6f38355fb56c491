"""Use a kernel where it was proven, and the reference everywhere else.

Proven means: these constructor arguments, the same structure of forward's arguments, and tensors of these shapes,
strides and dtypes on this class of device, outside of autograd.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

from ._structure import ModuleStructure

Run = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


def outside(spec: dict[str, Any], tensors: Sequence[torch.Tensor]) -> str | None:
    """Return why the kernel must not be given these tensors; None where it was proven for them."""
    if len(tensors) != len(spec["given"]):
        return f"{len(tensors)} tensors are given, {len(spec['given'])} are needed"
    device = tensors[0].device
    for item, tensor in zip(spec["given"], tensors, strict=True):
        if str(tensor.dtype) != f"torch.{item['dtype']}" or tensor.layout is not torch.strided:
            return f"{item['name']} is {tensor.dtype}, not {item['dtype']}"
        if list(tensor.shape) != item["shape"]:
            return f"{item['name']} has shape {list(tensor.shape)}, not {item['shape']}"
        steps = zip(item["shape"], tensor.stride(), item["strides"], strict=True)
        if any(size != 1 and step != expected for size, step, expected in steps):
            return f"{item['name']} has strides {list(tensor.stride())}, not {item['strides']}"
        if tensor.device != device:
            return f"{item['name']} is on {tensor.device}, not on {device}"
    return None


def foreign(tensor: torch.Tensor) -> str | None:
    """Return what a tensor is whose values are not in its memory; None for other tensors.

    A subclass with operators of its own (``DTensor``), a negated view, zeros without memory. Fake and functional
    tensors, which stand for others while code is traced, are none of these.
    """
    kind = type(tensor)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        if torch.compiler.is_compiling():  # an operator is called then, which is given them resolved
            return None
        return "negated view" if tensor.is_neg() else "zero tensor" if tensor._is_zerotensor() else None
    if issubclass(kind, FakeTensor | FunctionalTensor) or kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        return None
    return kind.__name__


class Proof:
    """Prepared form of the check :func:`outside`: exact equality with the proven inputs.

    A tensor that is not exactly equal may still be fine (the stride of a dimension of size 1 means nothing), so a no is
    to be asked again. Nothing of a call is kept: each tensor of each call is looked at.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self._wanted = [
            (getattr(torch, item["dtype"]), torch.Size(item["shape"]), tuple(item["strides"])) for item in spec["given"]
        ]

    def covers(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether dtype, layout, shape, strides and device of each are the proven ones."""
        if len(tensors) != len(self._wanted):
            return False
        device = tensors[0].device
        for (dtype, shape, strides), tensor in zip(self._wanted, tensors, strict=True):
            if tensor.dtype is not dtype or tensor.layout is not torch.strided or tensor.shape != shape:
                return False
            if tensor.stride() != strides or tensor.device != device:
                return False
        return True


def plain(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether nobody but us would see these tensors pass through PyTorch's dispatcher.

    Subclasses, modes (fake tensors, profilers of operators), function transforms and tracing all work there; an
    operator is for them.
    """
    if torch.compiler.is_compiling() or _somebody_watches():
        return False
    return all(type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter for tensor in tensors)


def _watchers() -> Callable[[], bool]:
    try:
        dispatch, function = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
        transforms, tracing = torch._C._functorch.peek_interpreter_stack, torch._C._get_tracing_state
        profiler = torch._C._autograd._profiler_enabled
    except AttributeError:  # another version of PyTorch: it cannot be known
        return lambda: True
    return lambda: bool(dispatch() or function() or profiler()) or not (transforms() is None and tracing() is None)


_somebody_watches = _watchers()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def in_forward_mode() -> bool:
    """Return whether derivatives are taken in forward mode: tangents do not pass through the kernel.

    ``torch.func.jvp`` hides them from an operator, so that it is not asked whether these tensors have any.
    """
    return torch.autograd.forward_ad._current_level >= 0


class _Built:
    """Structure of forward's arguments and of its result; copies of a module share it."""

    def __init__(self) -> None:
        self.arguments: Any = None
        self.result: Any = None
        """None for a single tensor."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self


class ProvenForward:
    """Mixin before the reference's ``Model``: its ``forward``, with the kernel where it is proven."""

    spec: dict[str, Any]
    run: Run
    """The kernel as a function of all given tensors."""
    direct: Run | None = None
    """The same, past PyTorch's dispatcher; None where ``run`` is that already."""
    trouble: Callable[[str], str | None]
    """Why the kernel cannot run on the device of this name, or None."""
    arguments: Callable[[], Any]
    """The reference's ``get_inputs``."""
    constructor: Callable[[], Any]
    """The reference's ``get_init_inputs``."""
    differentiable = True
    """True if the reference is to run where a gradient is required."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own = set(vars(self))
        self._why_not: str | None = None
        self._structure = ModuleStructure()
        self._state: list[tuple[torch.nn.Module, str]] = []
        self._others: list[Any] = []
        self._places: list[int] = []
        self._flat = -1
        """Number of tensors that forward takes, if it takes nothing else."""
        self._built = _Built()
        self._proof = Proof(type(self).spec)
        self._modes: list[tuple[torch.nn.Module, bool]] = [
            (module, module.training)
            for module in self.modules()  # type: ignore[attr-defined]
        ]
        """Training or evaluation, as the constructor left them: the kernel was proven so."""
        cls = type(self)
        with torch.random.fork_rng(devices=[]):
            if not _same_construction(args, kwargs, cls.constructor()):
                self._why_not = "it was constructed with other arguments than the kernel was proven for"
            else:
                self._learn()
        if self._why_not is not None:
            warnings.warn(f"the kernel is not used: {self._why_not}", stacklevel=2)
        self._structure.record(self, own)  # type: ignore[arg-type]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the reference computes."""
        tensors = None if kwargs or self._changed() is not None else self._tensors(args)
        if tensors is None or self._left_to_the_reference(tensors):
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        cls = type(self)
        outputs = cls.run(tensors) if cls.direct is None or not plain(tensors) else cls.direct(tensors)
        structure = self._built.result
        return outputs[0] if structure is None else pytree.tree_unflatten(list(outputs), structure)

    def why_not(self, *args: Any, **kwargs: Any) -> list[str]:
        """Return every reason why the kernel would not be used for these arguments; none where it would be."""
        changed = self._changed()
        if changed is not None:
            return [changed]
        if kwargs:
            return [f"{', '.join(kwargs)}: the kernel is not for arguments that are given by keyword"]
        tensors = self._tensors(args)
        if tensors is None:
            return ["forward's arguments are not built as those that the kernel was proven for"]
        cls, device = type(self), tensors[0].device
        reasons = [outside(cls.spec, tensors), cls.trouble(str(device))]
        if self._needs_a_gradient(tensors):
            reasons.append("a gradient is required: call it under torch.no_grad()")
        reasons += [f"a tensor is a {kind}" for kind in dict.fromkeys(map(foreign, tensors)) if kind is not None]
        if in_forward_mode():
            reasons.append("derivatives are taken in forward mode, which the kernel has none for")
        if torch.is_autocast_enabled(device.type):
            reasons.append("autocast is on, under which the reference may return another type")
        if self._is_in_another_mode():
            reasons.append("the kernel was proven in the mode that the constructor leaves, which was changed since")
        return [reason for reason in reasons if reason is not None]

    def _changed(self) -> str | None:
        """Return why the kernel is not for this module, whatever the arguments."""
        if self._why_not is not None:
            return self._why_not
        change = self._structure.change(self)  # type: ignore[arg-type]
        return None if change is None else f"the module was changed since its constructor: {change}"

    def _needs_a_gradient(self, tensors: list[torch.Tensor]) -> bool:
        wanted = type(self).differentiable and torch.is_grad_enabled()
        return wanted and any(tensor.requires_grad for tensor in tensors)

    def _is_in_another_mode(self) -> bool:
        return bool(type(self).spec["depends_on_mode"]) and any(
            module.training is not mode for module, mode in self._modes
        )

    def _left_to_the_reference(self, tensors: list[torch.Tensor]) -> bool:
        cls, device = type(self), tensors[0].device
        if self._needs_a_gradient(tensors) or in_forward_mode() or self._is_in_another_mode():
            return True
        if torch.is_autocast_enabled(device.type) or any(foreign(tensor) is not None for tensor in tensors):
            return True
        if torch.compiler.is_compiling() or not self._proof.covers(tensors):
            return outside(cls.spec, tensors) is not None or cls.trouble(str(device)) is not None
        return cls.trouble(str(device)) is not None

    def _tensors(self, args: tuple[Any, ...]) -> list[torch.Tensor] | None:
        """Return all that the kernel is given: the tensors among the arguments, then parameters and buffers."""
        states = self._states()
        if len(args) == self._flat and all(type(tensor) is torch.Tensor for tensor in args):
            return [*args, *states]
        leaves, structure = pytree.tree_flatten(list(args))
        if structure != self._built.arguments:
            return None
        tensors = [leaves[place] for place in self._places]
        others = [leaf for place, leaf in enumerate(leaves) if place not in self._places]
        if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            return None
        if any(isinstance(leaf, torch.Tensor) for leaf in others) or others != self._others:
            return None
        return [*tensors, *states]

    def _states(self) -> list[torch.Tensor]:
        """Return parameters and buffers from where PyTorch keeps them: a module's own lookup is slow."""
        states = []
        for module, name in self._state:
            tensor: torch.Tensor | None = module._parameters.get(name)
            if tensor is None:
                tensor = module._buffers[name]
                assert tensor is not None
            states.append(tensor)
        return states

    def _learn(self) -> None:
        """Learn the structure of arguments and result by running the reference without data."""
        model: Any = self
        cls = type(self)
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        kept = [key for key in model.state_dict() if key in named]
        kept += [key for key in named if key not in set(kept)]
        owners = [key.rpartition(".") for key in kept]
        self._state = [(model.get_submodule(owner), name) for owner, _, name in owners]
        try:
            with torch.device("meta"):
                arguments = cls.arguments()
        except Exception:  # it needs values, a generator or numpy
            arguments = cls.arguments()
        leaves, self._built.arguments = pytree.tree_flatten(list(arguments))
        self._places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self._others = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        if self._built.arguments == pytree.tree_flatten(leaves)[1] and not self._others:
            self._flat = len(leaves)
        leaves = [leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        state = {key: tensor.to("meta") for key, tensor in named.items()}
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call = _Call(super().forward)  # type: ignore[misc]
                result = call.without_data(model, state, tuple(pytree.tree_unflatten(leaves, self._built.arguments)))
        except Exception as error:
            if len(cls.spec["outputs"]) > 1:
                self._why_not = f"it is not known how the reference's outputs are built: {error}"
            return
        outputs, structure = pytree.tree_flatten(result)
        if any(leaf is None for leaf in outputs):
            self._why_not = "the reference returns None among its outputs"
        elif not isinstance(result, torch.Tensor):
            self._built.result = structure


class _Call:
    """The reference's own forward with other parameters and buffers."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward

    def without_data(self, model: Any, state: dict[str, torch.Tensor], arguments: tuple[Any, ...]) -> Any:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.nn.utils.stateless._reparametrize_module(model, state))
            return self._forward(*arguments)


def _same_construction(args: tuple[Any, ...], kwargs: dict[str, Any], proven: Any) -> bool:
    if isinstance(proven, dict):
        wanted: tuple[tuple[Any, ...], dict[str, Any]] = ((), proven)
    elif len(proven) == 2 and isinstance(proven[0], list | tuple) and isinstance(proven[1], dict):
        wanted = (tuple(proven[0]), proven[1])
    else:
        wanted = (tuple(proven), {})
    actual, expected = pytree.tree_flatten((args, kwargs)), pytree.tree_flatten(wanted)
    if actual[1] != expected[1]:
        return False
    return all(_equal(left, right) for left, right in zip(actual[0], expected[0], strict=True))


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and torch.equal(left, right)
    return type(left) is type(right) and bool(left == right)
