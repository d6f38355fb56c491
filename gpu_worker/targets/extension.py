"""A torch extension's source in the runner: built as it is, and one of its functions called as the reference's forward.

Says which function and with which arguments; what that earns is judged elsewhere. The function gets forward's
arguments, then the reference's parameters and buffers, then arguments of its constructor, and may do without some of
them: see :data:`HOW_IT_IS_CALLED`. The first call tells, since an extension refuses arguments without having run.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gpu_worker.signature import Signature, TensorArgument
from gpu_worker.targets.base import RunnerError

FORWARD = "forward"

_PYTHON_MODULE = re.compile(r"^\s*PYBIND11_MODULE\s*\(\s*(\w+)", re.MULTILINE)
_CHOICE = re.compile(r"^\s*//\s*cupilot:\s*function\s+(\w+)\s*$", re.MULTILINE)
_OWN_NAME = "TORCH_EXTENSION_NAME"
_DEFAULT_NAME = "extension"
_ARGUMENT = re.compile(r"(\w+): ")
_NUMBERED = re.compile(r"arg\d+|_\d+")
_CXX_FLAGS = ["-O3", "-march=native", "-fopenmp"]
_CUDA_FLAGS = ["-O3"]

HOW_IT_IS_CALLED = (
    "It is called with forward's arguments; then with all parameters and buffers, or the parameters only, or neither; "
    "then with the arguments of Model's constructor that it names, first all of them, then those beyond the others; "
    "or, where it names none of its own, with all or none"
)


@dataclass(frozen=True)
class Function:
    """One function that an extension exports."""

    name: str
    call: Callable[..., Any]
    declared: str
    """As the extension declares it."""
    arguments: tuple[str, ...]
    """Their names; empty where the extension gives none."""
    refusals: tuple[str, ...]
    """Beginning of the message with which it refuses arguments."""

    def refused(self, error: Exception) -> bool:
        """Return whether this is what it says to arguments that it does not take, and not an error of its own code."""
        return str(error).startswith(self.refusals)


@dataclass(frozen=True)
class Rest:
    """Arguments that follow forward's in a call."""

    tensors: tuple[torch.Tensor, ...]
    scalars: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)


class Extension(torch.nn.Module):
    """A function with the reference's parameters and buffers, as a module that is called like the reference."""

    def __init__(self, function: Function, signature: Signature) -> None:
        super().__init__()
        self._function = function
        self._signature = signature
        self._rest: Rest | None = None
        """Known after the first call."""
        for key, name in signature.state.items():
            layout = signature.layout(name)
            values = torch.zeros(layout.shape, dtype=getattr(torch, layout.dtype))
            _attach(self, key, values, layout.role)

    def forward(self, *arguments: Any) -> Any:
        """Call the function; raises :class:`RunnerError` where it takes no call that can be made."""
        if self._rest is not None:
            return self._call(arguments, self._rest)
        for rest in self._calls():
            try:
                result = self._call(arguments, rest)
            except (TypeError, RuntimeError) as error:
                if not self._function.refused(error):
                    raise
            else:
                self._rest = rest
                return result
        raise self._no_call_fits()

    def _call(self, arguments: Sequence[Any], rest: Rest) -> Any:
        return self._function.call(*arguments, *rest.tensors, *rest.scalars, **rest.named)

    def _calls(self) -> Iterator[Rest]:
        """Yield what may follow forward's arguments, in the order in which it is tried: the fullest first."""
        constructor = self._signature.constructor_arguments()
        parameters = dict(self.named_parameters())
        state = parameters | dict(self.named_buffers())
        in_order = tuple(state[key] for key in self._signature.state)
        without_buffers = tuple(state[key] for key in self._signature.state if key in parameters)
        ways = (in_order, without_buffers, ())
        named = {name: constructor[name] for name in self._function.arguments if name in constructor}
        for tensors in ways:
            if self._function.arguments:
                yield Rest(tensors, named=named)
            else:
                yield Rest(tensors, tuple(constructor.values()))
                yield Rest(tensors)
        for tensors in ways if named else ():  # a tensor may have the name of an argument of the constructor
            left = self._function.arguments[len(self._signature.arguments) + len(tensors) :]
            yield Rest(tensors, named={name: value for name, value in named.items() if name in left})

    def _no_call_fits(self) -> RunnerError:
        signature = self._signature
        inputs = [_described(argument, signature) for argument in signature.arguments]
        state = [
            f"{_described(TensorArgument(name), signature)} ({signature.layout(name).role})"
            for name in signature.state.values()
        ]
        constructor = [f"{name}={value!r}" for name, value in signature.constructor_arguments().items()]
        message = (
            f"{self._function.declared} takes none of the calls that can be made with: {', '.join(inputs)}; "
            f"{', '.join(state) or 'no parameters or buffers'}; "
            f"{', '.join(constructor) or 'no arguments of the constructor'}. {HOW_IT_IS_CALLED}"
        )
        return RunnerError("launch_error", message[:3000], code="arguments_do_not_fit")


