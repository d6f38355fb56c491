"""Strided transposed convolutions are computed by phase on cuda: without taps that fall on no input."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from agents.playbook import agents
from agents.playbook.compiler.cuda.tiles import Tiles
from agents.playbook.compiler.products import products
from agents.playbook.compiler.program import tiled_program
from agents.playbook.ladders import parse
from agents.playbook.translator import NotApplicable
from cupilot.domain.problem import NumericsPolicy, Target
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.convolution_graphs import strided_transposed
from tests.unit.agents.playbook.emulation import run_cuda
from tests.unit.agents.playbook.graphs_under_test import _module
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.operators_under_test import Case
from tests.unit.agents.playbook.references import trace

pytestmark = pytest.mark.builds

SCALAR = "shared_tiling(tile_m=32, tile_n=64, tile_k=8): "
WARPS = "shared_tiling(tile_m=128, tile_n=64, tile_k=32), tensor_cores(precision=bfloat16, warp_m=32, warp_n=32): "
WARPGROUPS = (
    "shared_tiling(tile_m=128, tile_n=256, tile_k=64), tensor_cores(precision=bfloat16), warpgroup_mma,"
    " async_copy(stages=4): "
)


class _Both(nn.Module):
    """A transposed convolution and what is made of it: two results."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(8, 16, 3, stride=2, padding=1, output_padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.conv(x)
        return y, F.relu(y) * 2


def cases() -> dict[str, Case]:
    softmax = nn.Sequential(nn.ConvTranspose2d(8, 16, 3, stride=(3, 2)), nn.Softmax(1))
    small = {"transposed_1d"}
    return {
        **{name: case for name, case in strided_transposed().items() if name not in small},
        "many_rows": _module(nn.ConvTranspose1d(8, 16, 3, stride=2, padding=1, dilation=2), 2, 8, 600),
        "softmax_of_phases": _module(softmax, 1, 8, 7, 9),
        "two_results": _module(_Both(), 1, 8, 7, 9),
        "kernel_below_stride": _module(nn.ConvTranspose1d(16, 32, 2, stride=3, output_padding=2), 2, 16, 33),
    }


@pytest.mark.parametrize("name", list(cases()))
def test_phases_compute_the_reference_when_emulated(name: str, builds: Path) -> None:
    case = cases()[name]
    facts, _ = trace(case.function, case.inputs, case.parameters)
    kernel = agents().translator.translate(briefing(facts, Target.CUDA), parse(SCALAR), (), 0)
    assert compile_cuda(kernel, facts) == ""
    with torch.no_grad():
        expected = case.function(*case.inputs.values())
    results = run_cuda(kernel, facts, {**case.inputs, **case.parameters}, builds)
    for result, right in zip(results, expected if isinstance(expected, tuple) else [expected], strict=True):
        torch.testing.assert_close(result, right, rtol=1e-5, atol=1e-5)


def _in_bfloat16(case: Case, text: str, builds: Path) -> str:
    """Compare a kernel of operands of 16 bits with the exact results, and return its source."""
    assert isinstance(case.function, nn.Module)
    (exact,) = case.exact()
    module = case.function.to(torch.bfloat16)
    state = {"m_" + key.replace(".", "_"): value for key, value in module.state_dict(keep_vars=True).items()}
    inputs = {"x": case.inputs["x"].bfloat16()}
    facts, _ = trace(module, inputs, state, policy=NumericsPolicy.HALF)
    kernel = agents().translator.translate(briefing(facts, Target.CUDA), parse(text), (), 0)
    assert compile_cuda(kernel, facts) == ""
    (result,) = run_cuda(kernel, facts, {**inputs, **state}, builds)
    assert (result.double() - exact).abs().max() <= 2.0**-6 * exact.abs().max()
    return kernel.source


@pytest.mark.parametrize("name", ["many_rows", "transposed_grouped", "transposed_4_over_6", "transposed_3d"])
def test_phases_on_tensor_cores_compute_the_reference_when_emulated(name: str, builds: Path) -> None:
    assert "mma.sync" in _in_bfloat16(cases()[name], WARPS, builds)


def test_operands_keep_their_type() -> None:
    """One image alone is no product before its phases are known."""
    module = nn.ConvTranspose2d(16, 32, 3, stride=2).to(torch.bfloat16)
    facts, _ = trace(module, {"x": torch.randn(1, 16, 9, 9).bfloat16()}, dict(module.named_parameters()),
                     policy=NumericsPolicy.HALF)  # fmt: skip
    text = WARPS.replace("bfloat16", "half")
    with pytest.raises(NotApplicable, match="operands are bfloat16"):
        agents().translator.translate(briefing(facts, Target.CUDA), parse(text), (), 0)


@pytest.mark.parametrize("dilation", [1, 2])
def test_phases_by_warpgroups_compute_the_reference_when_emulated(dilation: int, builds: Path) -> None:
    conv = nn.ConvTranspose2d(64, 64, 3, stride=2, dilation=dilation, padding=1)
    case = _module(nn.Sequential(conv, nn.GELU()), 2, 64, 15, 19)
    assert "wgmma.mma_async" in _in_bfloat16(case, WARPGROUPS, builds)


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        ("transposed_even", 2 * 32 * 16 * 2 * 8 * 3),
        ("many_rows", 2 * 16 * 600 * 8 * 3),
        ("transposed_both_even", 32 * 16 * 18 * 6 * 9),
        ("kernel_below_stride", 2 * 33 * 32 * 16 * 3),
    ],
)
def test_few_terms_are_zero(name: str, terms: int) -> None:
    """Of four taps two fall on inputs, on one of three that a pair of results needs."""
    case = cases()[name]
    facts, _ = trace(case.function, case.inputs, case.parameters)
    found = products(tiled_program(facts, Tiles(32, 32, 8)).groups)
    assert sum(prod(group.shape) * prod(reduction.extents) for group, reduction, _ in found) <= 1.1 * terms
