"""Words of prompts about strategies that were tried."""

from __future__ import annotations

from cupilot.domain.evolution.outcomes import outcomes
from cupilot.domain.strategy import Strategy, TechniqueUse


def strategy(name: str) -> Strategy:
    return Strategy(techniques=(TechniqueUse(id=name),))


def test_the_best_of_several_kernels_stands_for_a_strategy() -> None:
    simd, tiles = strategy("simd"), strategy("tiles")
    told = outcomes(
        [
            (simd, 1.2, None),
            (simd, 1.567, None),
            (tiles, None, "wrong_value"),
            (simd, None, "failed"),
            (tiles, None, None),
        ]
    )
    assert told == {simd.signature(): "1.57x", tiles.signature(): "failed"}
