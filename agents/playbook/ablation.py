"""Take one technique out of a winner where that costs no model call: by the templates, or by a tunable.

Used to measure what each technique is worth. The templates serve where they render the very kernel that won; any other
kernel can only be changed through tunables of the technique's own name.
"""

from __future__ import annotations

from dataclasses import dataclass

from agents.interface import AgentError, Briefing
from agents.playbook.translator import PlaybookTranslator, complaints, operator_of
from cupilot.domain.attribution import AblationWay
from cupilot.domain.errors import InvalidPlan
from cupilot.domain.kernel import Kernel, Tunable
from cupilot.domain.strategy import Strategy
from cupilot.domain.technique import catalogue

NEUTRAL_VALUES = (0, 1)
"""Values of a tunable that stand for "without": the first of them that is a choice."""


@dataclass(frozen=True)
class Ablation:
    """The winner without one technique, or why there is none."""

    technique: str
    strategy: Strategy
    """Rest of the strategy."""
    removed: tuple[str, ...] = ()
    """Techniques that had to go with it, because they, or their templates, require it."""
    way: AblationWay | None = None
    kernel: Kernel | None = None
    """None where the technique cannot be separated."""
    same_code: bool = False
    """The code does not change: the technique does nothing here."""
    note: str | None = None


def ablations(briefing: Briefing, strategy: Strategy, winner: Kernel) -> list[Ablation]:
    """Return one ablation for each technique of the strategy, in its order."""
    rendered = _rendered(briefing, strategy, winner)
    if rendered is not None:
        return [_by_templates(briefing, strategy, rendered, technique) for technique in strategy.ids()]
    return [_by_tunables(strategy, winner, technique) for technique in strategy.ids()]


def _rendered(briefing: Briefing, strategy: Strategy, winner: Kernel) -> Kernel | None:
    """Return what the templates render for the strategy, if it is this very kernel but for tunable values that a sweep
    set.
    """
    try:
        kernel = PlaybookTranslator().translate(briefing, strategy, (), 0)
    except AgentError:
        return None
    try:
        as_rendered = winner.tuned(kernel.plan.values())
    except InvalidPlan:
        return None
    return kernel if _code(kernel) == _code(as_rendered) else None


def _by_templates(briefing: Briefing, strategy: Strategy, rendered: Kernel, technique: str) -> Ablation:
    rest, removed = _without(strategy, technique)
    while leaning := set(complaints(briefing, operator_of(briefing), rest)) & set(rest.ids()):
        rest, removed = _without(strategy, technique, *removed, *sorted(leaning))
    try:
        kernel = PlaybookTranslator().translate(briefing, rest, (), 0)
    except AgentError as error:
        return Ablation(technique, rest, removed, note=error.message)
    same = _code(kernel) == _code(rendered)
    return Ablation(technique, rest, removed, AblationWay.PLAYBOOK, kernel, same_code=same)


def _by_tunables(strategy: Strategy, winner: Kernel, technique: str) -> Ablation:
    rest, removed = _without(strategy, technique)
    use = strategy.use(technique)
    names = {technique, *(f"{technique}_{parameter}" for parameter in (use.parameters if use else {}))}
    values = {}
    for name, tunable in winner.plan.tunables.items():
        neutral = next((value for value in NEUTRAL_VALUES if value in tunable.choices), None)
        if name.lower() in names and neutral is not None:
            values[name] = neutral
    if not values or removed:
        return Ablation(technique, rest, removed, note="the kernel has no tunable that switches it off")
    same = all(winner.plan.tunables[name].value == value for name, value in values.items())
    return Ablation(technique, rest, (), AblationWay.TUNABLES, _fixed(winner, values), same_code=same)


def _fixed(kernel: Kernel, values: dict[str, int]) -> Kernel:
    """Return the kernel with tunables that no sweep may set back."""
    fixed = {name: Tunable(value=value, choices=(value,)) for name, value in values.items()}
    plan = kernel.plan.model_copy(update={"tunables": kernel.plan.tunables | fixed})
    return kernel.model_copy(update={"plan": plan})


def _without(strategy: Strategy, *techniques: str) -> tuple[Strategy, tuple[str, ...]]:
    """Return the strategy without some techniques and those that require them; the ids of all that go but the first."""
    gone = [*techniques]
    for _ in strategy.techniques:
        known = {use.id: catalogue().get(use.id) for use in strategy.techniques if use.id not in gone}
        gone += [name for name, item in known.items() if item and set(item.requires) & set(gone)]
    rest = tuple(use for use in strategy.techniques if use.id not in gone)
    return Strategy(techniques=rest, rationale=strategy.rationale), tuple(gone[1:])


def _code(kernel: Kernel) -> tuple[str, str]:
    """Return the source without whole-line comments, which name the techniques, and the launch plan."""
    lines = [line for line in kernel.source.splitlines() if not line.lstrip().startswith("//")]
    return "\n".join(lines), kernel.plan.model_dump_json()
