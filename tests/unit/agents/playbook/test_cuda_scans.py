"""Scans on CUDA: rows of a warp and of a block, in packs with wide loads where elements lie side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.unit.agents.playbook.emulation import run_cuda
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.test_compiler import compare_all
from tests.unit.agents.playbook.test_cuda_maps import BF16, F64, I64, kernel_of, of, random

pytestmark = pytest.mark.builds

SCANS = {
    "rows_of_a_block": (of(lambda a: a.cumsum(1), random(3, 4200)), 4),
    "whole_tiles": (of(lambda a: a.cumsum(1), random(2, 2048)), 4),
    "rows_of_a_warp": (of(lambda a: a.cumsum(1), random(9, 300)), 4),
    "small_items": (of(lambda a, b: (a * b).cumsum(1), random(9, 2056, dtype=BF16), random(2056, dtype=BF16)), 8),
    "doubles": (of(lambda a: a.cumsum(1), random(9, 70, dtype=F64)), 2),
    "integers": (of(lambda a: a.cumsum(1), random(8, 2050, dtype=I64)), 2),
    "odd_rows": (of(lambda a: a.cumsum(1), random(9, 333)), 0),
    "odd_long_rows": (of(lambda a: a.cumsum(1), random(3, 2101)), 0),
    "columns": (of(lambda a: a.cumsum(0), random(700, 5)), 0),
    "products": (of(lambda a: (1 + a / 99).cumprod(1), random(9, 300)), 4),
    "maxima": (of(lambda a: a.cummax(1)[0], random(9, 1300)), 4),
    "logarithms": (of(lambda a: a.logcumsumexp(1), random(5, 1300)), 4),
    "one_row": (of(lambda a: a.cumsum(0), random(4100)), 4),
}
"""Cases, and the elements of a pack; 0 where they are loaded one by one."""


@pytest.mark.parametrize("name", list(SCANS))
def test_scans_compute_the_reference(name: str, builds: Path) -> None:
    case, width = SCANS[name]
    kernel, facts = kernel_of(case)
    body = kernel.source[kernel.source.index('extern "C"') :]
    assert (f"{width}> o0;" in body) is (width > 0)
    assert ("pack<" in body) is (width > 0)
    assert compile_cuda(kernel, facts) == ""
    compare_all(run_cuda(kernel, facts, case.inputs, builds), case)


def test_infinite_totals_stay_so(builds: Path) -> None:
    a = random(3, 1300)
    a[0, 700], a[1, 5], a[1, 900] = torch.inf, torch.inf, -torch.inf
    case = of(lambda a: a.cumsum(1), a)
    kernel, facts = kernel_of(case)
    compare_all(run_cuda(kernel, facts, case.inputs, builds), case)
