"""EoH, evolution of heuristics (Liu et al., ICML 2024, arXiv 2401.02051), as EvoEngineer compares with it. Pure.

An individual is a thought and its code; both are shown of each parent. Five operators: ``rewrite`` from nothing (the
paper's i1) until the population counts, then in turn ``explore`` (E1: as different from the parents as possible),
``recombine`` (E2: the idea that the parents share, carried further), ``mutation`` (M1: one parent, changed) and
``retune`` (M2: one parent, with other parameters). Parents are drawn by rank, with weight ``1 / (rank + n)``; the best
``population`` are kept.

The defaults are those with which EvoEngineer's authors ran it (``evotoolkit``, ``evo_method/eoh``): a population of 5,
two parents, 45 samples, one kernel an operator and generation. Not theirs: each opening round counts as a generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated, Literal

from pydantic import Field

from cupilot.domain.evolution.population import Member, Operator, Proposal
from cupilot.domain.evolution.sampled import ANSWERED_WHOLE, SampledConfig, SampledMethod, by_rank
from cupilot.domain.evolution.selection import ranked

ALONE = (Operator.MUTATION, Operator.RETUNE)
OPERATORS = (Operator.EXPLORE, Operator.RECOMBINE, *ALONE)


class EohConfig(SampledConfig):
    """Parameters of EoH."""

    model_config = ANSWERED_WHOLE

    name: Literal["eoh"] = "eoh"
    population: Annotated[int, Field(ge=2, le=200)] = 5
    """Candidates that are kept, and that must count before any is a parent."""
    parents: Annotated[int, Field(ge=2, le=10)] = 2
    """Parents of the operators that have several."""


class Eoh(SampledMethod):
    """The method ``eoh``."""

    def __init__(self, config: EohConfig) -> None:
        super().__init__(config, kept=config.population)
        self.config = config

    def propose(self, population: Sequence[Member], generation: int, rng: Random) -> list[Proposal]:
        """Return kernels from nothing while too few count, then the operators in turn."""
        best, count = ranked(population), self.count(generation)
        if len(best) < self.config.population:
            return self.rewrites((), count)
        return [
            self._offspring(OPERATORS[self.turn(generation, place) % len(OPERATORS)], best, place, count, rng)
            for place in range(count)
        ]

    def _offspring(self, operator: Operator, best: Sequence[Member], place: int, places: int, rng: Random) -> Proposal:
        parents = ranked(by_rank(best, 1 if operator in ALONE else self.config.parents, rng))
        return Proposal(
            operator=operator, parents=tuple(parent.candidate for parent in parents), place=place, places=places
        )
