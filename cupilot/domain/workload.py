"""Workloads: the shapes and dtypes that one problem is judged at.

A problem file may say at its top level at which values of its own constants it is to be judged::

    ROWS = 4096
    DTYPE = torch.float32
    WORKLOADS = [
        {"name": "decode", "values": {"ROWS": 1}, "weight": 3},
        {"name": "prefill", "values": {"ROWS": 8192, "DTYPE": "float16"}},
    ]

Looks at text only. A workload's own file is the problem's file with these constants replaced, every line where it was.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

from pydantic import Field, ValidationError, field_validator

from cupilot.domain.errors import InvalidProblem
from cupilot.domain.syntax import parse
from cupilot.domain.value import Value

DECLARATION = "WORKLOADS"
MAX_WORKLOADS = 64
"""A kernel is built, judged and timed for each: a minute of a card for the cheapest problems."""

_EXAMPLE = f'{DECLARATION} = [{{"name": "small", "values": {{"ROWS": 128}}, "weight": 1}}, ...]'


class Workload(Value):
    """Named values of a problem's axes and dtypes, with a weight."""

    name: str = Field(min_length=1, max_length=100)
    values: dict[str, bool | int | float | str]
    """By name of a constant at the file's top level; a string is a dtype, such as ``float16``."""
    weight: float = Field(default=1.0, gt=0, le=1e6)
    """Its share in the weighted geometric mean of the speedups, relative to the others."""

    @field_validator("values")
    @classmethod
    def _usable(cls, values: dict[str, bool | int | float | str]) -> dict[str, bool | int | float | str]:
        for name, value in values.items():
            if isinstance(value, str) and re.fullmatch(r"[a-z]+\d*[a-z0-9_]*", value) is None:
                raise ValueError(f"{name}: {value!r} is not a dtype such as 'float16'")
            if isinstance(value, float) and not isfinite(value):
                raise ValueError(f"{name} is not finite")
        return values

    @property
    def text(self) -> str:
        """The values in words, e.g. ``ROWS 128, DTYPE float16``."""
        return ", ".join(f"{name} {value}" for name, value in self.values.items())


def declared(source: str) -> tuple[Workload, ...]:
    """Return the workloads that a problem file declares; none where it declares none, or is not valid Python.

    Raises :class:`InvalidProblem`, whose ``where`` names the line, for a declaration that cannot be used.
    """
    if DECLARATION not in source:
        return ()
    try:
        tree = parse(source)
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        return ()
    constants = _constants(tree)
    if DECLARATION not in constants:
        return ()
    return _read(constants.pop(DECLARATION), constants)


def specialised(source: str, workload: Workload) -> str:
    """Return the file of one workload of a source that declares it."""
    constants = _constants(parse(source))
    texts = {name: _literal(value) for name, value in workload.values.items()}
    texts[DECLARATION] = "()"
    lines = source.encode().splitlines(keepends=True)
    for name in sorted(texts, key=lambda name: (constants[name].lineno, constants[name].col_offset), reverse=True):
        _replace(lines, constants[name], texts[name].encode())
    return b"".join(lines).decode()


def shares(workloads: tuple[Workload, ...]) -> tuple[float, ...]:
    """Return the workloads' weights, scaled to a sum of one."""
    total = sum(workload.weight for workload in workloads)
    return tuple(workload.weight / total for workload in workloads)


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the values of names that are assigned at the top level, alone and once."""
    assigned: dict[str, list[ast.expr]] = {}
    for node in tree.body:
        targets, value = _assignment(node)
        if value is not None and len(targets) == 1 and isinstance(targets[0], ast.Name):
            assigned.setdefault(targets[0].id, []).append(value)
    return {name: values[0] for name, values in assigned.items() if len(values) == 1}


def _assignment(node: ast.stmt) -> tuple[list[ast.expr], ast.expr | None]:
    if isinstance(node, ast.AnnAssign):
        return [node.target], node.value
    return (node.targets, node.value) if isinstance(node, ast.Assign) else ([], None)


def _read(declaration: ast.expr, constants: Mapping[str, ast.expr]) -> tuple[Workload, ...]:
    where = f"problem.source:{declaration.lineno}"
    try:
        items = ast.literal_eval(declaration)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise InvalidProblem(f"{DECLARATION} has to be written out as literals", hint=_EXAMPLE, where=where) from error
    if not isinstance(items, list | tuple) or len(items) > MAX_WORKLOADS:
        raise InvalidProblem(
            f"{DECLARATION} is a list of at most {MAX_WORKLOADS} workloads", hint=_EXAMPLE, where=where
        )
    workloads = tuple(_workload(item, constants, where) for item in items)
    names = [workload.name for workload in workloads]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidProblem(f"two workloads are called {twice!r}", where=where)
    return workloads


def _workload(item: Any, constants: Mapping[str, ast.expr], where: str) -> Workload:
    try:
        workload = Workload.model_validate(item, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"]) or "it"
        message = f"a workload cannot be used: {at}: {first['msg']}"
        raise InvalidProblem(message, hint=_EXAMPLE, where=where) from error
    for name in workload.values:
        if name not in constants:
            raise InvalidProblem(
                f"workload {workload.name!r} sets {name}, which is no constant at the top level of the file",
                hint=f"write `{name} = ...` there, once, and use it in get_inputs() or get_init_inputs()",
                where=where,
            )
    return workload


def _literal(value: bool | int | float | str) -> str:
    return f"torch.{value}" if isinstance(value, str) else repr(value)


def _replace(lines: list[bytes], node: ast.expr, text: bytes) -> None:
    """Replace an expression's text; lines that it had more than ``text`` become empty ones."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    first, last = node.lineno - 1, node.end_lineno - 1
    before, after = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
    lines[first : last + 1] = [before + text + after + b"\n" * (last - first)]
