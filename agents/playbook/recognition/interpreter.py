"""Interprets the live graph call by call into expressions over one full shape, or refuses it.

Every call must be known exactly, with all of its arguments; shapes decide how often each value changes. Values of
every type of float are computed in float32, so that casts between such types change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from agents.playbook.expressions import Expr, Level, call, const, element, row_value
from agents.playbook.operators import Operand
from agents.playbook.recognition.pointwise import POINTWISE, as_number
from agents.playbook.recognition.reductions import REDUCING, Call, reduced_axes
from agents.playbook.recognition.values import (
    ALIASES,
    CASTS,
    CONSTANT,
    FLOATS,
    View,
    number,
    out_of_place,
    reference,
    refuse,
    require_float,
)
from cupilot.domain.problem import DType, GraphNode

Shape = tuple[int, ...]
_NUMBER_SHAPE: Shape = ()
_OF_ELEMENTS = ("element", "column", "broadcast", "spread")
"""Kinds of inputs whose value changes within a row."""
_SHAPE_CALLS = {
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten.unsqueeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.squeeze.default",
}


@dataclass(frozen=True)
class Value:
    """A value of the graph as an expression, with the shape that PyTorch gives it."""

    expr: Expr
    shape: Shape
    leaf: str | None = None
    """The tensor, for an input that was not used in a calculation yet."""


@dataclass
class Interpreter:
    """Interprets one graph over one full shape."""

    view: View
    full: Shape
    axes: tuple[int, ...]
    values: dict[str, Value] = field(default_factory=dict)
    leaves: dict[tuple[str, Shape], Expr] = field(default_factory=dict)
    operands: dict[str, Operand] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    """Of each input that is used: element, column, row or scalar."""

    @property
    def keepdim(self) -> Shape:
        """Shape of a row value whose reduced axes were kept."""
        return tuple(1 if axis in self.axes else size for axis, size in enumerate(self.full))

    @property
    def length(self) -> int:
        """Elements of a row."""
        return prod(self.full[axis] for axis in self.axes)

    def run(self) -> None:
        """Interpret every live call."""
        for node in self.view.nodes:
            for name, value in zip(node.results, self._node(node), strict=False):
                self.values[name] = value

    def value(self, name: str) -> Value:
        """Return the value of a name: a result so far, or an input not yet used."""
        if name in self.values:
            return self.values[name]
        spec = self.view.specs.get(name)
        if spec is None:
            raise self.refuse(f"the value {name!r} comes from nowhere")
        require_float(self.view.facts, spec)
        return Value(const(0), spec.shape, leaf=name)

    def refuse(self, reason: str) -> Exception:
        """Return the error for this graph."""
        return refuse(self.view.facts, reason)

    def _node(self, node: GraphNode) -> list[Value]:
        op = out_of_place(node.op)
        if op == CONSTANT:
            return [self._constant(node)]
        if op in ALIASES:
            return [self._first(node)]
        if op in _SHAPE_CALLS:
            return [self._reshaped(node)]
        if op in CASTS:
            return [self._cast(node)]
        if op == "aten.expand.default":
            return [self._expanded(node)]
        if op == "aten.slice.Tensor" and tuple(node.shapes[0]) == self._first(node).shape:
            return [self._first(node)]
        if op in REDUCING:
            return self._reduced(node, op)
        if op in POINTWISE:
            return [self._pointwise(node, op)]
        raise self.refuse(f"{node.op} is not supported")

    def _constant(self, node: GraphNode) -> Value:
        """Return a tensor that the reference made itself; only single numbers can be written into a kernel."""
        numbers = [number(item) for item in node.args[0]] if isinstance(node.args[0], list) else []
        if prod(node.shapes[0]) != 1 or len(numbers) != 1 or numbers[0] is None:
            raise self.refuse("it uses a constant tensor")
        return Value(const(numbers[0]), tuple(node.shapes[0]))

    def _first(self, node: GraphNode) -> Value:
        name = reference(node.args[0]) if node.args else None
        if name is None:
            raise self.refuse(f"{node.op} of something that is not a tensor")
        return self.value(name)

    def _cast(self, node: GraphNode) -> Value:
        """Return a value in another type of float: the same, for all is computed in float32 and rounded at the end.

        Not so where a result keeps more bits than the type that it is cast to on the way.
        """
        value, dtype = self._first(node), node.dtypes[0].removeprefix("torch.")
        if dtype not in FLOATS:
            raise self.refuse(f"{node.op} makes {dtype}")
        exact = value.expr.mask or (value.leaf is not None and self.view.specs[value.leaf].dtype == dtype)
        results = {spec.dtype for spec in self.view.output_specs}
        if not exact and not results.issubset(FLOATS[FLOATS.index(DType(dtype)) :]):
            raise self.refuse(f"{node.op} rounds to {dtype} what a result keeps more bits of")
        return Value(as_number(value.expr), value.shape, value.leaf)

    def _reshaped(self, node: GraphNode) -> Value:
        value, shape = self._first(node), tuple(node.shapes[0])
        if prod(shape) != prod(value.shape):
            raise self.refuse(f"{node.op} that changes the number of elements")
        whole = prod(shape) == prod(self.full)
        if self._is_element(value) and not whole and _bare(shape) != _bare(value.shape):
            raise self.refuse("a calculated value that changes along some of the axes only is reshaped")
        return Value(value.expr, shape, value.leaf)

    def _expanded(self, node: GraphNode) -> Value:
        value, shape = self._first(node), tuple(node.shapes[0])
        if value.leaf is None and value.expr.level is Level.ROW and not self._aligned(value.shape):
            raise self.refuse("a row's value is expanded along another axis than the reduced one")
        if self._is_element(value) and shape != value.shape:
            raise self.refuse("an element-wise value is expanded")
        return Value(value.expr, value.shape if value.leaf else shape, value.leaf)

    def _pointwise(self, node: GraphNode, op: str) -> Value:
        shape = tuple(node.shapes[0])
        self._check_dtype(node, op)
        arguments = [self._operand(node, argument) for argument in node.args]
        if shape != _broadcast([value.shape for value in arguments]):
            raise self.refuse(f"the shape of {node.op} does not follow from its operands")
        unaligned = [
            value
            for value in arguments
            if value.leaf is None and value.expr.level is Level.ROW and not self._aligned(value.shape)
        ]
        if unaligned and not all(self._fits_unaligned(value, unaligned[0].shape) for value in arguments):
            raise self.refuse("a row's value without its reduced axes meets values of other shapes")
        reshaped = next((value.shape for value in arguments if self._is_reshaped(value)), None)
        if reshaped and any(prod(value.shape) != 1 and value.shape != reshaped for value in arguments):
            raise self.refuse("a calculated value in another shape than the full one meets values of other shapes")
        expressions = [self.expression(value) for value in arguments]
        built = POINTWISE[op](expressions, node)
        if built is None:
            raise self.refuse(f"this variant of {node.op} is not supported")
        truth = node.dtypes[0].removeprefix("torch.") == "bool"
        return Value(call("ne", built, const(0)) if truth and not built.mask else built, shape)

    def _is_element(self, value: Value) -> bool:
        return value.leaf is None and value.expr.level is Level.ELEMENT

    def _is_reshaped(self, value: Value) -> bool:
        """Return whether a value has all elements, but not in the full shape: broadcasting would misplace them."""
        whole = prod(value.shape) == prod(self.full)
        return self._is_element(value) and whole and _bare(value.shape) != _bare(self.full)

    def _fits_unaligned(self, value: Value, shape: Shape) -> bool:
        if prod(value.shape) == 1:
            return True
        return value.leaf is None and value.expr.level is Level.ROW and value.shape == shape

    def _aligned(self, shape: Shape) -> bool:
        padded = _padded(shape, len(self.full))
        return padded in (self.keepdim, self.full) or prod(shape) == 1

    def _check_dtype(self, node: GraphNode, op: str) -> None:
        dtype = node.dtypes[0].removeprefix("torch.")
        if dtype not in (*FLOATS, "bool"):
            raise self.refuse(f"{op} makes {dtype}; templates exist for {', '.join(FLOATS)}")

    def _operand(self, node: GraphNode, argument: object) -> Value:
        name = reference(argument)
        if name is not None:
            return self.value(name)
        value = number(argument)
        if value is None:
            if argument is None and out_of_place(node.op) == "aten.clamp.default":
                return Value(const(0), _NUMBER_SHAPE)
            raise self.refuse(f"an argument of {node.op} is neither a tensor nor a number: {argument!r}")
        return Value(const(value), _NUMBER_SHAPE)

    def expression(self, value: Value) -> Expr:
        """Return the expression of a value; an input is read from here on."""
        return value.expr if value.leaf is None else self.leaf(value.leaf, value.shape)

    def leaf(self, name: str, shape: Shape) -> Expr:
        """Return the expression that reads an input of this (perhaps reshaped) shape within the full shape."""
        key = (name, shape)
        if key not in self.leaves:
            kind = self._kind(name, shape)
            if self.kinds.setdefault(name, kind) != kind:
                raise self.refuse(f"{name} is used in two different ways")
            self.leaves[key] = element(name) if kind in _OF_ELEMENTS else row_value(name)
        return self.leaves[key]

    def _kind(self, name: str, shape: Shape) -> str:
        if len(shape) > len(self.full):
            raise self.refuse(f"{name} has more axes than the result")
        padded = _padded(shape, len(self.full))
        if any(size not in (1, wanted) for size, wanted in zip(padded, self.full, strict=True)):
            raise self.refuse(f"{name} of shape {list(shape)} does not fit {list(self.full)}")
        if padded == self.full:
            return "element"
        if prod(padded) == 1:
            return "scalar"
        if not self.axes:
            self._place(name, padded)
            return "broadcast"
        columns = tuple(size if axis in self.axes else 1 for axis, size in enumerate(self.full))
        if padded == columns:
            return "column"
        if padded == self.keepdim:
            return "row"
        if self.axes[-1] != len(self.full) - 1:
            raise self.refuse(f"{name} of shape {list(shape)} changes along some of the axes only")
        self._place(name, padded)
        return "spread"

    def _place(self, name: str, padded: Shape) -> None:
        operand = self._operand_of(name, padded)
        if self.operands.setdefault(name, operand) != operand:
            raise self.refuse(f"{name} is used in two different ways")

    def _operand_of(self, name: str, padded: Shape) -> Operand:
        used = [axis for axis, size in enumerate(padded) if size != 1]
        first, last = used[0], used[-1]
        if padded[first : last + 1] != self.full[first : last + 1]:
            raise self.refuse(f"{name} is broadcast along an axis between others")
        return Operand(name, div=prod(self.full[last + 1 :]), mod=prod(padded))

    def _reduced(self, node: GraphNode, op: str) -> list[Value]:
        value = self._first(node)
        seen_as = REDUCING[op].seen_as
        seen = seen_as(node) if seen_as else None
        if seen is not None and value.leaf is not None and prod(seen) == prod(value.shape):
            value = Value(value.expr, seen, value.leaf)
        if value.shape != self.full:
            raise self.refuse("it reduces values of different shapes")
        axes = reduced_axes(node, op, len(self.full), self.view)
        if axes != self.axes:
            raise self.refuse("it reduces along different axes")
        expr = self.expression(value)
        if expr.level is not Level.ELEMENT:
            raise self.refuse("it reduces a value that does not change along the row")
        if node.dtypes[0].removeprefix("torch.") not in (*FLOATS, "int64"):
            raise self.refuse(f"{node.op} makes {node.dtypes[0]}")
        made = REDUCING[op].build(Call(node, as_number(expr), self.full, self.length, self._optional_leaf, self.refuse))
        shapes = [tuple(shape) for shape in node.shapes]
        return [Value(item, shape) for item, shape in zip(made, shapes, strict=False)]

    def _optional_leaf(self, argument: object, shape: Shape) -> Expr | None:
        """Return a weight or bias argument of a composite call, seen with the given shape; None where it is absent."""
        name = reference(argument)
        if name is None:
            return None
        value = self.value(name)
        if value.leaf is None or prod(value.shape) != prod(shape):
            raise self.refuse("a weight or bias is not an input of the expected size")
        return self.leaf(value.leaf, shape)


def _padded(shape: Shape, rank: int) -> Shape:
    return (1,) * (rank - len(shape)) + shape


def _bare(shape: Shape) -> Shape:
    """Return the shape without its leading ones."""
    return shape[next((axis for axis, size in enumerate(shape) if size != 1), len(shape)) :]


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [_padded(shape, rank) for shape in shapes]
    return tuple(max(sizes, key=lambda size: (size != 1, size)) for sizes in zip(*padded, strict=True))
