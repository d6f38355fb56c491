"""Pointwise calls as maps: the playbook's formulas over typed terms, and those that only the compiler has."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from agents.playbook.compiler.lowering.calls import Call, combined, f, is_float, like, read
from agents.playbook.compiler.tensors import Index, Map, Tensor, mapped
from agents.playbook.compiler.terms import (
    BOOL,
    COMPARISONS,
    EIGHTS,
    FLOATS,
    INTEGERS,
    Term,
    cast,
    compare,
    const,
    make,
    register,
    where,
)
from agents.playbook.compiler.terms import rounded as rounded_to
from agents.playbook.expressions import Expr, Level
from agents.playbook.expressions import call as expression
from agents.playbook.expressions import const as expression_const
from agents.playbook.ordering import walk
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
    other = expression("and", expression("ne", rest, _c(0)), expression("ne", _below(rest), _below(b)))
    return select(other, expression("add", rest, b), rest)


def _below(x: Expr) -> Expr:
    return as_number(expression("lt", x, _c(0)))


def _floored(ops: list[Expr], node: GraphNode) -> Expr:
    """Return the quotient rounded down, with PyTorch's own roundings of floats."""
    a, b = (as_number(item) for item in ops[:2])
    rest = expression("fmod", a, b)
    beyond = expression("and", expression("ne", rest, _c(0)), expression("ne", _below(rest), _below(b)))
    quotient = sub(div(sub(a, rest), b), as_number(beyond))
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


_MORE: dict[str, Builder] = {
    **{f"aten.{name}.default": _of(name, 1) for name in _UNARY},
    "aten.sign.default": _simple(1, _sign),
    "aten.sgn.default": _simple(1, _sign),
    "aten.frac.default": _simple(1, lambda x: sub(x, expression("trunc", x))),
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
}
FORMULAS: dict[str, Builder] = {**POINTWISE, **_MORE}
"""Every pointwise call that is written as an expression."""
_BITS = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}
_CASTS = ("aten._to_copy.default", "aten.to.dtype", "aten.type_as.default")
_TRUTH = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}
BITS_AND_TRUTHS = (*_BITS, *_TRUTH, "bitwise_not", "logical_not")
SHIFTS = {"__lshift__": "fn_shl", "__rshift__": "fn_shr"}
SHIFTS |= {"bitwise_left_shift": "fn_shl", "bitwise_right_shift": "fn_shr"}


def _celu(ops: list[Expr]) -> Expr:
    x, alpha = ops[0], ops[1].value if len(ops) > 1 else 1.0
    return select(expression("gt", x, _c(0)), x, mul(_c(alpha), expression("expm1", div(x, _c(alpha)))))


def lower(call: Call, op: str) -> Tensor | None:
    """Return the map of a pointwise call; None for a call that is not pointwise."""
    name = op.split(".")[1]
    if op in _CASTS:
        return (
            as_eight_bits(call.tensor(0), call.dtype) if call.dtype in EIGHTS else converted(call.tensor(0), call.dtype)
        )
    if name in SHIFTS and call.dtype in INTEGERS:
        kind, shift = call.dtype, SHIFTS[name]
        operands = [_operand(call, item) for item in call.node.args]
        return combined(call.shape, kind, lambda a, b: f(shift, cast(a, kind), cast(b, kind)), *operands)
    if name in BITS_AND_TRUTHS and len(call.node.args) <= 2:
        return _bits(call, name)
    build = FORMULAS.get(op)
    return None if build is None else _formula(call, build)


def converted(tensor: Tensor, dtype: str) -> Map:
    """Return the tensor in another storage type, rounded to it."""
    return mapped(tensor.shape, dtype, lambda index: _stored(tensor.at(index), dtype))


def as_eight_bits(tensor: Tensor, dtype: str) -> Map:
    """Return the tensor rounded to a float of eight bits, which is held as float32: no other call computes in it."""
    return mapped(
        tensor.shape, "float32", lambda index: make("round", "float32", cast(tensor.at(index), "float32"), data=dtype)
    )


def _stored(value: Term, dtype: str) -> Term:
    if dtype == BOOL:
        return truth(value)
    return rounded_to(cast(value, register(dtype)), dtype)


def truth(value: Term) -> Term:
    """Return whether a value is not zero."""
    return value if value.dtype == BOOL else compare("ne", value, const(0, value.dtype))


