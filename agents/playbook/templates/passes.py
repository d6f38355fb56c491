"""A row operator laid out in passes: which statements come before each loop, and which inside it. For every target.

The text calls ``fn_*`` functions and names inputs ``v_NAME`` (of an element), ``r_NAME`` (of a row) and ``s_NAME`` (of
the whole tensor), reductions ``m0``, ``m1``... Templates declare those names and write the loops.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from agents.playbook.expressions import Emitter, Expr, Level, call, const
from agents.playbook.operators import Rows
from agents.playbook.ordering import walk
from agents.playbook.templates.source import Options


@dataclass(frozen=True)
class Pass:
    """One loop over a row."""

    before: tuple[tuple[str, str], ...]
    """Row-level values that it needs: name and text, in order."""
    lines: tuple[str, ...]
    """Statements of the loop's body, before the values below."""
    values: tuple[str, ...]
    """Terms that each reduction accumulates, or that each output is given."""
    inputs: tuple[str, ...]
    """Element-level inputs that the body reads."""
    reductions: tuple[Expr, ...] = ()
    """Empty for the last loop, which writes an element-wise result."""


@dataclass(frozen=True)
class Layout:
    """All passes of an operator, and the expressions of its row-level results."""

    passes: tuple[Pass, ...]
    after: tuple[tuple[str, str], ...] = ()
    """Row-level values after the last reduction, where the result has one value a row."""
    results: tuple[str, ...] = ()
    """Text of each row-level output."""
    kept: str | None = None
    """Text of the value that takes the input's place after the last reduction, where one is kept."""


def lay_out(operator: Rows, *, keep: Expr | None = None, suffix: str = "") -> Layout:
    """Return the passes of an operator.

    ``suffix`` follows every row-level name, e.g. ``[g]`` where rows come in groups.
    """
    names: dict[Expr, str] = {}
    roots = [expr for _, expr in operator.outputs]
    for node in walk(roots):
        if node.op == "input":
            names[node] = _input_name(operator, node, suffix)
    row = Emitter({node: name for node, name in names.items() if node.level is Level.ROW}, prefix="q", suffix=suffix)
    elements = {node: name for node, name in names.items() if node.level is Level.ELEMENT}
    passes: list[Pass] = []
    count = 0
    groups = operator.reductions()
    kept_text: str | None = None
    for group in groups:
        made = _element_pass(row, elements, [node.args[0] for node in group], group)
        if keep is not None and group is groups[-1]:
            kept_text = made.values[0]
            kept = operator.elements[0]
            elements = {node: name for node, name in elements.items() if node.name != kept} | {keep: f"v_{kept}"}
        passes.append(made)
        for node in group:
            row.names[node] = f"m{count}{suffix}"
            count += 1
    if operator.maps:
        passes.append(_element_pass(row, elements, roots, ()))
        return Layout(tuple(passes), kept=kept_text)
    start = len(row.lines)
    results = row.emit(*roots)
    return Layout(tuple(passes), after=tuple(row.lines[start:]), results=tuple(results))


def _input_name(operator: Rows, node: Expr, suffix: str) -> str:
    if node.name in operator.row_inputs:
        return f"r_{node.name}{suffix}"
    return f"s_{node.name}" if node.name in operator.scalars else f"v_{node.name}"


def _element_pass(row: Emitter, elements: dict[Expr, str], roots: list[Expr], group: tuple[Expr, ...]) -> Pass:
    start = len(row.lines)
    row.emit_named(_row_values(roots, elements))
    body = Emitter({**row.names, **elements})
    values = body.emit(*roots)
    read = sorted(set(_inputs(roots, elements)))
    return Pass(
        before=tuple(row.lines[start:]),
        lines=tuple(f"const auto {name} = {text};" for name, text in body.lines),
        values=tuple(values),
        inputs=tuple(read),
        reductions=group,
    )


def _inputs(roots: list[Expr], elements: dict[Expr, str]) -> Iterable[str]:
    """Return names of the element-level values that the roots read, not looking behind values that are already
    named.
    """
    stack, seen = list(roots), set[Expr]()
    while stack:
        node = stack.pop()
        if node in seen or node.op == "reduce":
            continue
        seen.add(node)
        if node in elements:
            yield elements[node].removeprefix("v_")
        else:
            stack.extend(node.args)


def _row_values(roots: list[Expr], elements: dict[Expr, str]) -> list[Expr]:
    """Return the row-level values that element-level ones use directly."""
    values: list[Expr] = []
    stack, seen = list(roots), set[Expr]()
    while stack:
        node = stack.pop()
        if node in seen or node in elements:
            continue
        seen.add(node)
        if node.level is Level.ROW:
            values.append(node)
        elif node.level is Level.ELEMENT:
            stack.extend(node.args)
    return list(reversed(values))


def hoist_division(operator: Rows) -> Rows | None:
    """Return the operator with a division by a row's value as a multiplication.

    None where there is no such division.
    """
    name, root = operator.outputs[0]
    fits = root.op == "div" and root.args[0].level is Level.ELEMENT and root.args[1].level is Level.ROW
    if not fits or len(operator.outputs) != 1:
        return None
    reciprocal = call("div", const(1), root.args[1])
    return replace(operator, outputs=((name, call("mul", root.args[0], reciprocal)),))


def prepared(operator: Rows, options: Options) -> Rows:
    """Return the operator as the strategy wants it written."""
    hoisted = hoist_division(operator) if "hoisted_division" in options else None
    return hoisted or operator
