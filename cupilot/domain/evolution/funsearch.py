"""FunSearch (Romera-Paredes et al., Nature 625, 2024), as EvoEngineer's paper compares with it. Pure.

Islands evolve apart. A generation belongs to one of them: its prompts show ``shown`` kernels of that island as
versions, from the slower to the faster, and ask for the next one. A kernel is drawn with a probability that grows with
the exponential of its score over :data:`TEMPERATURE`. An island without a kernel of its own begins from the first one
that counted, as every island does there. Only code is shown, no numbers and no thoughts.

The defaults are those with which EvoEngineer's authors ran it (``evotoolkit``, ``evo_method/funsearch``): 5 islands,
two kernels a prompt, 5 samplers, 45 samples. Not theirs: the islands take turns instead of being drawn, so that a
kernel's island follows from its generation; no island is reset, which happens there after four hours; kernels of one
score are not told apart by length.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from random import Random
from typing import Annotated, Literal

from pydantic import Field

from cupilot.domain.evolution.population import Member, Operator, Proposal
from cupilot.domain.evolution.sampled import ANSWERED_WHOLE, SampledConfig, SampledMethod
from cupilot.domain.evolution.selection import ranked

TEMPERATURE = 0.1
"""FunSearch's initial one; it falls over 30,000 kernels of an island, many more than there are here."""
KEPT = 5_000
"""No kernel that counts is dropped: the most samples that there may be."""


class FunSearchConfig(SampledConfig):
    """Parameters of FunSearch."""

    model_config = ANSWERED_WHOLE

    name: Literal["funsearch"] = "funsearch"
    samplers: Annotated[int, Field(ge=1, le=50)] = 5
    """Kernels proposed a generation."""
    islands: Annotated[int, Field(ge=1, le=50)] = 5
    """Populations that evolve apart; each generation is one island's."""
    shown: Annotated[int, Field(ge=1, le=10)] = 2
    """Kernels of the island that a prompt shows."""


class FunSearch(SampledMethod):
    """The method ``funsearch``."""

    def __init__(self, config: FunSearchConfig) -> None:
        super().__init__(config, kept=KEPT)
        self.config = config

    def propose(self, population: Sequence[Member], generation: int, rng: Random) -> list[Proposal]:
        """Return next versions of the generation's island; kernels from nothing while nothing counts."""
        count, counting = self.count(generation), ranked(population)
        if not counting:
            return self.rewrites((), count)
        own = [member for member in counting if self._island(member.generation) == self._island(generation)]
        island = own or [min(counting, key=lambda member: member.ordinal)]
        return [self._next(island, place, count, rng) for place in range(count)]

    def select(self, population: Sequence[Member]) -> tuple[str, ...]:
        """Return all that count, best first."""
        return tuple(member.candidate for member in ranked(population))

    def _island(self, generation: int) -> int:
        return generation % self.config.islands

    def _next(self, island: Sequence[Member], place: int, places: int, rng: Random) -> Proposal:
        shown = ranked(_drawn(island, self.config.shown, rng))
        parents = tuple(member.candidate for member in shown)
        return Proposal(operator=Operator.NEXT_VERSION, parents=parents, place=place, places=places)


def _drawn(island: Sequence[Member], count: int, rng: Random) -> list[Member]:
    """Return different members; ``island`` has the best first."""
    left = list(island)
    drawn: list[Member] = []
    while left and len(drawn) < count:
        scores = [member.fitness or 0.0 for member in left]
        weights = [exp((score - max(scores)) / TEMPERATURE) for score in scores]
        drawn.append(left.pop(rng.choices(range(len(left)), weights)[0]))
    return drawn
