"""NVML's readings of one GPU. Reads only: clocks, power limits and modes of a card are its owner's business."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from cupilot.domain.errors import InvalidInput, Unavailable
from gpu_worker.targets.base import DeviceState

_T = TypeVar("_T")

_HINT = "install an NVIDIA driver, and the `gpu` extra: pip install 'cupilot[gpu]'"
_CLOCKS = {"sm": 1, "memory": 2}  # NVML_CLOCK_SM, NVML_CLOCK_MEM
_REASONS = {
    "software_power_cap": 0x4,
    "hardware_slowdown": 0x8,
    "sync_boost": 0x10,
    "software_thermal_slowdown": 0x20,
    "hardware_thermal_slowdown": 0x40,
    "hardware_power_brake": 0x80,
}
"""nvmlClocksEventReason. An idle card and clocks that an application or a display has set are none: nothing slows it
down while it works."""
_THROTTLING = frozenset(
    {"hardware_slowdown", "software_thermal_slowdown", "hardware_thermal_slowdown", "hardware_power_brake"}
)
"""The software power cap is left out: a large matrix product always meets it."""


def visible_uuids() -> list[str]:
    """Return the UUIDs of this machine's cards, those only that ``CUDA_VISIBLE_DEVICES`` shows where it is set."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        uuids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except ImportError as error:
        raise Unavailable("nvidia-ml-py is not installed", hint=_HINT) from error
    except pynvml.NVMLError as error:
        raise Unavailable(f"no NVIDIA driver: {error}", hint=_HINT) from error
    return chosen_uuids(uuids, os.environ.get("CUDA_VISIBLE_DEVICES"))


def first_visible() -> str:
    """Return the UUID of the first card that may be used; raises Unavailable where there is none."""
    uuids = visible_uuids()
    if uuids:
        return uuids[0]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        raise Unavailable("this machine has no NVIDIA GPU", hint=_HINT)
    parts = ", and a part of a card (MIG) cannot be used" if visible.strip().startswith("MIG-") else ""
    raise Unavailable(
        f"CUDA_VISIBLE_DEVICES={visible!r} shows no card of this machine{parts}",
        hint="name a card by its index or UUID, or unset the variable",
    )


def chosen_uuids(uuids: Sequence[str], visible: str | None) -> list[str]:
    """Return those of these UUIDs that a value of ``CUDA_VISIBLE_DEVICES`` shows, in its order; all for None.

    It names cards by index or by the beginning of a UUID, and ends at the first name that is no card's.
    """
    if visible is None:
        return list(uuids)
    chosen: list[str] = []
    for name in filter(None, map(str.strip, visible.split(","))):
        if name.isdigit():
            matches = list(uuids[int(name) : int(name) + 1])
        else:
            matches = [uuid for uuid in uuids if uuid.startswith(name)]
        if len(matches) != 1:
            break
        chosen += matches
    return chosen


class Nvml:
    """One GPU by UUID or index; each answer is None where the card or the machine gives none."""

    def __init__(self, device: str | None) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise Unavailable("nvidia-ml-py is not installed", hint=_HINT) from error
        self._library = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise Unavailable(f"no NVIDIA driver: {error}", hint=_HINT) from error
        self._handle = self._find(device)
        self.uuid: str = pynvml.nvmlDeviceGetUUID(self._handle)

    def _find(self, device: str | None) -> Any:
        try:
            if device is not None and not device.isdigit():
                return self._library.nvmlDeviceGetHandleByUUID(device)
            return self._library.nvmlDeviceGetHandleByIndex(int(device or 0))
        except self._library.NVMLError as error:
            raise InvalidInput(f"no GPU {device or 0} on this machine: {error}") from error

    def minor(self) -> int | None:
        """Return the number in the card's device node."""
        return self._ask(lambda: int(self._library.nvmlDeviceGetMinorNumber(self._handle)))

    def driver(self) -> str | None:
        """Return the driver's version."""
        return self._ask(lambda: str(self._library.nvmlSystemGetDriverVersion()))

    def cuda(self) -> str | None:
        """Return the newest CUDA that the driver serves."""
        version = self._ask(self._library.nvmlSystemGetCudaDriverVersion_v2)
        return None if version is None else f"{version // 1000}.{version % 1000 // 10}"

    def clocks_mhz(self) -> dict[str, float]:
        """Return present clocks of ``sm`` and ``memory``."""
        clocks = {name: self._ask(partial(self._clock, number)) for name, number in _CLOCKS.items()}
        return {name: clock for name, clock in clocks.items() if clock is not None}

    def _clock(self, number: int) -> float:
        return float(self._library.nvmlDeviceGetClockInfo(self._handle, number))

    def temperature_c(self) -> float | None:
        """Return the temperature of the GPU."""
        return self._ask(lambda: float(self._library.nvmlDeviceGetTemperature(self._handle, 0)))

    def power_w(self) -> float | None:
        """Return the present power draw of the board."""
        return self._ask(lambda: self._library.nvmlDeviceGetPowerUsage(self._handle) / 1000.0)

    def throttled(self) -> bool | None:
        """Return whether heat or a failing supply holds the clocks down."""
        return _throttled(self._slowed_by())

    def _slowed_by(self) -> tuple[str, ...] | None:
        bits = self._ask(lambda: int(self._library.nvmlDeviceGetCurrentClocksEventReasons(self._handle)))
        return None if bits is None else tuple(name for name, bit in _REASONS.items() if bits & bit)

    def state(self) -> DeviceState:
        """Return all that changes from one moment to the next."""
        reasons = self._slowed_by()
        return DeviceState(
            clocks_mhz=self.clocks_mhz(),
            temperature_c=self.temperature_c(),
            power_w=self.power_w(),
            slowed_by=reasons or (),
            throttled=_throttled(reasons),
        )

    def _ask(self, question: Callable[[], _T]) -> _T | None:
        try:
            return question()
        except self._library.NVMLError:
            return None


def _throttled(reasons: tuple[str, ...] | None) -> bool | None:
    return None if reasons is None else not _THROTTLING.isdisjoint(reasons)
