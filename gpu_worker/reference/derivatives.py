"""Rules for derivatives of convolutions, average pools, linear resizing and attention, by the calls that they are.

A derivative of a convolution is a convolution; resizing is a product with a matrix for each axis, its derivative one
with their transposes; attention's follows from its weights, which are computed again (Dao et al. 2022, appendix B).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import sqrt
from typing import Any

import torch

ATEN = torch.ops.aten


def _each(values: Sequence[int], axes: int) -> list[int]:
    """Return a number for each axis; one number stands for all."""
    return list(values) * axes if len(values) == 1 else list(values)


def _missing(*axes: Sequence[int]) -> list[int]:
    """Return how many elements at its end a transposed convolution leaves out, for each axis.

    The axes are told by their sizes before and after the convolution, then kernel, stride, padding and dilation.
    """
    return [
        size - ((given - 1) * stride - 2 * pad + gap * (kernel - 1) + 1)
        for size, given, kernel, stride, pad, gap in zip(*axes, strict=True)
    ]


def _by_channel(values: torch.Tensor, groups: int) -> torch.Tensor:
    """Return a batch with its channels in place of its elements, those of each group beside each other."""
    batch, channels, *rest = values.shape
    apart = values.reshape(batch, groups, channels // groups, *rest)
    return apart.permute(2, 1, 0, *range(3, apart.dim())).reshape(channels // groups, groups * batch, *rest)


def _convolution(  # noqa: PLR0917 - the call's own arguments
    gradient: torch.Tensor,
    values: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,  # noqa: ARG001
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    _output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """Gradients with respect to input, weight and bias, those that are wanted."""
    axes, kernel = weight.dim() - 2, weight.shape[2:]
    steps, pads, gaps = (_each(item, axes) for item in (stride, padding, dilation))
    none, zeros = None, [0] * axes
    of_values = of_weight = of_bias = none
    if wanted[0]:
        ends = zeros if transposed else _missing(values.shape[2:], gradient.shape[2:], kernel, steps, pads, gaps)
        of_values = ATEN.convolution(gradient, weight, None, steps, pads, gaps, not transposed, ends, groups)
    if wanted[1]:
        image, window = (gradient, values) if transposed else (values, gradient)
        moved, taps = _by_channel(image, groups), window.transpose(0, 1)
        found = ATEN.convolution(moved, taps, None, gaps, pads, steps, False, zeros, groups).transpose(0, 1)
        for axis, size in enumerate(kernel):
            found = found.narrow(2 + axis, 0, size)
        of_weight = found
    if wanted[2]:
        of_bias = gradient.sum([axis for axis in range(gradient.dim()) if axis != 1])
    return of_values, of_weight, of_bias


def _average_pool(  # noqa: PLR0917 - the call's own arguments
    gradient: torch.Tensor,
    values: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    """Each result's share, spread over its window; not where windows reach beyond the padding."""
    if ceil_mode:
        return NotImplemented
    sizes, pads, before, after = _each(kernel, 2), _each(padding, 2), values.shape[-2:], gradient.shape[-2:]
    steps = _each(stride, 2) if stride else sizes
    count: torch.Tensor | int = divisor_override or sizes[0] * sizes[1]
    if not count_include_pad and not divisor_override:
        count = torch.nn.functional.avg_pool2d(values.new_ones(1, 1, *before), sizes, steps, pads, divisor_override=1)
        count = count.reshape(after)
    shares, ends = (gradient / count).reshape(-1, 1, *after), _missing(before, after, sizes, steps, pads, (1, 1))
    spread = ATEN.convolution(shares, shares.new_ones(1, 1, *sizes), None, steps, pads, [1, 1], True, ends, 1)
    return spread.reshape(values.shape)


def _adaptive_average(gradient: torch.Tensor, values: torch.Tensor) -> Any:
    """Each result's share, repeated over its window; not where windows overlap."""
    times = [size // part for size, part in zip(values.shape[-2:], gradient.shape[-2:], strict=True)]
    if any(size % part for size, part in zip(values.shape[-2:], gradient.shape[-2:], strict=True)):
        return NotImplemented
    shares = (gradient / (times[0] * times[1])).unsqueeze(-1).unsqueeze(-3)
    whole = shares.expand(*gradient.shape[:-1], times[0], gradient.shape[-1], times[1])
    return whole.reshape(values.shape)


def _resized(
    forward: Callable[..., torch.Tensor],
    gradient: torch.Tensor,
    sizes: Sequence[int],
    given: Sequence[int],
    *rest: Any,
) -> torch.Tensor:
    """Products with the matrices that resize each axis; what resizes one axis alone shows its matrix."""
    align = [item for item in rest if isinstance(item, bool)]
    height, width = given[-2:]
    scales = [*(item for item in rest if not isinstance(item, bool)), None, None][:2]
    one, two = (torch.eye(size, dtype=gradient.dtype, device=gradient.device)[None, None] for size in (height, width))
    down = forward(one, [sizes[0], height], *align, scales[0], None)[0, 0]
    across = forward(two.mT, [width, sizes[1]], *align, None, scales[1])[0, 0]
    return down.mT @ gradient @ across.mT


def _attention(  # noqa: PLR0917 - the call's own arguments
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    _logsumexp: torch.Tensor,
    dropout: float,
    causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """Gradients with respect to query, key and value."""
    if dropout:
        return NotImplemented
    factor = scale if scale is not None else 1 / sqrt(query.shape[-1])
    scores = query @ key.mT * factor
    if attn_mask is not None:
        scores = scores + attn_mask
    if causal:
        rows, columns = (torch.arange(size, device=query.device) for size in scores.shape[-2:])
        scores = scores.masked_fill(columns > rows.unsqueeze(1), float("-inf"))
    weights = scores.softmax(-1)
    inner = (gradient * out).sum(-1, keepdim=True)
    change = weights * (gradient @ value.mT - inner) * factor
    return change @ key, change.mT @ query, weights.mT @ gradient


DERIVATIVES: dict[str, Callable[..., Any]] = {
    "aten.convolution_backward.default": _convolution,
    "aten.avg_pool2d_backward.default": _average_pool,
    "aten._adaptive_avg_pool2d_backward.default": _adaptive_average,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _attention,
    "aten.upsample_bilinear2d_backward.default": partial(_resized, ATEN.upsample_bilinear2d),
    "aten.upsample_bicubic2d_backward.default": partial(_resized, ATEN.upsample_bicubic2d),
    "aten.upsample_nearest2d_backward.default": partial(_resized, ATEN.upsample_nearest2d),
}
