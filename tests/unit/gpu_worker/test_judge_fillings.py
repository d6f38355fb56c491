"""Fillings: fresh mixtures of hidden draws under laws of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cupilot.domain.problem import NumericsPolicy
from gpu_worker.judge import laws
from gpu_worker.judge.fillings import WANTED, Fillings, weights
from gpu_worker.judge.slots import Slots
from gpu_worker.targets.cpu_judge import CpuJudgeDevice
from tests.unit.gpu_worker.served import Served

EMBEDDING = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 16)
    def forward(self, ids):
        return self.table(ids)
def get_inputs():
    return [torch.randint(0, 64, (8, 32))]
def get_init_inputs():
    return []
"""

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
    return [torch.rand(32, 64), torch.rand(32, 4).triu(), torch.ones(4), half + half.T, labels]
def get_init_inputs():
    return []
"""

GATES = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(64))
        self.register_buffer("mask", torch.ones(32, 32).tril())
        self.register_buffer("state", torch.zeros(64))
    def forward(self, x):
        return self.mask @ (x * self.gate + self.state)
def get_inputs():
    return [torch.rand(32, 64)]
def get_init_inputs():
    return []
"""

ALL_LAWS = [laws.OWN, *laws.TRIED, laws.INTEGERS, laws.PERTURBED]


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def device() -> CpuJudgeDevice:
    return CpuJudgeDevice(threads=1, cache_bytes=2**20, memory_bytes=2**30)


def made(device: CpuJudgeDevice, source: str = SOURCE) -> tuple[Fillings, Slots]:
    served = Served(source, NumericsPolicy.FP32, device)
    return Fillings(served.link, served.facts.tensors, [11, 12, 13]), Slots(device, served.facts.tensors, {}, 2)


def fill(fillings: Fillings, slots: Slots, law: str = laws.OWN) -> list[torch.Tensor]:
    """The given tensors of a slot under a law."""
    fillings.renew()
    fillings.fill(slots, {0: law})
    return [tensor.clone() for tensor in slots.given(0)]


def test_inputs_are_new_in_each_filling_and_keep_their_structure(device: CpuJudgeDevice) -> None:
    fillings, slots = made(device)
    seen = []
    for _ in range(8):
        x, mask, fixed, both, labels, weight, _ = fill(fillings, slots)
        assert torch.equal(mask, mask.triu())
        assert torch.equal(both, both.T)
        assert 0 <= float(x.min()) <= float(x.max()) <= 1
        seen.append((x, fixed, both, labels, weight))
    for position in range(5):
        assert len({tuple(item[position].flatten().tolist()) for item in seen}) > 1


@pytest.mark.parametrize("law", [*ALL_LAWS, laws.PARAMETERS, laws.NEGATED])
def test_what_begins_as_zeros_is_something_else_in_each_filling(device: CpuJudgeDevice, law: str) -> None:
    """A kernel that is given a shut gate in each timed launch has nothing to do."""
    fillings, slots = made(device, GATES)
    for _ in range(4):
        _, gate, mask, state = fill(fillings, slots, law)
        assert float((gate != 0).double().mean()) > 0.9
        assert float((state != 0).double().mean()) > 0.9
        assert torch.equal(mask, mask.tril()), "what a buffer leaves out by construction stays left out"


@pytest.mark.parametrize("law", ALL_LAWS)
def test_each_law_keeps_structure_and_whole_numbers(device: CpuJudgeDevice, law: str) -> None:
    fillings, slots = made(device)
    _, mask, _, both, labels, weight, _ = fill(fillings, slots, law)
    assert torch.equal(mask, mask.triu())
    assert torch.equal(both, both.T)
    assert 0 <= int(labels.min()) <= int(labels.max()) < 32
    assert (set(weight.unique().tolist()) <= {-2.0, -1.0, 1.0, 2.0}) is (law == laws.INTEGERS)


