"""Bars of a result compare what was measured side by side."""

from __future__ import annotations

from cupilot.cli.render import _bars
from cupilot.domain.evaluation import Baseline, Interval
from tests.unit.cupilot.test_report import _comparison, _evaluation


def _about(value: float) -> Interval:
    return Interval(low=0.9 * value, median=value, high=1.1 * value)


def test_bars_are_ratios_of_times_that_were_measured_in_turns() -> None:
    """The machine was three times as busy when eager was timed."""
    eager = _comparison(_about(2.0)).model_copy(update={"kernel_us": _about(900.0), "baseline_us": _about(1800.0)})
    compiled = _comparison(_about(1.5), Baseline.COMPILE).model_copy(
        update={"kernel_us": _about(300.0), "baseline_us": _about(450.0)}
    )
    bars = [text.split() for _, text in _bars(_evaluation(eager, compiled))]
    assert [bar[-1] for bar in bars] == ["1.00", "2.00", "1.50"]
    assert [len(bar[-2]) for bar in bars] == [20, 40, 30]
