"""ATen's pointwise calls as expressions: one table entry a call, with PyTorch's own formulas.

Formulas follow the ATen documentation; NaN behaves as in PyTorch, because comparisons with NaN are false and
``max``/``min`` pass NaN on. Knows nothing of shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from agents.playbook.expressions import Expr, call, const
from agents.playbook.recognition.values import number
from cupilot.domain.problem import GraphNode

Operands = list[Expr]
Builder = Callable[[Operands, GraphNode], Expr | None]
"""Makes the expression of a call from its tensor and number operands; None for a variant that is not supported."""


def add(a: Expr, b: Expr) -> Expr:
    """Return the sum."""
    return call("add", a, b)


def sub(a: Expr, b: Expr) -> Expr:
    """Return the difference."""
    return call("sub", a, b)


def mul(a: Expr, b: Expr) -> Expr:
    """Return the product."""
    return call("mul", a, b)


def div(a: Expr, b: Expr) -> Expr:
    """Return the quotient."""
    return call("div", a, b)


def select(mask: Expr, yes: Expr, no: Expr) -> Expr:
    """Return ``mask ? yes : no``."""
    return call("select", mask if mask.mask else call("ne", mask, const(0)), as_number(yes), as_number(no))


def as_number(value: Expr) -> Expr:
    """Return a truth value as 0 or 1; anything else as it is."""
    return call("select", value, const(1), const(0)) if value.mask else value


def clamp(value: Expr, low: Expr | None, high: Expr | None) -> Expr:
    """Return the value clamped between two bounds."""
    if low is not None:
        value = call("max", value, low)
    return value if high is None else call("min", value, high)


def sigmoid(x: Expr) -> Expr:
    """Return ``1 / (1 + exp(-x))``."""
    return div(const(1), add(const(1), call("exp", call("neg", x))))


def softplus(x: Expr, beta: float, threshold: float) -> Expr:
    """Return ``log1p(exp(beta x)) / beta``, and ``x`` itself beyond the threshold."""
    scaled = x if beta == 1 else mul(x, const(beta))
    soft = call("log1p", call("exp", scaled))
    return select(call("gt", scaled, const(threshold)), x, soft if beta == 1 else div(soft, const(beta)))


def gelu(x: Expr, approximate: str) -> Expr | None:
    """Return the Gaussian error linear unit, exact or by the hyperbolic tangent."""
    half = mul(const(0.5), x)
    if approximate == "none":
        return mul(half, add(const(1), call("erf", mul(x, const(math.sqrt(0.5))))))
    if approximate != "tanh":
        return None
    cubic = add(x, mul(const(0.044715), mul(mul(x, x), x)))
    return mul(half, add(const(1), call("tanh", mul(const(math.sqrt(2 / math.pi)), cubic))))


def elu(x: Expr, alpha: float, scale: float, input_scale: float) -> Expr:
    """Return the exponential linear unit."""
    inner = x if input_scale == 1 else mul(x, const(input_scale))
    negative = mul(const(alpha * scale), call("expm1", inner))
    return select(call("gt", x, const(0)), x if scale == 1 else mul(x, const(scale)), negative)


def power(x: Expr, exponent: float) -> Expr:
    """Return ``x ** exponent`` for a constant exponent; small whole ones as products."""
    special: dict[float, Callable[[], Expr]] = {
        1.0: lambda: x,
        2.0: lambda: mul(x, x),
        3.0: lambda: mul(mul(x, x), x),
        4.0: lambda: mul(mul(x, x), mul(x, x)),
        0.5: lambda: call("sqrt", x),
        -0.5: lambda: call("rsqrt", x),
        -1.0: lambda: div(const(1), x),
        -2.0: lambda: div(const(1), mul(x, x)),
    }
    make = special.get(float(exponent))
    return make() if make else call("pow", x, const(exponent))


def _scaled(ops: Operands, node: GraphNode) -> tuple[Expr, Expr] | None:
    """Return both operands of add or sub, the second times ``alpha``; None for an alpha that is not a number."""
    alpha = number(node.kwargs.get("alpha", 1))
    known = len(ops) == 2 or (len(ops) == 3 and ops[2].op == "const")
    if alpha is None or not known or node.kwargs.keys() - {"alpha"}:
        return None
    factor = ops[2].value if len(ops) == 3 else alpha
    return as_number(ops[0]), as_number(ops[1]) if factor == 1 else mul(as_number(ops[1]), const(factor))


def _add(ops: Operands, node: GraphNode) -> Expr | None:
    pair = _scaled(ops, node)
    return pair and add(*pair)


def _sub(ops: Operands, node: GraphNode) -> Expr | None:
    pair = _scaled(ops, node)
    return pair and sub(*pair)


def _rsub(ops: Operands, node: GraphNode) -> Expr | None:
    pair = _scaled([ops[1], ops[0], *ops[2:]], node)
    return pair and sub(*pair)


def _binary(op: str) -> Builder:
    def build(ops: Operands, node: GraphNode) -> Expr | None:
        return call(op, as_number(ops[0]), as_number(ops[1])) if len(ops) == 2 and not node.kwargs else None

    return build


def _unary(op: str) -> Builder:
    def build(ops: Operands, node: GraphNode) -> Expr | None:
        return call(op, as_number(ops[0])) if len(ops) == 1 and not node.kwargs else None

    return build


def _logic(op: str) -> Builder:
    def build(ops: Operands, node: GraphNode) -> Expr | None:
        masks = all(item.mask for item in ops) and not node.kwargs
        return call(op, *ops) if masks else None

    return build


def _of_one(make: Callable[[Expr], Expr]) -> Builder:
    def build(ops: Operands, node: GraphNode) -> Expr | None:
        return make(as_number(ops[0])) if len(ops) == 1 and not node.kwargs else None

    return build


def _with_numbers(make: Callable[..., Expr], *defaults: float) -> Builder:
    """Return a call of one tensor and some numbers with defaults, all positional."""

    def build(ops: Operands, node: GraphNode) -> Expr | None:
        numbers = [item.value for item in ops[1:] if item.op == "const"]
        if node.kwargs or len(numbers) != len(ops) - 1 or len(numbers) > len(defaults):
            return None
        return make(as_number(ops[0]), *numbers, *defaults[len(numbers) :])

    return build


def _gelu(ops: Operands, node: GraphNode) -> Expr | None:
    mode = node.kwargs.get("approximate", "none")
    return gelu(ops[0], mode) if len(ops) == 1 and isinstance(mode, str) and len(node.kwargs) <= 1 else None


def _clamp(ops: Operands, node: GraphNode) -> Expr | None:
    bounds = [node.args[i] if i < len(node.args) else node.kwargs.get(name) for i, name in ((1, "min"), (2, "max"))]
    numbers = [number(bound) for bound in bounds]
    known = all(bound is None or value is not None for bound, value in zip(bounds, numbers, strict=True))
    if not known or numbers == [None, None] or node.kwargs.keys() - {"min", "max"}:
        return None
    low, high = (None if value is None else const(value) for value in numbers)
    return clamp(as_number(ops[0]), low, high)


def _div_mode(ops: Operands, node: GraphNode) -> Expr | None:
    if len(ops) != 2 or node.kwargs.get("rounding_mode", "") is not None:
        return None
    return div(as_number(ops[0]), as_number(ops[1]))


def _addc(op: str) -> Builder:
    def build(ops: Operands, node: GraphNode) -> Expr | None:
        value = number(node.kwargs.get("value", 1))
        if len(ops) != 3 or value is None:
            return None
        term = call(op, ops[1], ops[2])
        return add(ops[0], term if value == 1 else mul(const(value), term))

    return build


def _where(ops: Operands, node: GraphNode) -> Expr | None:
    return select(*ops) if len(ops) == 3 and ops[0].mask and not node.kwargs else None


def _masked_fill(ops: Operands, node: GraphNode) -> Expr | None:
    fits = len(ops) == 3 and ops[1].mask and not node.kwargs
    return select(ops[1], ops[2], ops[0]) if fits else None


def _pow(ops: Operands, node: GraphNode) -> Expr | None:
    fits = len(ops) == 2 and ops[1].op == "const" and not node.kwargs
    return power(as_number(ops[0]), ops[1].value) if fits else None


def _xlogy(ops: Operands, node: GraphNode) -> Expr | None:
    """Return ``a * log(b)``, zero where ``a`` is zero, NaN where ``b`` is."""
    if len(ops) != 2 or node.kwargs:
        return None
    a, b = (as_number(item) for item in ops)
    zero = call("and", call("eq", a, const(0)), call("eq", b, b))
    return select(zero, const(0), mul(a, call("log", b)))


def _log_sigmoid(x: Expr) -> Expr:
    return sub(call("min", x, const(0)), call("log1p", call("exp", call("neg", call("abs", x)))))


def _mish(x: Expr) -> Expr:
    return mul(x, call("tanh", softplus(x, 1.0, 20.0)))


def _hardsigmoid(x: Expr) -> Expr:
    return div(clamp(add(x, const(3)), const(0), const(6)), const(6))


def _lerp(ops: Operands, node: GraphNode) -> Expr | None:
    fits = len(ops) == 3 and ops[2].op == "const" and not node.kwargs
    return add(ops[0], mul(ops[2], sub(ops[1], ops[0]))) if fits else None


POINTWISE: dict[str, Builder] = {
    **{f"aten.add.{kind}": _add for kind in ("Tensor", "Scalar")},
    **{f"aten.sub.{kind}": _sub for kind in ("Tensor", "Scalar")},
    **{f"aten.mul.{kind}": _binary("mul") for kind in ("Tensor", "Scalar")},
    **{f"aten.div.{kind}": _binary("div") for kind in ("Tensor", "Scalar")},
    **{f"aten.div.{kind}_mode": _div_mode for kind in ("Tensor", "Scalar")},
    "aten.rsub.Scalar": _rsub,
    "aten.rsub.Tensor": _rsub,
    **{
        f"aten.{name}.{kind}": _binary(name)
        for name in ("gt", "ge", "lt", "le", "eq", "ne")
        for kind in ("Scalar", "Tensor")
    },
    "aten.maximum.default": _binary("max"),
    "aten.minimum.default": _binary("min"),
    "aten.logical_and.default": _logic("and"),
    "aten.bitwise_and.Tensor": _logic("and"),
    "aten.logical_or.default": _logic("or"),
    "aten.bitwise_or.Tensor": _logic("or"),
    "aten.logical_not.default": _logic("not"),
    "aten.bitwise_not.default": _logic("not"),
    **{
        f"aten.{name}.default": _unary(name)
        for name in ("exp", "expm1", "log", "log1p", "tanh", "erf", "sqrt", "rsqrt", "abs", "neg")
    },
    **{f"aten.{name}.default": _unary(name) for name in ("floor", "ceil", "sin", "cos")},
    "aten.round.default": _unary("round"),
    "aten.reciprocal.default": _of_one(lambda x: div(const(1), x)),
    "aten.square.default": _of_one(lambda x: mul(x, x)),
    "aten.relu.default": _of_one(lambda x: call("max", x, const(0))),
    "aten.sigmoid.default": _of_one(sigmoid),
    "aten.silu.default": _of_one(lambda x: div(x, add(const(1), call("exp", call("neg", x))))),
    "aten.mish.default": _of_one(_mish),
    "aten.hardsigmoid.default": _of_one(_hardsigmoid),
    "aten.hardswish.default": _of_one(lambda x: mul(x, _hardsigmoid(x))),
    "aten.log_sigmoid_forward.default": _of_one(_log_sigmoid),
    "aten.gelu.default": _gelu,
    "aten.leaky_relu.default": _with_numbers(
        lambda x, slope: select(call("gt", x, const(0)), x, mul(x, const(slope))), 0.01
    ),
    "aten.elu.default": _with_numbers(elu, 1.0, 1.0, 1.0),
    "aten.softplus.default": _with_numbers(softplus, 1.0, 20.0),
    "aten.hardtanh.default": _with_numbers(lambda x, low, high: clamp(x, const(low), const(high)), -1.0, 1.0),
    "aten.clamp.default": _clamp,
    "aten.clamp_min.default": _with_numbers(lambda x, low: clamp(x, const(low), None), 0.0),
    "aten.clamp_max.default": _with_numbers(lambda x, high: clamp(x, None, const(high)), 0.0),
    "aten.threshold.default": _with_numbers(
        lambda x, limit, value: select(call("le", x, const(limit)), const(value), x), 0.0, 0.0
    ),
    "aten.pow.Tensor_Scalar": _pow,
    "aten.addcmul.default": _addc("mul"),
    "aten.addcdiv.default": _addc("div"),
    "aten.lerp.Scalar": _lerp,
    "aten.xlogy.Tensor": _xlogy,
    "aten.where.self": _where,
    "aten.where.ScalarOther": _where,
    "aten.where.ScalarSelf": _where,
    "aten.where.Scalar": _where,
    "aten.masked_fill.Scalar": _masked_fill,
}
"""Overloads that are pointwise in their first result. In-place variants are looked up without their underscore."""
