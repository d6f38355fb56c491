"""When a run of the scripted engineer through the stack counts as an improvement."""

from __future__ import annotations

import pytest

from benchmarks.stack_scripted import improves


@pytest.mark.parametrize(
    ("best", "better"),
    [([], False), ([1.0], False), ([1.0, 1.0, 1.0], False), ([1.0, 1.0, 1.1], True), ([0.4, 0.6, 0.6], True)],
)
def test_a_later_generation_must_find_a_better_kernel_than_the_first(best: list[float], *, better: bool) -> None:
    assert improves(best) is better
