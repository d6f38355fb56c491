"""Losses: a map of scores and targets, and its mean or sum."""

from __future__ import annotations

from collections.abc import Callable

from agents.playbook.compiler.lowering.calls import (
    Call,
    combined,
    f,
    like,
    squeezed,
    wide,
)
from agents.playbook.compiler.lowering.pointwise import converted
from agents.playbook.compiler.lowering.reductions import Lowered, broadcast, mean_of, result_of, total
from agents.playbook.compiler.tensors import Index, Map, Tensor
from agents.playbook.compiler.terms import (
    Term,
    as_index,
    cast,
    compare,
    const,
    register,
    where,
)


def _losses(term: Callable[[Call, Term], Term]) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        first, second = call.tensor(0), call.tensor(1)
        kind = wide(call.dtype)
        shape = broadcast(first.shape, second.shape)
        each = combined(shape, kind, lambda a, b: term(call, f("sub", cast(a, kind), cast(b, kind))), first, second)
        return averaged(call, each, call.whole(2, "reduction", 1))

    return lower


def averaged(call: Call, each: Tensor, reduction: int) -> Tensor:
    """Return a loss: as it is (0), its mean (1) or its sum (2)."""
    axes = tuple(range(len(each.shape)))
    if reduction == 0:
        return converted(each, call.dtype)
    value = mean_of(each, axes) if reduction == 1 else total(each, axes)
    return result_of(call, value, axes, keep=False)


def _smooth_l1(call: Call, away: Term) -> Term:
    beta, size = call.real(3, "beta", 1.0), f("fn_abs", away)
    if beta == 0:
        return size
    square = f("div", f("mul", f("mul", like(0.5, size), size), size), like(beta, size))
    return where(compare("lt", size, like(beta, size)), square, f("sub", size, like(0.5 * beta, size)))


def _huber(call: Call, away: Term) -> Term:
    delta, size = call.real(3, "delta", 1.0), f("fn_abs", away)
    line = f("mul", like(delta, size), f("sub", size, like(0.5 * delta, size)))
    square = f("mul", f("mul", like(0.5, size), size), size)
    return where(compare("le", size, like(delta, size)), square, line)


def _cross_entropy(call: Call) -> Lowered:
    """Return what ``nll_loss_forward`` does: the loss of log-probabilities, and the total weight."""
    scores, targets, weights = call.tensor(0), call.tensor(1), call.optional(2)
    reduction, ignored = call.whole(3, "reduction", 1), call.whole(4, "ignore_index", -100)
    kind = wide(call.dtype)
    classes = scores.shape[1] if len(scores.shape) > 1 else scores.shape[0]

    def counted(index: Index, value: Term) -> Term:
        """Return the value, and zero where the label is ignored."""
        label = cast(targets.at(index), "int64")
        return where(compare("ne", label, const(ignored, "int64")), value, const(0, kind))

    def own(index: Index) -> Term:
        return const(1, kind) if weights is None else cast(weights.at((as_index(targets.at(index), classes),)), kind)

    def loss(index: Index) -> Term:
        place = as_index(targets.at(index), classes)
        at = (index[0], place, *index[1:]) if len(scores.shape) > 1 else (place,)
        value = f("fn_neg", cast(scores.at(at), kind))
        return counted(index, value if weights is None else f("mul", value, own(index)))

    each = Map(targets.shape, kind, loss)
    weight = Map(targets.shape, kind, lambda index: counted(index, own(index)))
    axes = tuple(range(len(targets.shape)))
    if reduction == 0:
        return [converted(each, call.dtype), weight]
    summed, weighed = squeezed(total(each, axes), axes), squeezed(total(weight, axes), axes)
    if reduction == 2:
        return [converted(summed, call.dtype), weighed]
    return [combined((), call.dtype, lambda a, b: cast(f("div", a, b), register(call.dtype)), summed, weighed), weighed]


def _binary_cross_entropy(call: Call) -> Lowered:
    scores, targets, weights = call.tensor(0), call.tensor(1), call.optional(2)
    kind = wide(call.dtype)

    def loss(p: Term, t: Term, *w: Term) -> Term:
        p, t = cast(p, kind), cast(t, kind)
        yes = f("fn_max", f("fn_log", p), like(-100, p))
        no = f("fn_max", f("fn_log1p", f("fn_neg", p)), like(-100, p))
        value = f("sub", f("mul", f("sub", t, like(1, t)), no), f("mul", t, yes))
        return f("mul", value, cast(w[0], kind)) if w else value

    shape = broadcast(scores.shape, targets.shape)
    each = combined(shape, kind, loss, scores, targets, *([weights] if weights else []))
    return averaged(call, each, call.whole(3, "reduction", 1))


def _logit_cross_entropy(call: Call) -> Lowered:
    scores, targets = call.tensor(0), call.tensor(1)
    weights, positives = call.optional(2), call.optional(3)
    given = [tensor for tensor in (weights, positives) if tensor is not None]
    kind = wide(call.dtype)

    def loss(x: Term, t: Term, *more: Term) -> Term:
        x, t, *factors = (cast(item, kind) for item in (x, t, *more))
        soft = f("fn_log1p", f("fn_exp", f("fn_neg", f("fn_abs", x))))
        positive = f("fn_max", f("fn_neg", x), like(0, x))
        tail = f("add", positive, soft)
        if positives is not None:
            share = f("sub", factors[-1], like(1, x))
            tail = f("mul", f("add", f("mul", share, t), like(1, x)), tail)
        value = f("add", f("mul", f("sub", like(1, t), t), x), tail)
        return value if weights is None else f("mul", value, factors[0])

    each = combined(broadcast(scores.shape, targets.shape), kind, loss, scores, targets, *given)
    return averaged(call, each, call.whole(4, "reduction", 1))


def _log_sigmoid(call: Call) -> Lowered:
    """Return the value and, as PyTorch has it on a CPU, the exponential that the derivative is made of."""

    def power(x: Term) -> Term:
        return f("fn_exp", f("fn_neg", f("fn_abs", x)))

    def value(x: Term) -> Term:
        return f("sub", f("fn_min", x, like(0, x)), f("fn_log1p", power(x)))

    return [combined(call.shape, call.dtype, change, call.tensor(0)) for change in (value, power)]


LOSSES: dict[str, Callable[[Call], Lowered]] = {
    "aten.mse_loss.default": _losses(lambda _, away: f("mul", away, away)),
    "aten.l1_loss.default": _losses(lambda _, away: f("fn_abs", away)),
    "aten.smooth_l1_loss.default": _losses(_smooth_l1),
    "aten.huber_loss.default": _losses(_huber),
    "aten.nll_loss_forward.default": _cross_entropy,
    "aten.nll_loss2d_forward.default": _cross_entropy,
    "aten.binary_cross_entropy.default": _binary_cross_entropy,
    "aten.binary_cross_entropy_with_logits.default": _logit_cross_entropy,
    "aten.log_sigmoid_forward.default": _log_sigmoid,
}
"""Losses of scores and targets."""
