"""Moves in the space of strategies: make one fit a problem, draw one at random, change one a little.

Every function that draws takes the generator; equal seeds give equal strategies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from agents.interface import Briefing
from agents.playbook.applicability import checks
from agents.playbook.operators import Operator
from agents.playbook.translator import complaints, with_defaults
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.domain.technique import Scalar, Technique, catalogue

ZONE_WEIGHT, NEUTRAL_WEIGHT, OTHER_WEIGHT = 0.6, 0.4, 0.15
"""Probabilities that a random strategy takes a technique meant for the zone, for all zones, or for another."""
REDUNDANT = frozenset({"two_pass"})
"""Techniques that templates use where nothing else is asked for; a strategy need not draw them."""


@dataclass(frozen=True)
class Space:
    """The strategies that can be rendered for one problem."""

    briefing: Briefing
    operator: Operator

    def techniques(self) -> list[Technique]:
        """Return techniques with a template for the operator's family, in the catalogue's order."""
        table = checks(self.operator, self.briefing.target)
        policy = self.briefing.facts.policy.value
        return [
            item
            for item in catalogue()
            if item.id in table
            and item.id not in REDUNDANT
            and item.id not in self.briefing.banned
            and (not item.policies or policy in item.policies)
        ]

    def valid(self, strategy: Strategy) -> bool:
        """Return whether the strategy can be rendered as it is."""
        return not complaints(self.briefing, self.operator, strategy)

    def fitted(self, strategy: Strategy) -> tuple[Strategy, tuple[str, ...]]:
        """Return the strategy without what cannot be applied here, and the ids that were dropped."""
        known = [use for use in strategy.techniques if use.id in catalogue() and use.id not in self.briefing.banned]
        dropped = [use.id for use in strategy.techniques if use not in known]
        current = with_defaults(Strategy(techniques=tuple(_known_parameters(use) for use in known)))
        while not self.valid(current):
            victim = self._victim(current)
            dropped.append(victim)
            current = Strategy(techniques=tuple(use for use in current.techniques if use.id != victim))
        return Strategy(techniques=current.techniques, rationale=strategy.rationale), tuple(dropped)

    def _victim(self, strategy: Strategy) -> str:
        """Return the technique to drop next.

        One that objects, else the last that requires or conflicts with something.
        """
        objections = complaints(self.briefing, self.operator, strategy)
        objecting = [use.id for use in strategy.techniques if use.id in objections]
        if objecting:
            return objecting[-1]
        ids = set(strategy.ids())
        for use in reversed(strategy.techniques):
            technique = catalogue().get(use.id)
            if technique is None or self._forbidden(technique):
                return use.id
        for use in reversed(strategy.techniques):
            technique = catalogue().get(use.id)
            if technique and (set(technique.conflicts) & ids or set(technique.requires) - ids):
                return use.id
        return strategy.techniques[-1].id

    def _forbidden(self, technique: Technique) -> bool:
        policy, target = self.briefing.facts.policy.value, self.briefing.target
        return target not in technique.targets or bool(technique.policies and policy not in technique.policies)

    def random(self, rng: Random) -> Strategy:
        """Return a strategy drawn from the space, techniques meant for the problem's zone being likelier."""
        uses: list[TechniqueUse] = []
        for technique in self.techniques():
            if rng.random() < self._weight(technique):
                uses.append(TechniqueUse(id=technique.id, parameters=_drawn(technique, rng)))
        rng.shuffle(uses)
        strategy = Strategy(techniques=tuple(self._closed(uses, rng))[:12])
        fitted, _ = self.fitted(_in_order(strategy))
        return fitted

    def _weight(self, technique: Technique) -> float:
        placement = self.briefing.placement
        if placement is None or not technique.zones:
            return NEUTRAL_WEIGHT
        return ZONE_WEIGHT if placement.zone.value in technique.zones else OTHER_WEIGHT

    def _closed(self, uses: Iterable[TechniqueUse], rng: Random) -> Iterable[TechniqueUse]:
        """Return the techniques in this order without conflicts, each preceded by what it requires."""
        taken: dict[str, TechniqueUse] = {}
        for use in uses:
            for item in [*self._required(use.id, rng), use]:
                technique = catalogue().get(item.id)
                if technique is not None and item.id not in taken and not set(technique.conflicts) & taken.keys():
                    taken[item.id] = item
        return taken.values()

    def _required(self, technique_id: str, rng: Random) -> list[TechniqueUse]:
        technique = catalogue().get(technique_id)
        required: list[TechniqueUse] = []
        for name in technique.requires if technique else ():
            needed = catalogue().get(name)
            if needed is not None:
                required += [*self._required(name, rng), TechniqueUse(id=name, parameters=_drawn(needed, rng))]
        return required

    def with_technique(self, strategy: Strategy, technique: Technique, rng: Random) -> Strategy:
        """Return the strategy with one technique more; what conflicts with it goes."""
        new = TechniqueUse(id=technique.id, parameters=_drawn(technique, rng))
        needed = self._required(technique.id, rng)
        uses = list(self._closed([*needed, new, *strategy.techniques], rng))[:12]
        return self.fitted(_in_order(Strategy(techniques=tuple(uses))))[0]

    def neighbours(self, strategy: Strategy) -> list[tuple[Strategy, str]]:
        """Return every valid strategy one parameter, or one technique less, away, with what was changed."""
        near: list[tuple[Strategy, str]] = []
        for use in strategy.techniques:
            technique = catalogue().get(use.id)
            for name, parameter in (technique.parameters if technique else {}).items():
                for value in parameter.choices:
                    if value != use.parameters.get(name, parameter.default):
                        changed = replaced(strategy, use.id, name, value)
                        near.append((changed, f"{use.id}.{name} = {value}"))
        for use in strategy.techniques:
            rest = tuple(item for item in strategy.techniques if item.id != use.id)
            near.append((Strategy(techniques=rest), f"without {use.id}"))
        return [(item, change) for item, change in near if self.valid(item)]


def replaced(strategy: Strategy, technique: str, parameter: str, value: Scalar) -> Strategy:
    """Return the strategy with one parameter changed."""
    uses = tuple(
        TechniqueUse(id=use.id, parameters={**use.parameters, parameter: value}) if use.id == technique else use
        for use in strategy.techniques
    )
    return Strategy(techniques=uses, rationale=strategy.rationale)


def _drawn(technique: Technique, rng: Random) -> dict[str, Scalar]:
    return {name: rng.choice(parameter.choices) for name, parameter in technique.parameters.items()}


def _known_parameters(use: TechniqueUse) -> TechniqueUse:
    """Return the use without parameters, or values, that the catalogue does not know."""
    technique = catalogue().get(use.id)
    choices = {name: parameter.choices for name, parameter in technique.parameters.items()} if technique else {}
    kept = {name: value for name, value in use.parameters.items() if value in choices.get(name, ())}
    return TechniqueUse(id=use.id, parameters=kept)


def _in_order(strategy: Strategy) -> Strategy:
    """Return the techniques in the catalogue's order: what is required before what requires it."""
    order = {technique.id: place for place, technique in enumerate(catalogue())}
    uses = sorted(strategy.techniques, key=lambda use: order.get(use.id, len(order)))
    return Strategy(techniques=tuple(uses), rationale=strategy.rationale)
