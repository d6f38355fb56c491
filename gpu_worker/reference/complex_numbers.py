"""Calls on complex tensors, recorded as what they do with real and imaginary parts.

A complex value stands for a real one with a last dimension of two, as ``torch.view_as_real`` shows it: no kernel
holds complex numbers, and rotary embeddings, which are written with them, are products and sums of pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

_OF_EACH_PART = frozenset(
    {
        "cat", "clone", "constant_pad_nd", "flip", "gather", "index", "index_select", "mean", "neg", "repeat", "roll",
        "stack", "sum", "tril", "triu",
    }
)  # fmt: skip
"""Calls that do the same with both parts: they move values, or are linear with real factors."""

_OF_REAL_PARTS = ("complex", "polar")
"""Calls that make complex values of real ones without naming their type."""


def complex_rule(func: Any, args: Iterable[Any], keywords: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Return the rule for a call; None where nothing that it is given is complex, or nothing is known of the call."""
    name = func._overloadpacket.__name__
    if name not in _OF_REAL_PARTS and not any(map(_has_complex, (*args, *keywords.values()))):
        return None
    if name in _CREATION:
        return partial(_created, func)
    if name in _OF_EACH_PART:
        return partial(_of_each_part, func)
    if name in _VIEWS:
        return partial(_viewed, _VIEWS[name])
    if name in _RULES:
        return _RULES[name]
    rule = _RULES.get(name.removesuffix("_")) if name.endswith("_") else None
    return None if rule is None else partial(_in_place, rule)


def followed() -> frozenset[str]:
    """Return the names of calls that there are rules for, which are followed in place too."""
    return _CREATION | _OF_EACH_PART | _RULES.keys() | _VIEWS.keys() | {"view_as_complex", "view_as_real"}


def _has_complex(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_complex, value))
    if isinstance(value, torch.dtype):
        return value.is_complex
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


_CREATION = frozenset(
    {
        "empty", "empty_like", "new_empty", "new_ones", "new_zeros", "ones", "ones_like", "zeros", "zeros_like",
    }
)  # fmt: skip
"""Calls that make tensors of one number."""


def _created(func: Any, *args: Any, dtype: torch.dtype | None = None, **keywords: Any) -> Any:
    """Make both parts, by the call with the type of a part; a one has no imaginary part."""
    given = next((item for item in args if isinstance(item, torch.Tensor)), None)
    kind = given.dtype if dtype is None and given is not None else dtype
    if kind is None or not kind.is_complex:
        return NotImplemented
    shaped = [_parts(item)[0] if isinstance(item, torch.Tensor) else item for item in args]
    real, imaginary = (func(*shaped, dtype=kind.to_real(), **keywords) for _ in range(2))
    return _joined(real, imaginary.zero_() if "ones" in func._overloadpacket.__name__ else imaginary)


def _viewed(view: Callable[..., Any], value: torch.Tensor, *args: Any, **keywords: Any) -> Any:
    """View the pairs of a tensor, so that what is written to either is seen by the other."""
    pairs = view(value.dim(), torch.view_as_real(value), *args, **keywords)
    if isinstance(pairs, list | tuple):
        return [torch.view_as_complex(item) for item in pairs]
    return torch.view_as_complex(pairs)


def _squeezed(rank: int, pairs: torch.Tensor, axes: int | Sequence[int] | None = None) -> torch.Tensor:
    if axes is None:
        return pairs.squeeze()
    return pairs.squeeze([axis % max(rank, 1) for axis in ([axes] if isinstance(axes, int) else axes)])


def _reshaped(_: int, pairs: torch.Tensor, size: Sequence[int], *__: Any) -> torch.Tensor:
    return pairs.view(*size, 2)


_VIEWS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("alias", "detach", "lift_fresh"), lambda _, pairs: torch.ops.aten.alias(pairs)),
    "diagonal": lambda rank, pairs, offset=0, first=0, second=1: pairs.diagonal(
        offset, first % rank, second % rank
    ).transpose(-1, -2),
    "expand": lambda _, pairs, size, **__: pairs.expand(*size, 2),
    "permute": lambda rank, pairs, axes: pairs.permute(*(axis % rank for axis in axes), rank),
    "select": lambda rank, pairs, axis, place: pairs.select(axis % rank, place),
    "slice": lambda rank, pairs, axis=0, *rest: torch.ops.aten.slice(pairs, axis % rank, *rest),
    "split": lambda rank, pairs, size, axis=0: torch.ops.aten.split(pairs, size, axis % rank),
    "split_with_sizes": lambda rank, pairs, sizes, axis=0: pairs.split_with_sizes(sizes, axis % rank),
    "squeeze": _squeezed,
    "t": lambda rank, pairs: pairs.transpose(0, 1) if rank == 2 else torch.ops.aten.alias(pairs),
    "transpose": lambda rank, pairs, first, second: pairs.transpose(first % rank, second % rank),
    "unbind": lambda rank, pairs, axis=0: pairs.unbind(axis % rank),
    "unsqueeze": lambda rank, pairs, axis: pairs.unsqueeze(axis % (rank + 1)),
    **dict.fromkeys(("reshape", "view", "_reshape_alias", "_unsafe_view"), _reshaped),
}
"""Views: how they are made of pairs, given the rank of what the pairs stand for."""


def _in_place(rule: Callable[..., Any], value: torch.Tensor, *args: Any, **keywords: Any) -> Any:
    """Overwrite the pairs of a tensor with what the call out of place gives."""
    made = rule(value, *args, **keywords) if value.is_complex() else NotImplemented
    if made is NotImplemented:
        return NotImplemented
    torch.view_as_real(value).copy_(torch.view_as_real(made))
    return value


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


def _copied(value: torch.Tensor, source: Any, *_: Any) -> torch.Tensor:
    real, imaginary = _parts(source)
    imaginary = 0 if imaginary is None else imaginary
    return _joined(torch.zeros_like(value.real) + real, torch.zeros_like(value.real) + imaginary)


def _zeroed(value: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(value)


def _masked(value: torch.Tensor, mask: torch.Tensor, filling: Any) -> torch.Tensor:
    return _either(mask, _copied(value, filling), value)


def _with_items(value: torch.Tensor, places: Any, items: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    pairs = torch.view_as_real(value).clone()
    new = torch.view_as_real(items.to(value.dtype))
    return torch.view_as_complex(pairs.index_put_(places, new, accumulate))


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
    "copy": _copied,
    "fill": _copied,
    "index_put": _with_items,
    "masked_fill": _masked,
    "zero": _zeroed,
}
