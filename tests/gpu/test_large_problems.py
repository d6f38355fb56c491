"""Problems that fill much of a card, one after another in one judge: what one needed is free for the next."""

from __future__ import annotations

import pytest

from cupilot.domain import problems
from gpu_worker.evaluator import Evaluator

pytestmark = pytest.mark.gpu

NEEDED = 100 * 2**30
"""Bytes of a card that holds the largest of them with its references."""
LARGE = ("layer_norm", "argmax", "group_norm", "conv2d_depthwise_separable", "masked_cumsum", "avg_pool1d")


def test_memory_of_a_problem_is_free_for_the_next(evaluator: Evaluator) -> None:
    for name in LARGE:
        result = evaluator.prepare(problems.load(name, size="full"), timeout=300)
        assert result.preparation is not None, (name, result.failure)
        if result.preparation.environment.device.memory_bytes < NEEDED:
            pytest.skip(f"the card has less than {NEEDED >> 30} GiB")
