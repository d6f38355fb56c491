"""Formulas of pointwise calls that only the compiler has; with the playbook's, all that are written as expressions."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from agents.playbook.compiler.lowering.calls import is_float
from agents.playbook.expressions import Expr
from agents.playbook.expressions import call as expression
from agents.playbook.expressions import const as expression_const
from agents.playbook.recognition.pointwise import POINTWISE, Builder, as_number, div, mul, select, sub
from agents.playbook.recognition.values import number, reference
from cupilot.domain.problem import GraphNode

_UNARY = (
    *("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
    *("erfc", "exp2", "log2", "log10", "trunc", "lgamma", "sin", "cos"),
)


_LARGEST = {
    "float64": sys.float_info.max,
    "float32": 3.4028234663852886e38,
    "bfloat16": 3.3895313892515355e38,
    "float16": 65504.0,
}
"""Largest number of each type."""


def _of(op: str, count: int) -> Builder:
    def build(ops: list[Expr], node: GraphNode) -> Expr | None:
        return expression(op, *(as_number(item) for item in ops)) if len(ops) == count and not node.kwargs else None

    return build


def _simple(count: int, make_one: Callable[..., Expr]) -> Builder:
    def build(ops: list[Expr], node: GraphNode) -> Expr | None:
        return make_one(*(as_number(item) for item in ops)) if len(ops) == count and not node.kwargs else None

    return build


def _c(value: float) -> Expr:
    return expression_const(value)


def _sign(x: Expr) -> Expr:
    positive, negative = (as_number(expression(op, x, _c(0))) for op in ("gt", "lt"))
    return sub(positive, negative)


def _infinite(x: Expr) -> Expr:
    return expression("eq", expression("abs", x), _c(math.inf))


def _logaddexp(a: Expr, b: Expr) -> Expr:
    top = expression("max", a, b)
    rest = expression("neg", expression("abs", sub(a, b)))
    soft = expression("add", top, expression("log1p", expression("exp", rest)))
    return select(expression("eq", a, b), expression("add", a, _c(math.log(2))), soft)


def _logaddexp2(a: Expr, b: Expr) -> Expr:
    scale = _c(math.log(2))
    return div(_logaddexp(mul(a, scale), mul(b, scale)), scale)


def _sinc(x: Expr) -> Expr:
    angle = mul(x, _c(math.pi))
    return select(expression("eq", x, _c(0)), _c(1), div(expression("sin", angle), angle))


def _xlog1py(a: Expr, b: Expr) -> Expr:
    product = select(expression("eq", a, _c(0)), _c(0), mul(a, expression("log1p", b)))
    return select(expression("ne", b, b), b, product)


def _remainder(a: Expr, b: Expr) -> Expr:
    rest = expression("fmod", a, b)
    return select(_opposed(rest, b), expression("add", rest, b), rest)


def _opposed(rest: Expr, b: Expr) -> Expr:
    """Return the condition that a rest is not zero and has another sign than the divisor."""
    return expression("and", expression("ne", rest, _c(0)), expression("ne", _below(rest), _below(b)))


def _below(x: Expr) -> Expr:
    return as_number(expression("lt", x, _c(0)))


def _floored(ops: list[Expr], node: GraphNode) -> Expr:
    """Return the quotient rounded down, with PyTorch's own roundings of floats."""
    a, b = (as_number(item) for item in ops[:2])
    rest = expression("fmod", a, b)
    quotient = sub(div(sub(a, rest), b), as_number(_opposed(rest, b)))
    if not is_float(_dtype(node)):
        return quotient
    floor = expression("floor", quotient)
    whole = select(expression("gt", sub(quotient, floor), _c(0.5)), expression("add", floor, _c(1)), floor)
    signed = select(expression("eq", quotient, _c(0)), expression("copysign", _c(0), div(a, b)), whole)
    return select(expression("eq", b, _c(0)), div(a, b), signed)


def _dtype(node: GraphNode) -> str:
    return node.dtypes[0].removeprefix("torch.")


