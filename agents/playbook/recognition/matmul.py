"""Matrix products: mm, bmm, addmm, baddbmm and mv, with operands seen through views that only change strides.

Operands must be inputs of the reference; anything calculated before or after the product is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from agents.playbook.expressions import call, element, reduce
from agents.playbook.operators import Matmul, Operand2D, Rows
from agents.playbook.recognition.values import ALIASES, FLOATS, View, halves, number, reference, refuse, require_float
from cupilot.domain.problem import DType, GraphNode

PRODUCTS = frozenset(
    {"aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.baddbmm.default", "aten.mv.default"}
)

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Strided:
    """An input seen through views: its name, sizes, strides in elements."""

    name: str
    sizes: Sizes
    strides: Sizes


def recognise_product(view: View) -> Rows | Matmul:
    """Return the graph as one product: with a vector of rows, else of float32 matrices; raises NoTemplate."""
    product = _one_product(view)
    stored = halves(view, [item.name for item in (product.a, product.b, product.bias) if item] + [product.output])
    rows = _as_rows(product, stored)
    if rows is None and stored:
        raise refuse(view.facts, "templates of matrix products exist for float32")
    return rows or product


def _one_product(view: View) -> Matmul:
    """Return the graph as one matrix product."""
    products = [node for node in view.nodes if node.op in PRODUCTS]
    if len(products) != 1 or len(view.outputs) != 1:
        raise refuse(view.facts, "templates exist for one matrix product and nothing else")
    node, output = products[0], view.output_specs[0]
    _check_after(view, node)
    require_float(view.facts, output)
    name = node.op.split(".")[1]
    offset = 1 if name in ("addmm", "baddbmm") else 0
    a = _operand(view, node.args[offset])
    b = _operand(view, node.args[offset + 1])
    if name == "mv":
        b = Strided(b.name, (*b.sizes, 1), (*b.strides, 1))
    a3, b3 = _batched(view, a), _batched(view, b)
    batches, m, k = a3.sizes
    n = b3.sizes[2]
    if b3.sizes != (batches, k, n) or output.numel != batches * m * n or 0 in (batches, m, n, k):
        raise refuse(view.facts, "the shapes of the product do not match")
    bias = _bias(view, node.args[0], (batches, m, n)) if offset else None
    return Matmul(
        output=output.name,
        batches=batches,
        m=m,
        n=n,
        k=k,
        a=_matrix(a3),
        b=_matrix(b3),
        bias=bias,
        alpha=_number(view, node, "alpha"),
        beta=_number(view, node, "beta"),
    )


def _as_rows(product: Matmul, stored: Mapping[str, DType]) -> Rows | None:
    """Return a product with a vector as what it is, one reduction a row; None for any other product."""
    a, b = product.a, product.b
    if product.alpha != 1 or product.bias is not None or a.name == b.name or product.k == 1:
        return None
    outputs = ((product.output, reduce("Sum", call("mul", element(a.name), element(b.name)))),)

    def rows(outer: int, inner: int, matrix: str, vector: str) -> Rows:
        return Rows(outer, product.k, inner, outputs, elements=(matrix,), columns=(vector,), halves=stored)

    one_matrix = product.batches == 1 or (a.batch == product.m * product.k and b.batch == 0)
    if product.n == 1 and b.row == 1 and (a.row, a.col) == (product.k, 1) and one_matrix:
        return rows(product.batches * product.m, 1, a.name, b.name)
    if product.m == 1 and a.col == 1 and product.batches == 1 and (b.row, b.col) == (1, product.k):
        return rows(product.n, 1, b.name, a.name)
    if product.m == 1 and a.col == 1 and product.batches == 1 and (b.row, b.col) == (product.n, 1):
        return rows(1, product.n, b.name, a.name)
    return None


def _number(view: View, node: GraphNode, name: str) -> float:
    value = number(node.kwargs.get(name, 1))
    if value is None:
        raise refuse(view.facts, f"{node.op} with {name} = {node.kwargs[name]!r}")
    return value


def _check_after(view: View, product: GraphNode) -> None:
    """Raise NoTemplate unless all calls between the product and the result keep the order of elements."""
    name = view.outputs[0]
    while name not in product.results:
        if name not in view.producers:
            raise refuse(view.facts, "the result does not come from the product")
        node, _ = view.producers[name]
        source = reference(node.args[0]) if node.args else None
        keeps_order = node.op in ALIASES or node.op in ("aten.view.default", "aten._unsafe_view.default")
        if node.op == "aten.permute.default" and source in view.producers:
            keeps_order = _only_moves_ones(view, node, source)
        if not keeps_order or source is None:
            raise refuse(view.facts, f"{node.op} follows the matrix product")
        name = source


def _only_moves_ones(view: View, node: GraphNode, source: str) -> bool:
    """Return whether a permutation leaves the order of all axes that have more than one entry."""
    producer, index = view.producers[source]
    shape, order = producer.shapes[index], node.args[1]
    if not isinstance(order, list | tuple) or len(order) != len(shape):
        raise refuse(view.facts, f"a permutation is {order!r}")
    axes = [_axis(view, axis) % len(shape) for axis in order]
    kept = [axis for axis in axes if shape[axis] != 1]
    return kept == sorted(kept)


def _operand(view: View, argument_: object) -> Strided:
    name = reference(argument_)
    if name is None:
        raise refuse(view.facts, "an operand of the product is not a tensor")
    if name not in view.producers:
        spec = view.specs.get(name)
        if spec is None or spec.dtype not in FLOATS:
            raise refuse(view.facts, f"the operand {name!r} is not an input of floats")
        return Strided(name, spec.shape, spec.strides)
    node, _ = view.producers[name]
    return _seen_through(view, node)


def _seen_through(view: View, node: GraphNode) -> Strided:
    if not node.args or reference(node.args[0]) is None:
        raise refuse(view.facts, f"{node.op} before the matrix product")
    base = _operand(view, node.args[0])
    shape = tuple(node.shapes[0])
    if node.op in ("aten.detach.default", "aten.alias.default"):
        return base
    if node.op in ("aten.t.default", "aten.mT.default"):
        return _swapped(base, -2, -1) if len(base.sizes) >= 2 else base
    if node.op == "aten.transpose.int":
        return _swapped(base, _axis(view, node.args[1]), _axis(view, node.args[2]))
    if node.op == "aten.permute.default":
        return _permuted(view, base, node.args[1])
    if node.op == "aten.expand.default":
        return _expanded(base, shape)
    if node.op in ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten.unsqueeze.default"):
        return _reshaped(view, base, shape)
    raise refuse(view.facts, f"{node.op} before the matrix product")


def _axis(view: View, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise refuse(view.facts, f"an axis is {value!r}")
    return value


def _swapped(base: Strided, first: int, second: int) -> Strided:
    order = list(range(len(base.sizes)))
    order[first], order[second] = order[second], order[first]
    return _ordered(base, order)


def _permuted(view: View, base: Strided, order: object) -> Strided:
    if not isinstance(order, list | tuple):
        raise refuse(view.facts, f"a permutation is {order!r}")
    return _ordered(base, [_axis(view, axis) % len(base.sizes) for axis in order])


def _ordered(base: Strided, order: list[int]) -> Strided:
    return Strided(base.name, tuple(base.sizes[i] for i in order), tuple(base.strides[i] for i in order))


def _expanded(base: Strided, shape: Sizes) -> Strided:
    missing = len(shape) - len(base.sizes)
    sizes, strides = (1,) * missing + base.sizes, (0,) * missing + base.strides
    return Strided(
        base.name, shape, tuple(0 if s == 1 != n else d for s, n, d in zip(sizes, shape, strides, strict=True))
    )


def _reshaped(view: View, base: Strided, shape: Sizes) -> Strided:
    """Return a view of other sizes, where the old strides allow it without a copy (PyTorch's rule for ``view``)."""
    if prod(shape) != prod(base.sizes):
        raise refuse(view.facts, "a view changes the number of elements")
    dims = [(n, d) for n, d in zip(base.sizes, base.strides, strict=True) if n != 1]
    merged: list[tuple[int, int]] = []
    for size, stride in dims:
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    strides: list[int] = []
    blocks = list(reversed(merged))
    left, step = blocks.pop(0) if blocks else (1, 1)
    for size in reversed(shape):
        if left == 1 and size != 1 and blocks:
            left, step = blocks.pop(0)
        if left % size:
            raise refuse(view.facts, "a view before the matrix product cannot be expressed by strides")
        strides.append(step)
        left, step = left // size, step * size
    return Strided(base.name, shape, tuple(reversed(strides)))


def _batched(view: View, item: Strided) -> Strided:
    if len(item.sizes) == 2:
        return Strided(item.name, (1, *item.sizes), (0, *item.strides))
    if len(item.sizes) != 3:
        raise refuse(view.facts, f"an operand of the product has {len(item.sizes)} axes")
    return item


def _matrix(item: Strided) -> Operand2D:
    return Operand2D(item.name, item.strides[0] if item.sizes[0] != 1 else 0, item.strides[1], item.strides[2])


def _bias(view: View, argument_: object, sizes: Sizes) -> Operand2D:
    item = _operand(view, argument_)
    if len(item.sizes) > 3 or any(a not in (1, b) for a, b in zip(reversed(item.sizes), reversed(sizes), strict=False)):
        raise refuse(view.facts, "the added matrix does not fit the product")
    return _matrix(_expanded(item, sizes))
