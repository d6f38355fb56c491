"""Pointwise and row operators: the live graph interpreted call by call into expressions, or refused.

Every call must be known exactly, with all of its arguments; shapes decide how often each value changes. Because the
expression is built from the graph itself, a kernel for another operator cannot come out: what is not understood is
refused. Matrix products are :mod:`agents.playbook.recognition.matmul`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from agents.playbook.expressions import Expr, Level, call, const, element, row_value, shared
from agents.playbook.operators import Operand, Pointwise, Rows
from agents.playbook.ordering import walk
from agents.playbook.recognition.pointwise import POINTWISE, as_number
from agents.playbook.recognition.reductions import REDUCING, Call, reduced_axes
from agents.playbook.recognition.values import (
    ALIASES,
    CONSTANT,
    View,
    number,
    out_of_place,
    reference,
    refuse,
    require_float32,
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
        require_float32(self.view.facts, spec)
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
        expressions = [self._expression(value) for value in arguments]
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
        if dtype not in ("float32", "bool"):
            raise self.refuse(f"{op} makes {dtype}; templates exist for float32")

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

    def _expression(self, value: Value) -> Expr:
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
        expr = self._expression(value)
        if expr.level is not Level.ELEMENT:
            raise self.refuse("it reduces a value that does not change along the row")
        if node.dtypes[0].removeprefix("torch.") not in ("float32", "int64"):
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


def recognise_pointwise(view: View) -> Pointwise:
    """Return the graph as one pointwise expression; raises NoTemplate."""
    if len(view.outputs) != 1:
        several = f"it returns a tuple, list or dict of {len(view.outputs)} tensors, and this template writes one"
        raise refuse(view.facts, f"{several}: return one, or let a model write the kernel (--agents llm)")
    output = view.output_specs[0]
    require_float32(view.facts, output)
    machine = Interpreter(view, output.shape, axes=())
    machine.run()
    value = machine.value(view.outputs[0])
    expression = as_number(machine._expression(value))
    if value.leaf is not None or expression.op in ("const", "input"):
        raise refuse(view.facts, "the result is an input or a constant")
    size = output.numel
    if prod(value.shape) != size or size == 0:
        raise refuse(view.facts, "the result has another number of elements than its inputs")
    operands = [
        machine.operands.get(name) or Operand(name, 1, size if kind == "element" else 1)
        for name, kind in machine.kinds.items()
    ]
    if not any(item.div == 1 and item.mod == size for item in operands):
        raise refuse(view.facts, "no input has as many elements as the result")
    return Pointwise(output.name, size, tuple(operands), expression)


def recognise_rows(view: View, first: GraphNode) -> Rows:
    """Return the graph as a row operator, ``first`` being its first reduction; raises NoTemplate."""
    full = _operand_shape(view, first)
    axes = reduced_axes(first, out_of_place(first.op), len(full), view)
    if axes != tuple(range(axes[0], axes[-1] + 1)):
        raise refuse(view.facts, "it reduces axes that are not neighbours")
    machine = Interpreter(view, full, axes)
    machine.run()
    outputs: list[tuple[str, Expr]] = []
    for spec, name in zip(view.output_specs, view.outputs, strict=True):
        value = machine.value(name)
        if value.leaf is not None:
            raise refuse(view.facts, "a result is an input")
        whole = prod(full) if value.expr.level is Level.ELEMENT else prod(machine.keepdim)
        indices = value.expr.op == "reduce" and value.expr.name.startswith("Arg")
        if spec.numel != whole or whole == 0 or not spec.contiguous or value.expr.mask:
            raise refuse(view.facts, f"the result {spec.name} has an unexpected shape or layout")
        if spec.dtype is not (DType.INT64 if indices else DType.FLOAT32):
            raise refuse(view.facts, f"the result {spec.name} is {spec.dtype.value}")
        outputs.append((spec.name, value.expr))
    _check_outputs(view, outputs)
    names = [name for name, _ in outputs]
    outputs = list(zip(names, shared(expr for _, expr in outputs), strict=True))

    if "element" not in machine.kinds.values():
        raise refuse(view.facts, "no input has as many elements as the rows")

    def named(kind: str) -> tuple[str, ...]:
        return tuple(name for name, item in machine.kinds.items() if item == kind)

    return Rows(
        outer=prod(full[: axes[0]]),
        length=machine.length,
        inner=prod(full[axes[-1] + 1 :]),
        outputs=tuple(outputs),
        elements=named("element"),
        columns=named("column"),
        spread=tuple(machine.operands[name] for name in named("spread")),
        row_inputs=named("row"),
        scalars=named("scalar"),
    )


def _check_outputs(view: View, outputs: Sequence[tuple[str, Expr]]) -> None:
    levels = {expr.level for _, expr in outputs}
    if levels not in ({Level.ELEMENT}, {Level.ROW}) or (levels == {Level.ELEMENT} and len(outputs) != 1):
        raise refuse(view.facts, "it returns several tensors of different kinds")
    for node in walk(expr for _, expr in outputs):
        if any(arg.op == "reduce" and arg.name.startswith("Arg") for arg in node.args):
            raise refuse(view.facts, "it calculates with indices")


def _operand_shape(view: View, node: GraphNode) -> Shape:
    """Return the shape that a reducing call sees its operand in."""
    seen_as = REDUCING[out_of_place(node.op)].seen_as
    seen = seen_as(node) if seen_as else None
    if seen is not None:
        return seen
    name = reference(node.args[0]) if node.args else None
    if name is None:
        raise refuse(view.facts, f"{node.op} of something that is not a tensor")
    if name in view.producers:
        producer, index = view.producers[name]
        return tuple(producer.shapes[index])
    if name in view.specs:
        return view.specs[name].shape
    raise refuse(view.facts, f"the value {name!r} comes from nowhere")


def _padded(shape: Shape, rank: int) -> Shape:
    return (1,) * (rank - len(shape)) + shape


def _bare(shape: Shape) -> Shape:
    """Return the shape without its leading ones."""
    return shape[next((axis for axis, size in enumerate(shape) if size != 1), len(shape)) :]


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [_padded(shape, rank) for shape in shapes]
    return tuple(max(sizes, key=lambda size: (size != 1, size)) for sizes in zip(*padded, strict=True))
