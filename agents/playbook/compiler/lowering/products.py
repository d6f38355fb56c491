"""Products and convolutions as reductions over index maps, and attention as two products around a softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, inf, prod, sqrt

from agents.playbook.compiler.lowering.calls import KEYWORD, Call, combined, f, like, read, squeezed, wide
from agents.playbook.compiler.lowering.norms import softmax_of
from agents.playbook.compiler.lowering.pointwise import converted
from agents.playbook.compiler.lowering.reductions import Lowered, total
from agents.playbook.compiler.tensors import Index, Reduce, Shape, Tensor, kept, mapped
from agents.playbook.compiler.terms import (
    Term,
    both,
    cast,
    compare,
    const,
    guarded,
    make,
    minus,
    modulo,
    number,
    over,
    plus,
    register,
    times,
    within,
)


def contraction(
    shape: Shape, dtype: str, extents: Shape, define: Callable[[Index, Index], tuple[Term, Term]]
) -> Tensor:
    """Return the sums of products over further axes."""
    kind = wide(dtype)

    def product(index: Index, inner: Index) -> Term:
        a, b = define(index, inner)
        return make("mul", kind, cast(a, kind), cast(b, kind))

    return Reduce(shape, wide(dtype), "sum", extents, kind, product)


def matmul(a: Tensor, b: Tensor, dtype: str) -> Tensor:
    """Return the product of two tensors with the same leading axes."""
    *batch, m, k = a.shape
    n = b.shape[-1]
    a, b = kept(a, n), kept(b, m)
    return contraction(
        (*batch, m, n),
        dtype,
        (k,),
        lambda index, inner: (a.at((*index[:-1], inner[0])), b.at((*index[:-2], inner[0], index[-1]))),
    )


def _product(call: Call) -> Lowered:
    return converted(matmul(call.tensor(0), call.tensor(1), call.dtype), call.dtype)


def _vector_product(call: Call) -> Lowered:
    a, b = call.tensor(0), call.tensor(1)
    kind = wide(call.dtype)
    both_terms = combined(a.shape, kind, lambda x, y: f("mul", cast(x, kind), cast(y, kind)), a, b)
    summed = squeezed(total(both_terms, (len(a.shape) - 1,)), (len(a.shape) - 1,))
    return converted(summed, call.dtype)


def _added_product(call: Call) -> Lowered:
    bias, product = call.tensor(0), _second_product(call)
    beta, alpha = (call.argument(at, name, 1) for at, name in ((3, "beta"), (4, "alpha")))
    if not isinstance(beta, int | float) or not isinstance(alpha, int | float):
        call.refuse("alpha or beta is not a number")

    def added(p: Term, c: Term) -> Term:
        p = p if alpha == 1 else f("mul", like(alpha, p), p)
        if beta == 0:  # what is added does not count then, NaN included
            return cast(p, register(call.dtype))
        c = cast(c, p.dtype)
        return cast(f("add", p, c if beta == 1 else f("mul", like(beta, p), c)), register(call.dtype))

    return combined(call.shape, call.dtype, added, product, bias)


def _second_product(call: Call) -> Tensor:
    a, b = call.tensor(1), call.tensor(2)
    if call.op == "aten.addr.default":
        return _outer(call, a, b)
    if call.op == "aten.addbmm.default":
        return _batches_product(call, a, b)
    if len(b.shape) > 1:
        return matmul(a, b, call.dtype)
    kind = wide(call.dtype)
    each = combined(a.shape, kind, lambda x, y: f("mul", cast(x, kind), cast(y, kind)), a, b)
    return squeezed(total(each, (1,)), (1,))


def _outer(call: Call, a: Tensor, b: Tensor) -> Tensor:
    kind = wide(call.dtype)
    return mapped(call.shape, kind, lambda index: f("mul", cast(a.at(index[:1]), kind), cast(b.at(index[1:]), kind)))


def _batches_product(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """Return the sum of the products of all batches, as one product over batches and columns."""
    batches, m, k = a.shape
    a, b = kept(a, b.shape[2]), kept(b, m)
    return contraction(
        call.shape,
        call.dtype,
        (batches, k),
        lambda index, inner: (a.at((inner[0], index[0], inner[1])), b.at((*inner, index[1]))),
    )


def _convolution(call: Call) -> Lowered:
    source, weight, bias = call.tensor(0), call.tensor(1), call.optional(2)
    rank = len(source.shape) - 2
    stride, padding, dilation = (
        per_axis(call.sizes(at, name), rank) for at, name in ((3, "stride"), (4, "padding"), (5, "dilation"))
    )
    transposed, groups = call.flag(6, "transposed"), call.whole(8, "groups", 1)
    kernel = weight.shape[2:]
    out_channels = call.shape[1]
    inside_in, inside_out = source.shape[1] // groups, out_channels // groups
    source = kept(source, max(2, inside_out * prod(kernel) // prod(stride)))
    weight = kept(weight, prod(call.shape[2:]))

    taps = [
        _taps(stride[axis], padding[axis], dilation[axis], kernel[axis])
        if transposed
        else Taps(kernel[axis], _window(stride[axis], padding[axis], dilation[axis]))
        for axis in range(rank)
    ]

    def define(index: Index, inner: Index) -> tuple[Term, Term]:
        places = [taps[axis].place(index[2 + axis], inner[1 + axis]) for axis in range(rank)]
        group = over(index[1], inside_out)
        channel = plus(times(group, inside_in), inner[0])
        hits = both(*(hit for hit, _, _ in places))
        inside = both(hits, *(within(at, 0, size) for (_, _, at), size in zip(places, source.shape[2:], strict=True)))
        x = source.at((index[0], channel, *(at for _, _, at in places)))
        under = tuple(tap for _, tap, _ in places)
        if transposed:
            w = weight.at((channel, modulo(index[1], inside_out), *under))
        else:
            w = weight.at((index[1], inner[0], *under))
        return guarded(inside, x, const(0, x.dtype)), guarded(hits, w, const(0, w.dtype))

    found = contraction(call.shape, call.dtype, (inside_in, *(axis.count for axis in taps)), define)
    if bias is None:
        return converted(found, call.dtype)

    def added(index: Index) -> Term:
        value = found.at(index)
        return cast(f("add", value, cast(bias.at((index[1],)), value.dtype)), register(call.dtype))

    return mapped(call.shape, call.dtype, added)


@dataclass(frozen=True)
class Taps:
    """Taps of a kernel on one axis that an output has at most."""

    count: int
    place: Callable[[Term, Term], tuple[Term, Term, Term]]
    """From an output and the number of its tap: whether there is one, which, and the input under it, if any."""


def _window(stride: int, padding: int, dilation: int) -> Callable[[Term, Term], tuple[Term, Term, Term]]:
    def place(out: Term, tap: Term) -> tuple[Term, Term, Term]:
        at = plus(times(out, stride), plus(times(tap, dilation), number(-padding)))
        return const(True, "bool"), tap, at

    return place


def _taps(stride: int, padding: int, dilation: int, kernel: int) -> Taps:
    """Return the taps of a transposed convolution that fall on inputs: every ``step``-th, from one that depends on the
    output's residue class.

    Output ``o`` lies under tap ``t`` of input ``(o + padding - dilation t) / stride`` where that is whole.
    """
    common = gcd(stride, dilation)
    step = stride // common
    inverse = pow(dilation // common, -1, step)
    ahead = -(-dilation * (step - 1) // stride)

    def place(out: Term, nth: Term) -> tuple[Term, Term, Term]:
        rest = plus(modulo(out, stride), number(padding))
        first = modulo(times(over(rest, common), inverse), step)
        tap = plus(first, times(nth, step))
        hit = both(
            compare("eq", modulo(rest, common), number(0)),
            compare("lt", tap, number(kernel)),
        )
        shift = over(plus(minus(rest, times(first, dilation)), number(ahead * stride)), stride)
        back = plus(times(nth, -(dilation // common)), number(-ahead))
        return hit, tap, plus(over(out, stride), plus(shift, back))

    return Taps(-(-kernel // step), place)


def per_axis(values: Sequence[int], rank: int) -> list[int]:
    """Return one number an axis; a single one stands for all."""
    return list(values) * rank if len(values) == 1 else list(values)


def _attention(mask_at: int, causal_at: int) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        query, key, value = (call.tensor(at) for at in range(3))
        mask = call.optional(mask_at, "attn_mask")
        if call.argument(causal_at - 1, "dropout_p", 0.0) not in (0, 0.0):
            call.refuse("it drops values at random")
        given = call.node.kwargs.get("scale")
        scale = 1 / sqrt(query.shape[-1]) if given is None else call.real(KEYWORD, "scale")
        causal = call.flag(causal_at, "is_causal")
        return [attention((query, key, value), mask, scale, causal=causal)]

    return lower


def attention(operands: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, scale: float, *, causal: bool) -> Tensor:
    """Return softmax of the scaled products of queries and keys, times values; heads of keys may be shared.

    A row whose keys are all masked is zero. Causal attention alone masks no row's first key.
    """
    query, key, value = operands
    dtype = query.dtype
    *batch, rows, width = query.shape
    columns, heads, shared = key.shape[-2], query.shape[-3], key.shape[-3]
    kind = wide(dtype)
    query, key, value = kept(query, columns), kept(key, rows), kept(value, rows)

    def head(index: Index) -> Index:
        return (*index[: len(batch) - 1], over(index[len(batch) - 1], heads // shared))

    shape = (*batch, rows, columns)
    scores = contraction(
        shape,
        dtype,
        (width,),
        lambda index, inner: (query.at((*index[:-1], inner[0])), key.at((*head(index), index[-1], inner[0]))),
    )

    def masked(index: Index) -> Term:
        score = f("mul", scores.at(index), const(scale, kind))
        if mask is not None:
            own = read(mask, index)
            if own.dtype == "bool":
                score = make("where", kind, own, score, const(-inf, kind))
            else:
                score = f("add", score, cast(own, kind))
        if causal:
            score = make("where", kind, compare("le", index[-1], index[-2]), score, const(-inf, kind))
        return score

    logits = mapped(shape, kind, masked)
    logits.stored = True
    weights = softmax_of(logits, len(shape) - 1, kind, safe=mask is not None)
    weights = kept(weights, value.shape[-1])
    out = contraction(
        (*batch, rows, value.shape[-1]),
        dtype,
        (columns,),
        lambda index, inner: (weights.at((*index[:-1], inner[0])), value.at((*head(index), inner[0], index[-1]))),
    )
    return converted(out, dtype)


def _unfold_image(call: Call) -> Lowered:
    source = call.tensor(0)
    kernel, dilation, padding, stride = (
        call.sizes(at, name) for at, name in ((1, "kernel_size"), (2, "dilation"), (3, "padding"), (4, "stride"))
    )
    wide_out = (source.shape[-1] + 2 * padding[1] - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1

    def define(index: Index) -> Term:
        *batch, row, column = index
        taps = (modulo(over(row, kernel[1]), kernel[0]), modulo(row, kernel[1]))
        outs = (over(column, wide_out), modulo(column, wide_out))
        places = [
            plus(times(outs[a], stride[a]), plus(times(taps[a], dilation[a]), number(-padding[a]))) for a in (0, 1)
        ]
        inside = both(*(within(p, 0, source.shape[a - 2]) for a, p in enumerate(places)))
        value = source.at((*batch, over(row, prod(kernel)), *places))
        return guarded(inside, value, const(0, value.dtype))

    return mapped(call.shape, call.dtype, define)


def _distances(call: Call) -> Lowered:
    a, b, p = call.tensor(0), call.tensor(1), call.real(2, "p", 2.0)
    kind = wide(call.dtype)

    def define(index: Index, inner: Index) -> Term:
        x, y = read(a, (*index[:-1], inner[0])), read(b, (*index[:-2], index[-1], inner[0]))
        away = f("fn_abs", f("sub", cast(x, kind), cast(y, kind)))
        if p == 0:
            return cast(compare("ne", away, like(0, away)), kind)
        if p == 2:
            return f("mul", away, away)
        return away if p in (1, inf) else f("fn_pow", away, like(p, away))

    def root(total: Term) -> Term:
        if p == 2:
            return f("fn_sqrt", total)
        return total if p in (0, 1, inf) else f("fn_pow", total, like(1 / p, total))

    found = Reduce(call.shape, kind, "max" if p == inf else "sum", (a.shape[-1],), kind, define)
    return combined(call.shape, call.dtype, root, found)


PRODUCTS: dict[str, Callable[[Call], Lowered]] = {
    "aten.mm.default": _product,
    "aten.bmm.default": _product,
    "aten.mv.default": _vector_product,
    "aten.dot.default": _vector_product,
    "aten.addmm.default": _added_product,
    "aten.baddbmm.default": _added_product,
    "aten.addmv.default": _added_product,
    "aten.addr.default": _added_product,
    "aten.addbmm.default": _added_product,
    "aten.convolution.default": _convolution,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention(KEYWORD, 4),
    "aten._scaled_dot_product_flash_attention.default": _attention(KEYWORD, 4),
    "aten._scaled_dot_product_efficient_attention.default": _attention(3, 6),
    "aten._scaled_dot_product_cudnn_attention.default": _attention(3, 6),
    "aten._scaled_dot_product_attention_math.default": _attention(3, 5),
    "aten.im2col.default": _unfold_image,
    "aten._euclidean_dist.default": _distances,
    "aten._cdist_forward.default": _distances,
}
"""Products, convolutions, attention, pooling and resizing."""
