"""Improvements by runs of the scripted engineer through the stack, and what is printed of them."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest

from benchmarks.stack_scripted import Rung, improves, table
from cupilot.schemas.results import CandidateSummary


@pytest.mark.parametrize(
    ("best", "better"),
    [([], False), ([1.0], False), ([1.0, 1.0, 1.0], False), ([1.0, 1.0, 1.1], True), ([0.4, 0.6, 0.6], True)],
)
def test_a_later_generation_must_find_a_better_kernel_than_the_first(best: list[float], *, better: bool) -> None:
    assert improves(best) is better


def _rung(speedup: float, ordinal: int, *techniques: str) -> Rung:
    candidate = CandidateSummary(
        id=uuid.uuid4(),
        ordinal=ordinal,
        generation=0,
        operator="crossover",
        state="evaluated",
        techniques=list(techniques),
        parents=[],
        repair_rounds=0,
        survives=True,
        created_at=datetime.now(UTC),
    )
    return Rung(speedup, candidate)


def test_each_generation_is_a_line_with_its_gain_over_the_one_before() -> None:
    lines = table([_rung(1.0, 2), _rung(1.25, 6, "vector_loads", "online_softmax"), _rung(1.25, 6)]).splitlines()
    assert lines[2:] == [
        "| 1 | 1.000x | - | 2 | plain |",
        "| 2 | 1.250x | +25.0% | 6 | vector_loads, online_softmax |",
        "| 3 | 1.250x | +0.0% | 6 | plain |",
    ]
