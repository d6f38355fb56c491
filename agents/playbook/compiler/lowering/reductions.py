"""Reducing calls: sums, extremes, norms, variances, softmax, normalisations, scans and orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from agents.playbook.compiler.lowering.calls import (
    KEYWORD,
    Call,
    combined,
    f,
    length,
    like,
    read,
    reduced,
    squeezed,
    wide,
    wrapped,
)
from agents.playbook.compiler.lowering.pointwise import converted, truth
from agents.playbook.compiler.lowering.views import diagonal
from agents.playbook.compiler.tensors import Index, Map, Order, Scan, Tensor, kept, mapped
from agents.playbook.compiler.terms import (
    BOOL,
    Term,
    as_index,
    cast,
    make,
    number,
    plus,
    register,
)

Axes = tuple[int, ...]
Lowered = Tensor | list[Tensor]


def axes_of(call: Call, index: int | None, rank: int, name: str = "dim") -> Axes:
    """Return the reduced axes, ascending; all of them where none is named."""
    named = None if index is None else call.argument(index, name)
    if named is None or named == [] or rank == 0:
        return tuple(range(rank))
    return tuple(sorted({wrapped(axis, rank) for axis in call.sizes(index or 0, name)}))


def keeps(call: Call, at: int) -> bool:
    """Return whether reduced axes stay."""
    return call.flag(at, "keepdim")


def result_of(call: Call, tensor: Tensor, axes: Axes, keep: bool) -> Tensor:
    """Return a reduced tensor in the call's shape and storage type."""
    shaped = tensor if keep or not axes else squeezed(tensor, axes)
    return shaped if shaped.dtype == call.dtype else converted(shaped, call.dtype)


def total(tensor: Tensor, axes: Axes, change: Callable[[Term], Term] = lambda term: term, dtype: str = "") -> Tensor:
    """Return the sum over some axes, which stay with one element each."""
    kind = dtype or wide(tensor.dtype)
    return reduced(tensor, axes, "sum", kind, lambda term: change(cast(term, kind)))


def _sum(at: int | None) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        source = call.tensor(0)
        axes = axes_of(call, at, len(source.shape))
        kind = wide(call.dtype)
        return result_of(call, total(source, axes, dtype=kind), axes, at is not None and keeps(call, 2))

    return lower


def mean_of(tensor: Tensor, axes: Axes, change: Callable[[Term], Term] = lambda term: term) -> Tensor:
    """Return the mean over some axes, which stay."""
    summed = total(tensor, axes, change)
    count = length(tensor, axes)
    return combined(summed.shape, summed.dtype, lambda x: f("div", x, like(count, x)), summed)


def _mean(at: int | None) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        source = call.tensor(0)
        if source.register != register(call.dtype):
            source = converted(source, call.dtype)
        axes = axes_of(call, at, len(source.shape))
        return result_of(call, mean_of(source, axes), axes, at is not None and keeps(call, 2))

    return lower


def _extreme(kind: str, at: int | None) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        source = call.tensor(0)
        axes = axes_of(call, at, len(source.shape))
        return result_of(call, reduced(source, axes, kind, source.dtype), axes, at is not None and keeps(call, 2))

    return lower


def _with_places(kind: str) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        source = call.tensor(0)
        axis = wrapped(call.whole(1, "dim"), len(source.shape))
        places = reduced(source, (axis,), f"arg{kind}", "int64")
        values = reduced(source, (axis,), kind, source.dtype)
        if keeps(call, 2):
            return [values, places]
        return [squeezed(values, (axis,)), squeezed(places, (axis,))]

    return lower


def _arg(kind: str) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        source = call.tensor(0)
        axes = axes_of(call, 1, len(source.shape))
        return result_of(call, reduced(source, axes, kind, "int64"), axes, keeps(call, 2))

    return lower


def _truths(kind: str, at: int | None) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        source = call.tensor(0)
        axes = axes_of(call, at, len(source.shape))
        if call.op.endswith(".dims") and call.argument(1, "dim") == []:  # unlike None, no axis
            axes = ()
        found = reduced(source, axes, kind, "int32", lambda term: cast(truth(term), "int32"))
        result = combined(found.shape, BOOL, truth, found)
        return result_of(call, result, axes, at is not None and keeps(call, 2))

    return lower


def _product(at: int | None) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        source = call.tensor(0)
        axes = axes_of(call, at, len(source.shape))
        kind = wide(call.dtype)
        found = reduced(source, axes, "prod", kind, lambda term: cast(term, kind))
        return result_of(call, found, axes, at is not None and keeps(call, 2))

    return lower


