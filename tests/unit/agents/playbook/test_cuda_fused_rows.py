"""Several reductions of the same rows, and what follows over them, are one launch on CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.unit.agents.playbook.emulation import run_cuda
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.test_compiler import compare_all
from tests.unit.agents.playbook.test_cuda_maps import BF16, F16, F64, kernel_of, of, random

pytestmark = pytest.mark.builds


def masked(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.where(b > 0, a, -torch.inf), -1)


def masked_columns(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.where(b > 0, a, -1e4), 0)


def mask(*shape: int) -> torch.Tensor:
    """Some rows have no element above zero."""
    values = random(*shape)
    values[1::3] = -1
    return values


def special(*shape: int) -> torch.Tensor:
    values = random(*shape)
    values[0, 3], values[1, 5], values[2, 7] = torch.nan, torch.inf, -torch.inf
    return values


def quantised(a: torch.Tensor) -> torch.Tensor:
    scale = a.abs().amax(-1, keepdim=True) / 127.0
    return torch.clamp(torch.round(a / scale), -128, 127).to(torch.int8)


def zeroed(*shape: int) -> torch.Tensor:
    values = special(*shape)
    values[3] = 0
    values[4] *= 1e-38
    return values


def standard(a: torch.Tensor) -> torch.Tensor:
    return (a - a.mean(-1, keepdim=True)) / (a.std(-1, keepdim=True) + 1)


def with_parts(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    top = a.amax(-1, keepdim=True)
    weights = torch.exp(a - top)
    total = weights.sum(-1, keepdim=True)
    return weights / total, top, total.log()


def two_sided(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return -(torch.log_softmax(a, 1) * torch.softmax(b, 1)).sum(1).mean()


def distances(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return F.triplet_margin_loss(a, b, c)


def grouped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(F.group_norm(a, 2, b, b)) * 2


def labels(*shape: int) -> torch.Tensor:
    found = random(*shape, dtype=torch.int64).abs()
    found[1] = -100
    return found


FUSED = {
    "softmax_of_long_rows": (of(masked, random(5, 2056), mask(5, 2056)), 1, 4, 256),
    "softmax_of_half": (of(masked, random(3, 1032, dtype=BF16), mask(3, 1032).to(BF16)), 1, 8, 256),
    "softmax_of_a_warp": (of(masked, random(9, 300, dtype=F16), mask(9, 300).to(F16)), 1, 4, 32),
    "softmax_of_a_few_lanes": (of(masked, random(70, 48), mask(70, 48)), 1, 4, 8),
    "softmax_of_odd_rows": (of(masked, random(5, 333), mask(5, 333)), 1, 1, 32),
    "softmax_of_odd_long_rows": (of(masked, random(3, 1301, dtype=BF16), mask(3, 1301).to(BF16)), 1, 1, 256),
    "not_a_number": (of(lambda a: torch.softmax(a * 2 + 1, -1) + 1, special(4, 200)), 1, 4, 32),
    "doubles": (of(lambda a: torch.softmax(a * a, -1), random(5, 70, dtype=F64)), 1, 2, 32),
    "quantised": (of(quantised, random(5, 1040)), 1, 4, 256),
    "divided_by_zero": (of(lambda a: a / a.abs().amax(-1, keepdim=True), zeroed(6, 80)), 1, 4, 16),
    "steps": (of(lambda a: torch.floor(a / a.abs().amax(-1, keepdim=True) * 9), zeroed(6, 80)), 1, 4, 16),
    "standardised": (of(standard, random(5, 200)), 1, 4, 32),
    "results_are_outputs": (of(with_parts, random(6, 200)), 1, 4, 32),
    "results_in_half": (of(with_parts, random(6, 200, dtype=BF16)), 1, 8, 16),
    "two_tensors": (of(two_sided, random(9, 200), random(9, 200)), 2, 4, 32),
    "distances": (of(distances, random(9, 200), random(9, 200), random(9, 200)), 2, 4, 32),
    "cross_entropy": (of(F.cross_entropy, random(9, 200), labels(9)), 2, 4, 32),
    "smoothed": (
        of(lambda a, b: F.cross_entropy(a, b, label_smoothing=0.1), random(9, 1304, dtype=BF16), labels(9)),
        2,
        8,
        256,
    ),
    "planes": (of(lambda a: torch.softmax(a.flatten(1) / 3, 1).reshape(a.shape) * 2, random(5, 4, 3, 20)), 1, 4, 32),
    "channels_by_group": (of(grouped, random(3, 4, 6, 10), random(4)), 1, 4, 16),
}
"""Cases, launches, the terms of a pack, and the threads that share a row."""


@pytest.mark.parametrize("name", list(FUSED))
def test_rows_are_read_once(name: str, builds: Path) -> None:
    case, launches, width, threads = FUSED[name]
    kernel, facts = kernel_of(case)
    assert len(kernel.plan.launches) == launches
    assert f"k < {width}" in kernel.source
    assert (f"threadIdx.x % {threads};" in kernel.source) is (threads < 256)
    assert compile_cuda(kernel, facts) == ""
    compare_all(run_cuda(kernel, facts, case.inputs, builds), case)


COLUMNS = {
    "images": (of(lambda a: torch.softmax(a * 2 + 1, 1), random(5, 40, 3, 130)), 1, 8),
    "odd_columns": (of(masked_columns, random(70, 37), mask(70, 37)), 1, 8),
    "half": (of(lambda a: torch.softmax(a * 2 + 1, 1), random(3, 50, 130, dtype=BF16)), 1, 8),
    "short": (of(lambda a: torch.softmax(a * 2 + 1, 1), special(9, 12, 260)), 1, 1),
    "turned": (of(lambda a: torch.softmax(a * 3 + 1, -1).transpose(0, 1), random(6, 5, 80)), 1, 0),
}
"""Cases, launches, and the threads that share a row that lies beside others; 0 where it does not."""


@pytest.mark.parametrize("name", list(COLUMNS))
def test_rows_beside_each_other_are_read_once(name: str, builds: Path) -> None:
    case, launches, threads = COLUMNS[name]
    kernel, facts = kernel_of(case)
    assert len(kernel.plan.launches) == launches
    assert ("lane = (int)threadIdx.x / 32" in kernel.source) is (threads == 8)
    assert compile_cuda(kernel, facts) == ""
    compare_all(run_cuda(kernel, facts, case.inputs, builds), case)


APART = {
    "too_long": (of(lambda a: torch.softmax(a * 2 + 1, 1), random(2, 40000)), 3),
    "other_rows": (of(lambda a: a.sum(1) / a.sum(0).sum(), random(70, 70)), 3),
    "transposed": (of(lambda a: torch.softmax(a * 3 + 1, -1).t().contiguous(), random(300, 260)), 2),
    "another_place": (of(lambda a: a - a.sum(1, keepdim=True).flip(0), random(70, 40)), 2),
}
"""Cases whose reductions stay launches of their own, and how many."""


@pytest.mark.parametrize("name", list(APART))
def test_other_rows_stay_apart(name: str, builds: Path) -> None:
    case, launches = APART[name]
    kernel, facts = kernel_of(case)
    assert len(kernel.plan.launches) >= launches
    compare_all(run_cuda(kernel, facts, case.inputs, builds), case)


def along_its_norm(a: torch.Tensor) -> torch.Tensor:
    squares, sizes = (a * a).sum(1), a.abs().sum(1)
    return (squares / squares.norm() * sizes).sum()


def test_sums_over_rows_wait_for_what_they_need(builds: Path) -> None:
    case = of(along_its_norm, random(14, 200))
    kernel, facts = kernel_of(case)
    assert len(kernel.plan.launches) == 2
    compare_all(run_cuda(kernel, facts, case.inputs, builds), case)


def eighths(a: torch.Tensor) -> torch.Tensor:
    scale = a.abs().amax(-1, keepdim=True) / 448.0
    return (a / scale).to(torch.float8_e4m3fn).float() * scale


@pytest.mark.parametrize(("function", "exact"), [(eighths, True), (quantised, True), (standard, False)])
def test_quotients_before_a_step_are_rounded_right(function: Any, exact: bool) -> None:
    kernel, _ = kernel_of(of(function, random(5, 200)))
    assert len(kernel.plan.launches) == 1
    assert ("fn_ratio(" in kernel.source) is exact
