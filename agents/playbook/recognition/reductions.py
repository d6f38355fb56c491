"""ATen's reductions and the row operators made of them (softmax, layer norm, vector norms), as expressions.

Each entry knows which arguments name the reduced axes and refuses every variant it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from agents.playbook.expressions import Expr, call, const, reduce
from agents.playbook.recognition.pointwise import add, div, mul, select, sub
from agents.playbook.recognition.values import View, argument, number, refuse
from cupilot.domain.problem import DType, GraphNode

FLOAT32_EPSILON = 2.0**-23
"""Default eps of PyTorch's RMS norm."""


@dataclass(frozen=True)
class Call:
    """A reducing call with what its builder may need."""

    node: GraphNode
    operand: Expr
    shape: tuple[int, ...]
    """Of the operand."""
    length: int
    leaf: Callable[[object, tuple[int, ...]], Expr | None]
    refuse: Callable[[str], Exception]


@dataclass(frozen=True)
class Reducing:
    """The meaning of a reducing call."""

    build: Callable[[Call], list[Expr]]
    """One expression for each result that may be used, in order."""
    axes_at: int | None
    """Position of the argument that names the axes; None where all axes are reduced."""
    axes_name: str = "dim"
    axes_are_shape: bool = False
    """The argument is a normalised shape: as many trailing axes as it has entries."""
    axes: tuple[int, ...] | None = None
    """The axes, where the call always reduces the same ones."""
    seen_as: Callable[[GraphNode], tuple[int, ...] | None] | None = None
    """The shape in which the call sees its operand, where it is not the operand's own."""


def reduced_axes(node: GraphNode, op: str, rank: int, view: View) -> tuple[int, ...]:
    """Return the axes that a reducing call reduces, ascending."""
    entry = REDUCING[op]
    if entry.axes is not None:
        return entry.axes
    named = None if entry.axes_at is None else argument(node, entry.axes_at, entry.axes_name)
    if named is None or named == []:
        axes = list(range(rank))
    elif isinstance(named, int) and not isinstance(named, bool):
        axes = [named]
    elif isinstance(named, list | tuple) and all(isinstance(item, int) for item in named):
        axes = [int(item) for item in named]
        if entry.axes_are_shape:
            axes = list(range(rank - len(axes), rank))
    else:
        raise refuse(view.facts, f"the axes of {node.op} are {named!r}")
    wrapped = sorted({axis % rank if rank else 0 for axis in axes})
    if rank == 0 or not wrapped or len(wrapped) != len(axes):
        raise refuse(view.facts, f"the axes of {node.op} are {named!r} of {rank}")
    return tuple(wrapped)


def _no_dtype(item: Call) -> None:
    """Refuse a type that operands are cast to, but for that which all is computed in."""
    if item.node.kwargs.get("dtype") not in (None, DType.FLOAT32):
        raise item.refuse(f"{item.node.op} with another dtype")


def _sum(item: Call) -> list[Expr]:
    _no_dtype(item)
    return [reduce("Sum", item.operand)]


def _mean(item: Call) -> list[Expr]:
    _no_dtype(item)
    return [mean(item.operand, item.length)]


def mean(operand: Expr, length: int) -> Expr:
    """Return the mean over a row."""
    return div(reduce("Sum", operand), const(length))


def _single(kind: str) -> Callable[[Call], list[Expr]]:
    return lambda item: [reduce(kind, item.operand)]


def _with_index(kind: str) -> Callable[[Call], list[Expr]]:
    return lambda item: [reduce(kind, item.operand), reduce(f"Arg{kind}", item.operand)]


def _softmax(item: Call) -> list[Expr]:
    _require_flag(item, 2, "half_to_float")
    top = reduce("Peak", item.operand)
    power = call("exp", sub(item.operand, top))
    return [div(power, reduce("Sum", power))]


def _log_softmax(item: Call) -> list[Expr]:
    _require_flag(item, 2, "half_to_float")
    top = reduce("Peak", item.operand)
    shifted = sub(item.operand, top)
    return [sub(shifted, call("log", reduce("Sum", call("exp", shifted))))]


def _require_flag(item: Call, index: int, name: str) -> None:
    if not isinstance(argument(item.node, index, name, False), bool):
        raise item.refuse(f"{item.node.op} with {name}")


