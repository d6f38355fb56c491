"""Overheads of an imported file's blocks, and how far a clock in a file's hands is believed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_worker.judge.overheads import MARGIN, Overheads, measure_overheads
from gpu_worker.judge.runner_link import MOST_PARTS, Ran
from gpu_worker.targets.cuda.judge import CudaJudge


class Link:
    """A runner whose empty parts take 0.5 ms each, and now and then much longer."""

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.held = False

    def run_empty(self, parts: int, timeout: float, release: Callable[[], Any] | None = None) -> Ran:
        assert timeout > 0
        if release is not None:
            assert self.held, "a block begins with a runner that stands still"
            release()
        self.blocks.append(parts)
        late = 0.1 if len(self.blocks) % 12 == 0 else 0.0
        return Ran(0.5e-3 * parts + late, 0.0, [], parts)

    def hold(self, on: bool) -> None:
        self.held = on


def device(*, lends: bool) -> Any:
    return SimpleNamespace(lends=lends, flush_cache=lambda: None, synchronize=lambda: None, torch_device="cpu")


def test_an_overhead_is_a_margin_beyond_what_most_empty_blocks_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_worker.judge.overheads.IDLE_SECONDS", 0.0)
    link = Link()
    overheads = measure_overheads(link, device(lends=True), link.hold, 30.0)  # type: ignore[arg-type]
    assert overheads.blocks == {parts: pytest.approx(MARGIN * 0.5e-3 * parts) for parts in range(1, MOST_PARTS + 1)}
    assert 0 < overheads.look < 1
    assert not link.held, "the runner goes on to load the file"


def test_nothing_is_measured_where_the_judges_clock_alone_counts() -> None:
    link = Link()
    assert measure_overheads(link, device(lends=False), link.hold, 30.0) == Overheads()  # type: ignore[arg-type]
    assert not link.blocks


@pytest.mark.parametrize(
    ("reported", "seconds"),
    [
        (19e-3, 19e-3),  # as long as the overhead explains
        (18.4e-3, 18.5e-3),
        (1e-3, 18.5e-3),  # a lie earns the overhead and no more
        (20.1e-3, 20.1e-3),
        (25e-3, None),  # longer than the judge waited
        (0.0, None),
    ],
)
def test_a_files_clock_is_believed_within_an_empty_blocks_time(reported: float, seconds: float | None) -> None:
    judge = CudaJudge.__new__(CudaJudge)
    judge._trusting = False
    assert judge.kernel_seconds(20e-3, reported, 5, 1.5e-3) == (None if seconds is None else pytest.approx(seconds))
