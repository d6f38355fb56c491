"""Long rows shared by teams of blocks that a ring of bulk copies feeds: rendered, compiled, and right when run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from agents.playbook.operators import Rows
from agents.playbook.recognition import recognise
from agents.playbook.templates import cuda_team
from agents.playbook.templates.source import Options
from cupilot.domain.hardware import Device
from tests.unit.agents.playbook.briefings import H200
from tests.unit.agents.playbook.emulation import run_cuda
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.references import trace

pytestmark = pytest.mark.builds

B16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
Function = Callable[..., torch.Tensor]


def random(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=generator) * 2 + 1).to(dtype)


def l1_norm(x: torch.Tensor) -> torch.Tensor:
    return x / x.abs().sum(1, keepdim=True)


CASES: dict[str, tuple[Function, dict[str, torch.Tensor], dict[str, dict[str, object]]]] = {
    "softmax": (lambda x: torch.softmax(x, 1), {"x": random(7, 4096)}, {}),
    "online": (lambda x: torch.softmax(x, 1), {"x": random(7, 4096)}, {"online_softmax": {}}),
    "log_softmax": (lambda x: F.log_softmax(x, 1), {"x": random(5, 3000)}, {"online_softmax": {}}),
    "odd": (l1_norm, {"x": random(9, 2047)}, {}),
    "odd_online": (lambda x: torch.softmax(x, 1), {"x": random(9, 2045)}, {"online_softmax": {}}),
    "odd_halves": (l1_norm, {"x": random(9, 4091, dtype=B16)}, {}),
    "moments": (
        lambda x: F.layer_norm(x, (2048,)),
        {"x": random(5, 2048)},
        {"one_pass_moments": {"method": "welford"}},
    ),
    "weights": (
        lambda x, w, b: F.layer_norm(x, (2047,), w, b),
        {"x": random(5, 2047), "w": random(2047), "b": random(2047)},
        {},
    ),
    "channels": (
        lambda x, w, b: F.group_norm(x, 2, w, b),
        {"x": random(3, 8, 20, 32), "w": random(8), "b": random(8)},
        {"one_pass_moments": {"method": "sum_of_squares"}},
    ),
    "odd_channels": (lambda x, w: F.group_norm(x, 2, w), {"x": random(3, 8, 19, 31), "w": random(8)}, {}),
    "two_inputs": (lambda x, y: torch.softmax(x + y, 1), {"x": random(6, 2048), "y": random(6, 2048)}, {}),
    "scales": (
        lambda x, s, t: torch.softmax(x * s + t, 1),
        {"x": random(6, 2046, dtype=F16), "s": random(6, 1, dtype=F16), "t": random(1, dtype=F16)},
        {},
    ),
    "short": (lambda x: torch.softmax(x, 1), {"x": random(3, 130)}, {}),
}
"""Function, inputs, and techniques beside the teams."""


def small(units: int, slots: int) -> Device:
    """A card of few multiprocessors that hold few pieces of 1 KiB."""
    return H200.model_copy(update={"units": units, "shared_bytes_per_block": slots * 1024 + cuda_team.STATIC_SHARED})


@pytest.mark.parametrize("division", [(1, 2, 20), (2, 5, 20), (3, 3, 4)])
@pytest.mark.parametrize("name", list(CASES))
def test_teams_make_what_the_reference_makes(
    name: str, division: tuple[int, int, int], builds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_team, "BLOCK", 64)
    monkeypatch.setattr(cuda_team, "PIECE", 1024)
    monkeypatch.setattr(cuda_team, "_blocks", lambda *_: division[0])
    _, units, slots = division
    function, inputs, techniques = CASES[name]
    facts, own = trace(function, inputs)
    operator = recognise(facts)
    assert isinstance(operator, Rows)
    options = Options({"team_rows": {"share": 0}, **techniques})
    device = small(units, slots)
    team = cuda_team.team_of(operator, options, device)
    if team.own > team.slots:
        pytest.skip("a block's part of a row does not fit")
    kernel = cuda_team.render(operator, options, device)
    assert compile_cuda(kernel, facts) == ""
    (result,) = run_cuda(kernel, facts, inputs, builds)
    exact = function(*(value.double() for value in inputs.values()))
    unit = {B16: 2.0**-8, F16: 2.0**-11, F32: 2.0**-21}[own[0].dtype]
    assert result.dtype == own[0].dtype
    assert (result.double() - exact).abs().le(unit * exact.abs() + 2e-6 * exact.abs().max()).all()
