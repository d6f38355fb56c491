"""Integer arithmetic over named constants, as launch plans use it for grids, blocks and sizes.

A tiny closed grammar, parsed with :mod:`ast` and evaluated by hand: ``+ - * / // %``, parentheses, ``min``, ``max``,
``ceil_div``. Division is exact-or-floor on integers (``/`` means ``//``). Nothing else, so a plan cannot run code.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from cupilot.domain.errors import InvalidPlan
from cupilot.domain.syntax import parse_expression

MAX_LENGTH = 200
MAX_VALUE = 2**63 - 1
"""Results are passed to the driver as 64-bit sizes at the most."""


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a // b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max, "ceil_div": _ceil_div}


def _as_text(value: Any) -> Any:
    """Return a whole number as the expression that it is: models write ``"grid": [1024]``."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Formula = Annotated[str, BeforeValidator(_as_text)]
"""Expression over ``problem.h`` and the tunables, as :func:`evaluate` reads it."""


def evaluate(expression: str, names: Mapping[str, int | float | bool]) -> int:
    """Return the value of ``expression`` over ``names``; raises :class:`InvalidPlan` saying what is wrong with it."""
    if len(expression) > MAX_LENGTH:
        raise InvalidPlan(f"expression of {len(expression)} characters; at most {MAX_LENGTH}", where=expression[:40])
    try:
        tree = parse_expression(expression.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidPlan(f"not an arithmetic expression: {expression!r}", where=expression) from error
    try:
        value = _visit(tree.body, names)
    except ZeroDivisionError as error:
        raise InvalidPlan(f"division by zero in {expression!r}", where=expression) from error
    if abs(value) > MAX_VALUE:
        raise InvalidPlan(f"{expression!r} does not fit 64 bits", where=expression)
    return value


def _visit(node: ast.expr, names: Mapping[str, int | float | bool]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return _lookup(node.id, names)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_visit(node.left, names), _visit(node.right, names))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_visit(node.operand, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        return _call(node, node.func.id, names)
    raise InvalidPlan(f"not allowed in a launch plan: {ast.unparse(node)!r}", hint="use + - * / % min max ceil_div")


def _lookup(name: str, names: Mapping[str, int | float | bool]) -> int:
    if name not in names:
        raise InvalidPlan(f"unknown name {name!r}", hint="names come from problem.h and from the plan's tunables")
    value = names[name]
    if not isinstance(value, int):
        raise InvalidPlan(f"{name!r} is not an integer")
    return int(value)


def _call(node: ast.Call, name: str, names: Mapping[str, int | float | bool]) -> int:
    if node.keywords or len(node.args) < 1 or (name == "ceil_div" and len(node.args) != 2):
        raise InvalidPlan(f"wrong arguments: {ast.unparse(node)!r}")
    if len(node.args) == 1:
        return _visit(node.args[0], names)
    return _FUNCTIONS[name](*(_visit(argument, names) for argument in node.args))