def variance(source: Tensor, axes: Axes, correction: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return mean and variance over some axes, which stay; the variance in a second pass."""
    source = kept(source, 3)
    middle = mean_of(source, axes)
    shape = middle.shape

    def define(index: Index) -> Term:
        away = f("sub", cast(source.at(index), middle.register), read(middle, index))
        return f("mul", away, away)

    squares = total(Map(source.shape, middle.dtype, define), axes)
    count = max(length(source, axes) - correction, 0.0)
    return middle, combined(shape, middle.dtype, lambda x: f("div", x, like(count, x)), squares)


def _variance(root: bool, with_mean: bool) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        source = call.tensor(0)
        axes = axes_of(call, 1, len(source.shape))
        given = call.argument(2, "correction")
        middle, spread = variance(source, axes, 1.0 if given is None else call.real(2, "correction"))
        if root:
            spread = combined(spread.shape, spread.dtype, lambda x: f("fn_sqrt", x), spread)
        keep = keeps(call, 3)
        first = result_of(call, spread, axes, keep)
        return [first, result_of(call, middle, axes, keep)] if with_mean else first

    return lower


def norm_of(call: Call, source: Tensor, order: float, axes: Axes) -> Tensor:
    """Return a vector norm over some axes, which stay."""
    kind = wide(call.dtype)
    size = combined(source.shape, kind, lambda x: f("fn_abs", cast(x, kind)), source)
    if order in (inf, -inf):
        return reduced(size, axes, "max" if order > 0 else "min", kind)
    if order == 0:
        return total(size, axes, lambda x: cast(truth(x), kind))
    if order == 1:
        return total(size, axes)
    if order == 2:
        squares = total(size, axes, lambda x: f("mul", x, x))
        return combined(squares.shape, kind, lambda x: f("fn_sqrt", x), squares)
    powers = total(size, axes, lambda x: f("fn_pow", x, like(order, x)))
    return combined(powers.shape, kind, lambda x: f("fn_pow", x, like(1 / order, x)), powers)


def _norm(order_at: int, axes_at: int | None, keep_at: int) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        source = call.tensor(0)
        given = call.argument(order_at, "ord" if axes_at == 2 else "p", 2)
        order = 2.0 if given is None else call.real(order_at, "ord" if axes_at == 2 else "p", 2)
        axes = axes_of(call, axes_at, len(source.shape))
        keep = axes_at is not None and keeps(call, keep_at)
        return result_of(call, norm_of(call, source, order, axes), axes, keep)

    return lower


def _distance(call: Call) -> Lowered:
    first, second, kind = call.tensor(0), call.tensor(1), wide(call.dtype)
    shape = broadcast(first.shape, second.shape)
    away = combined(shape, kind, lambda a, b: f("sub", cast(a, kind), cast(b, kind)), first, second)
    axes = tuple(range(len(shape)))
    return result_of(call, norm_of(call, away, call.real(2, "p", 2), axes), axes, keep=False)


def _count(call: Call) -> Lowered:
    source = call.tensor(0)
    axes = axes_of(call, 1, len(source.shape))
    return result_of(call, reduced(source, axes, "sum", "int64", lambda term: cast(truth(term), "int64")), axes, False)


def _both_extremes(call: Call) -> Lowered:
    source = call.tensor(0)
    axes = axes_of(call, KEYWORD, len(source.shape))
    keep = keeps(call, KEYWORD)
    return [result_of(call, reduced(source, axes, kind, source.dtype), axes, keep) for kind in ("min", "max")]


def _trace(call: Call) -> Lowered:
    source = call.tensor(0)
    line = diagonal(source.shape, 0, 0, 1, min(source.shape)).of(source)
    return result_of(call, total(line, (0,), dtype=wide(call.dtype)), (0,), False)


def _scan(kind: str) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        source = call.tensor(0)
        axis = wrapped(call.whole(1, "dim"), len(source.shape))
        if not source.shape:
            return source
        kind_of = register(call.dtype)
        return Scan(source.shape, call.dtype, kind, axis, lambda index: cast(source.at(index), kind_of))

    return lower


def order_of(source: Tensor, axis: int, count: int, *, largest: bool) -> Tensor:
    """Return the positions along an axis of the first elements in order, on that axis."""
    source = kept(source, source.shape[axis])
    rest = (*source.shape[:axis], *source.shape[axis + 1 :])

    def moved(index: Index) -> Term:
        return source.at((*index[:axis], index[-1], *index[axis:-1]))

    found = Order((*rest, count), "int64", largest, source.shape[axis], moved)
    shape = (*source.shape[:axis], count, *source.shape[axis + 1 :])
    return Map(shape, "int64", lambda index: found.at((*index[:axis], *index[axis + 1 :], index[axis])))


def picked(source: Tensor, axis: int, places: Tensor) -> Tensor:
    """Return the elements of a tensor at positions along an axis."""
    return Map(
        places.shape,
        source.dtype,
        lambda index: source.at((*index[:axis], as_index(places.at(index), source.shape[axis]), *index[axis + 1 :])),
    )


def _topk(call: Call) -> Lowered:
    source = call.tensor(0)
    axis = wrapped(call.whole(2, "dim", -1), len(source.shape))
    largest = call.flag(3, "largest", default=True)
    places = order_of(source, axis, call.whole(1, "k"), largest=largest)
    return [picked(source, axis, places), places]


def _sort(call: Call) -> Lowered:
    source = call.tensor(0)
    stable = call.node.op == "aten.sort.stable"
    at = 2 if stable else 1
    axis = wrapped(call.whole(at, "dim", -1), len(source.shape))
    descending = call.flag(at + 1, "descending")
    places = order_of(source, axis, source.shape[axis], largest=descending)
    return places if call.node.op.startswith("aten.argsort") else [picked(source, axis, places), places]


def broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that two shapes are broadcast to."""
    rank = max(len(a), len(b))
    pairs = zip([*(1 for _ in range(rank - len(a))), *a], [*(1 for _ in range(rank - len(b))), *b], strict=True)
    return tuple(max(pair) for pair in pairs)


def _cosine(call: Call) -> Lowered:
    a, b = call.tensor(0), call.tensor(1)
    shape = broadcast(a.shape, b.shape)
    axis, eps, kind = wrapped(call.whole(2, "dim", 1), len(shape)), call.real(3, "eps", 1e-8), wide(call.dtype)

    def dot(x: Tensor, y: Tensor) -> Tensor:
        both = combined(shape, kind, lambda p, q: f("mul", cast(p, kind), cast(q, kind)), x, y)
        return total(both, (axis,))

    def ratio(xy: Term, xx: Term, yy: Term) -> Term:
        low = like(eps, xx)
        sizes = (f("fn_max", f("fn_sqrt", item), low) for item in (xx, yy))
        return f("div", xy, f("mul", *sizes))

    parts = (dot(a, b), dot(a, a), dot(b, b))
    return squeezed(combined(parts[0].shape, kind, ratio, *parts), (axis,))


def _diff(call: Call) -> Lowered:
    source = call.tensor(0)
    axis = wrapped(call.whole(2, "dim", -1), len(source.shape))

    def define(index: Index) -> Term:
        later = (*index[:axis], plus(index[axis], number(1)), *index[axis + 1 :])
        return make("sub", source.register, source.at(later), source.at(index))

    return mapped(call.shape, call.dtype, define)


REDUCTIONS: dict[str, Callable[[Call], Lowered]] = {
    "aten.linalg_vector_norm.default": _norm(1, 2, 3),
    "aten.norm.Scalar": _norm(1, None, 3),
    "aten.norm.ScalarOpt_dim": _norm(1, 2, 3),
    "aten.dist.default": _distance,
    "aten.sum.default": _sum(None),
    "aten.sum.dim_IntList": _sum(1),
    "aten.mean.default": _mean(None),
    "aten.mean.dim": _mean(1),
    "aten.amax.default": _extreme("max", 1),
    "aten.amin.default": _extreme("min", 1),
    "aten.max.default": _extreme("max", None),
    "aten.min.default": _extreme("min", None),
    "aten.max.dim": _with_places("max"),
    "aten.min.dim": _with_places("min"),
    "aten.argmax.default": _arg("argmax"),
    "aten.argmin.default": _arg("argmin"),
    "aten.any.default": _truths("max", None),
    "aten.any.dim": _truths("max", 1),
    "aten.any.dims": _truths("max", 1),
    "aten.all.default": _truths("min", None),
    "aten.all.dim": _truths("min", 1),
    "aten.all.dims": _truths("min", 1),
    "aten.prod.default": _product(None),
    "aten.prod.dim_int": _product(1),
    "aten.var.correction": _variance(root=False, with_mean=False),
    "aten.std.correction": _variance(root=True, with_mean=False),
    "aten.var_mean.correction": _variance(root=False, with_mean=True),
    "aten.std_mean.correction": _variance(root=True, with_mean=True),
    "aten.cumsum.default": _scan("sum"),
    "aten.cumprod.default": _scan("prod"),
    "aten.logcumsumexp.default": _scan("logsum"),
    "aten.count_nonzero.default": _count,
    "aten.count_nonzero.dim_IntList": _count,
    "aten.aminmax.default": _both_extremes,
    "aten.trace.default": _trace,
    "aten.topk.default": _topk,
    "aten.sort.default": _sort,
    "aten.sort.stable": _sort,
    "aten.argsort.default": _sort,
    "aten.cosine_similarity.default": _cosine,
    "aten.diff.default": _diff,
}
"""Calls that reduce, normalise, scan or order; a list where there are several results."""
