"""The cost model: predict a strategy's time before anything is measured, and order strategies by it.

Pure arithmetic over launch geometry, bytes, passes, occupancy and rates. It orders, and leaves the verdict to the
judge: ``docs/cost-model.md`` compares what it predicts with what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, inf, isinf, log

from agents.playbook.cost import cpu, cuda, launches
from agents.playbook.cost.geometry import geometry
from agents.playbook.cost.rates import Rates
from agents.playbook.cost.values import Choice, Cost
from agents.playbook.operators import Launches, Matmul, Operator, Pointwise, Rows
from agents.playbook.templates import render
from agents.playbook.templates.source import Options
from cupilot.domain.problem import ProblemFacts, Target
from cupilot.domain.strategy import Strategy
from cupilot.domain.technique import catalogue

NEAR = 1.3
"""Predictions within this factor do not tell strategies apart."""
LAST = 10**6
"""Class of a strategy without a launch that fits the problem."""
HOPELESS = 10.0
"""A strategy predicted so many times slower than the best is not tried before everything else was."""


def predicted(operator: Operator, strategy: Strategy, facts: ProblemFacts, rates: Rates) -> Cost:
    """Return the predicted cost of a strategy that can be rendered for the operator."""
    choice = Choice(Options.of(strategy, catalogue()), rates)
    if isinstance(operator, Launches):
        return launches.launches(operator, choice)
    if rates.device.target is Target.CPU:
        return _on_cpu(operator, choice)
    kernel = render(operator, choice.options, Target.CUDA, rates.device)
    shape = geometry(kernel, facts, rates.device, cuda.registers_of(operator, choice))
    if isinstance(operator, Pointwise):
        return cuda.pointwise(operator, choice, shape)
    return cuda.rows(operator, choice, shape) if isinstance(operator, Rows) else cuda.matmul(operator, choice, shape)


def _on_cpu(operator: Pointwise | Rows | Matmul, choice: Choice) -> Cost:
    if isinstance(operator, Pointwise):
        return cpu.pointwise(operator, choice)
    return cpu.rows(operator, choice) if isinstance(operator, Rows) else cpu.matmul(operator, choice)


def ranks(seconds: Sequence[float]) -> list[int]:
    """Return each prediction's class: 0 for the best and what is near it, larger for slower ones."""
    best = min(seconds, default=inf)
    return [LAST if isinf(each) else floor(log(each / best) / log(NEAR)) for each in seconds]


__all__ = ["HOPELESS", "Cost", "predicted", "ranks"]
