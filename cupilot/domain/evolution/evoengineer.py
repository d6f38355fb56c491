"""EvoEngineer Free, Insight and Full (arXiv 2510.03760, ICLR 2026): evolution of code, guided by what a prompt shows.

The paper takes a method apart into what a prompt tells (I1 the task, I2 earlier solutions, I3 insights, which are the
writer's own rationales) and which solutions are kept. Its three CUDA variants, with the published parameters as
defaults, after the authors' code (``evotoolkit`` at commit ``1f56dd3``, the last one that has the CUDA part):

| variant | told | operators | kept |
|---|---|---|---|
| Free | I1 and the best kernel's code | rewrite | the best |
| Insight | the same, what the best one measured, three insights | rewrite | the best; five whose insights are drawn |
| Full | the best, both parents or the one, three insights | rewrite, code crossover, mutation | the best five |

All propose ``samplers`` kernels a generation, split evenly over the operators, up to 10 generations or 45 samples. A
parent is drawn by rank, with weight ``1 / (rank + n)`` over n that count. No failure is repaired and none is told of:
an invalid kernel is an invalid individual, which only pads the population where fewer are valid. Full rewrites until
two are valid: its first generation in any case, and as many more as it takes.

Not the paper's: its initial CUDA kernel, of which there is none here, so that the first prompts begin from nothing; the
two parents of a crossover, which may be one and the same there, differ; and each of Full's opening rounds counts as a
generation, where the authors count them as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated, Literal

from pydantic import Field

from cupilot.domain.evolution.population import Member, Operator, Proposal
from cupilot.domain.evolution.sampled import SampledConfig, SampledMethod, by_rank
from cupilot.domain.evolution.selection import ranked


class EvoEngineerFreeConfig(SampledConfig):
    """Parameters of EvoEngineer-Free."""

    name: Literal["evoengineer-free"] = "evoengineer-free"


class EvoEngineerInsightConfig(SampledConfig):
    """Parameters of EvoEngineer-Insight."""

    name: Literal["evoengineer-insight"] = "evoengineer-insight"
    population: Annotated[int, Field(ge=1, le=200)] = 5
    """Candidates whose insights are kept."""
    insights: Annotated[int, Field(ge=0, le=20)] = 3
    """Insights that a prompt shows, drawn at random."""


_OPERATORS = ((Operator.CODE_CROSSOVER, 2), (Operator.MUTATION, 1))
"""Operators of Full that take turns, each with its number of parents."""


class EvoEngineerFullConfig(SampledConfig):
    """Parameters of EvoEngineer-Full."""

    name: Literal["evoengineer-full"] = "evoengineer-full"
    population: Annotated[int, Field(ge=2, le=200)] = 5
    """Candidates that are kept: the best that count, then the newest of the others."""
    insights: Annotated[int, Field(ge=0, le=20)] = 3
    """Insights that a prompt shows, drawn at random."""
    valid_required: Annotated[int, Field(ge=2, le=50)] = 2
    """Kernels that must count before any is crossed or mutated."""


class EvoEngineerFree(SampledMethod):
    """EvoEngineer-Free: the task and the best kernel so far, nothing else."""

    def __init__(self, config: EvoEngineerFreeConfig) -> None:
        super().__init__(config, kept=1)

    def propose(self, population: Sequence[Member], generation: int, rng: Random) -> list[Proposal]:  # noqa: ARG002
        """Return rewrites of the best so far; from nothing while nothing counts."""
        return self.rewrites(ranked(population), self.count(generation))


class EvoEngineerInsight(SampledMethod):
    """EvoEngineer-Insight: Free, and the insights of the writers of the kept kernels."""

    def __init__(self, config: EvoEngineerInsightConfig) -> None:
        super().__init__(config, kept=config.population)
        self.config = config

    def propose(self, population: Sequence[Member], generation: int, rng: Random) -> list[Proposal]:
        """Return rewrites of the best so far, each with its own draw of insights."""
        rewrites = self.rewrites(ranked(population), self.count(generation))
        return [_inspired(rewrite, population, self.config.insights, rng) for rewrite in rewrites]


class EvoEngineerFull(SampledMethod):
    """EvoEngineer-Full: crossover and mutation of code in an elite population, with insights."""

    def __init__(self, config: EvoEngineerFullConfig) -> None:
        super().__init__(config, kept=config.population)
        self.config = config

    def propose(self, population: Sequence[Member], generation: int, rng: Random) -> list[Proposal]:
        """Return crossovers and mutations in turn; rewrites while too few count."""
        best = ranked(population)
        count = self.count(generation)
        if len(best) < self.config.valid_required:
            proposals = self.rewrites(best, count)
        else:
            turns = [self.turn(generation, place) % len(_OPERATORS) for place in range(count)]
            proposals = [self._offspring(turn, best, place, count, rng) for place, turn in enumerate(turns)]
        return [_inspired(proposal, population, self.config.insights, rng) for proposal in proposals]

    def _offspring(self, turn: int, best: Sequence[Member], place: int, places: int, rng: Random) -> Proposal:
        operator, wanted = _OPERATORS[turn]
        parents = ranked(by_rank(best, wanted, rng))
        return Proposal(
            operator=operator,
            parents=tuple(member.candidate for member in parents),
            best=best[0].candidate,
            place=place,
            places=places,
        )


def _inspired(proposal: Proposal, population: Sequence[Member], count: int, rng: Random) -> Proposal:
    everyone = sorted(population, key=lambda member: member.ordinal)
    drawn = rng.sample(everyone, min(count, len(everyone)))
    return proposal.model_copy(update={"inspirations": tuple(member.candidate for member in drawn)})
