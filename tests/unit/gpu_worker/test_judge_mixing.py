"""Mixtures of draws: several rows at once are what each would be alone."""

from __future__ import annotations

import pytest
import torch

from gpu_worker.judge.mixing import NEAREST, Mixer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("smooth", [True, False])
def test_rows_that_are_mixed_at_once_are_what_each_is_alone(dtype: torch.dtype, smooth: bool) -> None:
    if smooth and not dtype.is_floating_point:
        pytest.skip("nothing lies between two whole numbers")
    mixer = Mixer(torch.Generator().manual_seed(1), torch.device("cpu"))
    pool = [(torch.randn(700) * 9).to(dtype) for _ in range(3)]
    rows, pairs, begins = [4, 0, 2], [(0, 1), (2, 0), (1, 2)], [5, 1_000_003, 77]
    arena = torch.zeros(5, 900, dtype=dtype)
    mixer.mix_rows(arena[:, 100:800], rows, pool, pairs, begins, smooth=smooth)
    for row, (first, second), begin in zip(rows, pairs, begins, strict=True):
        alone = torch.empty(700, dtype=dtype)
        mixer.mix(alone, pool[first], pool[second], begin, smooth=smooth)
        assert torch.equal(arena[row, 100:800], alone)
    untouched = arena.clone()
    untouched[rows, 100:800] = 0
    assert not untouched.any(), "nothing else is written"


def test_mixtures_are_near_one_of_two_draws() -> None:
    mixer = Mixer(torch.Generator().manual_seed(1), torch.device("cpu"))
    into = torch.empty(1, 4096)
    mixer.mix_rows(into, [0], [torch.zeros(4096), torch.ones(4096)], [(0, 1)], [9], smooth=True)
    assert bool(((into <= NEAREST) | (into >= 1 - NEAREST)).all())
    assert 0.4 < float((into > 0.5).double().mean()) < 0.6
