"""Slots in a shared arena: guards, poison, strides, digests."""

from __future__ import annotations

import itertools

import pytest
import torch

from cupilot.domain.problem import DType, Role
from gpu_worker.judge import slots as slots_module
from gpu_worker.judge.slots import Slots
from gpu_worker.targets.base import ALIGNMENT
from gpu_worker.targets.cpu_judge import CpuJudgeDevice
from tests.unit.gpu_worker.records import spec

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
    digest = slots.digest(1)
    assert slots.changed_since(1, digest) is None
    slots.given(1)[0][3, 3] += 1
    assert slots.changed_since(1, digest) == "x"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3,), (64, 61)])
def test_a_single_changed_byte_changes_a_digest(device: CpuJudgeDevice, dtype: DType, shape: tuple[int, ...]) -> None:
    """Also of NaN, which equals nothing."""
    slots = Slots(device, [spec("x", shape, dtype=dtype), spec("y", (2,))], {}, 9)
    digest = slots.digest(4)
    assert slots.changed_since(4, digest) is None
    words = slots.storages(4)[0].view(torch.uint8)
    for place in (0, len(words) // 2, len(words) - 1):
        words[place] ^= 128
        assert slots.changed_since(4, digest) == "x"
        words[place] ^= 128
    assert slots.changed_since(4, digest) is None


@pytest.mark.parametrize("rows", [1.3, 4.6])
def test_what_moved_within_a_large_tensor_changes_a_digest(
    device: CpuJudgeDevice, monkeypatch: pytest.MonkeyPatch, rows: float
) -> None:
    """A digest is made of sums of columns, of which no place is known."""
    monkeypatch.setattr(slots_module, "DIGEST_COLUMNS", 2**12)
    slots = Slots(device, [spec("x", (int(rows * 2**14),))], {}, 1)
    x = slots.given(0)[0].copy_(torch.randn(int(rows * 2**14)))
    digest = slots.digest(0)
    for moved in (x.flip(0), x.roll(len(x) // 2), x.roll(2), x.sort().values):
        before = x.clone()
        x.copy_(moved)
        assert slots.changed_since(0, digest) == "x"
        x.copy_(before)
    for place in (1, len(x) // 2, len(x) - 1):
        x[place] += 1
        assert slots.changed_since(0, digest) == "x"
        x[place] -= 1
        x.copy_(before)
    assert slots.changed_since(0, digest) is None


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


@pytest.mark.parametrize(
    ("dtype", "nan"), [(DType.BFLOAT16, 0x7FFF), (DType.FLOAT16, 0x7FFF), (DType.FLOAT32, 0x7FFFFFFF)]
)
def test_cudas_own_nan_is_no_poison(monkeypatch: pytest.MonkeyPatch, dtype: DType, nan: int) -> None:
    monkeypatch.setattr(slots_module.secrets, "randbelow", lambda count: count - 1)
    assert slots_module._pattern(dtype) == nan - 1


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


def test_a_workspace_holds_nothing_that_is_always_there(slots: Slots) -> None:
    start = slots.offsets()[0]["work"]
    workspace = slots._arena.bytes[start : start + 100]
    firsts = set()
    for _ in range(200):
        workspace.fill_(77)
        slots.poison(0)
        assert len(workspace.unique()) == 1
        firsts.add(int(workspace[0]))
    assert {0, 77, 255} < firsts
