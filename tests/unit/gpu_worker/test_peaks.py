"""Peaks: measured once, kept on disk, only ever corrected upwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from cupilot.domain.problem import NumericsPolicy
from gpu_worker.peaks import PeakStore, from_measurement
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.cpu_host import CpuHost
from tests.unit.gpu_worker.records import PEAKS


def test_a_device_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PeakStore(CpuHost(threads=1), Sandbox(), tmp_path)
    first = store.get()
    assert first.bandwidth > 1e9
    assert first.scalar_flops > 1e9
    assert 0 < first.launch_seconds < 1e-3
    monkeypatch.setattr(PeakStore, "_measure", lambda _: pytest.fail("measured again"))
    assert PeakStore(CpuHost(threads=1), Sandbox(), tmp_path).get() == first


def test_the_best_of_two_measurements_is_kept() -> None:
    faster = PEAKS.model_copy(update={"bandwidth": 2e10, "scalar_flops": 1e10, "launch_seconds": 1e-6})
    both = PEAKS.best_of(faster)
    assert (both.bandwidth, both.scalar_flops, both.launch_seconds) == (2e10, 1e11, 1e-7)


def test_another_record_can_only_raise_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PeakStore(CpuHost(threads=1), Sandbox(), tmp_path)
    assert store.at_least(PEAKS) == PEAKS
    monkeypatch.setattr(PeakStore, "_measure", lambda _: PEAKS)
    assert store.get() == PEAKS
    higher = PEAKS.model_copy(update={"bandwidth": 3e10})
    assert store.at_least(higher).bandwidth == 3e10
    elsewhere = higher.model_copy(update={"device_uid": "cpu-other"})
    assert store.at_least(elsewhere) == elsewhere


def test_main_memory_is_the_bandwidth_that_counts() -> None:
    measured = {
        "bandwidth": [[2**20, 9e11], [2**28, 5e10]], "scalar_flops": 2e11, "tensor_flops": {"half": 4e11},
    }  # fmt: skip
    peaks = from_measurement("cpu-0", measured)
    assert peaks.bandwidth == 5e10
    assert peaks.matrix_flops(NumericsPolicy.HALF) == 4e11
    assert peaks.matrix_flops(NumericsPolicy.FP32) == 2e11
