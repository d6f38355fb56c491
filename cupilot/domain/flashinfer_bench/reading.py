"""Turn a definition with its workloads into a problem file, and a solution into a file that can be judged.

Writes text only and runs none of it. A workload's own tolerances are not taken over: the judge measures its own.
"""

from __future__ import annotations

import ast
import json
import pprint
from collections.abc import Mapping, Sequence

from cupilot.domain.flashinfer_bench.schema import (
    ConstAxis,
    Definition,
    ExprAxis,
    InvalidRecord,
    Solution,
    Tensor,
    VarAxis,
    Workload,
)
from cupilot.domain.imported import with_function
from cupilot.domain.problem import DType, NumericsPolicy, check_source
from cupilot.domain.syntax import parse, parse_expression
from cupilot.domain.workload import DECLARATION

_FLOATS = ("float32", "float64", "float16", "bfloat16")
_RANGES = {"int8": (-128, 128), "uint8": (0, 256), "bool": (0, 2)}
"""Values of random inputs that are no floats; of wider integers -1024 to 1023, as flashinfer-bench draws them."""
_ARITHMETIC = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Name, ast.Load),
    *(ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Div, ast.Mod, ast.Pow, ast.USub),
)
_FUNCTIONS = ("min", "max")


def policy_of(definition: Definition) -> NumericsPolicy:
    """Return the policy that a definition's element types ask for."""
    halves = {"float16", "bfloat16"}
    tensors = (*definition.inputs.values(), *definition.outputs.values())
    return NumericsPolicy.HALF if any(item.dtype in halves for item in tensors) else NumericsPolicy.FP32


def problem_source(definition: Definition, workloads: Sequence[Workload]) -> str:
    """Return the problem file of a definition, judged at these workloads.

    Raises :class:`InvalidRecord` for what no kernel can be given here, and for references that use the names needed.
    """
    axes = {name: name.upper() for name in definition.axes}
    scalars = {name: name.upper() for name, item in definition.inputs.items() if item.shape is None}
    _check_names(definition, [*axes.values(), *scalars.values()])
    values = [_values(definition, workload, axes, scalars) for workload in workloads]
    shown = [
        {"name": item.uuid[:100], "values": given, "weight": item.weight}
        for item, given in zip(workloads, values, strict=True)
    ]
    constants = [f"{name} = {value!r}" for name, value in values[0].items()]
    constants += [
        f"{axes[name]} = {item.value}" for name, item in definition.axes.items() if isinstance(item, ConstAxis)
    ]
    constants += [f"{axes[name]} = int({_expression(definition, name, axes)})" for name in _ordered(definition)]
    arguments = ", ".join(definition.inputs)
    futures, reference = _without_futures(definition.reference)
    text = "\n".join(
        [
            _docstring(definition),
            *futures,
            "import torch",
            "",
            *constants,
            f"{DECLARATION} = {pprint.pformat(shown, width=110, sort_dicts=False)}",
            "",
            reference.strip(),
            "",
            "",
            "class Model(torch.nn.Module):",
            f"    def forward(self, {arguments}):",
            f"        result = run({arguments})",
            f"        return tuple(result[name] for name in {list(definition.outputs)}) if isinstance(result, dict)"
            " else result",
            "",
            "",
            "def get_inputs():",
            *_custom(definition, workloads[0], axes, scalars),
            "    return [",
            *(f"        {_drawn(definition, workloads, name, axes, scalars)}," for name in definition.inputs),
            "    ]",
            "",
            "",
            "def get_init_inputs():",
            "    return []",
            "",
        ]
    )
    check_source(text)
    return text


def modelnew_source(definition: Definition, solution: Solution) -> str:
    """Return the file that judges a solution: a ``ModelNew`` that calls its entry point, or its torch extension."""
    path, function = solution.spec.entry_point.split("::")
    entry = next((item.content for item in solution.sources if item.path == path), None)
    if entry is None:
        raise InvalidRecord(f"the entry file {path} is not among the solution's sources", where="spec.entry_point")
    if solution.spec.language in ("cuda", "cpp"):
        return _extension(solution, entry, function)
    if solution.spec.language not in ("python", "triton"):
        raise InvalidRecord(
            f"a solution in {solution.spec.language} cannot be judged",
            hint="python, triton, or cuda and cpp with binding torch",
            where="spec.language",
        )
    loaded = entry.rstrip() if len(solution.sources) == 1 else _unpacked(solution, path, function)
    arguments = ", ".join(definition.inputs)
    body = [f"        return {function}({arguments})"]
    if solution.spec.destination_passing_style:
        body = _destinations(definition, function)
    return "\n".join(
        [
            loaded,
            "",
            "",
            "import torch as _torch",
            "",
            "",
            "class ModelNew(_torch.nn.Module):",
            f"    def forward(self, {arguments}):",
            *body,
            "",
        ]
    )


