"""Check a strategy's techniques against a problem: the preconditions, as far as code knows them.

The templates' checks decide where the operator is one that templates know; a technique without a check is not refused,
since a model may write what no template can.
"""

from __future__ import annotations

from agents.interface import AgentError, Briefing
from agents.playbook.applicability import checks
from agents.playbook.translator import case_of, operator_of
from cupilot.domain.strategy import Strategy


def unmet(briefing: Briefing, strategy: Strategy) -> str | None:
    """Return the first technique that cannot be applied, and why; None where nothing is known against the strategy."""
    try:
        operator = operator_of(briefing)
    except AgentError:
        return None
    case = case_of(briefing, operator, strategy)
    table = checks(operator, briefing.target)
    for technique in strategy.ids():
        check = table.get(technique)
        reason = check(case) if check is not None else None
        if reason is not None:
            return f"{technique}: {reason}"
    return None
