"""Rates that costs are predicted with: a device's measured peaks, else those that its maker states, else usual ones."""

from __future__ import annotations

from dataclasses import dataclass

from agents.interface import Briefing
from cupilot.domain.data_sheets import stated_peaks
from cupilot.domain.hardware import Device, Peaks
from cupilot.domain.problem import NumericsPolicy, Target

LAUNCH_SECONDS = {Target.CUDA: 1e-6, Target.CPU: 2e-6}
"""Usual time of an empty launch, where it was not measured."""
CORE_BANDWIDTH, CORE_FLOPS = 12e9, 60e9
"""Usual rates of one core with vectors of 512 bits."""
UNIT_BANDWIDTH, UNIT_FLOPS = 25e9, 400e9
"""Usual rates of one multiprocessor."""


@dataclass(frozen=True)
class Rates:
    """Bytes and operations a second of one device, and its size."""

    device: Device
    bandwidth: float
    scalar: float
    matrix: float
    """Of matrix units under the policy; equals ``scalar`` where there are none."""
    launch: float
    """Seconds that a launch takes at least."""

    @property
    def units(self) -> int:
        """Multiprocessors, or cores."""
        return max(self.device.units, 1)


def rates_of(briefing: Briefing) -> Rates | None:
    """Return the rates of a job's device; None where roofline guidance is off, which hides them."""
    if briefing.peaks is None and briefing.placement is None:
        return None
    return rates(briefing.device, briefing.peaks, briefing.facts.policy)


def rates(device: Device, peaks: Peaks | None, policy: NumericsPolicy) -> Rates:
    """Return measured rates where there are any, else stated ones, else usual ones for the device's size."""
    known = peaks or _stated(device) or _usual(device)
    launch = known.launch_seconds or LAUNCH_SECONDS[device.target]
    return Rates(device, known.bandwidth, known.scalar_flops, known.matrix_flops(policy), launch)


def _usual(device: Device) -> Peaks:
    on_card = device.target is Target.CUDA
    bandwidth, flops = (UNIT_BANDWIDTH, UNIT_FLOPS) if on_card else (CORE_BANDWIDTH, CORE_FLOPS)
    units = max(device.units, 1)
    return Peaks(device_uid=device.uid, bandwidth=bandwidth * units, scalar_flops=flops * units, measured_at="")


def _stated(device: Device) -> Peaks | None:
    sheet = stated_peaks(device.name)
    return None if sheet is None else sheet.in_place_of(_usual(device))