def load(path: Path, signature: Signature) -> Extension:
    """Build the source in a private folder and wrap the function that it exports; raises :class:`RunnerError`."""
    from torch.utils import cpp_extension

    source = path.read_text()
    module = _PYTHON_MODULE.search(source)
    name = module[1] if module is not None and module[1] != _OWN_NAME else _DEFAULT_NAME
    before = set(_operators())
    built = cpp_extension.load(
        name,
        [str(path)],
        extra_cflags=_CXX_FLAGS,
        extra_cuda_cflags=_CUDA_FLAGS,
        extra_ldflags=["-fopenmp"],
        build_directory=tempfile.mkdtemp(),
        is_python_module=module is not None,
    )
    functions = [_operator(full) for full in sorted(set(_operators()) - before)]
    if module is not None:
        functions += [_of_module(key, value) for key, value in vars(built).items() if _is_function(key, value)]
    return Extension(chosen(functions, source), signature)


def chosen(functions: Sequence[Function], source: str) -> Function:
    """Return the one that the source asks for, else the only one, else ``forward``; raises :class:`RunnerError`."""
    names = ", ".join(function.name for function in functions) or "none"
    choice = _CHOICE.search(source)
    wanted = choice[1] if choice is not None else FORWARD
    matches = [function for function in functions if function.name == wanted]
    if choice is None and len(functions) == 1:
        matches = list(functions)
    if matches:
        return matches[0]
    how = "choose one with --function NAME, or with a line in the file: // cupilot: function NAME"
    if not functions:
        message = "the extension exports no function: it needs an m.def in PYBIND11_MODULE or in TORCH_LIBRARY"
        raise RunnerError("launch_error", message, code="no_function")
    if choice is not None:
        message = f"the extension exports no function {wanted}; it exports {names}"
        raise RunnerError("launch_error", message, code="no_such_function")
    message = f"the extension exports several functions, none of which is called {FORWARD}: {names}; {how}"
    raise RunnerError("launch_error", message, code="several_functions")


def _of_module(name: str, call: Callable[..., Any]) -> Function:
    """Return a function of a Python module; pybind11 writes its declaration into the first line of its docstring."""
    declared = (call.__doc__ or name).split("\n")[0]
    names = () if declared.endswith("Overloaded function.") else _names(_ARGUMENT.findall(declared))
    return Function(name, call, declared, names, (f"{name}(): incompatible function arguments",))


def _operator(full: str) -> Function:
    """Return an operator by its qualified name; all overloads of a name are one function."""
    namespace, name = full.split("::")
    schemas = torch._C._jit_get_schemas_for_operator(full)
    names = _names([argument.name for argument in schemas[0].arguments]) if len(schemas) == 1 else ()
    call = getattr(getattr(torch.ops, namespace), name)
    refusals = (f"{full}() ", "Overloaded torch operator invoked from Python failed to match any schema")
    return Function(name, call, " or ".join(map(str, schemas)), names, refusals)


def _operators() -> set[str]:
    return {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}


def _is_function(name: str, value: object) -> bool:
    return callable(value) and not isinstance(value, type) and not name.startswith("_")


def _names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names that the author gave; pybind11 and torch number arguments that have none."""
    return () if all(_NUMBERED.fullmatch(name) for name in names) else tuple(names)


def _attach(module: torch.nn.Module, key: str, values: torch.Tensor, role: str) -> None:
    """Make ``values`` the module's parameter or buffer under a dotted key."""
    *path, leaf = key.split(".")
    for part in path:
        if part not in module._modules:
            module.add_module(part, torch.nn.Module())
        module = module.get_submodule(part)
    if role == "parameter":
        module.register_parameter(leaf, torch.nn.Parameter(values, requires_grad=False))
    else:
        module.register_buffer(leaf, values)


def _described(value: Any, signature: Signature) -> str:
    if isinstance(value, TensorArgument):
        layout = signature.layout(value.name)
        return f"{layout.name} {layout.dtype}{list(layout.shape)}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_described(item, signature) for item in value)}]"
    return repr(value)
