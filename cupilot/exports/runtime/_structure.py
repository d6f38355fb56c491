"""Notice what was changed in a module since its constructor, other than the values of its parameters and buffers.

It looks at types, submodules, hooks of submodules, which parameters and buffers there are and which of them are one
tensor, and attributes. It does not see into other objects than lists, tuples, dictionaries and sets, nor values that
are written into tensors that are no parameters or buffers, nor changes to classes and to functions of Python modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

_INTERNAL = frozenset(vars(torch.nn.Module()))
_HARMLESS = {"_compiled_call_impl"}
"""New attribute that a class has, too: of ``Module.compile``."""
_COUNTS_ATTRIBUTES = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)
"""False for compilers that cannot follow how many attributes there are: new ones are not noticed in compiled code."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


class ModuleStructure:
    """Record of a module and its submodules."""

    def __init__(self) -> None:
        self._records: list[_Record] = []
        self._ties: list[tuple[tuple[torch.nn.Module, str], tuple[torch.nn.Module, str]]] = []

    def record(self, model: torch.nn.Module, own: set[str]) -> None:
        """Record the module as it is; ``own`` are its own attributes' names, without those that this package adds."""
        for path, module in model.named_modules():
            names = [name for name in vars(module) if name in own or module is not model]
            self._records.append(_Record(path, module, names))
        first: dict[int, tuple[torch.nn.Module, str]] = {}
        for place, tensor in _states(model):
            other = first.setdefault(id(tensor), place)
            if other is not place:
                self._ties.append((other, place))

    def change(self, model: torch.nn.Module) -> str | None:
        """Return what was changed since the record was made; None where nothing was."""
        if self._records[0].module is not model:
            return "it is a shallow copy, and the record is the other module's"
        for record in self._records:
            if not record.holds():
                return record.change()
        for (module, name), (other, same) in self._ties:
            if _state(module, name) is not _state(other, same):
                return f"{name} and {same} were one tensor, and are two now"
        hooks = torch.nn.modules.module
        if len(self._records) > 1 and (hooks._global_forward_hooks or hooks._global_forward_pre_hooks):
            return "there are hooks for all modules"
        return None


class _Record:
    """One module: type, submodules, attributes, names of parameters and buffers."""

    def __init__(self, path: str, module: torch.nn.Module, names: list[str]) -> None:
        self._path = path
        self.module = module
        self._type = type(module)
        hooks = _HOOKS if path else ()  # hooks of the whole are called whoever computes
        kept = [name for name in names if name not in _INTERNAL and not _is_computed(module, name)]
        self._names = ("_modules", *hooks, *kept)
        self._values = tuple(_copied(vars(module)[name]) for name in self._names)
        self._known = frozenset(vars(module))
        self._states = _present(module._parameters), _present(module._buffers)

    def holds(self) -> bool:
        """Return whether the module is as it was."""
        module = self.module
        if type(module) is not self._type:
            return False
        if (_present(module._parameters), _present(module._buffers)) != self._states:
            return False
        attributes = module.__dict__
        counts = _COUNTS_ATTRIBUTES or not torch.compiler.is_compiling()
        if counts and len(attributes) != len(self._known) and self._added():
            return False
        try:
            return tuple(map(attributes.get, self._names)) == self._values
        except Exception:  # values that cannot be compared, such as tensors, are others
            return False

    def change(self) -> str:
        """Return what is not as it was."""
        module, where = self.module, self._path or "the module"
        if type(module) is not self._type:
            return f"{where} is {type(module).__name__} now, not {self._type.__name__}"
        added = self._added()
        if added:
            return f"{where} has the new attribute {added[0]}"
        for name, value in zip(self._names, self._values, strict=True):
            if not _equal_values(vars(module).get(name), value):
                return f"{where} has {_NOUNS.get(name, f'another {name}')}"
        return f"{where} has other parameters or buffers"

    def _added(self) -> list[str]:
        new = [name for name in vars(self.module) if name not in self._known and name not in _HARMLESS]
        return [name for name in new if not name.startswith("_") or hasattr(self._type, name)]


_NOUNS = {"_modules": "other submodules", "_forward_hooks": "other hooks", "_forward_pre_hooks": "other hooks"}


def _is_computed(module: torch.nn.Module, name: str) -> bool:
    """Return whether hooks may compute it anew for each call, as those of ``weight_norm`` do."""
    return bool(module._forward_pre_hooks) and isinstance(vars(module)[name], torch.Tensor)


def _copied(value: Any) -> Any:
    """Return a value that does not change where the other is changed in place."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return pytree.tree_map(lambda leaf: set(leaf) if type(leaf) is set else leaf, value)


def _equal_values(left: Any, right: Any) -> bool:
    try:
        return left is right or bool(left == right)
    except Exception:
        return False


def _present(states: Mapping[str, torch.Tensor | None]) -> list[str]:
    return [name for name, tensor in states.items() if tensor is not None]


def _state(module: torch.nn.Module, name: str) -> torch.Tensor | None:
    tensor = module._parameters.get(name)
    return module._buffers.get(name) if tensor is None else tensor


def _states(model: torch.nn.Module) -> Iterator[tuple[tuple[torch.nn.Module, str], torch.Tensor]]:
    for module in model.modules():
        for name in (*module._parameters, *module._buffers):
            tensor = _state(module, name)
            if tensor is not None:
                yield (module, name), tensor
