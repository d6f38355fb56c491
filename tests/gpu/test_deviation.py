"""Comparisons of large outputs on a card: the fused kernel says what PyTorch's operators say."""

from __future__ import annotations

import math

import pytest
import torch

from gpu_worker.judge import deviation as comparisons
from gpu_worker.judge.deviation import Expected, deviation, unit_of
from gpu_worker.judge.fused_errors import WORTHWHILE

pytestmark = pytest.mark.gpu


def _case(dtype: torch.dtype) -> tuple[Expected, torch.Tensor]:
    torch.manual_seed(0)
    wanted = torch.randn(WORTHWHILE + 5, device="cuda", dtype=dtype).mul_(3).add_(1)
    got = (wanted.double() * (1 + 1e-4 * torch.randn_like(wanted, dtype=torch.float64))).float()
    return Expected(wanted, unit_of(wanted)), got


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fused_kernel_agrees_with_pytorchs_operators(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, got = _case(dtype)
    fused = deviation(expected, got)
    monkeypatch.setattr(comparisons, "WORTHWHILE", math.inf)
    assert fused == pytest.approx(deviation(expected, got), rel=1e-6)
    assert 1e-4 < fused < 1e-2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_misplaced_special_value_is_an_infinite_error(value: float) -> None:
    expected, got = _case(torch.float32)
    got[12_345] = value
    assert deviation(expected, got) == math.inf
    expected.values[12_345] = value
    assert deviation(expected, got) < 1e-2