def _divided(ops: list[Expr], node: GraphNode) -> Expr | None:
    mode = node.kwargs.get("rounding_mode")
    if mode == "floor":
        return _floored(ops, node)
    quotient = div(*(as_number(item) for item in ops[:2]))
    return quotient if mode is None else expression("trunc", quotient) if mode == "trunc" else None


def _power(ops: list[Expr], node: GraphNode) -> Expr:
    return expression("pow" if is_float(_dtype(node)) else "whole_pow", *(as_number(item) for item in ops))


def _round_decimals(ops: list[Expr], node: GraphNode) -> Expr | None:
    decimals = node.kwargs.get("decimals")
    if not isinstance(decimals, int):
        return None
    factor = _c(10.0 ** abs(decimals))
    raised, lowered = (mul, div) if decimals >= 0 else (div, mul)
    return lowered(expression("round", raised(ops[0], factor)), factor)


def _shrink(hard: bool) -> Builder:
    def build(ops: list[Expr], node: GraphNode) -> Expr | None:  # noqa: ARG001
        x, limit = ops[0], ops[1].value if len(ops) > 1 else 0.5
        outside = expression("gt", expression("abs", x), _c(limit))
        shifted = sub(x, mul(_sign(x), _c(limit)))
        return select(outside, x if hard else shifted, mul(x, _c(0)))

    return build


def _nan_to_num(ops: list[Expr], node: GraphNode) -> Expr | None:
    given = [number(node.args[i]) if i < len(node.args) and node.args[i] is not None else None for i in (1, 2, 3)]
    largest = _LARGEST.get(_dtype(node))
    if largest is None:  # whole numbers
        return ops[0]
    nan, high, low = (0.0 if given[0] is None else given[0], given[1], given[2])
    x = ops[0]
    x = select(expression("eq", x, _c(math.inf)), _c(largest if high is None else high), x)
    x = select(expression("eq", x, _c(-math.inf)), _c(-largest if low is None else low), x)
    return select(expression("ne", x, x), _c(nan), x)


def _clamped(ops: list[Expr], node: GraphNode) -> Expr | None:
    low = node.args[1] if len(node.args) > 1 else node.kwargs.get("min")
    high = node.args[2] if len(node.args) > 2 else node.kwargs.get("max")
    if reference(node.kwargs.get("min")) or reference(node.kwargs.get("max")):
        return None
    rest = [as_number(item) for item in ops]
    value = rest.pop(0)
    if low is not None:
        value = expression("max", value, rest[0])
    rest = rest[1:] if len(node.args) > 1 else rest
    return value if high is None else expression("min", value, rest[0])


def _lerp(ops: list[Expr], node: GraphNode) -> Expr | None:  # noqa: ARG001
    a, b, weight = ops
    return expression("add", a, mul(weight, sub(b, a)))


def _logit(ops: list[Expr], node: GraphNode) -> Expr | None:
    eps = number(node.args[1]) if len(node.args) > 1 and node.args[1] is not None else None
    x = ops[0] if eps is None else expression("min", expression("max", ops[0], _c(eps)), _c(1 - eps))
    return expression("log", div(x, sub(_c(1), x)))


def _entropy(x: Expr) -> Expr:
    inside = select(expression("eq", x, _c(0)), _c(0), mul(expression("sub", _c(0), x), expression("log", x)))
    return select(expression("lt", x, _c(0)), _c(-math.inf), inside)


def _masked(ops: list[Expr], node: GraphNode) -> Expr | None:  # noqa: ARG001
    return select(ops[1], ops[2], ops[0]) if len(ops) == 3 and ops[1].mask else None


def _celu(ops: list[Expr]) -> Expr:
    x, alpha = ops[0], ops[1].value if len(ops) > 1 else 1.0
    return select(expression("gt", x, _c(0)), x, mul(_c(alpha), expression("expm1", div(x, _c(alpha)))))


