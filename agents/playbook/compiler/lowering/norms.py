"""Softmax and its kin, and normalisations of rows, groups and batches, as several reductions each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

from agents.playbook.compiler.lowering.calls import (
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
from agents.playbook.compiler.lowering.pointwise import converted
from agents.playbook.compiler.lowering.reductions import (
    Axes,
    Lowered,
    axes_of,
    keeps,
    mean_of,
    result_of,
    total,
    variance,
)
from agents.playbook.compiler.lowering.views import reshape
from agents.playbook.compiler.tensors import Index, Map, Tensor, kept, mapped
from agents.playbook.compiler.terms import (
    Term,
    cast,
    compare,
    number,
    register,
    where,
)
from agents.playbook.recognition.values import reference


def softmax_parts(source: Tensor, axes: Axes) -> tuple[Tensor, Tensor]:
    """Return the maximum over some axes and the sum of exponentials less it."""
    kind = wide(source.dtype)
    top = reduced(source, axes, "max", kind, lambda term: cast(term, kind))

    def power(index: Index) -> Term:
        return f("fn_exp", f("sub", cast(source.at(index), kind), read(top, index)))

    return top, total(Map(source.shape, kind, power), axes)


def softmax_of(source: Tensor, axis: int, dtype: str, *, log: bool = False, safe: bool = False) -> Tensor:
    """Return softmax, or its logarithm, along an axis; a safe one is zero, not NaN, where all is minus infinity."""
    source = kept(source, 3)
    kind = wide(source.dtype)
    top, powers = softmax_parts(source, (axis,))

    def define(index: Index) -> Term:
        largest, below = read(top, index), read(powers, index)
        shifted = f("sub", cast(source.at(index), kind), largest)
        value = f("sub", shifted, f("fn_log", below)) if log else f("div", f("fn_exp", shifted), below)
        if safe:
            value = where(compare("eq", largest, like(-inf, largest)), like(0, value), value)
        return cast(value, register(dtype))

    return mapped(source.shape, dtype, define)


def _softmax(*, log: bool = False, safe: bool = False) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        source = call.tensor(0)
        axis = wrapped(call.whole(1, "dim"), len(source.shape))
        if not source.shape:
            call.refuse("its operand has no axis")
        return softmax_of(source, axis, call.dtype, log=log, safe=safe)

    return lower


def _logsumexp(call: Call) -> Lowered:
    source = kept(call.tensor(0), 2)
    axes = axes_of(call, 1, len(source.shape))
    kind = wide(call.dtype)
    peak = reduced(source, axes, "max", kind, lambda term: cast(term, kind))

    def finite(x: Term) -> Term:
        return where(compare("eq", f("fn_abs", x), like(inf, x)), like(0, x), x)

    top = combined(peak.shape, kind, finite, peak)
    powers = total(
        Map(source.shape, kind, lambda i: f("fn_exp", f("sub", cast(source.at(i), kind), read(top, i)))), axes
    )
    result = combined(top.shape, kind, lambda x, s: f("add", x, f("fn_log", s)), top, powers)
    return result_of(call, result, axes, keeps(call, 2))


def _scaled(source: Tensor, statistics: tuple[Tensor, Tensor], eps: float, index: Index, place: Index) -> Term:
    """Return ``(x - mean) / sqrt(variance + eps)`` of an element whose statistics are at another index."""
    middle, spread = statistics
    away = f("sub", cast(source.at(index), middle.register), middle.at(place))
    variance_there = spread.at(place)
    return f("mul", away, f("fn_rsqrt", f("add", variance_there, like(eps, variance_there))))


def _rsqrt(tensor: Tensor, eps: float) -> Tensor:
    return combined(tensor.shape, tensor.dtype, lambda x: f("fn_rsqrt", f("add", x, like(eps, x))), tensor)


def _affine(value: Term, weight: Term | None, bias: Term | None) -> Term:
    value = value if weight is None else f("mul", value, cast(weight, value.dtype))
    return value if bias is None else f("add", value, cast(bias, value.dtype))


def _layer_norm(call: Call) -> Lowered:
    source = kept(call.tensor(0), 3)
    rank = len(source.shape)
    axes = tuple(range(rank - len(call.sizes(1, "normalized_shape")), rank))
    weight, bias, eps = call.optional(2, "weight"), call.optional(3, "bias"), call.real(4, "eps")
    middle, spread = variance(source, axes)

    def define(index: Index) -> Term:
        place = tuple(number(0) if axis in axes else item for axis, item in enumerate(index))
        value = _scaled(source, (middle, spread), eps, index, place)
        inner = index[axes[0] :]
        parts = [None if part is None else part.at(inner) for part in (weight, bias)]
        return cast(_affine(value, *parts), register(call.dtype))

    return [mapped(source.shape, call.dtype, define), middle, _rsqrt(spread, eps)]


def _rms_norm(call: Call) -> Lowered:
    source = kept(call.tensor(0), 2)
    rank = len(source.shape)
    axes = tuple(range(rank - len(call.sizes(1, "normalized_shape")), rank))
    weight = call.optional(2, "weight")
    given = call.argument(3, "eps")
    eps = 2.0**-23 if given is None else call.real(3, "eps")
    squares = mean_of(source, axes, lambda x: f("mul", x, x))

    def define(index: Index) -> Term:
        below = read(squares, index)
        value = f("mul", cast(source.at(index), below.dtype), f("fn_rsqrt", f("add", below, like(eps, below))))
        scale = None if weight is None else weight.at(index[axes[0] :])
        return cast(_affine(value, scale, None), register(call.dtype))

    return [mapped(source.shape, call.dtype, define), _rsqrt(squares, eps)]


def _group_norm(call: Call) -> Lowered:
    source, weight, bias = kept(call.tensor(0), 3), call.optional(1, "weight"), call.optional(2, "bias")
    groups, eps = call.whole(6, "group"), call.real(7, "eps")
    batch, channels = source.shape[:2]
    inside = channels // groups
    split = (batch, groups, inside, *source.shape[2:])
    grouped = reshape(source.shape, split).of(source)
    axes = tuple(range(2, len(split)))
    middle, spread = variance(grouped, axes)

    def define(index: Index) -> Term:
        apart = reshape(split, source.shape).source(index)
        place = (*apart[:2], *(number(0) for _ in axes))
        value = _scaled(source, (middle, spread), eps, index, place)
        parts = [None if part is None else part.at((index[1],)) for part in (weight, bias)]
        return cast(_affine(value, *parts), register(call.dtype))

    return [mapped(source.shape, call.dtype, define), squeezed(middle, axes), squeezed(_rsqrt(spread, eps), axes)]


def _update(call: Call, middle: Tensor, spread: Tensor, correction: float) -> None:
    """Have the call move running statistics, where it is given any, towards those of the batch."""
    momentum = call.real(6, "momentum")

    def moved(old: Term, new: Term, scale: float) -> Term:
        kept_part = f("mul", cast(old, new.dtype), like(1 - momentum, new))
        return cast(f("add", kept_part, f("mul", new, like(momentum * scale, new))), old.dtype)

    for at, new, scale in ((3, middle, 1.0), (4, spread, correction)):
        old = call.optional(at)
        if old is not None:
            name = str(reference(call.argument(at, "")))
            call.updates[name] = combined(old.shape, old.dtype, partial(moved, scale=scale), old, new)


def _batch_norm(training_at: int | None, eps_at: int) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        source, weight, bias = call.tensor(0), call.optional(1, "weight"), call.optional(2, "bias")
        training = training_at is not None and call.flag(training_at, "training")
        eps = call.real(eps_at, "eps")
        rank = len(source.shape)
        axes = tuple(axis for axis in range(rank) if axis != 1)
        if training or call.optional(3) is None:
            source = kept(source, 3)
            middle, spread = variance(source, axes)
            if training:
                count = length(source, axes)
                _update(call, squeezed(middle, axes), squeezed(spread, axes), count / max(count - 1, 1))
        else:
            shape = (1, source.shape[1], *(1 for _ in range(rank - 2)))
            middle, spread = (reshape((shape[1],), shape).of(call.tensor(at)) for at in (3, 4))
            middle, spread = (converted(item, wide(item.dtype)) for item in (middle, spread))

        def define(index: Index) -> Term:
            place = tuple(item if axis == 1 else number(0) for axis, item in enumerate(index))
            value = _scaled(source, (middle, spread), eps, index, place)
            parts = [None if part is None else part.at((index[1],)) for part in (weight, bias)]
            return cast(_affine(value, *parts), register(call.dtype))

        saved = [squeezed(middle, axes), squeezed(_rsqrt(spread, eps), axes)] if training else []
        return [mapped(source.shape, call.dtype, define), *saved]

    return lower


NORMS: dict[str, Callable[[Call], Lowered]] = {
    "aten._softmax.default": _softmax(),
    "aten._log_softmax.default": _softmax(log=True),
    "aten._safe_softmax.default": _softmax(safe=True),
    "aten.logsumexp.default": _logsumexp,
    "aten.native_layer_norm.default": _layer_norm,
    "aten._fused_rms_norm.default": _rms_norm,
    "aten.native_group_norm.default": _group_norm,
    "aten.native_batch_norm.default": _batch_norm(5, 7),
    "aten._native_batch_norm_legit.default": _batch_norm(5, 7),
    "aten.cudnn_batch_norm.default": _batch_norm(5, 7),
    "aten._native_batch_norm_legit_no_training.default": _batch_norm(None, 6),
}
"""Calls that normalise."""
