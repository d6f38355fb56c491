"""Pointwise and row operators: what the interpreted graph computes as one of these two families, or a refusal.

Because expressions are built from the graph itself, a kernel for another operator cannot come out: what is not
understood is refused. Matrix products are :mod:`agents.playbook.recognition.matmul`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from agents.playbook.expressions import Expr, Level, shared
from agents.playbook.operators import Operand, Pointwise, Rows
from agents.playbook.ordering import walk
from agents.playbook.recognition.interpreter import Interpreter, Shape
from agents.playbook.recognition.pointwise import as_number
from agents.playbook.recognition.reductions import REDUCING, reduced_axes
from agents.playbook.recognition.values import FLOATS, View, halves, out_of_place, reference, refuse, require_float
from cupilot.domain.problem import DType, GraphNode


def recognise_pointwise(view: View) -> Pointwise:
    """Return the graph as one pointwise expression; raises NoTemplate."""
    if len(view.outputs) != 1:
        several = f"it returns a tuple, list or dict of {len(view.outputs)} tensors, and this template writes one"
        raise refuse(view.facts, f"{several}: return one, or let a model write the kernel (--agents llm)")
    output = view.output_specs[0]
    require_float(view.facts, output)
    machine = Interpreter(view, output.shape, axes=())
    machine.run()
    value = machine.value(view.outputs[0])
    expression = as_number(machine.expression(value))
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
    stored = halves(view, [*machine.kinds, output.name])
    return Pointwise(output.name, size, tuple(operands), expression, halves=stored)


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
        if spec.dtype not in ((DType.INT64,) if indices else FLOATS):
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
        halves=halves(view, [*machine.kinds, *names]),
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
