"""A strategy: an ordered set of techniques with parameters and a rationale. The unit of crossover.

Says whether a strategy is well formed against the catalogue; choosing one is the agents' and the method's business.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, model_validator

from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.technique import Catalogue, Scalar
from cupilot.domain.value import Value, digest

MAX_TECHNIQUES = 12

MAX_MEANING = 600
"""Characters that say what an invented technique does: it stands in prompts, and a model may have written it."""

_SENTENCE = re.compile(r"[.;!?](?=\s)|\n")


def shortened_meaning(text: str) -> str:
    """Return a meaning within :data:`MAX_MEANING`, cut after its last whole sentence or clause."""
    if len(text) <= MAX_MEANING:
        return text
    ends = [match.end() for match in _SENTENCE.finditer(text[: MAX_MEANING + 1]) if match.end() <= MAX_MEANING]
    return text[: ends[-1]].rstrip() if ends else text[:MAX_MEANING]


class TechniqueUse(Value):
    """A technique as a strategy uses it."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]{1,63}$")
    parameters: dict[str, Scalar] = {}
    meaning: str = Field(default="", max_length=MAX_MEANING)
    """Effect on the code, of a technique that the catalogue does not know; prose, which asks for no other code."""


class Strategy(Value):
    """An ordered set of techniques; order is the order in which they are applied."""

    techniques: tuple[TechniqueUse, ...] = Field(max_length=MAX_TECHNIQUES)
    """May be empty: the plain, unoptimised kernel is a strategy too."""
    rationale: str = Field(default="", max_length=4000)

    @model_validator(mode="after")
    def _each_technique_once(self) -> Strategy:
        ids = self.ids()
        if len(set(ids)) != len(ids):
            raise ValueError("a technique appears twice in the strategy")
        return self

    def ids(self) -> tuple[str, ...]:
        """Return the techniques' ids, in order."""
        return tuple(use.id for use in self.techniques)

    def use(self, technique_id: str) -> TechniqueUse | None:
        """Return how the strategy uses this technique, or None."""
        return next((use for use in self.techniques if use.id == technique_id), None)

    def signature(self) -> str:
        """Return a key that is equal for strategies that ask for the same code.

        Order of techniques and prose do not count.
        """
        return digest(sorted([use.id, sorted(use.parameters.items())] for use in self.techniques))

    def _identity(self) -> Any:
        return self.model_dump(mode="json", exclude={"rationale": True, "techniques": {"__all__": {"meaning"}}})


def union(first: Strategy, second: Strategy) -> Strategy:
    """Return every technique of both, as the first uses it where both do.

    What a kernel made of both kernels may claim.
    """
    added = tuple(use for use in second.techniques if first.use(use.id) is None)
    return Strategy(
        techniques=(*first.techniques, *added)[:MAX_TECHNIQUES],
        rationale="Two kernels in one; claims what both did, until its code is looked at.",
    )


def problems_with(strategy: Strategy, catalogue: Catalogue, target: Target, policy: NumericsPolicy) -> list[str]:
    """Return why the strategy breaks the catalogue's rules for this target and policy; empty when it does not.

    Techniques that the catalogue does not know are allowed (they are novel), so they are no problem here.
    """
    broken: list[str] = []
    ids = set(strategy.ids())
    for use in strategy.techniques:
        technique = catalogue.get(use.id)
        if technique is None:
            continue
        if target not in technique.targets:
            broken.append(f"{use.id} is not for target {target.value}")
        if technique.policies and policy.value not in technique.policies:
            broken.append(f"{use.id} is not allowed under policy {policy.value}")
        broken += [f"{use.id} requires {other}" for other in technique.requires if other not in ids]
        broken += [f"{use.id} conflicts with {other}" for other in technique.conflicts if other in ids]
        for name, value in use.parameters.items():
            parameter = technique.parameters.get(name)
            if parameter is None:
                broken.append(f"{use.id} has no parameter {name}")
            elif value not in parameter.choices:
                broken.append(f"{use.id}.{name} = {value!r} is not one of {list(parameter.choices)}")
    return broken