def _logsumexp(item: Call) -> list[Expr]:
    top = reduce("Peak", item.operand)
    finite = select(call("eq", call("abs", top), const(float("inf"))), const(0), top)
    return [add(finite, call("log", reduce("Sum", call("exp", sub(item.operand, finite)))))]


def _deviation(item: Call) -> tuple[Expr, Expr]:
    """Return the deviation from the mean, and the sum of its squares."""
    deviation = sub(item.operand, mean(item.operand, item.length))
    return deviation, reduce("Sum", mul(deviation, deviation))


def _variance(item: Call) -> Expr:
    value = argument(item.node, 2, "correction")
    correction = 1.0 if value is None else number(value)
    if correction is None or item.length <= correction:
        raise item.refuse(f"{item.node.op} with correction {value!r}")
    return div(_deviation(item)[1], const(item.length - correction))


def _layer_norm(item: Call) -> list[Expr]:
    shape, eps = argument(item.node, 1, "normalized_shape"), number(argument(item.node, 4, "eps"))
    if not isinstance(shape, list | tuple) or eps is None:
        raise item.refuse(f"{item.node.op} with unexpected arguments")
    return [_affine(item, _normalised(item, eps), tuple(int(str(size)) for size in shape), 2, 3)]


def _normalised(item: Call, eps: float) -> Expr:
    deviation, squares = _deviation(item)
    return mul(deviation, call("rsqrt", add(div(squares, const(item.length)), const(eps))))


def _affine(item: Call, value: Expr, shape: tuple[int, ...], weight_at: int, bias_at: int) -> Expr:
    weight, bias = (item.leaf(argument(item.node, at, ""), shape) for at in (weight_at, bias_at))
    value = value if weight is None else mul(value, weight)
    return value if bias is None else add(value, bias)


