"""Products by sums of quarters on ``cuda``: rendered, compiled, and right when run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from agents.playbook import agents
from agents.playbook.ladders import parse
from agents.playbook.templates import cuda_matmul_strassen
from cupilot.domain.problem import Target
from cupilot.domain.roofline import Zone
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.emulation import run_cuda
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.references import trace

pytestmark = pytest.mark.builds

Function = Callable[..., torch.Tensor]
TILES = "shared_tiling(tile_m=64, tile_n=64, tile_k=16), register_blocking(rows=8, cols=8)"
CASES: dict[str, tuple[Function, dict[str, tuple[int, ...]], str]] = {
    "even": (torch.matmul, {"a": (128, 96), "b": (96, 128)}, "strassen(levels=1)"),
    "two levels": (torch.matmul, {"a": (256, 256), "b": (256, 256)}, "strassen(levels=2)"),
    "ragged": (torch.matmul, {"a": (133, 75), "b": (75, 149)}, "strassen(levels=2)"),
    "turned": (lambda a, b: a.T @ b.T, {"a": (70, 130), "b": (90, 70)}, "strassen(levels=1), block_swizzle"),
    "batches": (torch.bmm, {"a": (2, 66, 40), "b": (2, 40, 72)}, "strassen(levels=1, stages=3)"),
    "bias": (
        lambda c, a, b: torch.addmm(c, a, b, alpha=0.5),
        {"c": (72,), "a": (130, 48), "b": (48, 72)},
        "strassen(levels=1)",
    ),
}


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("name", list(CASES))
def test_products_of_quarters_make_what_the_reference_makes(
    name: str, builds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_matmul_strassen, "LEAST", 0)
    function, shapes, text = CASES[name]
    inputs = {key: _random(*shape) for key, shape in shapes.items()}
    facts, _ = trace(function, inputs)
    kernel = agents().translator.translate(
        briefing(facts, Target.CUDA, Zone.COMPUTE), parse(f"{TILES}, {text}: "), (), 0
    )
    assert compile_cuda(kernel, facts) == ""
    (made,) = run_cuda(kernel, facts, inputs, builds)
    exact = function(*(value.double() for value in inputs.values()))
    assert (made - exact).abs().max() < 2e-6 * exact.std() * max(shapes["a"]) ** 0.5
