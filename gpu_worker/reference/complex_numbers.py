"""Calls on complex tensors, recorded as what they do with real and imaginary parts.

A complex value stands for a real one with a last dimension of two, as ``torch.view_as_real`` shows it: no kernel
holds complex numbers, and rotary embeddings, which are written with them, are products and sums of pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

_OF_EACH_PART = frozenset(
    {
        "alias", "cat", "clone", "constant_pad_nd", "detach", "diagonal", "expand", "flip", "index", "index_select",
        "mean", "neg", "permute", "repeat", "reshape", "roll", "select", "slice", "split", "split_with_sizes",
        "squeeze", "stack", "sum", "t", "transpose", "unbind", "unsqueeze", "view", "_reshape_alias", "_unsafe_view",
    }
)  # fmt: skip
"""Calls that do the same with both parts: they move values, or are linear with real factors."""

_MADE_HERE = ("_to_copy", "complex", "polar")
"""Calls that make complex values of real ones."""


def complex_rule(func: Any, args: Iterable[Any]) -> Callable[..., Any] | None:
    """Return the rule for a call; None where nothing that it is given is complex, or nothing is known of the call."""
    name = func._overloadpacket.__name__
    if name not in _MADE_HERE and not any(map(_has_complex, args)):
        return None
    if name in _OF_EACH_PART:
        return partial(_of_each_part, func)
    return _RULES.get(name)


def followed() -> frozenset[str]:
    """Return the names of calls that there are rules for."""
    return _OF_EACH_PART | _RULES.keys() | {"view_as_complex", "view_as_real"}


def _has_complex(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_complex, value))
    return value.is_complex() if isinstance(value, torch.Tensor) else isinstance(value, complex)


_OUT_OF_PLACE = {
    torch.ops.aten.squeeze_.dim: torch.ops.aten.squeeze.dim,
    torch.ops.aten.t_.default: torch.ops.aten.t.default,
    torch.ops.aten.transpose_.default: torch.ops.aten.transpose.int,
    torch.ops.aten.unsqueeze_.default: torch.ops.aten.unsqueeze.default,
}


def out_of_place(func: Any, args: Any) -> Any:
    """Return the call that makes a view of a complex tensor where ``func`` turns the tensor into it; else None."""
    return _OUT_OF_PLACE[func] if func in _OUT_OF_PLACE and args[0].is_complex() else None


def _parts(value: Any) -> tuple[Any, Any]:
    """Return real and imaginary part; None for the latter of a real value."""
    if isinstance(value, torch.Tensor) and value.is_complex():
        real, imaginary = torch.view_as_real(value).unbind(-1)
        return real, imaginary
    return (value.real, value.imag) if isinstance(value, complex) else (value, None)


def _joined(real: torch.Tensor, imaginary: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(torch.stack([real, imaginary], -1))


def _of_each_part(func: Any, *args: Any, **kwargs: Any) -> Any:
    real, imaginary = (func(*_taken(args, place), **kwargs) for place in (0, 1))
    if isinstance(real, torch.Tensor):
        return _joined(real, imaginary)
    return [_joined(*pair) for pair in zip(real, imaginary, strict=True)]


def _taken(args: Any, place: int) -> list[Any]:
    """Return arguments with one part of each complex tensor, also of those in lists."""
    return [
        _taken(value, place)
        if isinstance(value, list | tuple)
        else _parts(value)[place]
        if isinstance(value, torch.Tensor) and value.is_complex()
        else value
        for value in args
    ]


def _product(first: Any, second: Any) -> torch.Tensor:
    (a, b), (c, d) = _parts(first), _parts(second)
    if d is None:
        return _joined(a * c, b * c)
    if b is None:
        return _joined(a * c, a * d)
    return _joined(a * c - b * d, a * d + b * c)


def _matrix_product(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    (a, b), (c, d) = _parts(first), _parts(second)
    return _joined(a @ c - b @ d, a @ d + b @ c)


def _power(value: torch.Tensor, exponent: Any) -> Any:
    return _product(value, value) if exponent == 2 else NotImplemented


def _either(condition: torch.Tensor, first: Any, second: Any) -> torch.Tensor:
    (a, b), (c, d) = _parts(first), _parts(second)
    return _joined(
        torch.where(condition, a, c), torch.where(condition, 0.0 if b is None else b, 0.0 if d is None else d)
    )


def _quotient(first: Any, second: Any) -> torch.Tensor:
    (a, b), (c, d) = _parts(first), _parts(second)
    if d is None:
        return _joined(a / c, b / c)
    size = c * c + d * d
    return _joined((a * c + (0 if b is None else b * d)) / size, ((0 if b is None else b * c) - a * d) / size)


def _sum(first: Any, second: Any, *, alpha: float = 1) -> torch.Tensor:
    (a, b), (c, d) = _parts(first), _parts(second)
    real = a + alpha * c
    imaginary = b if d is None else alpha * d if b is None else b + alpha * d
    imaginary = torch.zeros_like(real) + imaginary
    return _joined(real + torch.zeros_like(imaginary), imaginary)


def _difference(first: Any, second: Any, *, alpha: float = 1) -> torch.Tensor:
    return _sum(first, second, alpha=-alpha)


def _reversed_difference(first: Any, second: Any, *, alpha: float = 1) -> torch.Tensor:
    return _sum(second, first, alpha=-alpha)


def _conjugate(value: torch.Tensor) -> torch.Tensor:
    real, imaginary = _parts(value)
    return _joined(real, -imaginary)


def _cast(value: torch.Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    if dtype is None or not dtype.is_complex:
        return NotImplemented
    real, imaginary = _parts(value)
    imaginary = torch.zeros_like(real) if imaginary is None else imaginary
    return _joined(real.to(dtype.to_real()), imaginary.to(dtype.to_real()))


def _size(value: torch.Tensor) -> torch.Tensor:
    return torch.hypot(*_parts(value))


def _angle(value: torch.Tensor) -> torch.Tensor:
    real, imaginary = _parts(value)
    return torch.atan2(imaginary, real)


def _polar(size: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    return _joined(size * angle.cos(), size * angle.sin())


def _exponential(value: torch.Tensor) -> torch.Tensor:
    real, imaginary = _parts(value)
    return _polar(real.exp(), imaginary)


_RULES: dict[str, Callable[..., Any]] = {
    "abs": _size,
    "add": _sum,
    "angle": _angle,
    "bmm": _matrix_product,
    "complex": _joined,
    "div": _quotient,
    "exp": _exponential,
    "mm": _matrix_product,
    "mul": _product,
    "polar": _polar,
    "pow": _power,
    "rsub": _reversed_difference,
    "sub": _difference,
    "where": _either,
    "_to_copy": _cast,
    "_conj": _conjugate,
    "_conj_physical": _conjugate,
    "conj_physical": _conjugate,
}
