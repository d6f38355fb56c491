"""Accumulators of the row templates on CUDA, run on the CPU: extremes with NaN and ties, moments far from zero."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from agents.playbook import agents
from agents.playbook.ladders import parse
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import ProblemFacts, Target
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.emulation import run_cuda
from tests.unit.agents.playbook.nvrtc import opcodes
from tests.unit.agents.playbook.references import trace

pytestmark = pytest.mark.builds

Function = Callable[[torch.Tensor], torch.Tensor]

EXTREMES: dict[str, Function] = {
    "max": lambda x: x.amax(1),
    "min": lambda x: x.amin(1),
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(1),
}
SHARED_BY = [
    "column_slices(slices=4), loop_unrolling(factor=4)",
    "warp_shuffle_reduction",
    "warp_shuffle_reduction, split_rows(parts=4)",
]


def kernel_of(facts: ProblemFacts, text: str) -> Kernel:
    kernel = agents().translator.translate(briefing(facts, Target.CUDA), parse(f"{text}: "), (), 0)
    return kernel.tuned({"K_BLOCK": min(kernel.plan.tunables["K_BLOCK"].choices)})


def ties(*shape: int) -> torch.Tensor:
    """Few different values, NaN in some rows, infinities alone in two."""
    values = (torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 2).round()
    values[1::3, 5::7] = torch.nan
    values[2] = -torch.inf
    values[3] = torch.inf
    return values


@pytest.mark.parametrize("text", SHARED_BY)
@pytest.mark.parametrize("name", list(EXTREMES))
def test_extremes_are_those_of_the_reference(name: str, text: str, builds: Path) -> None:
    x = ties(6, 70, 33) if "column" in text else ties(8, 1200)
    facts, expected = trace(EXTREMES[name], {"x": x})
    results = run_cuda(kernel_of(facts, text), facts, {"x": x}, builds)
    torch.testing.assert_close(results[0], expected[0], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", list(EXTREMES))
def test_loads_of_extremes_do_not_wait_for_comparisons(name: str) -> None:
    """Branches would stand between the loads; those of the loops remain."""
    facts, _ = trace(EXTREMES[name], {"x": torch.zeros(6, 1200, 330)})
    assert opcodes(kernel_of(facts, SHARED_BY[0]), facts).count("BSSY") <= 3


@pytest.mark.parametrize("text", ["vector_loads, warp_shuffle_reduction", "vector_loads(width=2), register_rows"])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_moments_are_as_accurate_far_from_zero(offset: float, text: str, builds: Path) -> None:
    x = torch.randn(6, 1028, generator=torch.Generator().manual_seed(1)) + offset
    x[1] = offset
    facts, expected = trace(lambda x: F.layer_norm(x, (1028,)), {"x": x})
    results = run_cuda(kernel_of(facts, f"{text}, one_pass_moments(method=welford)"), facts, {"x": x}, builds)
    exact = F.layer_norm(x.double(), (1028,))
    assert (results[0] - exact).abs().max() <= 2 * (expected[0] - exact).abs().max() + 1e-6
