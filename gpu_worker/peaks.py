"""Peaks of the device: measured once, kept on disk, the best of what was ever seen. Places nothing; that is the
roofline."""

from __future__ import annotations

import fcntl
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cupilot.domain.errors import Unavailable
from cupilot.domain.hardware import Peaks
from cupilot.domain.problem import NumericsPolicy
from gpu_worker.sandbox.limits import Limits
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.base import HostTarget

MEASURE_SECONDS = 120.0


class PeakStore:
    """The peaks of one device under one work folder."""

    def __init__(self, target: HostTarget, sandbox: Sandbox, folder: Path) -> None:
        self._target = target
        self._sandbox = sandbox
        folder.mkdir(parents=True, exist_ok=True)
        threads = f"-{target.threads}" if target.threads else ""
        self._path = folder / f"{target.device.uid}{threads}.json"

    def get(self) -> Peaks:
        """Return the known peaks; measured now where there are none."""
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self._read()
            return known if known is not None else self._write(self._measure())

    def at_least(self, other: Peaks) -> Peaks:
        """Return the better of what is known here and what another record says of the same device."""
        known = self._read()
        return other if known is None or known.device_uid != other.device_uid else known.best_of(other)

    def again(self) -> Peaks:
        """Measure once more, and keep the higher of each rate (a busy machine measures too low, never too high)."""
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known, new = self._read(), self._measure()
            return self._write(new if known is None else known.best_of(new))

    def _read(self) -> Peaks | None:
        try:
            return Peaks.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return None

    def _write(self, peaks: Peaks) -> Peaks:
        scratch = self._path.with_suffix(f".{os.getpid()}")
        scratch.write_text(peaks.model_dump_json())
        scratch.replace(self._path)
        return peaks

    def _measure(self) -> Peaks:
        limits = Limits(open_files=4096, cpus=self._target.cpus)
        done = self._sandbox.run(self._target.peaks_program(), limits, MEASURE_SECONDS)
        if done.code != 0 or done.timed_out:
            raise Unavailable(f"the device's peaks could not be measured: {done.stderr[-1000:]}")
        return from_measurement(self._target.device.uid, json.loads(done.stdout))


def from_measurement(device_uid: str, measured: dict[str, Any]) -> Peaks:
    """Return peaks from the fields of ``MeasuredPeaks``.

    The bandwidth is that of the largest working set, main memory: timed launches find their data there, not in a cache.
    """
    return Peaks(
        device_uid=device_uid,
        bandwidth=float(measured["bandwidth"][-1][1]),
        scalar_flops=float(measured["scalar_flops"]),
        tensor_flops={NumericsPolicy(name): float(rate) for name, rate in measured.get("tensor_flops", {}).items()},
        launch_seconds=float(measured.get("launch_seconds", 0.0)),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
