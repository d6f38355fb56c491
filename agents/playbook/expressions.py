"""Expressions: what a fused kernel computes for one element, as a graph of calls, and as C++ text.

The text is the same for every target: it calls functions named ``fn_*``, which each target's prelude defines for its
own value types (``float``, or a vector of floats). Knows nothing about PyTorch and nothing about loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import isnan

from agents.playbook.ordering import walk


class Level(IntEnum):
    """Rate at which a value changes: never, once a row, or with every element."""

    CONSTANT = 0
    ROW = 1
    ELEMENT = 2


@dataclass(frozen=True, eq=False)
class Expr:
    """One value. Compared by identity, so that a shared subexpression is one object."""

    op: str
    """``const``, ``input``, ``reduce``, an infix operator, or the name of a ``fn_*`` function without the prefix."""
    args: tuple[Expr, ...] = ()
    name: str = ""
    """Of an ``input``: the tensor; of a ``reduce``: the accumulator (see :data:`REDUCTIONS`)."""
    value: float = 0.0
    """Of a ``const``."""
    level: Level = Level.CONSTANT
    mask: bool = False
    """True for a truth value."""


REDUCTIONS = ("Sum", "Largest", "Smallest", "Peak", "ArgLargest", "ArgSmallest")
"""Accumulators that templates know. ``Peak`` is a maximum that may ignore NaN: softmax's, whose sum shows it anyway."""

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
COMPARISONS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
LOGIC = {"and": "&", "or": "|"}
POLYNOMIAL = ("exp", "expm1", "tanh", "erf", "log", "log1p")
"""Functions that templates for the CPU have as polynomials over vectors."""
HARDWARE = ("exp", "expm1", "tanh")
"""Functions that GPUs have an approximate unit for."""


def const(value: float) -> Expr:
    """Return a constant: a float, or a whole number that no float is equal to."""
    return Expr("const", value=value if value != float(value) else float(value))


def element(name: str) -> Expr:
    """Return an input that has a value for every element."""
    return Expr("input", name=name, level=Level.ELEMENT)


def row_value(name: str) -> Expr:
    """Return an input that has one value a row."""
    return Expr("input", name=name, level=Level.ROW)


def call(op: str, *args: Expr) -> Expr:
    """Return an operator or function applied to values."""
    level = max((arg.level for arg in args), default=Level.CONSTANT)
    return Expr(op, args, level=level, mask=op in COMPARISONS or op in LOGIC or op == "not")


def reduce(kind: str, argument: Expr) -> Expr:
    """Return a value of a row, made from all elements of that row."""
    if kind not in REDUCTIONS:
        raise ValueError(f"no accumulator {kind!r}")
    return Expr("reduce", (argument,), name=kind, level=Level.ROW)


def depth(node: Expr) -> int:
    """Return how many passes over a row must come before this value is known, its own included."""
    depths: dict[Expr, int] = {}
    for item in walk([node]):
        below = max((depths[arg] for arg in item.args), default=0)
        depths[item] = below + (item.op == "reduce")
    return depths[node]


def replace(root: Expr, table: Mapping[Expr, Expr]) -> Expr:
    """Return the expression with some of its nodes replaced."""
    made: dict[Expr, Expr] = dict(table)
    for node in walk([root]):
        if node in made:
            continue
        args = tuple(made[arg] for arg in node.args)
        same = all(a is b for a, b in zip(args, node.args, strict=True))
        made[node] = node if same else Expr(node.op, args, node.name, node.value, node.level, node.mask)
    return made[root]


def shared(roots: Iterable[Expr]) -> list[Expr]:
    """Return the same expressions with equal subexpressions made one object."""
    table: dict[tuple[object, ...], Expr] = {}
    made: dict[Expr, Expr] = {}
    order = list(roots)
    for node in walk(order):
        args = tuple(made[arg] for arg in node.args)
        key = (node.op, node.name, repr(node.value), node.level, *(id(arg) for arg in args))
        if key not in table:
            table[key] = Expr(node.op, args, node.name, node.value, node.level, node.mask)
        made[node] = table[key]
    return [made[root] for root in order]


def literal(value: float) -> str:
    """Return a float as C++ text."""
    if isnan(value):
        return "FN_NAN"
    if value in (float("inf"), float("-inf")):
        return "FN_INF" if value > 0 else "(-FN_INF)"
    text = f"{value:.9g}"  # nine digits say a float32 exactly
    text = text if "." in text or "e" in text else f"{text}.0"
    return f"{text}f" if value >= 0 else f"({text}f)"


@dataclass
class Emitter:
    """Turns expressions into statements. ``names`` holds what already has a name: inputs and row values."""

    names: dict[Expr, str]
    prefix: str = "t"
    suffix: str = ""
    """Follows each new name where it is used, e.g. ``[g]``; ``lines`` have the name without it."""
    lines: list[tuple[str, str]] = field(default_factory=list)
    """Name and text of each intermediate value, in order."""

    def emit(self, *roots: Expr) -> list[str]:
        """Return names or short texts for the roots; intermediate values that they need are added to ``lines``."""
        missing = walk(roots, self.names)
        uses: dict[Expr, int] = {}
        for node in missing:
            for arg in node.args:
                uses[arg] = uses.get(arg, 0) + 1
        texts: dict[Expr, str] = {}
        for node in missing:
            text = self._text(node, texts)
            if node.op != "const" and (uses.get(node, 0) > 1 or len(text) > 60):
                self._name(node, text)
            else:
                texts[node] = text
        return [self.names.get(root) or texts[root] for root in roots]

    def emit_named(self, roots: Iterable[Expr]) -> None:
        """Give every root that is not a constant a name of its own."""
        for root in roots:
            if root not in self.names and root.op != "const":
                (text,) = self.emit(root)
                if root not in self.names:
                    self._name(root, text)

    def _name(self, node: Expr, text: str) -> None:
        name = f"{self.prefix}{len(self.lines)}"
        self.lines.append((name, text))
        self.names[node] = name + self.suffix

    def _text(self, node: Expr, texts: Mapping[Expr, str]) -> str:
        if node.op == "const":
            return literal(node.value)
        args = [self.names.get(arg) or texts[arg] for arg in node.args]
        infix = INFIX.get(node.op) or COMPARISONS.get(node.op) or LOGIC.get(node.op)
        if infix:
            return f"({args[0]} {infix} {args[1]})"
        if node.op == "neg":
            return f"(-{args[0]})"
        if node.op in ("input", "reduce"):
            raise ValueError(f"{node.op} {node.name!r} has no name")
        return f"fn_{node.op}({', '.join(args)})"
