"""Pointwise calls as maps: formulas over typed terms, casts, and bits and truth values."""

from __future__ import annotations

import math

from agents.playbook.compiler.lowering.calls import Call, combined, f, is_float, like, promoted, read
from agents.playbook.compiler.lowering.formulas import FORMULAS
from agents.playbook.compiler.tensors import Index, Map, Tensor, mapped
from agents.playbook.compiler.terms import (
    BOOL,
    COMPARISONS,
    EIGHTS,
    FLOATS,
    HALVES,
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
from agents.playbook.expressions import const as expression_const
from agents.playbook.ordering import walk
from agents.playbook.recognition.pointwise import Builder
from agents.playbook.recognition.values import number, reference

_BITS = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}
_CASTS = ("aten._to_copy.default", "aten.to.dtype", "aten.to.dtype_layout", "aten.type_as.default")
_TRUTH = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}
BITS_AND_TRUTHS = (*_BITS, *_TRUTH, "bitwise_not", "logical_not")
SHIFTS = {"__lshift__": "fn_shl", "__rshift__": "fn_shr"}
SHIFTS |= {"bitwise_left_shift": "fn_shl", "bitwise_right_shift": "fn_shr"}


def lower(call: Call, op: str) -> Tensor | None:
    """Return the map of a pointwise call; None for a call that is not pointwise."""
    name = op.split(".")[1]
    if op in _CASTS:
        return _cast(call)
    if name in SHIFTS and call.dtype in INTEGERS:
        kind, shift = call.dtype, SHIFTS[name]
        operands = [_operand(call, item) for item in call.node.args]
        return combined(call.shape, kind, lambda a, b: f(shift, cast(a, kind), cast(b, kind)), *operands)
    if name in COMPARISONS and op in FORMULAS:
        return _comparison(call, name)
    if name in BITS_AND_TRUTHS and len(call.node.args) <= 2:
        return _bits(call, name)
    build = FORMULAS.get(op)
    return None if build is None else _formula(call, build)


def _cast(call: Call) -> Tensor:
    """Return the tensor in the type that the reference asks for."""
    source, dtype = call.tensor(0), call.dtype
    return as_eight_bits(source, dtype) if dtype in EIGHTS else converted(source, dtype)


def rounded_where_cast(call: Call, tensor: Tensor) -> Tensor:
    """Return a call's result rounded to its type of 16 bits, where no given tensor has that type.

    The reference names such a type itself, so that the exact answer is rounded too. One that a given tensor has is most
    often asked for as that tensor's type, which is another where the exact answer is computed: nothing is rounded.
    """
    dtype = tensor.dtype
    if dtype not in HALVES or dtype in call.given:
        return tensor
    return mapped(tensor.shape, dtype, lambda index: _stored(tensor.at(index), dtype))


def converted(tensor: Tensor, dtype: str) -> Map:
    """Return the tensor in another storage type; what is rounded to 16 bits is so where it is stored, not before."""
    return mapped(
        tensor.shape,
        dtype,
        lambda index: truth(tensor.at(index)) if dtype == BOOL else cast(tensor.at(index), register(dtype)),
    )


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
    return Map((), "int64" if whole else "float64", lambda _: const(value, "int64" if whole else "float64"))


def _comparison(call: Call, name: str) -> Tensor:
    """Return a comparison of two operands, both rounded to the storage type that PyTorch promotes them to."""
    operands = [_operand(call, item) for item in call.node.args]
    tensors = [item for item, given in zip(operands, call.node.args, strict=True) if reference(given) is not None]
    numbers = ["float32" if item.dtype == "float64" else item.dtype for item in operands if item not in tensors]
    common = promoted(
        [item.dtype for item in tensors if item.shape], [item.dtype for item in tensors if not item.shape], numbers
    )
    return combined(call.shape, BOOL, lambda a, b: compare(name, _stored(a, common), _stored(b, common)), *operands)


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
            operands.append(expression_const(0))
        else:
            value = float(argument) if isinstance(argument, bool) else number(argument)
            if value is None:
                call.refuse(f"one of its arguments is {argument!r}")
            numbers += [value] if isinstance(argument, float) else []
            operands.append(expression_const(value))
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
