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
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from cupilot.domain.evolution.pipeline import Pipeline, Stage
from cupilot.domain.evolution.population import Member, Operator, Proposal, StopReason
from cupilot.domain.evolution.selection import near_floor, ranked
from cupilot.domain.value import Value


class EvoEngineerConfig(Value):
    """Parameters that the three variants share."""

    generations: Annotated[int, Field(ge=1, le=100)] = 10
    samplers: Annotated[int, Field(ge=1, le=50)] = 4
    """Kernels proposed a generation."""
    samples: Annotated[int, Field(ge=1, le=5_000)] = 45
    """Kernels proposed in all."""

    utilisation_weight: ClassVar[float] = 0.0
    roofline_guidance: ClassVar[bool] = False
    pool: ClassVar[bool] = False

    @property
    def rounds(self) -> int:
        """Generations at most."""
        return min(self.generations, -(-self.samples // self.samplers))

    @property
    def max_candidates(self) -> int:
        """Proposed at most, over all generations."""
        return min(self.samples, self.rounds * self.samplers)

    @property
    def max_kernels(self) -> int:
        """The same: nothing is mended."""
        return self.max_candidates


class EvoEngineerFreeConfig(EvoEngineerConfig):
    """Parameters of EvoEngineer-Free."""

    name: Literal["evoengineer-free"] = "evoengineer-free"


class EvoEngineerInsightConfig(EvoEngineerConfig):
    """Parameters of EvoEngineer-Insight."""

    name: Literal["evoengineer-insight"] = "evoengineer-insight"
    population: Annotated[int, Field(ge=1, le=200)] = 5
    """Candidates whose insights are kept."""
    insights: Annotated[int, Field(ge=0, le=20)] = 3
    """Insights that a prompt shows, drawn at random."""


class EvoEngineerFullConfig(EvoEngineerConfig):
    """Parameters of EvoEngineer-Full."""

    name: Literal["evoengineer-full"] = "evoengineer-full"
    population: Annotated[int, Field(ge=2, le=200)] = 5
    """Candidates that are kept: the best that count, then the newest of the others."""
    insights: Annotated[int, Field(ge=0, le=20)] = 3
    """Insights that a prompt shows, drawn at random."""
    valid_required: Annotated[int, Field(ge=2, le=50)] = 2
    """Kernels that must count before any is crossed or mutated."""


class _EvoEngineer:
    """The common part of the variants: sizes, stops, the pipeline of a candidate."""

    def __init__(self, config: EvoEngineerConfig, kept: int) -> None:
        self._config = config
        self._kept = kept

    def select(self, population: Sequence[Member]) -> tuple[str, ...]:
        """Return the best that count; where they are fewer than are kept, the newest of the others after them."""
        best = ranked(population)
        others = sorted((member for member in population if member.fitness is None), key=lambda member: -member.ordinal)
        return tuple(member.candidate for member in [*best, *others][: self._kept])

    def should_stop(self, population: Sequence[Member], generation: int) -> StopReason | None:
        """Return why no generation should follow the finished one, or None."""
        if near_floor(population):
            return StopReason.NEAR_FLOOR
        if (generation + 1) * self._config.samplers >= self._config.samples:
            return StopReason.SAMPLES
        return StopReason.GENERATIONS if generation + 1 >= self._config.generations else None

    def pipeline(self, operator: Operator) -> Pipeline:  # noqa: ARG002 - every operator writes, and nothing is mended
        """Write, measure, and that is all."""
        return Pipeline(Stage.WRITE, repair_rounds=0, alignment=False)

    def _count(self, generation: int) -> int:
        """Return proposals of a generation; the last one takes what is left of the samples."""
        return max(0, min(self._config.samplers, self._config.samples - generation * self._config.samplers))

    def _rewrites(self, best: Sequence[Member], count: int) -> list[Proposal]:
        parents = tuple(member.candidate for member in best[:1])
        return [
            Proposal(operator=Operator.REWRITE, parents=parents, place=place, places=count) for place in range(count)
        ]


class EvoEngineerFree(_EvoEngineer):
    """EvoEngineer-Free: the task and the best kernel so far, nothing else."""

    def __init__(self, config: EvoEngineerFreeConfig) -> None:
        super().__init__(config, kept=1)

    def propose(self, population: Sequence[Member], generation: int, rng: Random) -> list[Proposal]:  # noqa: ARG002
        """Return rewrites of the best so far; from nothing while nothing counts."""
        return self._rewrites(ranked(population), self._count(generation))


class EvoEngineerInsight(_EvoEngineer):
    """EvoEngineer-Insight: Free, and the insights of the writers of the kept kernels."""

    def __init__(self, config: EvoEngineerInsightConfig) -> None:
        super().__init__(config, kept=config.population)
        self.config = config

    def propose(self, population: Sequence[Member], generation: int, rng: Random) -> list[Proposal]:
        """Return rewrites of the best so far, each with its own draw of insights."""
        rewrites = self._rewrites(ranked(population), self._count(generation))
        return [_inspired(rewrite, population, self.config.insights, rng) for rewrite in rewrites]


class EvoEngineerFull(_EvoEngineer):
    """EvoEngineer-Full: crossover and mutation of code in an elite population, with insights."""

    def __init__(self, config: EvoEngineerFullConfig) -> None:
        super().__init__(config, kept=config.population)
        self.config = config

    def propose(self, population: Sequence[Member], generation: int, rng: Random) -> list[Proposal]:
        """Return crossovers and mutations in turn; rewrites while too few count."""
        best = ranked(population)
        count = self._count(generation)
        if len(best) < self.config.valid_required:
            proposals = self._rewrites(best, count)
        else:
            proposals = [self._offspring(best, place, count, rng) for place in range(count)]
        return [_inspired(proposal, population, self.config.insights, rng) for proposal in proposals]

    def _offspring(self, best: Sequence[Member], place: int, places: int, rng: Random) -> Proposal:
        operator, wanted = ((Operator.CODE_CROSSOVER, 2), (Operator.MUTATION, 1))[place % 2]
        parents = ranked(_by_rank(best, wanted, rng))
        return Proposal(
            operator=operator,
            parents=tuple(member.candidate for member in parents),
            best=best[0].candidate,
            place=place,
            places=places,
        )


def _by_rank(best: Sequence[Member], count: int, rng: Random) -> list[Member]:
    """Return different members, each drawn with weight ``1 / (rank + n)``, n being how many there are."""
    left = list(enumerate(best))
    drawn: list[Member] = []
    while left and len(drawn) < count:
        position = rng.choices(range(len(left)), [1 / (rank + len(best)) for rank, _ in left])[0]
        drawn.append(left.pop(position)[1])
    return drawn


def _inspired(proposal: Proposal, population: Sequence[Member], count: int, rng: Random) -> Proposal:
    everyone = sorted(population, key=lambda member: member.ordinal)
    drawn = rng.sample(everyone, min(count, len(everyone)))
    return proposal.model_copy(update={"inspirations": tuple(member.candidate for member in drawn)})
