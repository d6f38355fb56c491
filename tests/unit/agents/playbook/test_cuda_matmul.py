"""Matrix products on the scalar units of ``cuda``: rendered, compiled, and right when run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from agents.interface import Briefing
from agents.playbook import agents
from agents.playbook.ladders import parse
from agents.playbook.templates import cuda_matmul_strassen
from agents.playbook.translator import NotApplicable
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Target
from cupilot.domain.roofline import Zone
from tests.unit.agents.playbook.briefings import H200, briefing
from tests.unit.agents.playbook.emulation import run_cuda
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.references import trace

pytestmark = pytest.mark.builds

Shapes = dict[str, tuple[int, ...]]
TILES = "shared_tiling(tile_m=64, tile_n=64, tile_k=16), register_blocking(rows=8, cols=8)"
DOUBLE = f"{TILES}, double_buffering, bank_padding(words=4)"
SMALL = "shared_tiling(tile_m=64, tile_n=32, tile_k=8), register_blocking(rows=8, cols=8), bank_padding(words=4)"
CASES: dict[str, tuple[Callable[..., torch.Tensor], Shapes, str]] = {
    "packs": (torch.matmul, {"a": (132, 76), "b": (76, 140)}, f"{DOUBLE}, vector_loads, block_swizzle(group=4)"),
    "whole": (torch.matmul, {"a": (64, 48), "b": (48, 128)}, f"{DOUBLE}, vector_loads"),
    "transposed": (lambda a, b: a.T @ b.T, {"a": (75, 132), "b": (90, 75)}, f"{DOUBLE}, vector_loads"),
    "no packs": (torch.matmul, {"a": (67, 45), "b": (45, 71)}, f"{SMALL}, async_copy(stages=3)"),
    "one buffer": (torch.bmm, {"a": (2, 67, 20), "b": (2, 20, 36)}, SMALL),
    "even parts": (torch.matmul, {"a": (64, 256), "b": (256, 64)}, f"{DOUBLE}, split_k(parts=2)"),
    "ragged parts": (torch.matmul, {"a": (64, 260), "b": (260, 64)}, f"{DOUBLE}, vector_loads, split_k(parts=2)"),
    "quarters": (torch.matmul, {"a": (128, 224), "b": (224, 128)}, f"{TILES}, strassen(levels=1)"),
    "ragged quarters": (torch.matmul, {"a": (133, 75), "b": (75, 149)}, f"{TILES}, strassen(levels=2)"),
    "transposed quarters": (
        lambda a, b: a.T @ b.T,
        {"a": (70, 130), "b": (90, 70)},
        f"{TILES}, strassen(levels=1), block_swizzle(group=4)",
    ),
    "batches of quarters": (
        torch.bmm,
        {"a": (2, 66, 40), "b": (2, 40, 72)},
        f"{TILES}, strassen(levels=1, stages=3)",
    ),
    "quarters and a bias": (
        lambda c, a, b: torch.addmm(c, a, b, alpha=0.5),
        {"c": (72,), "a": (130, 48), "b": (48, 72)},
        f"{TILES}, strassen(levels=1)",
    ),
}


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@cache
def _large() -> Briefing:
    """A product that is just large enough for sums of quarters."""
    facts, _ = trace(torch.matmul, {"a": torch.zeros(3072, 3072), "b": torch.zeros(3072, 3072)})
    return briefing(facts, Target.CUDA, Zone.COMPUTE)


def _translated(about: Briefing, text: str) -> Kernel:
    return agents().translator.translate(about, parse(f"{text}: "), (), 0)


@pytest.mark.parametrize("name", list(CASES))
def test_products_make_what_the_reference_makes(name: str, builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_matmul_strassen, "LEAST", 0)
    monkeypatch.setattr(cuda_matmul_strassen, "CHAIN", 32)
    function, shapes, text = CASES[name]
    inputs = {key: _random(*shape) for key, shape in shapes.items()}
    facts, _ = trace(function, inputs)
    kernel = _translated(briefing(facts, Target.CUDA, Zone.COMPUTE), text)
    assert compile_cuda(kernel, facts) == ""
    (made,) = run_cuda(kernel, facts, inputs, builds)
    exact = function(*(value.double() for value in inputs.values()))
    assert (made - exact).abs().max() < 1e-5 * exact.std()


QUARTERS = "shared_tiling(tile_k=16), register_blocking, launch_bounds(min_blocks=2), strassen(levels=2)"


@pytest.mark.parametrize(
    ("text", "constants", "arch", "reason"),
    [
        (QUARTERS, {"LEAST": 1100}, "sm_90", "the size 1024 is too small"),
        (QUARTERS, {"MOST_BYTES": 2**27}, "sm_90", "more workspace"),
        (QUARTERS, {}, "sm_80", "sm_80 has no bulk copies"),
        (QUARTERS.replace("tile_k=16", "tile_n=32"), {}, "sm_90", "four by eight"),
    ],
)
def test_products_of_quarters_say_why_they_do_not_apply(
    text: str, constants: dict[str, int], arch: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in constants.items():
        monkeypatch.setattr(cuda_matmul_strassen, name, value)
    about = _large().model_copy(update={"device": H200.model_copy(update={"arch": arch})})
    with pytest.raises(NotApplicable, match=reason):
        _translated(about, text)


def test_large_products_begin_with_quarters_of_which_two_blocks_fit_without_spills() -> None:
    first = agents().manager.initial_strategies(_large(), [], 1, 0)[0].strategy
    assert first.use("strassen")
    kernel = agents().translator.translate(_large(), first, (), 0)
    assert [launch.kernel for launch in kernel.plan.launches] == ["sum_a", "sum_b", "multiply", "combine"]
    assert 2 * int(kernel.plan.launches[2].shared_bytes) <= H200.shared_bytes_per_block
    assert compile_cuda(kernel, _large().facts, "--ptxas-options=-v").count(" 0 bytes spill stores") == 4