def _extension(solution: Solution, entry: str, function: str) -> str:
    plain = solution.spec.binding == "torch" and len(solution.sources) == 1
    if not plain or solution.spec.destination_passing_style:
        raise InvalidRecord(
            "of solutions in C++ or CUDA, those with binding torch, one source and returned outputs can be judged",
            hint="wrap it in a Python solution that builds it with torch.utils.cpp_extension.load_inline",
            where="spec.binding",
        )
    return with_function(entry, function)


def _unpacked(solution: Solution, path: str, function: str) -> str:
    """Return code that writes a solution's files into a folder of its own and imports the entry point from there."""
    files = {item.path: item.content for item in solution.sources}
    if not path.endswith(".py") or any(name.startswith("/") or ".." in name.split("/") for name in files):
        raise InvalidRecord("a solution's paths are relative, and its entry file is Python", where="sources")
    module = path.removesuffix(".py").replace("/", ".")
    return "\n".join(
        [
            "import importlib, pathlib, sys, tempfile",
            "",
            f"_FILES = {pprint.pformat(files, width=110)}",
            '_FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="solution"))',
            "for _name, _text in _FILES.items():",
            "    (_FOLDER / _name).parent.mkdir(parents=True, exist_ok=True)",
            "    (_FOLDER / _name).write_text(_text)",
            "sys.path.insert(0, str(_FOLDER))",
            f"{function} = importlib.import_module({module!r}).{function}",
        ]
    )


def _destinations(definition: Definition, function: str) -> list[str]:
    """Return the body of a forward that allocates the outputs, whose axes are read off the inputs."""
    axes = {name: name for name in definition.axes}
    body = [f"        {name} = {item.value}" for name, item in definition.axes.items() if isinstance(item, ConstAxis)]
    found: dict[str, str] = {}
    for name, item in definition.inputs.items():
        for place, axis in enumerate(item.shape or ()):
            if isinstance(definition.axes.get(axis), VarAxis):
                found.setdefault(axis, f"        {axis} = {name}.shape[{place}]")
    body += found.values()
    body += [f"        {name} = int({_expression(definition, name, axes)})" for name in _ordered(definition)]
    first = next(name for name, item in definition.inputs.items() if item.shape is not None)
    for name, item in definition.outputs.items():
        shape = f"({', '.join(item.shape)},)" if item.shape else "()"
        body.append(f"        {name} = _torch.empty({shape}, dtype=_torch.{item.dtype}, device={first}.device)")
    outputs = ", ".join(definition.outputs)
    return [*body, f"        {function}({', '.join([*definition.inputs, outputs])})", f"        return {outputs}"]


def _check_names(definition: Definition, constants: Sequence[str]) -> None:
    for name in [*definition.axes, *definition.inputs, *definition.outputs]:
        if not name.isidentifier():
            raise InvalidRecord(f"{name!r} is not a name", where=f"definition {definition.name}")
    try:
        tree = parse(definition.reference)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidRecord(f"the reference is not valid Python: {error}", where="definition.reference") from error
    taken = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    if "run" not in taken:
        raise InvalidRecord("the reference defines no function run", where="definition.reference")
    taken |= {name for node in tree.body for name in _assigned(node)}
    reserved = [*constants, DECLARATION, "Model", "get_inputs", "get_init_inputs"]
    clash = next((name for name in reserved if name in taken or reserved.count(name) > 1), None)
    if clash is not None:
        raise InvalidRecord(f"the reference or another axis uses the name {clash}", where="definition.reference")


def _without_futures(reference: str) -> tuple[list[str], str]:
    """Return the ``from __future__`` statements of a reference, which must open a file, and the rest of it."""
    futures, kept = [], reference.encode().split(b"\n")
    for node in reversed(parse(reference).body):  # places in a line stay right up to what was cut
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            futures.append(ast.unparse(node))
            first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
            before, after = kept[first][: node.col_offset], kept[last][node.end_col_offset :].lstrip(b" ;")
            kept[first : last + 1] = [before + after]
    return futures, b"\n".join(kept).decode()


