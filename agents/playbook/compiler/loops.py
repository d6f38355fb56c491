"""Statements that both targets' launches share: indices from offsets, loops over reduced axes, ranks in an order."""

from __future__ import annotations

from math import prod

from agents.playbook.compiler.emission import Emitter, statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.parameters import Pointers
from agents.playbook.compiler.shapes_of_work import CHUNK
from agents.playbook.compiler.tensors import Order, Reduce
from agents.playbook.compiler.terms import Term, make, substituted, variable


def indices(group: Group, offset: str, axes: list[int]) -> list[str]:
    """Return the statements that find the indices on some axes from their common dense offset."""
    lines = []
    step = prod(group.shape[axis] for axis in axes)
    for axis in axes:
        step //= group.shape[axis]
        if group.index[axis].op != "const":
            quotient = offset if step == 1 else f"{offset} / {step}"
            first = axis == axes[0]
            lines.append(f"const idx i{axis} = (idx)({quotient if first else f'({quotient}) % {group.shape[axis]}'});")
    return lines


def argument_of(group: Group, pointers: Pointers) -> tuple[list[str], str]:
    """Return the statements that a reduction's argument needs, and its text."""
    assert group.argument is not None
    emitter = Emitter({}, pointers.of)
    (value,) = emitter.emit(group.argument)
    return emitter.lines, value


def position(reduction: Reduce, names: list[str]) -> str:
    """Return the place of a term in the row-major order of the reduced axes."""
    text = names[0] if names else "0"
    for axis in range(1, len(names)):
        text = f"({text}) * {reduction.extents[axis]}LL + {names[axis]}"
    return text


def loops(
    reduction: Reduce,
    names: list[str],
    body: list[str],
    chunk: tuple[int, str, str] | None,
    first: tuple[str, str],
) -> list[str]:
    """Return the loops over the reduced axes around a body; a chunk's run begins and ends at its level."""
    lines = body
    for axis in reversed(range(len(names))):
        low, high = (
            (first[0], first[1] or str(reduction.extents[0])) if axis == 0 else ("0", str(reduction.extents[axis]))
        )
        name, extent = names[axis], reduction.extents[axis]
        innermost = axis == len(names) - 1
        vector = ["#pragma omp simd reduction(+ : run)"] if innermost and chunk and extent >= 8 else []
        length = prod(reduction.extents[axis:])
        if chunk and axis == chunk[0] and length > CHUNK:
            step = max(1, CHUNK * extent // length)
            stop = f"const idx end = begin + {step} < {high} ? begin + {step} : {high};"
            loop = [*vector, f"for (idx {name} = begin; {name} < end; ++{name}) {{", *statements(lines, 1), "}"]
            inside = [stop, chunk[1], *loop, chunk[2]]
            lines = [f"for (idx begin = {low}; begin < {high}; begin += {step}) {{", *statements(inside, 1), "}"]
            continue
        lines = [*vector, f"for (idx {name} = {low}; {name} < {high}; ++{name}) {{", *statements(lines, 1), "}"]
        if chunk and axis == chunk[0]:
            lines = ["{", *statements([chunk[1], *lines, chunk[2]], 1), "}"]
    if not names:
        lines = [*([chunk[1]] if chunk else []), *body, *([chunk[2]] if chunk else [])]
    return lines


def order_terms(group: Group, order: Order) -> tuple[Term, Term, Term]:
    """Return an element, another one of its row at the index ``q``, and that index."""
    assert group.argument is not None
    other = variable("q", order.length)
    (elsewhere,) = substituted([group.argument], {group.index[-1]: other})
    return group.argument, elsewhere, other


def order_body(group: Group, order: Order, pointers: Pointers) -> list[str]:
    """Return the statements that find an element's rank in its row and write its position there."""
    own, elsewhere, _ = order_terms(group, order)
    emitter = Emitter({}, pointers.of)
    (mine,) = emitter.emit(own)
    inner = Emitter({}, pointers.of, "u")
    (theirs,) = inner.emit(elsewhere)
    last = f"i{len(group.shape) - 1}" if order.length > 1 else "0"
    better = "sooner" if order.largest else "below"
    tensor = order
    rank_index = (*group.index[:-1], make("index", "index", data="rank", low=0, high=order.shape[-1] - 1))
    places = Emitter({}, pointers.of, "v")
    (offset,) = places.emit(tensor.offset(rank_index))
    return [
        *emitter.lines,
        f"const auto mine = {mine};",
        "idx rank = 0;",
        f"for (idx q = 0; q < {order.length}; ++q) {{",
        *statements(
            [
                *inner.lines,
                f"const auto other = {theirs};",
                f"rank += {better}(other, mine) || (!{better}(mine, other) && q < {last});",
            ],
            1,
        ),
        "}",
        f"if (rank < {order.shape[-1]}) {{",
        *statements([*places.lines, f"st({pointers.of(tensor)}, {offset}, (long long){last});"], 1),
        "}",
    ]
