"""Inputs of conditions on techniques, and the conditions that several families share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agents.playbook.expressions import HARDWARE, POLYNOMIAL
from agents.playbook.operators import Operator, calls_any
from agents.playbook.templates.source import Options
from cupilot.domain.hardware import Device
from cupilot.domain.problem import NumericsPolicy


@dataclass(frozen=True)
class Case:
    """An operator, a device and the whole strategy, as one technique's check sees them."""

    operator: Operator
    device: Device
    policy: NumericsPolicy
    options: Options

    def number(self, technique: str, parameter: str, without: int = 1) -> int:
        """Return a parameter of the strategy."""
        return self.options.number(technique, parameter, without)


Check = Callable[[Case], str | None]
"""Why the technique does not apply, or None."""


def always(_: Case) -> str | None:
    """Accept without a condition."""
    return None


def polynomial(case: Case) -> str | None:
    """Require a function in the expression that templates know a polynomial for."""
    return None if calls_any(case.operator, POLYNOMIAL) else "the expression has no exponential or similar function"


def fast_unit(case: Case) -> str | None:
    """Require a function in the expression that the hardware approximates."""
    return None if calls_any(case.operator, HARDWARE) else "the expression has no exponential or hyperbolic tangent"


def launch_bounds(case: Case) -> str | None:
    """Require that the smallest block that a sweep may choose still fits as often as asked for."""
    resident = case.number("launch_bounds", "min_blocks")
    limit = case.device.threads_per_unit or 1024
    smallest = 32 * case.number("warp_per_row", "warps", 2)
    return f"{resident} blocks do not fit a multiprocessor" if resident * smallest > limit else None