def _assigned(node: ast.stmt) -> set[str]:
    """Return the names that a statement at the top level assigns there."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return set()
    names = (part for part in ast.walk(node) if isinstance(part, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def _values(
    definition: Definition, workload: Workload, axes: Mapping[str, str], scalars: Mapping[str, str]
) -> dict[str, int | float | bool]:
    """Return a workload's values of the problem file's constants."""
    where = f"workload {workload.uuid}"
    values: dict[str, int | float | bool] = {}
    for name, axis in definition.axes.items():
        if isinstance(axis, VarAxis):
            if name not in workload.axes:
                raise InvalidRecord(f"{where} gives no size for the axis {name}", where=where)
            values[axes[name]] = workload.axes[name]
    for name, constant in scalars.items():
        given = workload.inputs.get(name)
        if given is None or given.type != "scalar" or given.value is None:
            raise InvalidRecord(f"{where} gives no value for the scalar {name}", where=where)
        values[constant] = given.value
    return values


def _drawn(
    definition: Definition,
    workloads: Sequence[Workload],
    name: str,
    axes: Mapping[str, str],
    scalars: Mapping[str, str],
) -> str:
    """Return the expression that draws an input."""
    if name in scalars:
        return scalars[name]
    item = definition.inputs[name]
    kinds = {given.type if (given := workload.inputs.get(name)) else "random" for workload in workloads}
    if kinds == {"custom"} and definition.custom_inputs_entrypoint:
        return f"drawn[{name!r}]"
    if kinds != {"random"}:
        raise InvalidRecord(
            f"the input {name} comes from {' and '.join(sorted(kinds))}: its values would have to be drawn",
            hint="give workloads whose inputs are random, scalar or custom; of custom ones all in every workload",
            where=f"workload.inputs.{name}",
        )
    sizes = [_size(definition, part, axes) for part in item.shape or ()]
    return _random(name, item, f"({', '.join(sizes)},)" if sizes else "()")


def _random(name: str, item: Tensor, shape: str) -> str:
    if item.dtype not in tuple(DType):
        raise InvalidRecord(
            f"the input {name} has elements of type {item.dtype}, which no kernel can be given",
            hint=f"one of {', '.join(DType)}",
            where=f"definition.inputs.{name}",
        )
    if item.dtype in _FLOATS:
        return f"torch.randn({shape}, dtype=torch.{item.dtype})"
    low, high = _RANGES.get(item.dtype, (-1024, 1024))
    return f"torch.randint({low}, {high}, {shape}).to(torch.{item.dtype})"


def _size(definition: Definition, part: str, axes: Mapping[str, str]) -> str:
    if part.isdecimal():
        return part
    if part not in axes:
        raise InvalidRecord(f"a shape names the axis {part}, which is not defined", where=f"axes of {definition.name}")
    return axes[part]


def _custom(
    definition: Definition, workload: Workload, axes: Mapping[str, str], scalars: Mapping[str, str]
) -> list[str]:
    """Return the lines that call a definition's own function for inputs, where a workload asks for it."""
    entry = definition.custom_inputs_entrypoint
    if entry is None or not any(given.type == "custom" for given in workload.inputs.values()):
        return []
    if not entry.isidentifier():
        raise InvalidRecord(f"{entry!r} is not a function name", where="definition.custom_inputs_entrypoint")
    known = ", ".join(f"{name!r}: {constant}" for name, constant in {**axes, **scalars}.items())
    return [f"    drawn = {entry}({{{known}}}, torch.device('cpu'))"]


def _ordered(definition: Definition) -> list[str]:
    """Return the axes that follow from others, each after those that it follows from."""
    waiting = {name: _names(item.expression) for name, item in definition.axes.items() if isinstance(item, ExprAxis)}
    ordered: list[str] = []
    while waiting:
        ready = [name for name, needs in waiting.items() if not needs & set(waiting)]
        if not ready:
            raise InvalidRecord(f"the axes {', '.join(waiting)} follow from each other", where="definition.axes")
        ordered += ready
        waiting = {name: needs for name, needs in waiting.items() if name not in ready}
    return ordered


def _names(expression: str) -> set[str]:
    return {node.id for node in ast.walk(_parsed(expression)) if isinstance(node, ast.Name)}


def _expression(definition: Definition, name: str, axes: Mapping[str, str]) -> str:
    """Return an axis's expression in the problem file's names; arithmetic of axes and whole numbers only."""
    axis = definition.axes[name]
    assert isinstance(axis, ExprAxis)
    tree = _parsed(axis.expression)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if node.id not in axes and node.id not in _FUNCTIONS:
                raise InvalidRecord(f"axis {name}: {node.id} is no axis", where=f"definition.axes.{name}")
            node.id = axes.get(node.id, node.id)
    return ast.unparse(tree)


def _parsed(expression: str) -> ast.Expression:
    try:
        tree = parse_expression(expression)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidRecord(f"{expression!r} is no expression over axes", where="definition.axes") from error
    for node in ast.walk(tree):
        plain = isinstance(node, _ARITHMETIC)
        number = isinstance(node, ast.Constant) and isinstance(node.value, int)
        call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
        if not (plain or number or call):
            raise InvalidRecord(
                f"{expression!r} is more than arithmetic of axes and whole numbers", where="definition.axes"
            )
    return tree


def _docstring(definition: Definition) -> str:
    text = f"{definition.name}: {definition.description or definition.op_type or 'a definition of flashinfer-bench'}"
    return json.dumps(text[:300])
