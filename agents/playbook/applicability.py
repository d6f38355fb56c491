"""Check which techniques of a strategy apply to an operator on a device, by the catalogue's preconditions.

:func:`objections` is the one place that says no; the Manager asks it before it proposes, the Translator before it
renders, the Revisor before it repairs.
"""

from __future__ import annotations

from collections.abc import Mapping

from agents.playbook import conditions_launches, conditions_matmul, conditions_pointwise, conditions_rows
from agents.playbook.conditions import Case, Check
from agents.playbook.operators import Launches, Operator, Pointwise, Rows
from cupilot.domain.problem import Target


def objections(case: Case, target: Target) -> dict[str, str]:
    """Return the techniques of the strategy that do not apply, each with the reason."""
    table = checks(case.operator, target)
    reasons: dict[str, str] = {}
    for technique in case.options.techniques:
        check = table.get(technique)
        reason = "there is no template for it with this operator" if check is None else check(case)
        if reason is not None:
            reasons[technique] = reason
    return reasons


def checks(operator: Operator, target: Target) -> Mapping[str, Check]:
    """Return the techniques that templates exist for, for the operator's family, with their conditions."""
    if isinstance(operator, Launches):
        family = conditions_launches.CUDA, conditions_launches.CPU
    elif isinstance(operator, Pointwise):
        family = conditions_pointwise.CUDA, conditions_pointwise.CPU
    elif isinstance(operator, Rows):
        family = conditions_rows.CUDA, conditions_rows.CPU
    else:
        family = conditions_matmul.CUDA, conditions_matmul.CPU
    return family[0] if target is Target.CUDA else family[1]
