"""Slots in a shared arena: guards, poison, strides, mixtures of hidden draws."""

from __future__ import annotations

import itertools

import pytest
import torch

from cupilot.domain.problem import DType, NumericsPolicy, Role
from gpu_worker.judge.rotation import Rotation
from gpu_worker.judge.slots import Slots, same_bytes
from gpu_worker.targets.base import ALIGNMENT
from gpu_worker.targets.cpu_judge import CpuJudgeDevice
from tests.unit.gpu_worker.records import spec
from tests.unit.gpu_worker.served import Served

DTYPES = [item for item in DType if item.itemsize > 1 or item is DType.BOOL]


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
    slots.renew()
    assert slots.broken_guard(2) is None


def test_nothing_is_left_for_the_next_kernel_to_find(slots: Slots) -> None:
    slots.fill(1, [torch.rand(45).as_strided((7, 5), (1, 9))])
    slots.outputs(1)[0].fill_(1.0)
    slots.renew()
    assert bool(torch.cat([slots.given(1)[0].flatten(), slots.outputs(1)[0].flatten()]).isnan().all())


@pytest.mark.parametrize("share", [0.02, 1.0])
def test_a_changed_input_of_any_slot_is_seen(device: CpuJudgeDevice, share: float) -> None:
    slots = Slots(device, [spec("x", (200, 50)), spec("label", (3,), dtype=DType.INT64)], {}, 8)
    for slot in range(8):
        slots.fill(slot, [torch.rand(200, 50), torch.arange(3)])
    watch = slots.watch([6, 2, 5])
    slots.given(3)[0].zero_()
    assert slots.changed(watch) is None, "nobody watches that slot"
    slots.given(5)[0][-int(200 * share) :] = 1e-40
    assert slots.changed(watch) == "x"
    watch = slots.watch([0, 1])
    slots.given(1)[1][2] = 1 << 40
    assert slots.changed(watch) == "label", "a short tensor is watched whole"


SOURCE = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 4)
    def forward(self, x, mask, fixed, both, labels):
        return self.linear(x) * mask + fixed + both[:, labels]
def get_inputs():
    half = torch.rand(32, 32)
    labels = torch.randint(0, 32, (4,))
    return [torch.rand(32, 64), torch.rand(32, 4).tril(), torch.ones(4), half + half.T, labels]
def get_init_inputs():
    return []
"""


@pytest.fixture
def rotation(device: CpuJudgeDevice) -> tuple[Rotation, Slots]:
    with torch.no_grad():
        served = Served(SOURCE, NumericsPolicy.FP32, device)
        reference, specs = served.link, served.facts.tensors
        return Rotation(reference, specs, [11, 12, 13]), Slots(device, specs, {}, 2)


def test_rotation_gives_other_inputs_each_time_and_knows_what_it_wrote(rotation: tuple[Rotation, Slots]) -> None:
    rotating, slots = rotation
    seen = []
    for _ in range(8):
        content = rotating.fill(slots, 0, rotating.choose_state())
        assert rotating.intact(slots, 0, content) is None
        x, mask, fixed, both, labels, weight, _ = (tensor.clone() for tensor in slots.given(0))
        assert torch.equal(mask, mask.tril())
        assert torch.equal(both, both.T)
        seen.append((x, fixed, both, labels, weight))
    for position in range(5):
        assert len({tuple(item[position].flatten().tolist()) for item in seen}) > 1
    for position, name in enumerate(("x", "mask", "fixed", "both", "labels", "linear_weight", "linear_bias")):
        content = rotating.fill(slots, 0, rotating.choose_state())
        slots.given(0)[position].reshape(-1)[-1] += 1
        assert rotating.intact(slots, 0, content) == name


def test_no_row_comes_again(rotation: tuple[Rotation, Slots]) -> None:
    """Else a kernel could recognise rows by a few elements, and answer from what it remembers of each."""
    rotating, slots = rotation
    seen: set[tuple[float, ...]] = set()
    for _ in range(32):
        rotating.fill(slots, 0, rotating.choose_state())
        x, _, _, _, _, weight, _ = slots.given(0)
        rows = {tuple(row) for row in [*x.tolist(), *weight.tolist()]}
        assert not rows & seen
        seen |= rows


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int16, torch.bool])
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("length", [64, 61])
def test_tensors_are_compared_bit_for_bit(dtype: torch.dtype, start: int, length: int) -> None:
    held = torch.ones(128, dtype=dtype)
    if dtype.is_floating_point:
        held[start : start + length : 3] = torch.nan
    one = held[start : start + length]
    other = one.clone()
    assert same_bytes(one, other)
    other[-1] = 0
    assert not same_bytes(one, other)


CHOLESKY = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def forward(self, x):
        return torch.linalg.cholesky(x)
def get_inputs():
    factor = torch.randn(24, 24)
    return [factor @ factor.T]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(("source", "rolled"), [(CHOLESKY, True), (CHOLESKY.replace("linalg.cholesky", "exp"), False)])
def test_symmetric_matrices_are_mixed_where_mixtures_have_an_answer(
    device: CpuJudgeDevice, source: str, rolled: bool
) -> None:
    with torch.no_grad():
        served = Served(source, NumericsPolicy.FP32, device)
        reference, specs = served.link, served.facts.tensors
        mixing, slots = Rotation(reference, specs, [1, 2, 3]), Slots(device, specs, {}, 1)
        seen: set[tuple[float, ...]] = set()
        for _ in range(8):
            content = mixing.fill(slots, 0, mixing.choose_state())
            x = slots.given(0)[0].clone()
            assert torch.equal(x, x.mT)
            assert reference.run([x])[0].isfinite().all()
            assert mixing.intact(slots, 0, content) is None
            seen.add(tuple(sorted(x.flatten().tolist())))
        assert (len(seen) <= 3) is rolled, "a matrix that is rolled holds one draw's values, wherever they are"
