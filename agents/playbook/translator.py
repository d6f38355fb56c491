"""The playbook's Strategy Translator: renders strategies through templates, checks kernels against strategies."""

from __future__ import annotations

from collections.abc import Sequence

from agents.interface import AgentError, Alignment, Attempt, Briefing, NoTemplate
from agents.playbook.applicability import objections
from agents.playbook.conditions import Case
from agents.playbook.evidence import missing
from agents.playbook.operators import Launches, Matmul, Operator, Rows
from agents.playbook.recognition import recognise
from agents.playbook.splicing import spliced
from agents.playbook.templates import render
from agents.playbook.templates.launches import as_launches
from agents.playbook.templates.source import Options
from cupilot.domain.kernel import Kernel, resolve
from cupilot.domain.pool import Lesson
from cupilot.domain.problem import ProblemFacts, Target
from cupilot.domain.strategy import Strategy, TechniqueUse, problems_with
from cupilot.domain.technique import catalogue

INDEX_LIMIT = 2**31 - 2**22
"""Row lengths that CUDA kernels' 32-bit indices reach, with room for a step beyond the end."""


class NotApplicable(AgentError):
    """The strategy asks for a technique that cannot be applied to this problem on this device."""

    code = "technique_not_applicable"


def operator_of(briefing: Briefing) -> Operator:
    """Return the operator of a job's problem, as :func:`recognised` does."""
    return recognised(briefing.facts, briefing.target, briefing.problem.source)


def recognised(facts: ProblemFacts, target: Target, source: str) -> Operator:
    """Return the operator of a problem: a template's where there is one, else the compiler's launches.

    Raises NoTemplate for one that neither can handle on this target, naming the line of the source.
    """
    try:
        operator = recognise(facts)
    except NoTemplate:
        return as_launches(facts, target, source)
    return operator if _has_template(operator, target) else as_launches(facts, target, source)


def _has_template(operator: Operator, target: Target) -> bool:
    if isinstance(operator, Matmul | Launches):
        return True
    if target is Target.CPU:
        return not operator.halves
    return not isinstance(operator, Rows) or operator.length <= INDEX_LIMIT


def template_operator(briefing: Briefing) -> Operator:
    """Return the operator of a job whose kernels are to be rendered; raises NoTemplate where one shape is too few."""
    if briefing.workloads:
        raise NoTemplate(
            "the playbook writes kernels for one shape, and this problem has several workloads",
            hint="let agents of kind llm write it",
        )
    return operator_of(briefing)


def case_of(briefing: Briefing, operator: Operator, strategy: Strategy) -> Case:
    """Return what the checks of a strategy look at."""
    return Case(operator, briefing.device, briefing.facts.policy, Options.of(strategy, catalogue()))


def complaints(briefing: Briefing, operator: Operator, strategy: Strategy) -> dict[str, str]:
    """Return everything that keeps a strategy from being rendered: technique (or "strategy") and reason."""
    reasons = objections(case_of(briefing, operator, strategy), briefing.target)
    broken = problems_with(strategy, catalogue(), briefing.target, briefing.facts.policy)
    return {**reasons, **({"strategy": "; ".join(broken)} if broken else {})}


class PlaybookTranslator:
    """A translator by templates, which never needs a parent's code."""

    def translate(
        self,
        briefing: Briefing,
        strategy: Strategy,
        parents: Sequence[Attempt],  # noqa: ARG002
        seed: int,  # noqa: ARG002
        *,
        lessons: Sequence[Lesson] = (),  # noqa: ARG002
    ) -> Kernel:
        """Return the kernel of a strategy.

        Raises NoTemplate, or NotApplicable naming each technique and why it cannot be.
        """
        operator = template_operator(briefing)
        reasons = complaints(briefing, operator, strategy)
        if reasons:
            text = "; ".join(f"{technique}: {reason}" for technique, reason in reasons.items())
            raise NotApplicable(f"this strategy cannot be applied to this problem: {text}", where="strategy")
        options = Options.of(strategy, catalogue())
        kernel = render(operator, options, briefing.target, briefing.device)
        resolve(kernel, briefing.facts)
        return kernel

    def merge(self, briefing: Briefing, first: Attempt, second: Attempt, seed: int) -> Kernel:  # noqa: ARG002
        """Return both parents' texts, crossed line by line: see :mod:`agents.playbook.splicing`."""
        if first.kernel is None or second.kernel is None:
            raise NotApplicable("a parent has no kernel to be crossed", where="parents")
        return spliced(first.kernel, second.kernel, seed)

    def align(self, briefing: Briefing, attempt: Attempt) -> Alignment:
        """Return the strategy without the techniques that neither source nor binary show.

        What a technique that stays requires stays too.
        """
        from agents.playbook.preconditions import restored  # which asks this module for the operator

        build = attempt.evaluation.build if attempt.evaluation else None
        struck = missing(attempt.strategy, attempt.kernel, build)
        kept = tuple(use for use in attempt.strategy.techniques if use.id not in struck)
        kept = restored(briefing, attempt.strategy, kept, ())
        struck = {name: reason for name, reason in struck.items() if name not in {use.id for use in kept}}
        claimed = len(attempt.strategy.techniques)
        rationale = attempt.strategy.rationale
        if struck:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in struck.items())
            rationale = f"{rationale}\nStruck after the build: {reasons}."[:4000]
        strategy = Strategy(techniques=kept, rationale=rationale)
        return Alignment(strategy=strategy, struck=tuple(struck), fidelity=len(kept) / claimed if claimed else 1.0)


def with_defaults(strategy: Strategy) -> Strategy:
    """Return the strategy with every parameter written out, so that equal kernels have equal signatures."""
    options = Options.of(strategy, catalogue())
    uses = tuple(TechniqueUse(id=name, parameters=parameters) for name, parameters in options.techniques.items())
    return Strategy(techniques=uses, rationale=strategy.rationale)
