"""Rules for resizing with antialiasing: products with matrices whose rows are the weights of an output's neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

Filter = Callable[[torch.Tensor], torch.Tensor]


def _triangle(x: torch.Tensor) -> torch.Tensor:
    return (1 - x).clamp(min=0)


def _cubic(x: torch.Tensor) -> torch.Tensor:
    """Keys' filter with a = -0.5, as PyTorch and Pillow resize with antialiasing."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def _weights(size: int, wanted: int, step: float, filtering: Filter, radius: int) -> torch.Tensor:
    """Return weights, in float64, of each of ``size`` elements in each of ``wanted``, which are ``step`` apart."""
    stretch = max(step, 1.0)
    centres = (torch.arange(wanted, dtype=torch.float64).unsqueeze(1) + 0.5) * step
    places = torch.arange(size, dtype=torch.float64)
    first = (centres - radius * stretch + 0.5).clamp(min=0).floor()
    end = (centres + radius * stretch + 0.5).clamp(max=size).floor()
    weights = filtering(((places - centres + 0.5) / stretch).abs())
    weights = torch.where((places >= first) & (places < end), weights, 0.0)
    return weights / weights.sum(1, keepdim=True)


def _step(size: int, wanted: int, aligned: bool, factor: float | None) -> float:
    if aligned:
        return (size - 1) / (wanted - 1) if wanted > 1 else 0.0
    return 1 / factor if factor else size / wanted


def _resized(
    filtering: Filter,
    radius: int,
    image: torch.Tensor,
    size: Sequence[int],
    aligned: bool,
    *factors: float | None,
) -> Any:
    if not image.is_floating_point():
        return NotImplemented
    given = (*factors, None, None)[:2]
    down, across = (
        _weights(length, wanted, _step(length, wanted, aligned, factor), filtering, radius).to(
            image.device, image.dtype
        )
        for length, wanted, factor in zip(image.shape[-2:], size, given, strict=True)
    )
    return down @ (image @ across.t())


RESAMPLING: dict[str, Callable[..., Any]] = {
    "aten._upsample_bilinear2d_aa.default": partial(_resized, _triangle, 1),
    "aten._upsample_bicubic2d_aa.default": partial(_resized, _cubic, 2),
}
