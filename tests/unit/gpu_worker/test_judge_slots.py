"""Slots in a shared arena: guards, poison, strides, mixtures of hidden draws."""

from __future__ import annotations

import itertools

import pytest
import torch

from cupilot.problem import DType, NumericsPolicy, Role
from gpu_worker.judge.reference import Reference
from gpu_worker.judge.rotation import Rotation
from gpu_worker.judge.slots import Slots
from gpu_worker.targets.base import ALIGNMENT
from gpu_worker.targets.cpu_judge import CpuJudgeDevice
from tests.unit.gpu_worker.records import spec

DTYPES = [item for item in DType if item.itemsize > 1]


@pytest.fixture(scope="module")
def device() -> CpuJudgeDevice:
    return CpuJudgeDevice(threads=1, cache_bytes=2**20, memory_bytes=2**30)


@pytest.fixture
def slots(device: CpuJudgeDevice) -> Slots:
    specs = [spec("x", (7, 5), strides=(1, 9)), spec("out", (3, 3), Role.OUTPUT), spec("arg", (), Role.OUTPUT)]
    return Slots(device, specs, {"work": 100}, 3)


def test_offsets_are_aligned_and_do_not_overlap(slots: Slots) -> None:
    places = sorted((offset, name) for slot in slots.offsets() for name, offset in slot.items())
    assert len(places) == 3 * 4
    assert all(offset % ALIGNMENT == 0 for offset, _ in places)
    assert all(after - before >= 512 for (before, _), (after, _) in itertools.pairwise(places))


def test_given_tensors_keep_their_strides(slots: Slots) -> None:
    x = torch.rand(45).as_strided((7, 5), (1, 9))
    slots.fill(1, [x])
    assert slots.given(1)[0].stride() == (1, 9)
    assert torch.equal(slots.given(1)[0], x)
    assert slots.unchanged(1, [x]) is None
    slots.given(1)[0][3, 3] += 1
    assert slots.unchanged(1, [x]) == "x"


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_shows_what_was_not_written(device: CpuJudgeDevice, dtype: DType) -> None:
    slots = Slots(device, [spec("out", (4, 4), Role.OUTPUT, dtype)], {}, 1)
    slots.poison(0)
    assert bool(slots.unwritten(0, 0).all())
    assert slots.probe_unwritten(0, 8)
    slots.outputs(0)[0][1] = 0
    assert slots.unwritten(0, 0).reshape(4, 4).all(dim=1).tolist() == [True, False, True, True]
    if slots.outputs(0)[0].is_floating_point():
        assert bool(slots.outputs(0)[0][0].isnan().all())
    slots.outputs(0)[0].fill_(0)
    assert not slots.probe_unwritten(0, 8)


def test_guards_see_writes_on_both_sides(slots: Slots) -> None:
    slots.poison(2)
    assert slots.broken_guard(2) is None
    out = slots.outputs(2)[0]
    for position in (-1, 9):
        place = out.storage_offset() + position
        element = out.as_strided((1,), (1,), place)
        kept = element.clone()
        element.fill_(3.0)
        assert slots.broken_guard(2) is not None
        element.copy_(kept)
        assert slots.broken_guard(2) is None
    slots.outputs(2)[1].as_strided((1,), (1,), slots.outputs(2)[1].storage_offset() + 1).fill_(1)
    assert slots.broken_guard(2) == "arg"
    slots.write_guards()
    assert slots.broken_guard(2) is None


SOURCE = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 4)
    def forward(self, x, mask, fixed):
        return self.linear(x) * mask + fixed
def get_inputs():
    return [torch.rand(32, 16), torch.rand(32, 4).tril(), torch.ones(4)]
def get_init_inputs():
    return []
"""


def test_rotation_gives_other_inputs_each_time_and_knows_what_it_wrote(device: CpuJudgeDevice) -> None:
    with torch.no_grad():
        reference = Reference(SOURCE, NumericsPolicy.FP32, device, seed=1)
        specs = reference.facts("hash").tensors
        rotation = Rotation(reference, specs, [11, 12, 13])
    slots = Slots(device, specs, {}, 2)
    seen = []
    for _ in range(8):
        state = rotation.choose_state()
        content = rotation.fill(slots, 0, state)
        assert rotation.intact(slots, 0, content) is None
        x, mask, fixed, weight, _ = (tensor.clone() for tensor in slots.given(0))
        assert torch.equal(mask, mask.tril())
        seen.append((x, fixed, weight))
    for position in range(3):
        assert len({tuple(item[position].flatten().tolist()) for item in seen}) > 1
    slots.given(0)[0][5, 5] += 1
    assert rotation.intact(slots, 0, content) == "x"
