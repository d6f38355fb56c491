"""The first few of long rows are found by a block a row on cuda: right with equal elements, NaN and other types."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agents.playbook.compiler.program import rendered
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Target
from tests.unit.agents.playbook.emulation import run_cuda
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.references import trace

pytestmark = pytest.mark.builds


def rows() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    plain = torch.randn(3, 700, generator=generator)
    missing = plain.clone()
    missing[0, 41] = missing[2, 600] = float("nan")
    missing[1, 7] = float("-inf")
    whole = torch.randint(-9, 9, (2, 2, 300), generator=generator)
    zeros = torch.tensor([0.0, -0.0]).repeat(40).expand(3, 80).contiguous()
    return {
        "plain": plain,
        "not_a_number": missing,
        "equal": whole,
        "equal_small": whole.to(torch.int16),
        "bfloat16": plain.to(torch.bfloat16),
        "doubles": plain.double(),
        "two_zeros": zeros,
        "odd": missing[:, :333].contiguous(),
        "few_lanes": plain[:, :600].reshape(25, 72).contiguous(),
        "long": torch.randn(2, 2600, generator=generator).round(),
    }


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("name", list(rows()))
def test_the_first_few_of_a_row_are_found(name: str, largest: bool, builds: Path) -> None:
    x = rows()[name]
    facts, _ = trace(lambda x: torch.topk(x, 9, largest=largest), {"x": x})
    source, plan = rendered(facts, Target.CUDA)
    kernel = Kernel(target=Target.CUDA, source=source, plan=plan)
    assert compile_cuda(kernel, facts) == ""
    assert "__shfl_xor_sync" in source
    values, places = run_cuda(kernel, facts, {"x": x}, builds)
    torch.testing.assert_close(values, torch.topk(x, 9, largest=largest).values, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(x.gather(-1, places), values, equal_nan=True, rtol=0, atol=0)
    assert ("fn_key" in source) is (x.element_size() < 8)
    if name in ("two_zeros", "long"):
        assert all(a != b or at < then for a, b, at, then in _neighbours(values, places)), "equal ones by position"
    assert all(len(set(row)) == 9 for row in places.reshape(-1, 9).tolist()), "no element is found twice"


def _neighbours(values: torch.Tensor, places: torch.Tensor) -> list[tuple[float, float, int, int]]:
    firsts, seconds = (item.flatten().tolist() for item in (values[:, :-1], values[:, 1:]))
    before, behind = (item.flatten().tolist() for item in (places[:, :-1], places[:, 1:]))
    return list(zip(firsts, seconds, before, behind, strict=True))


@pytest.mark.parametrize("shape", [(3, 40), (2, 2000)])
def test_orders_of_whole_rows_are_counted(shape: tuple[int, int]) -> None:
    facts, _ = trace(lambda x: torch.sort(x, stable=True), {"x": torch.randn(shape)})
    source, _ = rendered(facts, Target.CUDA)
    assert "rank +=" in source
