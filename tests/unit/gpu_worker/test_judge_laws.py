"""Input laws: reproducible, structure kept, parameters moved."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cupilot.domain.problem import DType, Role
from gpu_worker.judge import laws, roundings
from gpu_worker.judge.structure import belong_together
from tests.unit.gpu_worker.records import spec

X = spec("x", (64, 128))
LABELS = spec("labels", (64,), dtype=DType.INT64)
VARIANCE = spec("running_var", (128,), Role.BUFFER)
BIAS = spec("bias", (128,), Role.PARAMETER)
SLOPE = spec("slope", (1,), Role.PARAMETER)


def own() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.rand(64, 128), torch.randint(0, 10, (64,)), torch.ones(128), torch.zeros(128)]


@pytest.mark.parametrize("law", laws.TRIED)
def test_a_law_is_reproducible_and_leaves_its_source_alone(law: str) -> None:
    drawn = own()
    first = laws.apply(law, drawn, [X, LABELS, VARIANCE, BIAS], seed=5)
    second = laws.apply(law, drawn, [X, LABELS, VARIANCE, BIAS], seed=5)
    other = laws.apply(law, drawn, [X, LABELS, VARIANCE, BIAS], seed=6)
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))
    assert not torch.equal(first[0], other[0])
    assert all(torch.equal(one, two) for one, two in zip(drawn, own(), strict=True))


@pytest.mark.parametrize("law", laws.TRIED)
def test_integers_keep_their_meaning_and_parameters_move(law: str) -> None:
    drawn = own()
    _, labels, variance, bias = laws.apply(law, drawn, [X, LABELS, VARIANCE, BIAS], seed=5)
    assert torch.equal(labels, drawn[1])
    assert bool((variance > 0).all())
    assert bool((variance != 1).float().mean() > 0.9)
    assert bool((bias != 0).float().mean() > 0.9)


def drawn(law: str, seed: int = 3) -> torch.Tensor:
    return laws.apply(law, [own()[0]], [X], seed)[0]


def test_what_each_law_does() -> None:
    x = own()[0]
    signs = drawn("signed")
    assert torch.equal(signs.abs(), x)
    assert 0.4 < float((signs < 0).float().mean()) < 0.6
    wide = drawn("wide_range")
    assert float(wide.max() / wide.median()) > 30
    whole = drawn("integers")
    assert set(whole.unique().tolist()) == {-2.0, -1.0, 1.0, 2.0}


@pytest.mark.parametrize("seed", range(8))
def test_a_single_number_is_drawn_large_with_either_sign(seed: int) -> None:
    """Chance alone would leave one of the signs untried now and then."""
    drawn = [torch.rand(64, 128), torch.tensor([0.25])]
    (_, slope), (_, negated) = (laws.apply(law, drawn, [X, SLOPE], seed) for law in (laws.PARAMETERS, laws.NEGATED))
    assert float(slope) > 0.25
    assert float(negated) < -0.25
    assert laws.of_parameters([X, BIAS, SLOPE]) == [laws.PARAMETERS, laws.NEGATED]
    assert laws.of_parameters([X, BIAS]) == [laws.PARAMETERS]
    assert laws.of_parameters([X, VARIANCE]) == []


def test_an_offset_is_large_against_the_spread_and_upwards_where_nothing_is_negative() -> None:
    x = own()[0]
    for seed in range(20):
        shifted = drawn("offset", seed)
        assert 60 < float(shifted.mean() / x.std()) < 600
        assert torch.allclose(shifted - shifted.mean(), x - x.mean(), atol=1e-4)


@pytest.mark.parametrize("law", ["planted_extremes", "perturbed"])
def test_single_elements_are_changed_at_random_places(law: str) -> None:
    """Ends are as safe as all other places: who looks at a few elements does not see which law it is."""
    x = own()[0]
    places = [(drawn(law, seed) != x).flatten().nonzero().flatten().tolist() for seed in range(50)]
    assert max(map(len, places)) <= laws.PERTURBED_ELEMENTS
    assert len(set(map(len, places))) > 1 or law == "perturbed", "one, a few, many"
    assert len({place for some in places for place in some}) > 100
    assert sum(0 in some for some in places) < 10


def test_constant_rows_hold_many_constants_and_are_of_any_number() -> None:
    counts, values = set(), set()
    for seed in range(20):
        rows = drawn("constant_rows", seed)
        same = (rows == rows[:, :1]).all(dim=1)
        counts.add(int(same.sum()))
        values |= set(rows[same, 0].tolist())
    assert len(counts) > 5
    assert min(counts) >= 16
    assert max(counts) <= 48
    assert len(values) > 50


def test_zeros_are_elements_anywhere_and_some_rows() -> None:
    x = own()[0]
    places, empty = set(), set()
    for seed in range(20):
        zeros = drawn("zeros", seed) == 0
        empty.add(int(zeros.all(dim=1).sum()))
        places |= set(zeros[~zeros.all(dim=1)].nonzero()[:, 1].tolist())
        assert torch.equal(drawn("zeros", seed)[~zeros], x[~zeros])
        few = drawn("zeros/4", seed) == 0
        assert not few.all(dim=1).any(), "a reference without an answer to rows of zeros may have one to these"
        assert 0 < float(few.double().mean()) < 0.1
    assert empty == {round(laws.ZERO_SHARE * x.shape[0])}
    assert len(places) == x.shape[1]


def test_structure_survives() -> None:
    x = torch.rand(64, 64).tril()
    changed = laws.apply("signed", [x], [spec("x", (64, 64))], seed=1)[0]
    assert torch.equal(changed == 0, x == 0)
    symmetric = torch.rand(64, 64)
    symmetric = symmetric + symmetric.T
    changed = laws.apply("wide_range", [symmetric], [spec("x", (64, 64))], seed=1)[0]
    assert torch.equal(changed, changed.T)
    assert not torch.equal(changed, symmetric)


def test_strides_survive() -> None:
    for x in (torch.rand(32, 16).t(), torch.rand(8, 1).expand(8, 16), torch.rand(8, 40)[:, ::2]):
        changed = laws.apply("signed", [x], [spec("x", x.shape, strides=x.stride())], seed=1)[0]
        assert changed.stride() == x.stride()
        assert torch.equal(changed.abs(), x)


@pytest.mark.parametrize(("bits", "dtype"), [(10, torch.float16), (7, torch.bfloat16)])
def test_rounding_of_mantissas_is_that_of_the_hardware_types(bits: int, dtype: torch.dtype) -> None:
    x = torch.rand(10_000) + 0.5
    rounded = roundings.round_mantissa(x, bits)
    assert float((rounded - x.to(dtype).float()).abs().max()) <= 2.0**-bits  # ties go another way
    assert float(((rounded - x) / x).abs().max()) <= 2.0 ** -(bits + 1)
    assert torch.equal(roundings.round_mantissa(rounded, bits), rounded)
    assert torch.equal(roundings.round_mantissa(torch.arange(5), bits), torch.arange(5))


def test_a_nudge_is_one_rounding() -> None:
    x = torch.rand(1000) + 0.5
    moved, whole, expanded = x.double(), torch.arange(3), torch.ones(1, 3, dtype=torch.float64).expand(4, 3)
    roundings.nudge([moved, whole, expanded], 2.0**-24, seed=1)
    assert torch.allclose((moved / x.double() - 1).abs(), torch.tensor(2.0**-24, dtype=torch.float64), rtol=1e-6)
    assert (moved > x.double()).any()
    assert (moved < x.double()).any()
    assert torch.equal(whole, torch.arange(3))
    assert ((expanded - 1).abs() == 2.0**-24).all()


TOGETHER: dict[str, Callable[[], torch.Tensor]] = {
    "sorted labels": lambda: torch.randint(0, 50, (64,)).sort().values,
    "sorted columns": lambda: torch.rand(64, 8).sort(0, descending=True).values,
    "sorted rows": lambda: torch.rand(8, 64).sort(-1).values,
    "edges in order": lambda: torch.stack([torch.randint(0, 50, (64,)).sort().values, torch.randint(0, 50, (64,))]),
    "a permutation": lambda: torch.randperm(64),
    "masks of lengths": lambda: torch.arange(64) < torch.randint(1, 64, (16, 1)),
    "one-hot rows": lambda: torch.nn.functional.one_hot(torch.randint(0, 9, (64,)), 9),
}
APART: dict[str, Callable[[], torch.Tensor]] = {
    "labels": lambda: torch.randint(0, 10, (512,)),
    "tokens": lambda: torch.randint(0, 1000, (32, 128)),
    "points": lambda: torch.rand(4096, 3),
    "few truth values": lambda: torch.rand(64, 8) > 0.5,
    "rare truth values": lambda: torch.rand(8, 16, 128) > 0.9,
    "one number": lambda: torch.tensor(3),
}


@pytest.mark.parametrize("name", [*TOGETHER, *APART])
def test_what_belongs_together_is_told_from_what_does_not(name: str) -> None:
    torch.manual_seed(3)
    draw = (TOGETHER | APART)[name]
    assert belong_together([draw(), draw(), draw()]) is (name in TOGETHER)
