"""Input laws: reproducible, structure kept, parameters moved."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cupilot.domain.problem import DType, Role
from gpu_worker.judge import laws
from tests.unit.gpu_worker.records import spec

X = spec("x", (64, 128))
LABELS = spec("labels", (64,), dtype=DType.INT64)
VARIANCE = spec("running_var", (128,), Role.BUFFER)
BIAS = spec("bias", (128,), Role.PARAMETER)


def own() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.rand(64, 128), torch.randint(0, 10, (64,)), torch.ones(128), torch.zeros(128)]


@pytest.mark.parametrize("law", laws.LAWS)
def test_a_law_is_reproducible_and_leaves_its_source_alone(law: str) -> None:
    drawn = own()
    first = laws.apply(law, drawn, [X, LABELS, VARIANCE, BIAS], seed=5)
    second = laws.apply(law, drawn, [X, LABELS, VARIANCE, BIAS], seed=5)
    other = laws.apply(law, drawn, [X, LABELS, VARIANCE, BIAS], seed=6)
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))
    assert not torch.equal(first[0], other[0])
    assert all(torch.equal(one, two) for one, two in zip(drawn, own(), strict=True))


@pytest.mark.parametrize("law", laws.LAWS)
def test_integers_keep_their_meaning_and_parameters_move(law: str) -> None:
    drawn = own()
    _, labels, variance, bias = laws.apply(law, drawn, [X, LABELS, VARIANCE, BIAS], seed=5)
    assert torch.equal(labels, drawn[1])
    assert bool((variance > 0).all())
    assert bool((variance != 1).float().mean() > 0.9)
    assert bool((bias != 0).float().mean() > 0.9)


def test_what_each_law_does() -> None:
    x = own()[0]
    generator = torch.Generator().manual_seed(3)
    signs = laws.signed(x, generator)
    assert torch.equal(signs.abs(), x)
    assert 0.4 < float((signs < 0).float().mean()) < 0.6
    wide = laws.wide_range(x, generator)
    assert float(wide.max() / wide.median()) > 30
    planted = laws.planted_extremes(x, generator)
    assert float(planted.flatten()[0].abs()) > 30 * float(x.max())
    assert float(planted.flatten()[-1].abs()) > 30 * float(x.max())
    assert float((planted != x).float().mean()) < 0.01
    rows = laws.constant_rows(x, generator)
    assert int((rows == rows[:, :1]).all(dim=1).sum()) == 32


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
    rounded = laws.round_mantissa(x, bits)
    assert float((rounded - x.to(dtype).float()).abs().max()) <= 2.0**-bits  # ties go another way
    assert float(((rounded - x) / x).abs().max()) <= 2.0 ** -(bits + 1)
    assert torch.equal(laws.round_mantissa(rounded, bits), rounded)
    assert torch.equal(laws.round_mantissa(torch.arange(5), bits), torch.arange(5))


def test_a_nudge_is_one_rounding() -> None:
    x = torch.rand(1000) + 0.5
    moved = laws.nudge(x, 2.0**-24, seed=1)
    assert moved.dtype is torch.float64
    assert torch.allclose((moved / x.double() - 1).abs(), torch.tensor(2.0**-24, dtype=torch.float64), rtol=1e-6)


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
    assert laws.belong_together([draw(), draw(), draw()]) is (name in TOGETHER)