_MORE: dict[str, Builder] = {
    **{f"aten.{name}.default": _of(name, 1) for name in _UNARY},
    "aten.sign.default": _simple(1, _sign),
    "aten.sgn.default": _simple(1, _sign),
    "aten.frac.default": _simple(1, lambda x: sub(x, expression("trunc", x))),
    "aten.round.decimals": _round_decimals,
    "aten.isnan.default": _simple(1, lambda x: expression("ne", x, x)),
    "aten.isinf.default": _simple(1, _infinite),
    "aten.isfinite.default": _simple(1, lambda x: expression("lt", expression("abs", x), _c(math.inf))),
    **{f"aten.pow.{kind}": _power for kind in ("Tensor_Tensor", "Scalar")},
    "aten.atan2.default": _of("atan2", 2),
    **{f"aten.copysign.{kind}": _of("copysign", 2) for kind in ("Scalar", "Tensor")},
    "aten.signbit.default": _simple(1, lambda x: expression("lt", expression("copysign", _c(1), x), _c(0))),
    "aten.hypot.default": _of("hypot", 2),
    **{f"aten.fmod.{kind}": _of("fmod", 2) for kind in ("Scalar", "Tensor")},
    **{f"aten.remainder.{kind}": _simple(2, _remainder) for kind in ("Scalar", "Tensor")},
    "aten.floor_divide.default": _floored,
    **{f"aten.div.{kind}_mode": _divided for kind in ("Scalar", "Tensor")},
    "aten.logaddexp.default": _simple(2, _logaddexp),
    "aten.fmax.default": _simple(
        2, lambda a, b: select(expression("ne", a, a), b, select(expression("ne", b, b), a, expression("max", a, b)))
    ),
    "aten.fmin.default": _simple(
        2, lambda a, b: select(expression("ne", a, a), b, select(expression("ne", b, b), a, expression("min", a, b)))
    ),
    "aten.clamp.Tensor": _clamped,
    "aten.clamp_min.Tensor": _of("max", 2),
    "aten.clamp_max.Tensor": _of("min", 2),
    "aten.lerp.Tensor": _lerp,
    "aten.logit.default": _logit,
    "aten.special_entr.default": _simple(1, _entropy),
    "aten.logaddexp2.default": _simple(2, _logaddexp2),
    "aten.sinc.default": _simple(1, _sinc),
    "aten.special_xlog1py.default": _simple(2, _xlog1py),
    "aten.deg2rad.default": _simple(1, lambda x: mul(x, _c(math.pi / 180))),
    "aten.rad2deg.default": _simple(1, lambda x: mul(x, _c(180 / math.pi))),
    "aten.isposinf.default": _simple(1, lambda x: expression("eq", x, _c(math.inf))),
    "aten.isneginf.default": _simple(1, lambda x: expression("eq", x, _c(-math.inf))),
    "aten.nan_to_num.default": _nan_to_num,
    "aten.masked_fill.Tensor": _masked,
    "aten.masked_fill.Scalar": _masked,
    "aten.hardshrink.default": _shrink(hard=True),
    "aten.softshrink.default": _shrink(hard=False),
    "aten._prelu_kernel.default": _simple(2, lambda x, w: select(expression("gt", x, _c(0)), x, mul(w, x))),
    "aten.relu6.default": _simple(1, lambda x: expression("min", expression("max", x, _c(0)), _c(6))),
    "aten.heaviside.default": _simple(
        2, lambda x, at: select(expression("eq", x, _c(0)), at, as_number(expression("gt", x, _c(0))))
    ),
    "aten.celu.default": lambda ops, node: _celu(ops),  # noqa: ARG005
    "aten.sigmoid_backward.default": _simple(2, lambda g, y: mul(g, mul(sub(_c(1), y), y))),
    "aten.tanh_backward.default": _simple(2, lambda g, y: mul(g, sub(_c(1), mul(y, y)))),
}
FORMULAS: dict[str, Builder] = {**POINTWISE, **_MORE}
"""Every pointwise call that is written as an expression."""
