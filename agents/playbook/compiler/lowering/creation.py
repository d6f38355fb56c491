"""Tensors made from nothing: constants, factories and ranges."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from agents.playbook.compiler.lowering.calls import Call, is_float, read
from agents.playbook.compiler.tensors import Index, Map, Tensor, mapped
from agents.playbook.compiler.terms import (
    Term,
    cast,
    compare,
    const,
    make,
    number,
    plus,
    register,
    times,
    where,
)
from agents.playbook.recognition.values import number as number_of


def _filled(value: float | None) -> Callable[[Call], Tensor]:
    def lower(call: Call) -> Tensor:
        wanted = value if value is not None else call.real(1, "fill_value")
        return Map(call.shape, call.dtype, lambda _: const(wanted, register(call.dtype)))

    return lower


def _filled_with_a_tensor(call: Call) -> Tensor:
    shape, value = call.tensor(0).shape, call.tensor(1)
    return mapped(shape, call.dtype, lambda index: cast(read(value, index), register(call.dtype)))


def _arange(call: Call) -> Tensor:
    given = [number_of(item) for item in call.node.args]
    start = given[0] if len(given) > 1 else 0.0
    step = given[2] if len(given) > 2 else 1.0
    if start is None or step is None:
        call.refuse("its bounds are not numbers")
    kind = register(call.dtype)

    def define(index: Index) -> Term:
        scaled = make("mul", kind, cast(index[0], kind), const(step, kind))
        return make("add", kind, scaled, const(start, kind))

    return Map(call.shape, call.dtype, define)


def _spaced(call: Call, change: Callable[[Term], Term] = lambda term: term) -> Tensor:
    """Return numbers at equal distances, changed in float64."""
    start, end, steps = call.real(0, "start"), call.real(1, "end"), call.whole(2, "steps")
    step = (end - start) / max(steps - 1, 1)

    def define(index: Index) -> Term:
        scaled = make("mul", "float64", cast(index[0], "float64"), const(step, "float64"))
        return cast(change(make("add", "float64", scaled, const(start, "float64"))), register(call.dtype))

    return Map(call.shape, call.dtype, define)


def _logspace(call: Call) -> Tensor:
    if not is_float(call.dtype):
        call.refuse("it makes whole numbers")
    base = const(call.real(3, "base", 10.0), "float64")
    return _spaced(call, lambda power: make("fn_pow", "float64", base, power))


def _eye(call: Call) -> Tensor:
    kind = register(call.dtype)
    return Map(
        call.shape,
        call.dtype,
        lambda index: where(compare("eq", index[0], index[1]), const(1, kind), const(0, kind)),
    )


def _constant(call: Call) -> Tensor:
    flat: list[object] = []
    stack: list[object] = list(reversed(call.node.args[0] if isinstance(call.node.args[0], list) else []))
    while stack:
        item = stack.pop()
        stack.extend(reversed(item)) if isinstance(item, list) else flat.append(item)
    numbers = [float(item) if isinstance(item, bool) else number_of(item) for item in flat]
    if len(numbers) != prod(call.shape) or None in numbers:
        call.refuse("it is a tensor of something else than numbers")
    kind = register(call.dtype)
    strides = [prod(call.shape[axis + 1 :]) for axis in range(len(call.shape))]

    def define(index: Index) -> Term:
        offset = number(0)
        for item, step in zip(index, strides, strict=True):
            offset = plus(offset, times(item, step))
        result = const(numbers[-1] or 0, kind)
        for place in reversed(range(len(numbers) - 1)):
            same = compare("eq", offset, number(place))
            result = where(same, const(numbers[place] or 0, kind), result)
        return result

    return mapped(call.shape, call.dtype, define)


def _one_hot(call: Call) -> Tensor:
    source = call.tensor(0)
    return mapped(
        call.shape,
        call.dtype,
        lambda index: cast(
            compare("eq", cast(source.at(index[:-1]), "int64"), cast(index[-1], "int64")), register(call.dtype)
        ),
    )


def _scalar(at: int) -> Callable[[Call], Tensor]:
    return lambda call: Map(call.shape, call.dtype, lambda _: const(call.real(at, "value"), register(call.dtype)))


CREATION: dict[str, Callable[[Call], Tensor]] = {
    "constant": _constant,
    **{
        f"aten.{name}.default": _filled(value)
        for value, names in (
            (0.0, ("zeros", "zeros_like", "new_zeros", "zero", "empty_like", "new_empty", "_efficientzerotensor")),
            (1.0, ("ones", "ones_like", "new_ones")),
            (None, ("full", "full_like", "fill")),
        )
        for name in names
    },
    "aten.empty.memory_format": _filled(0.0),
    "aten.fill.Scalar": _filled(None),
    "aten.fill.Tensor": _filled_with_a_tensor,
    "aten.scalar_tensor.default": _scalar(0),
    "aten.new_full.default": _scalar(2),
    **{f"aten.arange.{kind}": _arange for kind in ("default", "start", "start_step")},
    "aten.linspace.default": _spaced,
    "aten.logspace.default": _logspace,
    **{f"aten.eye.{kind}": _eye for kind in ("default", "m")},
    "aten.one_hot.default": _one_hot,
}
"""Calls that make a tensor from numbers."""
