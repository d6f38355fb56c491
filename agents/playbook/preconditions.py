"""Check a strategy's techniques against a problem: the preconditions, as far as code knows them.

The templates' checks decide where the operator is one that templates know; a technique without a check is not refused,
since a model may write what no template can.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from agents.interface import AgentError, Briefing
from agents.playbook.applicability import checks
from agents.playbook.translator import case_of, operator_of
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.domain.technique import catalogue


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


def condition(briefing: Briefing, technique: str) -> Callable[[Strategy], str | None]:
    """Return the check of one technique's own conditions in a strategy; it finds nothing where code knows none."""
    try:
        operator = operator_of(briefing)
    except AgentError:
        return lambda _: None
    check = checks(operator, briefing.target).get(technique)
    if check is None:
        return lambda _: None
    return lambda strategy: check(case_of(briefing, operator, strategy))


def restored(
    briefing: Briefing, asked: Strategy, kept: Sequence[TechniqueUse], shown: Collection[str]
) -> tuple[TechniqueUse, ...]:
    """Return the kept techniques with those that alignment must not take away from a strategy that was asked for.

    Those whose traces are ``shown``, and those that a kept one cannot be without: by the catalogue's requirements, or
    because the kept ones alone would break a condition. In the order that was asked for, others after them.
    """
    have = {use.id: use for use in kept}
    for use in asked.techniques:
        if use.id in shown:
            have.setdefault(use.id, use)
    for name in list(have):
        technique = catalogue().get(name)
        for needed in technique.requires if technique else ():
            if (requirement := asked.use(needed)) is not None:
                have.setdefault(needed, requirement)
    for use in asked.techniques:
        if use.id not in have and _needed(briefing, list(have.values()), use):
            have[use.id] = use
    order = {name: place for place, name in enumerate(asked.ids())}
    return tuple(sorted(have.values(), key=lambda use: order.get(use.id, len(order))))


def _needed(briefing: Briefing, have: Sequence[TechniqueUse], use: TechniqueUse) -> bool:
    """Return whether the techniques break a condition of one of them that they keep together with ``use``."""
    without = unmet(briefing, Strategy(techniques=tuple(have)))
    return without is not None and unmet(briefing, Strategy(techniques=(*have, use))) is None
