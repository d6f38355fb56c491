"""Reductions of rows on CUDA: packs with wide loads, rows shared by some threads of a warp, a block, or in parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from agents.playbook.compiler.cuda import rows
from tests.unit.agents.playbook.emulation import run_cuda
from tests.unit.agents.playbook.nvrtc import compile_cuda, opcodes
from tests.unit.agents.playbook.operators_under_test import Case
from tests.unit.agents.playbook.test_compiler import compare_all
from tests.unit.agents.playbook.test_cuda_maps import BF16, F16, F64, I64, kernel_of, of, random

pytestmark = pytest.mark.builds


def ties(*shape: int) -> torch.Tensor:
    """Few different values, NaN in some rows, minus infinity alone in one."""
    values = random(*shape).round()
    values[1::3, 5::7] = torch.nan
    values[2] = -torch.inf
    return values


ROWS = {
    "bfloat16": (of(lambda a: (F.gelu(a) * 2).mean(1), random(5, 4096, dtype=BF16)), 8, 256),
    "float16": (of(lambda a: a.sum(1), random(5, 1032, dtype=F16)), 8, 256),
    "float32": (of(lambda a, b: (a * b).sum(1) + 1, random(9, 1024), random(1024)), 4, 32),
    "float64": (of(lambda a: a.sum(1), random(9, 70, dtype=F64)), 2, 32),
    "integers": (of(lambda a: a.sum(1), random(9, 70, dtype=I64)), 2, 32),
    "bytes": (of(lambda a: a.amax(1), random(9, 64, dtype=torch.int8)), 16, 2),
    "eight_lanes": (of(lambda a: a.sum(1), random(70, 48)), 4, 8),
    "one_lane": (of(lambda a: a.amax(1), random(300, 8)), 4, 1),
    "argmax": (of(lambda a: a.argmax(1), ties(21, 48)), 4, 8),
    "argmin_of_long_rows": (of(lambda a: a.argmin(1), ties(4, 2052)), 4, 256),
    "argmax_in_parts": (of(lambda a: a.argmax(1), ties(3, 9000)), 4, 256),
    "sum_in_parts": (of(lambda a: a.sum((0, 2)), random(20, 3, 1000)), 4, 256),
    "products": (of(lambda a: (1 + a / 99).prod(1), random(9, 300)), 4, 32),
    "planes": (of(lambda a: a.amax((0, 2)), random(6, 3, 12)), 4, 16),
    "padded": (of(lambda a: F.pad(a, (4, 8)).sum(1), random(9, 300)), 4, 32),
    "causal": (of(lambda a: torch.tril(a).sum(1), random(48, 48)), 4, 8),
    "odd_rows": (of(lambda a: a.sum(1), random(9, 333)), 1, 32),
    "truths": (of(lambda a: (a > 2).any(1), random(9, 77)), 1, 32),
    "one_result": (of(lambda a: a.mean(), random(300, 40, dtype=BF16)), 8, 256),
}
"""Cases, the terms of a pack, and the threads that share a row."""


@pytest.mark.parametrize("name", list(ROWS))
def test_rows_are_reduced_as_the_reference_does(name: str, builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, width, threads = ROWS[name]
    kernel, facts = kernel_of(case)
    assert f"k < {width}" in kernel.source
    assert (f"% {threads};" in kernel.source) is (threads < 256)
    assert compile_cuda(kernel, facts) == ""
    results = run_cuda(kernel, facts, case.inputs, builds)
    compare_all(results, case)
    monkeypatch.setattr(rows, "width_of", lambda *_: 1)
    single, facts = kernel_of(case)
    assert "fetch<" not in single.source.split("\n\n")[-1]
    if not any(item.is_floating_point() for item in results) or name == "one_lane":
        for packed, own in zip(results, run_cuda(single, facts, case.inputs, builds), strict=True):
            assert torch.equal(packed, own)


COLUMNS = {
    "sum": (of(lambda a: a.sum(0), random(96, 40)), 1),
    "mean": (of(lambda a: (F.gelu(a) * 2).mean(1), random(3, 70, 33, dtype=BF16)), 1),
    "argmax": (of(lambda a: a.argmax(0), ties(80, 40)), 1),
    "integers": (of(lambda a: a.sum(0), random(96, 40, dtype=I64)), 1),
    "images": (of(lambda a: a.amax((0, 1)), random(9, 10, 7, 9)), 1),
    "in_parts": (of(lambda a: a.sum(0), random(1100, 40)), 2),
    "argmin_in_parts": (of(lambda a: a.argmin(0), ties(1100, 40)), 2),
    "in_many_parts": (of(lambda a: a.sum(0), random(9000, 8)), 2),
    "argmax_in_many_parts": (of(lambda a: a.argmax(0), ties(9000, 8)), 2),
    "factors": (of(lambda a, b: (a[:, :, None] * b[None]).sum(1), random(6, 96), random(96, 8)), 1),
}
"""Cases, and their launches."""


@pytest.mark.parametrize("name", list(COLUMNS))
def test_neighbouring_results_are_reduced_together(name: str, builds: Path) -> None:
    case, launches = COLUMNS[name]
    kernel, facts = kernel_of(case)
    assert len(kernel.plan.launches) == launches
    assert "totals[8][32]" in kernel.source
    assert compile_cuda(kernel, facts) == ""
    compare_all(run_cuda(kernel, facts, case.inputs, builds), case)


@pytest.mark.parametrize(
    "case",
    [
        of(lambda a: a.T.contiguous().sum((0, 1)), random(96, 40)),
        of(lambda a: a[:, ::2].sum(1), random(6, 96)),
        of(lambda a, b: (a[:, :, None] * b[None]).sum(1), random(6, 96), random(96, 7)),
        Case(lambda a: F.avg_pool2d(a, 5), {"a": random(2, 3, 15, 15)}),
    ],
)
def test_terms_that_lie_apart_are_not_taken_as_rows(case: Case, builds: Path) -> None:
    kernel, facts = kernel_of(case)
    assert "fetch<" not in kernel.source.split("\n\n")[-1]
    compare_all(run_cuda(kernel, facts, case.inputs, builds), case)


def test_sums_of_large_numbers_of_terms_lose_nothing(builds: Path) -> None:
    """A run of float32 is short: adding ones to 2^24 in float32 would leave it as it is."""
    a = torch.ones(2, 40_000)
    a[:, 0] = 2.0**24
    case = of(lambda a: a.sum(1) - 2.0**24, a)
    kernel, facts = kernel_of(case)
    (result,) = run_cuda(kernel, facts, case.inputs, builds)
    assert (result - 39_999).abs().max() < 32


def test_wide_loads_are_in_the_machine_code() -> None:
    found = opcodes(*kernel_of(of(lambda a: a.sum(1), random(4096, 4096, dtype=BF16))))
    assert {name for name in found if name.startswith("LDG")} == {"LDG.E.128.CONSTANT"}