def _group_shape(node: GraphNode) -> tuple[int, ...] | None:
    """Return batch, groups, channels of a group and positions."""
    sizes = [argument(node, at, "") for at in (3, 4, 5, 6)]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    batch, channels, positions, groups = (int(str(size)) for size in sizes)
    return None if channels % groups else (batch, groups, channels // groups, positions)


def _group_norm(item: Call) -> list[Expr]:
    eps = number(argument(item.node, 7, "eps"))
    if eps is None or len(item.shape) != 4:
        raise item.refuse(f"{item.node.op} with unexpected arguments")
    return [_affine(item, _normalised(item, eps), (*item.shape[1:3], 1), 1, 2)]


def _instance_shape(node: GraphNode) -> tuple[int, ...] | None:
    """Return rows and positions, for the batch norm of one image that instance norm is made of."""
    shape = node.shapes[0]
    return (shape[1], prod(shape[2:])) if len(shape) > 2 and shape[0] == 1 else None


def _instance_norm(item: Call) -> list[Expr]:
    optional = [argument(item.node, at, "") for at in (1, 2, 3, 4)]
    eps = number(argument(item.node, 7, "eps"))
    single = item.node.shapes[0][0] == 1 and argument(item.node, 5, "training") is True
    if any(value is not None for value in optional) or not single or eps is None:
        raise item.refuse(f"{item.node.op} of a batch, or with weights")
    return [_normalised(item, eps)]


def _rms_norm(item: Call) -> list[Expr]:
    shape, eps = argument(item.node, 1, "normalized_shape"), argument(item.node, 3, "eps")
    size = FLOAT32_EPSILON if eps is None else number(eps)
    if not isinstance(shape, list | tuple) or size is None:
        raise item.refuse(f"{item.node.op} with unexpected arguments")
    square = mean(mul(item.operand, item.operand), item.length)
    result = mul(item.operand, call("rsqrt", add(square, const(size))))
    weight = item.leaf(argument(item.node, 2, "weight"), tuple(int(str(entry)) for entry in shape))
    return [result if weight is None else mul(result, weight)]


def _vector_norm(item: Call) -> list[Expr]:
    _no_dtype(item)
    return [_norm(item, argument(item.node, 1, "ord", 2))]


def _old_norm(item: Call) -> list[Expr]:
    power = argument(item.node, 1, "p", 2)
    return [_norm(item, 2 if power is None else power)]


def _norm(item: Call, order: object) -> Expr:
    x = item.operand
    value = number(order)
    if value == 2:
        return call("sqrt", reduce("Sum", mul(x, x)))
    if value == 1:
        return reduce("Sum", call("abs", x))
    if value == float("inf"):
        return reduce("Largest", call("abs", x))
    raise item.refuse(f"{item.node.op} of order {order!r}")


def _loss(term: Callable[[Call, Expr], Expr]) -> Callable[[Call], list[Expr]]:
    """Return a loss of two full tensors, reduced to its mean (1) or its sum (2)."""

    def build(item: Call) -> list[Expr]:
        reduction = argument(item.node, 2, "reduction", 1)
        other = item.leaf(item.node.args[1], item.shape)
        if other is None or reduction not in (1, 2):
            raise item.refuse(f"{item.node.op} with reduction {reduction!r}")
        total = reduce("Sum", term(item, sub(item.operand, other)))
        return [div(total, const(item.length)) if reduction == 1 else total]

    return build


def _threshold(item: Call, name: str) -> float:
    value = number(argument(item.node, 3, name, 1.0))
    if value is None or value <= 0:
        raise item.refuse(f"{item.node.op} with {name} = {value!r}")
    return value


def _smooth_l1(item: Call, difference: Expr) -> Expr:
    beta, size = _threshold(item, "beta"), call("abs", difference)
    square = div(mul(mul(const(0.5), size), size), const(beta))
    return select(call("lt", size, const(beta)), square, sub(size, const(0.5 * beta)))


def _huber(item: Call, difference: Expr) -> Expr:
    delta, size = _threshold(item, "delta"), call("abs", difference)
    linear = mul(const(delta), sub(size, const(0.5 * delta)))
    return select(call("le", size, const(delta)), mul(mul(const(0.5), size), size), linear)


REDUCING: dict[str, Reducing] = {
    "aten.sum.dim_IntList": Reducing(_sum, 1),
    "aten.sum.default": Reducing(_sum, None),
    "aten.mean.dim": Reducing(_mean, 1),
    "aten.mean.default": Reducing(_mean, None),
    "aten.amax.default": Reducing(_single("Largest"), 1),
    "aten.amin.default": Reducing(_single("Smallest"), 1),
    "aten.max.default": Reducing(_single("Largest"), None),
    "aten.min.default": Reducing(_single("Smallest"), None),
    "aten.max.dim": Reducing(_with_index("Largest"), 1),
    "aten.min.dim": Reducing(_with_index("Smallest"), 1),
    "aten.argmax.default": Reducing(_single("ArgLargest"), 1),
    "aten.argmin.default": Reducing(_single("ArgSmallest"), 1),
    "aten._softmax.default": Reducing(_softmax, 1),
    "aten._log_softmax.default": Reducing(_log_softmax, 1),
    "aten.logsumexp.default": Reducing(_logsumexp, 1),
    "aten.native_layer_norm.default": Reducing(_layer_norm, 1, "normalized_shape", axes_are_shape=True),
    "aten._fused_rms_norm.default": Reducing(_rms_norm, 1, "normalized_shape", axes_are_shape=True),
    "aten.native_group_norm.default": Reducing(_group_norm, None, axes=(2, 3), seen_as=_group_shape),
    "aten.native_batch_norm.default": Reducing(_instance_norm, None, axes=(1,), seen_as=_instance_shape),
    "aten.linalg_vector_norm.default": Reducing(_vector_norm, 2),
    "aten.norm.ScalarOpt_dim": Reducing(_old_norm, 2),
    "aten.norm.Scalar": Reducing(_old_norm, None),
    "aten.mse_loss.default": Reducing(_loss(lambda _, difference: mul(difference, difference)), None),
    "aten.l1_loss.default": Reducing(_loss(lambda _, difference: call("abs", difference)), None),
    "aten.smooth_l1_loss.default": Reducing(_loss(_smooth_l1), None),
    "aten.huber_loss.default": Reducing(_loss(_huber), None),
    "aten.var.correction": Reducing(lambda item: [_variance(item)], 1),
    "aten.std.correction": Reducing(lambda item: [call("sqrt", _variance(item))], 1),
}
"""Overloads that reduce. What a result's unused siblings (layer norm's mean and rstd) would be is not built."""