def test_no_value_comes_again(device: CpuJudgeDevice) -> None:
    """Else a kernel could recognise inputs by a few elements, and answer from what it remembers of each."""
    fillings, slots = made(device)
    seen: set[float] = set()
    for _ in range(8):
        x, *_ = fill(fillings, slots)
        values = set(x.flatten().tolist())
        assert len(values & seen) < len(values) / 100, "of 2^24 floats some are drawn twice"
        seen |= values


def test_the_law_of_users_is_half_and_laws_that_were_compared_least_come_more_often() -> None:
    compared = dict.fromkeys(ALL_LAWS, WANTED)
    even = weights(ALL_LAWS, compared)
    assert even[laws.OWN] == sum(even.values()) / 2
    wanted = weights(ALL_LAWS, compared | {"signed": 0})
    assert wanted["signed"] > 2 * wanted[laws.OFFSET]


def test_of_ids_the_law_draws_the_parameters(device: CpuJudgeDevice) -> None:
    source = EMBEDDING
    fillings, slots = made(device, source)
    ids, weight = fill(fillings, slots, laws.INTEGERS)
    assert ids.dtype is torch.int64
    assert set(weight.unique().tolist()) == {-2.0, -1.0, 1.0, 2.0}


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
    served = Served(source, NumericsPolicy.FP32, device)
    fillings, slots = made(device, source)
    fillings._draw_seconds = 1.0  # as if drawing took long: the pool stays what it is
    seen: set[tuple[float, ...]] = set()
    for _ in range(8):
        (x,) = fill(fillings, slots)
        assert torch.equal(x, x.mT)
        assert served.link.run([x])[0].isfinite().all()
        seen.add(tuple(sorted(x.flatten().tolist())))
    assert len(seen) == 8, "values that came before, wherever they are, could be recognised"
    assert fillings._rolled is rolled


IN_ORDER = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def forward(self, places, offsets, columns):
        return columns[:, places] + offsets[:-1] - offsets[1:]
def get_inputs():
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), torch.randint(1, 9, (64,)).cumsum(0)])
    return [torch.randperm(64), offsets, torch.randint(0, 1000, (64, 32)).sort(1).values.T]
def get_init_inputs():
    return []
"""


def test_what_belongs_together_is_new_and_still_does(device: CpuJudgeDevice) -> None:
    fillings, slots = made(device, IN_ORDER)
    fillings._draw_seconds = 1.0  # as if drawing took long: the pool stays what it is
    seen: list[set[tuple[float, ...]]] = [set(), set(), set()]
    for _ in range(12):
        places, offsets, columns = fill(fillings, slots)
        assert sorted(places.tolist()) == list(range(64))
        assert bool((offsets[1:] >= offsets[:-1]).all())
        assert bool((columns[1:] >= columns[:-1]).all())
        for values, tensor in zip(seen, (places, offsets, columns), strict=True):
            values.add(tuple(tensor.flatten().tolist()))
    assert all(len(values) > 6 for values in seen)


SORTED = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("knots", torch.rand(64).sort().values)
    def forward(self, x):
        return x * self.knots
def get_inputs():
    return [torch.rand(32, 64).sort(1, descending=True).values]
def get_init_inputs():
    return []
"""


def test_no_row_or_state_in_order_comes_again(device: CpuJudgeDevice) -> None:
    """A kernel that keeps what it made of one launch has no use of it in another: all values come from few draws."""
    fillings, slots = made(device, SORTED)
    fillings._draw_seconds = 1.0  # as if drawing took long: the pool stays what it is
    rows: set[tuple[float, ...]] = set()
    states: set[tuple[float, ...]] = set()
    for _ in range(12):
        x, knots = fill(fillings, slots)
        assert bool((x[:, 1:] <= x[:, :-1]).all())
        assert bool((knots[1:] >= knots[:-1]).all())
        rows |= set(map(tuple, x.tolist()))
        states.add(tuple(knots.tolist()))
    assert len(rows) == 12 * 32
    assert len(states) == 12
