"""A device's states between timed blocks: ranges over the blocks that count, and reasons of all."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.hardware import Span
from gpu_worker.judge.conditions import THROTTLED_PAIRS, BlockLog, summarise
from gpu_worker.judge.runner_link import KernelFailed
from gpu_worker.targets.base import DeviceState
from gpu_worker.targets.cuda.nvml import Nvml


def state(sm: float, *slowed_by: str, celsius: float | None = 50.0, throttled: bool = False) -> DeviceState:
    return DeviceState({"sm": sm, "memory": 2619.0}, celsius, 400.0, slowed_by, throttled)


def test_ranges_are_over_the_blocks_that_count() -> None:
    kept = [state(1980.0), state(1755.0, "software_power_cap", celsius=61.0), state(1900.0, celsius=None)]
    hot = [state(900.0, "hardware_thermal_slowdown", celsius=92.0, throttled=True), state(1800.0, celsius=90.0)]
    found = summarise(kept, hot)
    assert found is not None
    assert found.blocks == 3
    assert found.clocks_mhz == {"memory": Span(low=2619.0, high=2619.0), "sm": Span(low=1755.0, high=1980.0)}
    assert found.temperature_c == Span(low=50.0, high=61.0)
    assert found.power_w == Span(low=400.0, high=400.0)
    assert found.slowed_by == {"software_power_cap": 1, "hardware_thermal_slowdown": 1}
    assert found.throttled_blocks == 1, "the other block of that pair was dropped with it, and was not throttled"


def test_a_device_that_says_nothing_has_no_conditions() -> None:
    assert summarise([DeviceState(), DeviceState()], []) is None
    assert summarise([], []) is None


def test_a_pair_counts_where_neither_block_was_throttled() -> None:
    hot = state(900.0, throttled=True)
    answers = iter([hot, state(1000.0), state(1980.0), hot, state(1980.0), state(1960.0), state(200.0)])
    log = BlockLog(lambda: next(answers))
    log.read()
    log.begin()  # that block only told how long a launch takes
    verdicts = []
    for _ in range(2):
        log.read()
        log.read()
        verdicts.append(log.end_pair(timed=True))
    assert verdicts == [True, False]
    log.read()
    assert log.end_pair(timed=True), "a pair is not held responsible for the one before"
    log.read()
    log.end_pair(timed=False)  # its clocks disagreed: no time rests on it
    assert log.dropped_pairs == 1
    found = log.conditions()
    assert found is not None
    assert found.blocks == 3
    assert found.clocks_mhz["sm"] == Span(low=1000.0, high=1980.0)


def test_a_machine_that_stays_hot_cannot_time() -> None:
    log = BlockLog(lambda: state(900.0, throttled=True))

    def pair() -> bool:
        log.read()
        return log.end_pair(timed=True)

    assert not any(pair() for _ in range(THROTTLED_PAIRS - 1))
    with pytest.raises(KernelFailed) as caught:
        pair()
    assert caught.value.kind is FailureKind.INFRASTRUCTURE


class Library(SimpleNamespace):
    """As much of pynvml as a reading takes; ``reasons`` is the bit mask."""

    class NVMLError(Exception):
        pass

    def __getattr__(self, name: str) -> Any:
        if name == "nvmlDeviceGetPowerUsage":
            raise self.NVMLError
        answers = {
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetCurrentClocksEventReasons": self.reasons,
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetTemperature": 55,
        }
        return lambda *_: answers.get(name)


@pytest.mark.parametrize(
    ("reasons", "slowed_by", "throttled"),
    [
        (0x0, (), False),
        (0x1, (), False),
        (0x4, ("software_power_cap",), False),
        (0x24, ("software_power_cap", "software_thermal_slowdown"), True),
        (0x80, ("hardware_power_brake",), True),
    ],
)
def test_a_reading_tells_the_power_cap_from_heat(
    monkeypatch: pytest.MonkeyPatch, reasons: int, slowed_by: tuple[str, ...], throttled: bool
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Library(reasons=reasons))
    card = Nvml(None)
    clocks = {"sm": 1980.0, "memory": 1980.0}
    assert card.state() == DeviceState(clocks, 55.0, None, slowed_by, throttled)
    assert card.throttled() is throttled