def _bits(call: Call, name: str) -> Tensor:
    operands = [_operand(call, item) for item in call.node.args]
    logical = name in _TRUTH or name == "logical_not"
    if name in ("bitwise_not", "logical_not"):
        (operand,) = operands
        if logical or call.dtype == BOOL:
            return combined(call.shape, BOOL, lambda x: make("not", BOOL, truth(x)), operand)
        return combined(call.shape, call.dtype, lambda x: f("sub", like(-1, x), x), operand)
    sign = (_TRUTH if logical else _BITS)[name]
    if logical or call.dtype == BOOL:
        return combined(call.shape, BOOL, lambda a, b: make(sign, BOOL, truth(a), truth(b)), *operands)
    kind = register(call.dtype)
    return combined(call.shape, call.dtype, lambda a, b: make(sign, kind, cast(a, kind), cast(b, kind)), *operands)


def _operand(call: Call, argument: object) -> Tensor:
    name = reference(argument)
    if name is not None:
        return call.value(name)
    if isinstance(argument, bool):
        return Map((), BOOL, lambda _: const(argument, BOOL))
    value = number(argument)
    if value is None:
        call.refuse(f"one of its arguments is {argument!r}")
    whole = isinstance(argument, int)
    return Map((), "int64" if whole else "float32", lambda _: const(value, "int64" if whole else "float32"))


def _formula(call: Call, build: Builder) -> Tensor:
    inputs: dict[str, Tensor] = {}
    operands: list[Expr] = []
    numbers: list[float] = []
    for place, argument in enumerate(call.node.args):
        name = reference(argument)
        if name is not None:
            tensor = call.value(name)
            inputs[f"a{place}"] = tensor
            mask = tensor.dtype == BOOL
            operands.append(Expr("input", name=f"a{place}", level=Level.ELEMENT, mask=mask))
        elif argument is None:
            operands.append(_c(0))
        else:
            value = float(argument) if isinstance(argument, bool) else number(argument)
            if value is None:
                call.refuse(f"one of its arguments is {argument!r}")
            numbers += [value] if isinstance(argument, float) else []
            operands.append(_c(value))
    if any(reference(item) for item in call.node.kwargs.values()):
        call.refuse("a tensor is given by keyword")
    built = build(operands, call.node)
    if built is None:
        call.refuse("this variant is not supported")
    if call.dtype == BOOL:  # whole numbers are compared with infinity as floats
        numbers += [item.value for item in walk([built]) if item.op == "const" and math.isinf(item.value)]
    kind = _computed_in(call, inputs, numbers)

    def define(index: Index) -> Term:
        return _stored_result(
            _term(built, {name: read(item, index) for name, item in inputs.items()}, kind), call.dtype
        )

    return mapped(call.shape, call.dtype, define)


def _stored_result(term: Term, dtype: str) -> Term:
    return truth(term) if dtype == BOOL else cast(term, register(dtype))


def _computed_in(call: Call, inputs: dict[str, Tensor], numbers: list[float]) -> str:
    """Return the register type of a call: its result's, or that which its operands are promoted to."""
    if is_float(call.dtype):
        return register(call.dtype)
    types = {item.register for item in inputs.values()}
    if "float64" in types:
        return "float64"
    return "float32" if numbers or types & set(FLOATS) else "int64"


def _term(root: Expr, inputs: dict[str, Term], kind: str) -> Term:
    """Return an expression as a term that is computed in one register type."""
    made: dict[Expr, Term] = {}
    for node in walk([root]):
        args = [made[item] for item in node.args]
        if node.op == "const":
            made[node] = const(node.value, kind)
        elif node.op == "input":
            value = inputs[node.name]
            made[node] = value if node.mask else cast(value, kind)
        elif node.op in COMPARISONS:
            made[node] = compare(node.op, *(cast(item, kind) for item in args))
        elif node.op in ("and", "or", "not"):
            made[node] = make(node.op, BOOL, *args)
        elif node.op == "select":
            made[node] = where(args[0], cast(args[1], kind), cast(args[2], kind))
        else:
            op = node.op if node.op in ("add", "sub", "mul", "div") else f"fn_{node.op}"
            made[node] = make(op, kind, *(cast(item, kind) for item in args))
    return made[root]
