"""The techniques that a question about strategies offers: those of the catalogue whose conditions can be met, and what
earlier jobs of the team have proven.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from itertools import product

from agents.interface import Briefing
from agents.llm.prompt import data
from agents.playbook.preconditions import condition
from cupilot.domain.standing import LearnedTechnique
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.domain.technique import Catalogue, Scalar, Technique


def techniques(catalogue: Catalogue, briefing: Briefing) -> str:
    """Return the techniques of the catalogue that fit target, device, policy and operator family, a few lines each, and
    what the team's own jobs have proven.
    """
    offered = {technique.id: technique for technique in catalogue if fits(technique, briefing, catalogue)}
    lines = [_technique(technique, offered) for technique in offered.values()]
    learned = [technique for technique in briefing.learned if technique.id not in briefing.banned]
    if learned:
        lines.append(
            "Agents of earlier jobs invented these, and measurements proved them. They have no parameters and may be "
            "used like the others; what they mean stands in their inventors' words:"
        )
        lines.append(data("proven techniques", "\n".join(_learned(technique) for technique in learned)))
    if briefing.banned:
        lines.append(f"Do not use, under any name: {', '.join(briefing.banned)}.")
    return "\n".join(lines)


def fits(technique: Technique, briefing: Briefing, catalogue: Catalogue) -> bool:
    """Return whether a technique may be of use to a job: by target, device, policy, family, and what people banned; and
    with it whatever it requires.
    """
    facts = briefing.facts
    if technique.id in briefing.banned or briefing.target not in technique.targets:
        return False
    if technique.policies and facts.policy.value not in technique.policies:
        return False
    if not technique.runs_on(briefing.device.arch):
        return False
    # Of a family that the catalogue does not speak of, any technique may be of use.
    known = any(facts.op_class in other.op_classes for other in catalogue)
    if technique.op_classes and known and facts.op_class not in technique.op_classes:
        return False
    required = [needed for name in technique.requires if (needed := catalogue.get(name)) is not None]
    return all(fits(needed, briefing, catalogue) for needed in required) and _applies(technique, briefing, catalogue)


def _applies(technique: Technique, briefing: Briefing, catalogue: Catalogue) -> bool:
    """Return whether the technique's own conditions can be met, as far as code knows them: with any of its parameters,
    beside any companion that it may need."""
    if technique.id in _BEYOND_TEMPLATES:
        return True
    objection = condition(briefing, technique.id)
    return any(objection(strategy) is None for strategy in _strategies(technique, catalogue))


_BEYOND_TEMPLATES = frozenset({"tma_loads", "warpgroup_mma", "cluster_multicast"})
"""Whose check in the playbook says for which products its one template is written: a model may write others."""
_COMPANIONS: tuple[Mapping[str, Mapping[str, Scalar]], ...] = (
    {},
    {"register_rows": {}},
    {"shared_rows": {}},
    {"simd": {}},
    {"threads": {}},
    {"cache_blocking": {}},
    {"micro_kernel": {}},
    {"shared_tiling": {}},
    {"shared_tiling": {}, "register_blocking": {}},
    {"shared_tiling": {}, "register_blocking": {}, "split_k": {"parts": 64}},
)
"""Techniques of which others need one, whichever, with parameters."""
_TILES = "shared_tiling"
"""Whose parameters the conditions of others look at."""


def _strategies(technique: Technique, catalogue: Catalogue) -> Iterator[Strategy]:
    """Yield strategies that have a technique with what it requires and a companion, in all sizes of tiles."""
    for companions in _COMPANIONS:
        names = dict.fromkeys([*companions, *_required(technique, catalogue), technique.id])
        tiles = catalogue.get(_TILES) if _TILES in names and technique.id != _TILES else None
        for tile in _products(tiles) if tiles else [{}]:
            for parameters in _settings(technique):
                chosen = {**companions, _TILES: tile, technique.id: parameters}
                yield Strategy(
                    techniques=tuple(TechniqueUse(id=name, parameters=dict(chosen.get(name, {}))) for name in names)
                )


def _required(technique: Technique, catalogue: Catalogue) -> Iterator[str]:
    """Yield what the technique requires, and what that requires."""
    for name in technique.requires:
        if (needed := catalogue.get(name)) is not None:
            yield from _required(needed, catalogue)
        yield name


def _products(technique: Technique) -> Iterator[dict[str, Scalar]]:
    """Yield every combination of the technique's parameters."""
    names = list(technique.parameters)
    for choices in product(*(technique.parameters[name].choices for name in names)):
        yield dict(zip(names, choices, strict=True))


def _settings(technique: Technique) -> Iterator[dict[str, Scalar]]:
    """Yield the technique's defaults, then each other choice of one parameter."""
    yield {}
    for name, parameter in technique.parameters.items():
        for choice in parameter.choices:
            if choice != parameter.default:
                yield {name: choice}


def _technique(technique: Technique, offered: Collection[str]) -> str:
    text = f"- {technique.id} ({technique.resource.value}): {technique.summary}"
    if technique.parameters:
        choices = (
            f"{name} {list(parameter.choices)}: {parameter.meaning}" for name, parameter in technique.parameters.items()
        )
        text += f" Parameters: {'; '.join(choices)}."
    if technique.preconditions:
        text += f" Only where: {' '.join(technique.preconditions)}"
    if technique.requires:
        text += f" Requires {', '.join(technique.requires)}."
    if conflicts := [name for name in technique.conflicts if name in offered]:
        text += f" Not with {', '.join(conflicts)}."
    return text


def _learned(technique: LearnedTechnique) -> str:
    return json.dumps({"id": technique.id, "meaning": technique.meaning, "measured": technique.record.words()})
