"""Parametric kernel templates: an operator and a strategy's techniques in, a kernel out; a module a family and target.

Whether the techniques apply is :mod:`agents.playbook.applicability`'s business and is settled before.
"""

from __future__ import annotations

from agents.playbook.operators import Launches, Matmul, Operator, Pointwise, Rows
from agents.playbook.templates import (
    cpu_columns,
    cpu_elementwise,
    cpu_matmul,
    cpu_rows,
    cuda_elementwise,
    cuda_matmul,
    cuda_rows,
    cuda_split,
    cuda_team,
    launches,
)
from agents.playbook.templates.source import Options
from cupilot.domain.hardware import Device
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Target


def render(operator: Operator, options: Options, target: Target, device: Device) -> Kernel:
    """Return the kernel for an operator under a strategy's techniques."""
    if isinstance(operator, Launches):
        return launches.render(operator, options, target)
    if target is Target.CPU:
        return _cpu(operator, options)
    return _cuda(operator, options, device)


def _cpu(operator: Pointwise | Rows | Matmul, options: Options) -> Kernel:
    if isinstance(operator, Pointwise):
        return cpu_elementwise.render(operator, options)
    if isinstance(operator, Matmul):
        return cpu_matmul.render(operator, options)
    return cpu_rows.render(operator, options) if operator.contiguous else cpu_columns.render(operator, options)


def _cuda(operator: Pointwise | Rows | Matmul, options: Options, device: Device) -> Kernel:
    if isinstance(operator, Pointwise):
        return cuda_elementwise.render(operator, options, device)
    if isinstance(operator, Matmul):
        return cuda_matmul.render(operator, options)
    if "split_rows" in options:
        return cuda_split.render(operator, options)
    if "team_rows" in options:
        return cuda_team.render(operator, options, device)
    return cuda_rows.render(operator, options, device)
