"""Find a GPU worker's device and check that it works. Who may use it when: :mod:`gpu_worker.turns`.

Asks ``gpu_worker`` in a process of its own: this one must never load CUDA.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from cupilot.domain.errors import Unavailable
from cupilot.domain.hardware import Device
from cupilot.domain.problem import Target

TIMEOUT_SECONDS = 60.0
LEAST_FREE_BYTES = 64 * 2**20
"""Bytes that one evaluation may write, builds and buffers included. With less, every step would fail on this worker,
quickly, and use up the attempts of all jobs."""


class StepCancelled(Exception):
    """The work was stopped: its claim is lost, its job is being cancelled, or this process has to end."""


class NoDevice(Unavailable):
    """The machine has no such device, or the device does not work."""

    code = "no_device"


def check_work_folder(folder: Path) -> None:
    """Raise :class:`NoDevice` where the work folder has no room for an evaluation."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise NoDevice(f"the work folder cannot be used: {error.strerror}", hint="see CUPILOT_WORK_DIR") from error
    if free < LEAST_FREE_BYTES:
        what = f"the work folder has {free / 2**20:.0f} MiB free, an evaluation needs {LEAST_FREE_BYTES // 2**20}"
        raise NoDevice(what, hint="make room, or move it with CUPILOT_WORK_DIR")


def uid_of(device: Device) -> str | None:
    """Return the id by which ``gpu_worker`` knows the device; None for the CPU."""
    return device.uid if device.target is Target.CUDA else None


def find_device(target: Target, uid: str | None) -> Device:
    """Return the device of a target, or the one with this UUID; raises :class:`NoDevice`."""
    command = [sys.executable, "-m", "gpu_worker", "device", "--target", target.value, "--json"]
    if uid is not None:
        command += ["--device", uid]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise NoDevice(f"the {target.value} device does not answer") from error
    if done.returncode:
        raise NoDevice(f"no {target.value} device can be used: {done.stderr.strip()[-2_000:]}")
    return Device.model_validate(json.loads(done.stdout))
