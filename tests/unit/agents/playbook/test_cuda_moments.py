"""Means and variances of many terms are found in one pass on CUDA, as exactly as in two."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from agents.playbook.compiler import moments
from tests.unit.agents.playbook.emulation import run_cuda
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.test_compiler import compare_all
from tests.unit.agents.playbook.test_cuda_maps import BF16, kernel_of, of, random

pytestmark = pytest.mark.builds


def batch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(a, None, None, b, b, training=True)


def spread(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.var_mean(a, dim=1)


def far(*shape: int) -> torch.Tensor:
    """Values far from zero, one row of equal ones, one with a value that is much larger than others."""
    values = random(*shape) + 3000
    values[0] = 0.1
    values[1, 0] = 1e6
    return values


def endless(*shape: int) -> torch.Tensor:
    values = random(*shape)
    values[0, 7], values[1, 9] = torch.inf, torch.nan
    return values


MOMENTS = {
    "batch_norm": of(batch, random(3, 4, 80, 84), random(4)),
    "batch_norm_of_half": of(batch, random(8, 4, 64, 80, dtype=BF16), random(4)),
    "far_from_zero": of(spread, far(3, 40004)),
    "not_finite": of(lambda a: torch.var(a, 1), endless(3, 40004)),
    "odd": of(spread, random(3, 40003)),
}


@pytest.mark.parametrize("name", list(MOMENTS))
def test_variances_need_one_pass(name: str, builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "FEWEST", 1024)
    case = MOMENTS[name]
    kernel, facts = kernel_of(case)
    assert "within" in kernel.source
    assert len(kernel.plan.launches) <= 3
    assert compile_cuda(kernel, facts) == ""
    compare_all(run_cuda(kernel, facts, case.inputs, builds), case)


def test_few_terms_have_two_passes() -> None:
    kernel, _ = kernel_of(MOMENTS["batch_norm"])
    assert "within" not in kernel.source
