"""Baselines and bounds of preparations on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cupilot.domain.data_sheets import stated_peaks
from cupilot.domain.evaluation import Preparation
from cupilot.domain.problem import Problem

pytestmark = pytest.mark.gpu

SOURCE = """
import time
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.ConvTranspose2d(64, 64, 3)
    def forward(self, x):
        {forward}

def get_inputs():
    return [torch.rand(8, 64, 128, 128)]

def get_init_inputs():
    return []
"""

Prepare = Callable[[Problem], Preparation]


def problem(forward: str) -> Problem:
    return Problem(name="baseline", source=SOURCE.format(forward=forward))


def test_a_sleep_is_flagged(prepare: Prepare) -> None:
    prepared = prepare(problem("time.sleep(0.01); return torch.relu(x)"))
    assert prepared.host_bound
    assert prepared.warnings


@pytest.mark.parametrize("forward", ["return torch.relu(x)", "return self.convolution(x)"])
def test_work_on_the_device_is_not(prepare: Prepare, forward: str) -> None:
    assert not prepare(problem(forward)).host_bound


def test_a_convolutions_floor_lies_below_its_direct_count(prepare: Prepare) -> None:
    placement = prepare(problem("return self.convolution(x)")).placement
    assert placement.direct_us is not None
    assert placement.floor_us < 0.5 * placement.direct_us


def test_a_card_with_a_data_sheet_has_stated_bounds(prepare: Prepare) -> None:
    prepared = prepare(problem("return torch.relu(x)"))
    sheet = stated_peaks(prepared.environment.device.name)
    if sheet is None:
        pytest.skip("no data sheet of this card")
    assert prepared.placement.stated is not None
    assert prepared.peaks.bandwidth < 1.05 * sheet.bandwidth
    assert prepared.peaks.scalar_flops < 1.05 * sheet.fp32
