"""Parents for the crossover study: pairs of strategies with so many techniques each, that one kernel could follow both.

A pair is drawn so that it *can* be crossed: the techniques of both together make a strategy that the playbook can
render. So a child that lacks one of them has lost it, and nothing else kept it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from agents.interface import Briefing
from agents.playbook.evidence import leaves_trace
from agents.playbook.search import Space
from agents.playbook.translator import operator_of, with_defaults
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.domain.technique import Technique

DRAWS = 4_000
"""Draws before a size counts as impossible for a problem."""


@dataclass(frozen=True)
class Size:
    """Techniques of the one parent and of the other."""

    first: int
    second: int

    def __str__(self) -> str:
        return f"A{self.first}xB{self.second}"

    @classmethod
    def parse(cls, text: str) -> Size:
        """Parse ``1x4``; ValueError for anything else."""
        first, _, second = text.partition("x")
        return cls(int(first), int(second))


@dataclass(frozen=True)
class Pair:
    """Two parents that have no technique in common, and both together."""

    first: Strategy
    second: Strategy
    union: Strategy


def pairs(briefing: Briefing, size: Size, seed: int, *, believe: bool) -> Iterator[Pair]:
    """Yield different pairs of this size, in an order that the seed decides; none if there are none.

    Only techniques that leave a trace in source or binary; with ``believe`` also those that leave none.
    """
    space = Space(briefing, operator_of(briefing))
    rng = Random(f"{seed}/{size}")
    known = [technique for technique in space.techniques() if believe or leaves_trace(technique.id, briefing.target)]
    seen: set[tuple[str, str]] = set()
    if len(known) < size.first + size.second:
        return
    for _ in range(DRAWS):
        pair = _pair(space, rng.sample(known, size.first + size.second), size, rng)
        if pair is None or (key := (pair.first.signature(), pair.second.signature())) in seen:
            continue
        seen.add(key)
        yield pair


def _pair(space: Space, chosen: list[Technique], size: Size, rng: Random) -> Pair | None:
    uses = [
        TechniqueUse(
            id=technique.id,
            parameters={name: rng.choice(parameter.choices) for name, parameter in technique.parameters.items()},
        )
        for technique in chosen
    ]
    strategies = [
        with_defaults(Strategy(techniques=tuple(some))) for some in (uses[: size.first], uses[size.first :], uses)
    ]
    sizes = [size.first, size.second, size.first + size.second]
    if [len(strategy.techniques) for strategy in strategies] != sizes or not all(
        space.valid(strategy) for strategy in strategies
    ):
        return None
    return Pair(*strategies)
