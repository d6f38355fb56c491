"""The playbook's Roofline Prophet: fixed rules that turn an evaluation into a diagnosis with ranked advice."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from agents.interface import Advice, Attempt, Briefing, Diagnosis, NoTemplate
from agents.playbook.applicability import checks
from agents.playbook.conditions import Case
from agents.playbook.counters import Finding
from agents.playbook.operators import Launches, Operator
from agents.playbook.rules import findings
from agents.playbook.templates.source import Options
from agents.playbook.translator import operator_of
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.domain.technique import Technique, catalogue

MAX_ADVICE = 4

IRREPLACEABLE = frozenset({"tensor_cores", "tma_loads"})
"""Techniques that no other makes up for: CUDA cores have a seventh of tensor cores' rate, or less, and copies by
threads keep warpgroups waiting."""
KEPT_BY = {"cluster_rows": ("shared_rows", "register_rows")}
"""Techniques that do nothing without one of these, and make room for it: a cluster keeps a row that no block could."""


class PlaybookProphet:
    """Reads profile, build report and placement; the first rule that fits names the cause."""

    def diagnose(self, briefing: Briefing, attempt: Attempt) -> Diagnosis:
        """Return why the kernel is not faster, and which techniques of the catalogue to try, best first."""
        ranked = findings(briefing, attempt)
        main = ranked[0]
        advice: list[Advice] = []
        for finding in ranked:
            for technique, beside in _candidates(briefing, attempt.strategy, finding):
                if all(item.technique != technique.id for item in advice):
                    reason = f"{finding.cause}; together with {beside}" if beside else finding.cause
                    advice.append(Advice(technique=technique.id, reason=reason, expected=_expected(technique)))
        return Diagnosis(
            severity=main.severity, cause=main.cause, evidence=main.evidence, advice=tuple(advice[:MAX_ADVICE])
        )


def _candidates(briefing: Briefing, strategy: Strategy, finding: Finding) -> Iterator[tuple[Technique, str]]:
    """Yield the finding's techniques that the strategy lacks and that fit the problem, in the finding's order.

    Beside each the technique that it has to come with, or nothing. None that would take the place of one which the
    finding names before it: register blocking is no answer to slow tensor cores.
    """
    try:
        found = operator_of(briefing)
        operator: Operator | None = None if isinstance(found, Launches) else found
    except NoTemplate:
        operator = None
    better = {use.id for use in strategy.techniques if use.id in IRREPLACEABLE}
    for name in finding.techniques:
        technique = catalogue().get(name)
        if strategy.use(name) is not None:
            better.add(name)
            continue
        if technique is None or briefing.target not in technique.targets or better.intersection(technique.conflicts):
            continue
        if technique.policies and briefing.facts.policy.value not in technique.policies:
            continue
        if operator is None or _fits(briefing, operator, strategy, [TechniqueUse(id=name)]):
            yield technique, ""
        elif beside := _kept_by(briefing, operator, strategy, technique):
            yield technique, beside


def _kept_by(briefing: Briefing, operator: Operator, strategy: Strategy, technique: Technique) -> str:
    """Return the technique that this one applies together with, for some values of its parameters.

    Nothing where none is.
    """
    for name in KEPT_BY.get(technique.id, ()):
        for values in product(*(parameter.choices for parameter in technique.parameters.values())):
            use = TechniqueUse(id=technique.id, parameters=dict(zip(technique.parameters, values, strict=True)))
            if _fits(briefing, operator, strategy, [use, TechniqueUse(id=name)]):
                return name
    return ""


def _fits(briefing: Briefing, operator: Operator, strategy: Strategy, new: list[TechniqueUse]) -> bool:
    """Return whether new techniques apply beside the strategy's own, conflicting ones taken out."""
    table = checks(operator, briefing.target)
    known = [technique for use in new if (technique := catalogue().get(use.id))]
    gone = {name for technique in known for name in technique.conflicts} | {use.id for use in new}
    rest = [use for use in strategy.techniques if use.id not in gone and use.id in catalogue()]
    there = {use.id for use in (*rest, *new)}
    needed = [TechniqueUse(id=name) for technique in known for name in technique.requires if name not in there]
    combined = Strategy(techniques=(*rest, *needed, *new))
    case = Case(operator, briefing.device, briefing.facts.policy, Options.of(combined, catalogue()))
    return all((check := table.get(use.id)) is not None and check(case) is None for use in new)


def _expected(technique: Technique) -> str:
    changes = [f"{change.metric} {change.direction}" for change in technique.expected]
    return ", ".join(changes) or "a shorter time"
