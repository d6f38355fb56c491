"""Short words for progress."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from cupilot.cli.text import clean, counts, event_line, interval, seconds
from cupilot.domain.evaluation import Interval
from cupilot.schemas import EventView


def _event(kind: str, **data: Any) -> EventView:
    return EventView(id=1, kind=kind, data=data, created_at=datetime.now(UTC))


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (_event("job.evolving"), "job evolving"),
        (_event("job.failed", reason="no_template", message="nothing fits"), "job failed: no_template, nothing fits"),
        (_event("generation.finished", number=0), "generation 1 finished"),
        (
            _event("candidate.evaluated", ordinal=3, verdict="audited", speedup=1.234),
            "candidate 3 evaluated: audited, 1.23x",
        ),
        (_event("candidate.evaluated", ordinal=4, verdict="rejected", speedup=None), "candidate 4 evaluated: rejected"),
        (_event("step.reaped", key="c1/evaluate"), "step reaped"),
        (_event("job.best", ordinal=2, speedup=1.5), "candidate 2 is the best so far: 1.50x"),
        (
            _event("job.best", ordinal=2, speedup=0.44, speedup_low=0.39),
            "candidate 2 is the best so far: 0.44x (at least 0.39x)",
        ),
        (
            _event("candidate.measured", ordinal=2, verdict="reproduced", speedup=1.4, purpose="confirm"),
            "candidate 2 measured again: reproduced, 1.40x",
        ),
        (
            _event("job.evolved", ended_by="generations"),
            "job has ended its search; the best kernel is measured again in fresh processes",
        ),
        (_event("candidate.active", ordinal=2), None),
        (_event("candidate.measured", ordinal=2, verdict="audited"), None),
        (
            _event("candidate.credited", technique="threads", outcome="helps", factor=1.84),
            "threads is worth 1.84x to the winner",
        ),
        (_event("candidate.credited", technique="simd", outcome="inapplicable", factor=None), None),
        (_event("step.queued"), None),
        (_event("step.succeeded"), None),
        (_event("a.future.kind"), None),
        (_event("job.\x1b[31m"), "job [31m"),
    ],
)
def test_an_event_in_one_line(event: EventView, line: str | None) -> None:
    assert event_line(event) == line


def test_counts_are_ordered_by_verdict_and_tolerate_new_ones() -> None:
    assert counts({"rejected": 2, "new": 1, "audited": 5}) == "audited 5, rejected 2, new 1"
    assert counts({}) == "none measured yet"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (99.4, "99 s"),
        (99.7, "1 min 40 s"),
        (185, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7380, "2 h 03 min"),
    ],
)
def test_durations(value: float, text: str) -> None:
    assert seconds(value) == text


def test_a_speedup_comes_with_its_interval() -> None:
    assert interval(Interval(low=0.904, median=1.0, high=1.096)) == "1.00x [0.90, 1.10]"


def test_cleaning_keeps_letters_of_all_scripts() -> None:
    assert clean("Ω 漢字 é 🚀\tx\ny") == "Ω 漢字 é 🚀 x y"
    assert clean("a\x00b\x7fc\x9bd\ud800e\u200be") == "abcdee"
