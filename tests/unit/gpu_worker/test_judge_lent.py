"""Lent memory: results are read where they lie, and no word of the runner's is believed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.problem import DType, Role, TensorSpec
from gpu_worker.judge.lent import LentMemory, lend
from gpu_worker.judge.runner_link import KernelFailed
from gpu_worker.judge.slots import Slots
from gpu_worker.messages.runner import COPIED
from gpu_worker.targets.cpu_judge import CpuJudgeDevice
from gpu_worker.targets.cuda.lent import joined

SPECS = [
    TensorSpec(name="x", role=Role.INPUT, dtype=DType.FLOAT32, shape=(4, 8), strides=(8, 1)),
    TensorSpec(name="values", role=Role.OUTPUT, dtype=DType.FLOAT32, shape=(4, 8), strides=(8, 1)),
    TensorSpec(name="indices", role=Role.OUTPUT, dtype=DType.INT64, shape=(4,), strides=(1,)),
]
FREE = 4096


class Lending:
    """Slots, lent memory of which the first bytes are free, and what a file would write there."""

    def __init__(self) -> None:
        device = CpuJudgeDevice(threads=1, cache_bytes=2**20, memory_bytes=2**30)
        self.slots = Slots(device, SPECS, {}, 3)
        self.lent = LentMemory(device, self.slots, SPECS)
        self.lent.poison([[0, FREE]])

    def write(self, place: int, values: torch.Tensor) -> int:
        memory = self.lent.arena.bytes[place : place + values.nbytes]
        memory.view(values.dtype).copy_(values.reshape(-1))
        return place

    def take(self, order: list[int], places: list[list[int]]) -> None:
        self.lent.rehearse(len(order))
        self.lent.adopt(order, places, self.lent.look(places))


@pytest.fixture
def lending() -> Iterator[Lending]:
    made = Lending()
    yield made
    made.lent.close()
    made.slots.close()


def test_results_are_taken_from_where_they_lie(lending: Lending) -> None:
    values, indices = torch.rand(4, 8), torch.arange(4)
    lending.take([2, 0], [[lending.write(512, values), lending.write(1024, indices)], [COPIED, COPIED]])
    got = lending.slots.outputs(2)
    assert torch.equal(got[0], values)
    assert torch.equal(got[1], indices)
    assert not lending.slots.unwritten(2, 0).any()
    assert not lending.slots.outputs(0)[0].equal(values), "a copied result is in its slot already"


def test_what_a_file_did_not_write_shows(lending: Lending) -> None:
    values = torch.rand(4, 8)
    lending.write(512, values[:3])
    lending.write(1024, torch.arange(3))
    lending.take([1], [[512, 1024]])
    assert lending.slots.unwritten(1, 0).reshape(4, 8)[3].all()
    assert lending.slots.unwritten(1, 1).tolist() == [False, False, False, True]
    assert lending.slots.outputs(1)[0][3].isnan().all()


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ([[FREE, 0]], "outside of the memory that was free"),
        ([[FREE - 64, 0]], "outside of the memory that was free"),
        ([[2, 1024]], "outside of the memory that was free"),
        ([[0, 120]], "two results in one place"),
        ([[0, 2**60]], "no places"),
        ([[0]], "no places"),
        ([[0, -2]], "no places"),
        ([], "no places"),
    ],
)
def test_impossible_places_are_refused(lending: Lending, places: list[list[int]], words: str) -> None:
    with pytest.raises(KernelFailed, match=words) as caught:
        lending.take([0], places)
    assert caught.value.kind is FailureKind.POLICY_BREACH


def test_two_blocks_of_one_filling_share_no_place(lending: Lending) -> None:
    lending.take([0], [[0, 512]])
    with pytest.raises(KernelFailed, match="two results in one place"):
        lending.take([1], [[64, 1024]])
    lending.lent.poison([[0, FREE]])
    lending.take([1], [[64, 1024]])


@pytest.mark.parametrize("ranges", [[[0]], [[8, 8]], [[-2, 8]], [[0, 2**60]], [[1, 9]]])
def test_impossible_free_memory_is_refused(lending: Lending, ranges: list[list[int]]) -> None:
    with pytest.raises(KernelFailed, match="was not lent"):
        lending.lent.poison(ranges)


def test_a_result_that_still_changes_was_not_done(lending: Lending) -> None:
    lending.write(0, torch.rand(4, 8))
    lending.lent.rehearse(1)
    look = lending.lent.look([[0, 512]])
    lending.lent.arena.bytes[: 4 * 8 * 4] += 1
    with pytest.raises(KernelFailed) as caught:
        lending.lent.adopt([0], [[0, 512]], look)
    assert caught.value.kind is FailureKind.UNWRITTEN_OUTPUT


def test_nothing_is_lent_where_bytes_or_places_cannot_be_told() -> None:
    device = CpuJudgeDevice(threads=1, cache_bytes=2**20, memory_bytes=2**30)
    slots = Slots(device, SPECS, {}, 2)
    assert lend(device, slots, SPECS, None) is None, "a CPU copies"  # type: ignore[arg-type]
    device.lends = True
    flags = TensorSpec(name="flags", role=Role.OUTPUT, dtype=DType.BOOL, shape=(4,), strides=(1,))
    assert lend(device, slots, [*SPECS, flags], None) is None  # type: ignore[arg-type]
    assert lend(device, slots, [SPECS[0], *[SPECS[1]] * 9], None) is None  # type: ignore[arg-type]
    slots.close()


def test_free_ranges_that_touch_are_one() -> None:
    assert joined([(512, 1024), (0, 512), (2048, 4096)]) == [(0, 1024), (2048, 4096)]
    assert joined([]) == []
