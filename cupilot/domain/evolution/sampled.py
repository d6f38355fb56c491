"""The common part of methods that write kernels freely up to a number of samples, and mend none. Pure.

EvoEngineer's three variants, and the baselines that its paper compares them with (:mod:`.eoh`, :mod:`.funsearch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from cupilot.domain.evolution.pipeline import Pipeline, Stage
from cupilot.domain.evolution.population import Member, Operator, Proposal, StopReason
from cupilot.domain.evolution.selection import near_floor, ranked
from cupilot.domain.value import Value

ANSWERED_WHOLE = ConfigDict(json_schema_serialization_defaults_required=True)
"""Of methods added after a release: its clients read their configuration as another method's, by the name in it."""


class SampledConfig(Value):
    """Parameters that these methods share."""

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


class SampledMethod:
    """The common part of these methods: sizes, survivors, stops, the pipeline of a candidate."""

    def __init__(self, config: SampledConfig, kept: int) -> None:
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

    def count(self, generation: int) -> int:
        """Return proposals of a generation; the last one takes what is left of the samples."""
        return max(0, min(self._config.samplers, self._config.samples - generation * self._config.samplers))

    def turn(self, generation: int, place: int) -> int:
        """Return the number of a proposal over all generations, by which operators take turns."""
        return generation * self._config.samplers + place

    def rewrites(self, best: Sequence[Member], count: int) -> list[Proposal]:
        """Return kernels written whole, from the best one where there is any."""
        parents = tuple(member.candidate for member in best[:1])
        return [
            Proposal(operator=Operator.REWRITE, parents=parents, place=place, places=count) for place in range(count)
        ]


def by_rank(best: Sequence[Member], count: int, rng: Random) -> list[Member]:
    """Return different members, each drawn with weight ``1 / (rank + n)``, n being how many there are."""
    left = list(enumerate(best))
    drawn: list[Member] = []
    while left and len(drawn) < count:
        position = rng.choices(range(len(left)), [1 / (rank + len(best)) for rank, _ in left])[0]
        drawn.append(left.pop(position)[1])
    return drawn
