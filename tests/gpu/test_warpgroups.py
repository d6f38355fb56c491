"""Matrix products by warpgroups, tensor maps and clusters: believed in every layout and at ragged edges."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agents.interface import Briefing
from agents.playbook.ladders import parse
from agents.playbook.translator import PlaybookTranslator
from cupilot.domain.evaluation import Evaluation, Preparation, Verdict
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import NumericsPolicy, Problem, Target
from tests.gpu.test_judging import describe

pytestmark = pytest.mark.gpu

FILE = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, {names}):
        return {result}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""

WARPGROUPS = "tensor_cores(precision=tf32), warpgroup_mma, tma_loads(stages=4)"
LARGE, OTHER = "shared_tiling(tile_m=256, tile_n=128, tile_k=32)", "shared_tiling(tile_m=128, tile_n=256, tile_k=32)"
SMALL = "shared_tiling(tile_m=128, tile_n=64, tile_k=32)"

CASES = {
    "ragged": ("a @ b", {"a": (1000, 700), "b": (700, 908)}, f"{LARGE}, cluster_multicast"),
    "ragged, small tiles": ("a @ b", {"a": (1000, 700), "b": (700, 908)}, f"{SMALL}, cluster_multicast(blocks=4)"),
    "both by depth": ("a @ b.T", {"a": (1000, 700), "b": (908, 700)}, f"{LARGE}, block_swizzle"),
    "first by rows": ("a.T @ b.T", {"a": (700, 1000), "b": (908, 700)}, f"{OTHER}, cluster_multicast, block_swizzle"),
    "batches": ("torch.bmm(a, b)", {"a": (5, 300, 260), "b": (5, 260, 132)}, f"{SMALL}, cluster_multicast"),
    "bias": ("torch.addmm(c, a, b, beta=0.5, alpha=2)", {"c": (516,), "a": (1028, 256), "b": (256, 516)}, LARGE),
    "deep": ("a @ b", {"a": (256, 40960), "b": (40960, 260)}, f"{SMALL}, split_k(parts=16)"),
    "shallower than a tile": ("a @ b", {"a": (4096, 20), "b": (20, 4096)}, f"{LARGE}, cluster_multicast"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_product_by_warpgroups_is_believed(
    judge: Callable[[Problem, Kernel], Evaluation], prepare: Callable[[Problem], Preparation], name: str
) -> None:
    result, shapes, strategy = CASES[name]
    inputs = ", ".join(f"torch.randn{shape}" for shape in shapes.values())
    source = FILE.format(names=", ".join(shapes), result=result, inputs=inputs)
    problem = Problem(name=name.replace(" ", "_").replace(",", ""), source=source, policy=NumericsPolicy.TF32)
    preparation = prepare(problem)
    briefing = Briefing(
        problem=problem,
        facts=preparation.facts,
        target=Target.CUDA,
        device=preparation.environment.device,
        placement=preparation.placement,
    )
    kernel = PlaybookTranslator().translate(briefing, parse(f"{strategy}, {WARPGROUPS}: "), (), 0)
    evaluation = judge(problem, kernel)
    describe(name, evaluation)
    assert evaluation.verdict is Verdict.AUDITED, evaluation.failure
