"""The fewest operations known: products by Strassen's recursion, convolutions by the positions that they reach."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpu_worker.judge.fast_algorithms import product
from gpu_worker.reference.trace import Traced, trace


def _traced(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> Traced:
    inputs = [torch.ones(shape) for shape in shapes]
    named = {f"x{place}": tensor for place, tensor in enumerate(inputs)}
    with torch.no_grad():
        return trace(lambda: [function(*inputs)], named)


def test_small_products_have_no_faster_algorithm() -> None:
    assert product(8, 8, 8) == 2 * 8**3
    assert product(4096, 4096, 1) == 2 * 4096**2


def test_one_level_of_strassen_by_hand() -> None:
    """Seven products of 8 and fifteen additions of 8 by 8, in place of 2 * 16^3."""
    assert product(16, 16, 16) == 7 * 2 * 8**3 + 15 * 8**2 < 2 * 16**3


def test_a_large_product_costs_less_than_half_of_the_direct_count() -> None:
    shares = [product(size, size, size) / (2 * size**3) for size in (64, 256, 1024, 4096)]
    assert shares == sorted(shares, reverse=True)
    assert 0.3 < shares[-1] < 0.45 < shares[-2] < 0.55


@pytest.mark.parametrize(
    ("function", "shapes", "points"),
    [
        pytest.param(F.conv1d, ((1, 1, 10), (1, 1, 3)), 10, id="minimal filtering F(8, 3)"),
        pytest.param(F.conv2d, ((1, 1, 6, 6), (1, 1, 3, 3)), 36, id="minimal filtering F(4x4, 3x3)"),
        pytest.param(
            lambda x, w: F.conv2d(x, w, padding=1), ((1, 1, 6, 6), (1, 1, 3, 3)), 36, id="padding is no variable"
        ),
        pytest.param(lambda x, w: F.conv1d(x, w, stride=2), ((1, 1, 21), (1, 1, 3)), 21, id="a stride below the taps"),
        pytest.param(lambda x, w: F.conv1d(x, w, stride=4), ((1, 1, 19), (1, 1, 3)), 15, id="no reuse: direct"),
        pytest.param(lambda x, w: F.conv1d(x, w, dilation=2), ((1, 1, 12), (1, 1, 3)), 12, id="dilated"),
        pytest.param(F.conv_transpose1d, ((1, 1, 8), (1, 1, 3)), 10, id="transposed"),
        pytest.param(
            lambda x, w: F.conv_transpose1d(x, w, stride=4), ((1, 1, 5), (1, 1, 3)), 15, id="transposed, strided"
        ),
        pytest.param(lambda x, w: F.conv1d(x, w, groups=4), ((2, 4, 10), (4, 1, 3)), 8 * 10, id="depthwise"),
    ],
)
def test_convolutions_multiply_once_for_each_position_that_the_filter_reaches(
    function: Callable[..., torch.Tensor], shapes: tuple[tuple[int, ...], ...], points: int
) -> None:
    traced = _traced(function, *shapes)
    assert traced.least_matmul_flops == 2 * points <= traced.matmul_flops


def test_winograds_kernel_for_a_transposed_convolution_is_no_miracle() -> None:
    """F(2x2, 3x3) does 4/9 of the direct multiplications; the floor lies below even F(6x6, 3x3), at 64/324."""
    traced = _traced(F.conv_transpose2d, (4, 64, 64, 64), (64, 64, 3, 3))
    assert traced.least_matmul_flops < 64 / 324 * traced.matmul_flops


def test_channels_of_a_pointwise_convolution_are_a_product() -> None:
    traced = _traced(F.conv2d, (2, 64, 16, 16), (64, 64, 1, 1))
    assert traced.matmul_flops == 2 * 512 * 64 * 64
    assert traced.least_matmul_flops == product(512, 64, 64)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.mm, ((64, 64), (64, 64))),
        (torch.bmm, ((3, 64, 64), (3, 64, 64))),
        (torch.addmm, ((64,), (64, 64), (64, 64))),
        (torch.baddbmm, ((3, 64, 64), (3, 64, 64), (3, 64, 64))),
    ],
)
def test_every_form_of_a_product_is_known(
    function: Callable[..., torch.Tensor], shapes: tuple[tuple[int, ...], ...]
) -> None:
    traced = _traced(function, *shapes)
    batch = 3 if len(shapes[-1]) == 3 else 1
    assert traced.least_matmul_flops == batch * product(64, 64, 64)


def test_a_causal_attention_needs_half_of_its_scores() -> None:
    shape = (1, 2, 128, 64)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        full = _traced(F.scaled_dot_product_attention, shape, shape, shape)
        causal = _traced(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), shape, shape, shape)
    assert full.matmul_flops == 2 * 2 * 2 * 128 * 128 * 64
    assert causal.matmul_flops == pytest.approx(full.matmul_flops * (129 / 256))
    assert causal.least_matmul_flops == pytest.approx(full.least_matmul_flops * (129 / 256))
    assert full.least_matmul_flops < full.matmul_flops
