"""Fourier transforms as products with matrices of sines and cosines: right at any length, fast at short ones.

The arguments are those of PyTorch's calls. A transform of n points takes 2 n operations a point where a fast one takes
some log n; it sums in the type of its input, as a matrix product does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

_BY_ROOT, _BY_SIZE = 1, 2
"""Ways in which results are scaled, by the numbers that PyTorch gives them; 0 is none."""
MAX_POINTS = 4096
"""Longer transforms are left to who knows a fast one: their matrices alone would take more than their data."""


def _waves(rows: int, points: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``cos`` and ``sin`` of ``2 pi j k / points`` for each j of ``rows`` and k of ``points``.

    Angles are reduced as whole numbers, so that long transforms are as accurate as short ones.
    """
    first = torch.arange(rows, device=like.device).unsqueeze(1)
    second = torch.arange(points, device=like.device).unsqueeze(0)
    angles = torch.remainder(first * second, points).to(like.dtype) * (2 * math.pi / points)
    return angles.cos(), angles.sin()


def _scale(way: int, points: int) -> float:
    return {_BY_ROOT: 1 / math.sqrt(points), _BY_SIZE: 1 / points}.get(way, 1.0)


def _along(values: torch.Tensor, matrix: torch.Tensor, axis: int) -> torch.Tensor:
    """Apply a matrix along an axis: it gives ``matrix.shape[0]`` values for ``matrix.shape[1]``."""
    return (values.movedim(axis, -1) @ matrix.t()).movedim(-1, axis)


def _points(shape: Sequence[int], axes: Sequence[int]) -> int:
    return math.prod(shape[axis] for axis in axes)


def _too_long(shape: Sequence[int], axes: Sequence[int]) -> bool:
    return max((shape[axis] for axis in axes), default=0) > MAX_POINTS


def _turned(
    real: torch.Tensor, imaginary: torch.Tensor, axes: Sequence[int], *, forward: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Transform parts along axes, without a scale; the inverse turns the other way."""
    for axis in axes:
        cosines, sines = _waves(real.shape[axis], real.shape[axis], real)
        sines = -sines if forward else sines
        real, imaginary = (
            _along(real, cosines, axis) - _along(imaginary, sines, axis),
            _along(real, sines, axis) + _along(imaginary, cosines, axis),
        )
    return real, imaginary


def _of_real(values: torch.Tensor, axes: Sequence[int], normalization: int, onesided: bool) -> Any:
    if _too_long(values.shape, axes):
        return NotImplemented
    *others, last = axes
    points = values.shape[last]
    cosines, sines = _waves(points // 2 + 1 if onesided else points, points, values)
    scaled = values * _scale(normalization, _points(values.shape, axes))
    parts = _turned(_along(scaled, cosines, last), _along(scaled, -sines, last), others, forward=True)
    return torch.view_as_complex(torch.stack(parts, -1))


def _of_complex(values: torch.Tensor, axes: Sequence[int], normalization: int, forward: bool) -> Any:
    if _too_long(values.shape, axes):
        return NotImplemented
    scaled = torch.view_as_real(values) * _scale(normalization, _points(values.shape, axes))
    axes = [axis % values.dim() for axis in axes]
    real, imaginary = scaled.unbind(-1)
    return torch.view_as_complex(torch.stack(_turned(real, imaginary, axes, forward=forward), -1))


def _to_real(values: torch.Tensor, axes: Sequence[int], normalization: int, last_dim_size: int) -> Any:
    """The inverse whose result is real: what lies beyond the middle is the conjugate of what lies before it."""
    if last_dim_size > MAX_POINTS or _too_long(values.shape, axes):
        return NotImplemented
    *others, last = [axis % values.dim() for axis in axes]
    points = last_dim_size * _points(values.shape, others)
    scaled = torch.view_as_real(values) * _scale(normalization, points)
    real, imaginary = scaled.unbind(-1)
    real, imaginary = _turned(real, imaginary, others, forward=False)
    half = last_dim_size // 2 + 1
    places = torch.arange(half, device=real.device)
    single = (places == 0) | (2 * places == last_dim_size)
    weights = torch.where(single, 1.0, 2.0).to(real.dtype)
    cosines, sines = (wave[:, :half] * weights for wave in _waves(last_dim_size, last_dim_size, real))
    real, imaginary = real.narrow(last, 0, half), imaginary.narrow(last, 0, half)
    return _along(real, cosines, last) - _along(imaginary, sines, last)


def _cosine_window(
    points: int,
    periodic: bool = True,
    alpha: float = 0.5,
    beta: float = 0.5,
    *,
    dtype: Any = None,
    device: Any = None,
    **_: Any,
) -> Any:
    """``alpha - beta cos(2 pi k / n)`` for each k of n, or of n - 1 where the window is symmetric."""
    if points < 2:
        return NotImplemented
    places = torch.arange(points, dtype=dtype or torch.get_default_dtype(), device=device)
    return alpha - beta * (places * (2 * math.pi / (points if periodic else points - 1))).cos()


def _hamming(points: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, **keywords: Any) -> Any:
    return _cosine_window(points, periodic, alpha, beta, **keywords)


def _frequencies(
    points: int, spacing: float = 1.0, *, dtype: Any = None, device: Any = None, onesided: bool = False, **_: Any
) -> torch.Tensor:
    """Return the frequencies of a transform's results, negative ones after the others unless ``onesided``."""
    places = torch.arange(points // 2 + 1 if onesided else points, device=device)
    if not onesided:
        places = torch.where(places < (points + 1) // 2, places, places - points)
    return places.to(dtype or torch.get_default_dtype()) * (1.0 / (points * spacing))


FOURIER: dict[str, Callable[..., Any]] = {
    "aten._fft_c2c.default": _of_complex,
    "aten._fft_c2r.default": _to_real,
    "aten._fft_r2c.default": _of_real,
    "aten.fft_fftfreq.default": _frequencies,
    "aten.fft_rfftfreq.default": partial(_frequencies, onesided=True),
    **{f"aten.hann_window.{name}": _cosine_window for name in ("default", "periodic")},
    **{f"aten.hamming_window.{name}": _hamming for name in ("default", "periodic", "periodic_alpha")},
}
