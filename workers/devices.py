"""A GPU worker's device: which it is, whether it works, whose turn it is.

Asked of ``gpu_worker`` in a process of its own: this one must never load CUDA.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from cupilot.errors import Unavailable
from cupilot.hardware import Device
from cupilot.problem import Target

TIMEOUT_SECONDS = 60.0
LOCK_POLL_SECONDS = 0.05
LEAST_FREE_BYTES = 64 * 2**20
"""What one evaluation may write, builds and buffers included. With less, every step would fail on this worker, fast,
and it would eat the attempts of all jobs."""


CPU_LOCK = "cupilot-cpu.lock"
"""Shared by all steps of this machine that measure on its CPU."""


class StepCancelled(Exception):
    """The work was stopped because it is not wanted any more, or because this process has to end."""


class NoDevice(Unavailable):
    """The machine has no such device, or it does not work."""

    code = "no_device"


@contextmanager
def alone_on(device: Device, cancelled: Callable[[], bool]) -> Iterator[None]:
    """Keep other workers of this machine off a GPU meanwhile: two at once would spoil each other's times.

    Raises :class:`StepCancelled` where the wait for the card is cancelled. A CPU is shared with everybody anyway; what
    can wait asks :func:`cpu_is_measured_on`.
    """
    if device.target is not Target.CUDA:
        with _measuring_on_cpu():
            yield
        return
    descriptor = _opened(f"cupilot-{device.uid}.lock")
    try:
        while not _locked(descriptor):
            if cancelled():
                raise StepCancelled
            time.sleep(LOCK_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _measuring_on_cpu() -> Iterator[None]:
    with ExitStack() as held:
        with suppress(OSError):  # another user's file; the step itself needs no lock
            descriptor = _opened(CPU_LOCK)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


def cpu_is_measured_on() -> bool:
    """Whether a step measures on this machine's CPU now, so that background work had better wait."""
    try:
        descriptor = _opened(CPU_LOCK)
    except OSError:
        return False
    try:
        return not _locked(descriptor)
    finally:
        os.close(descriptor)


def check_work_folder(folder: Path) -> None:
    """Raise :class:`NoDevice` where there is no room to work: a device without scratch space is of no use."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise NoDevice(f"the work folder cannot be used: {error.strerror}", hint="see CUPILOT_WORK_DIR") from error
    if free < LEAST_FREE_BYTES:
        what = f"the work folder has {free / 2**20:.0f} MiB free, an evaluation needs {LEAST_FREE_BYTES // 2**20}"
        raise NoDevice(what, hint="make room, or move it with CUPILOT_WORK_DIR")


def uid_of(device: Device) -> str | None:
    """How ``gpu_worker`` is told which device is meant; the CPU needs no telling."""
    return device.uid if device.target is Target.CUDA else None


def _opened(name: str) -> int:
    """A lock file of this machine."""
    return os.open(Path(tempfile.gettempdir()) / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def find_device(target: Target, uid: str | None) -> Device:
    """The device of a target, or the one with this UUID; raises :class:`NoDevice`."""
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
