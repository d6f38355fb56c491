"""The playbook's Roofline Prophet: fixed rules that turn an evaluation into a diagnosis with ranked advice."""

from __future__ import annotations

from collections.abc import Iterable

from agents.interface import Advice, Attempt, Briefing, Diagnosis, NoTemplate
from agents.playbook.applicability import checks
from agents.playbook.conditions import Case
from agents.playbook.counters import Finding
from agents.playbook.operators import Operator
from agents.playbook.rules import findings
from agents.playbook.templates.source import Options
from agents.playbook.translator import operator_of
from cupilot.strategy import Strategy, TechniqueUse
from cupilot.technique import Technique, catalogue

MAX_ADVICE = 4


class PlaybookProphet:
    """Reads profile, build report and placement; the first rule that fits names the cause."""

    def diagnose(self, briefing: Briefing, attempt: Attempt) -> Diagnosis:
        """Why the kernel is not faster, and which techniques of the catalogue to try, best first."""
        found = findings(briefing, attempt)
        main = found[0]
        advice: list[Advice] = []
        for finding in found:
            for technique in _candidates(briefing, attempt.strategy, finding):
                if all(item.technique != technique.id for item in advice):
                    advice.append(Advice(technique=technique.id, reason=finding.cause, expected=_expected(technique)))
        return Diagnosis(
            severity=main.severity, cause=main.cause, evidence=main.evidence, advice=tuple(advice[:MAX_ADVICE])
        )


def _candidates(briefing: Briefing, strategy: Strategy, finding: Finding) -> Iterable[Technique]:
    """The finding's techniques that the strategy lacks and that fit the problem, in the finding's order."""
    try:
        operator: Operator | None = operator_of(briefing)
    except NoTemplate:
        operator = None
    for name in finding.techniques:
        technique = catalogue().get(name)
        if technique is None or strategy.use(name) is not None or briefing.target not in technique.targets:
            continue
        if technique.policies and briefing.facts.policy.value not in technique.policies:
            continue
        if operator is None or _fits(briefing, operator, strategy, technique):
            yield technique


def _fits(briefing: Briefing, operator: Operator, strategy: Strategy, technique: Technique) -> bool:
    """Whether the technique applies beside the strategy's own, conflicting ones taken out."""
    check = checks(operator, briefing.target).get(technique.id)
    if check is None:
        return False
    rest = [use for use in strategy.techniques if use.id not in technique.conflicts and use.id in catalogue()]
    needed = [TechniqueUse(id=name) for name in technique.requires if all(use.id != name for use in rest)]
    combined = Strategy(techniques=(*rest, *needed, TechniqueUse(id=technique.id)))
    case = Case(operator, briefing.device, briefing.facts.policy, Options.of(combined, catalogue()))
    return check(case) is None


def _expected(technique: Technique) -> str:
    changes = [f"{change.metric} {change.direction}" for change in technique.expected]
    return ", ".join(changes) or "a shorter time"
