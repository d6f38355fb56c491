"""The AI CUDA Engineer (Lange et al., Sakana AI, 2025-02): convert, translate, optimise, compose. Pure.

Its four stages, after the paper and the replica in ``evotoolkit`` at commit ``1f56dd3``, and where each is done here:

* S0, convert: the module becomes a pure function of its inputs and parameters, checked against the original and
  written again with the error in hand, at most ``retries`` times. The first candidate's stages ``convert`` and
  ``check`` (:mod:`cupilot.domain.evolution.pipeline`).
* S1, translate: that function becomes a first kernel. After an error one call says what the error means, and a second
  one mends the kernel with nothing but that summary in hand: stages ``write``, ``evaluate``, ``revise``, by the same
  rule. Generation 0 is this one candidate.
* S2, optimise: ``generations`` rounds of ``proposals`` kernels, each from the best one and the ``shown`` best that
  count, in order from slow to fast. Failures are not mended.
* S3, compose: one round of ``compositions`` kernels from the best one and the best kernels of the ``retrieved`` most
  similar other problems that the team has solved.

The defaults are the published ones: 10 rounds of 4, then 5, which are the 45 trials that others compare with. The
paper asks four models in turn; here a role's ensemble is drawn from by weight. It compares embeddings of the functional
code; here similarity is the strategy pool's, and nothing else of the pool counts. Its conversion prompt has four worked
examples, here it is one.
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


class AiCudaEngineerConfig(Value):
    """Parameters of The AI CUDA Engineer."""

    name: Literal["ai-cuda-engineer"] = "ai-cuda-engineer"
    retries: Annotated[int, Field(ge=0, le=10)] = 10
    """Times that the conversion, and then the first kernel, may be mended."""
    generations: Annotated[int, Field(ge=0, le=100)] = 10
    """Rounds of optimisation."""
    proposals: Annotated[int, Field(ge=1, le=50)] = 4
    """Kernels proposed in each."""
    shown: Annotated[int, Field(ge=1, le=20)] = 5
    """Best kernels that an optimiser is shown."""
    compositions: Annotated[int, Field(ge=0, le=50)] = 5
    """Kernels proposed from what similar problems' kernels do; 0 leaves the last stage out."""
    retrieved: Annotated[int, Field(ge=1, le=20)] = 5
    """Similar problems whose kernels are shown."""

    utilisation_weight: ClassVar[float] = 0.0
    roofline_guidance: ClassVar[bool] = False

    @property
    def pool(self) -> bool:
        """True if agents search the strategy pool."""
        return self.compositions > 0

    @property
    def rounds(self) -> int:
        """Generations at most: the translation, the optimisations, the composition."""
        return 1 + self.generations + (1 if self.compositions else 0)

    @property
    def max_candidates(self) -> int:
        """The translation, the optimisations, the compositions."""
        return 1 + self.generations * self.proposals + self.compositions

    @property
    def max_kernels(self) -> int:
        """The same with every repair of the translation."""
        return self.max_candidates + self.retries


class AiCudaEngineer:
    """The method ``ai-cuda-engineer``."""

    def __init__(self, config: AiCudaEngineerConfig) -> None:
        self.config = config

    def propose(self, population: Sequence[Member], generation: int, rng: Random) -> list[Proposal]:  # noqa: ARG002
        """Return one translation; then optimisations of the best; in the last round compositions."""
        if generation == 0:
            return [Proposal(operator=Operator.TRANSLATION)]
        best = ranked(population)
        composing = generation > self.config.generations
        operator = Operator.COMPOSITION if composing else Operator.OPTIMISATION
        count = self.config.compositions if composing else self.config.proposals
        shown = [] if composing else best[: self.config.shown][::-1]
        return [
            Proposal(
                operator=operator,
                parents=tuple(member.candidate for member in best[:1]),
                inspirations=tuple(member.candidate for member in shown),
                place=place,
                places=count,
            )
            for place in range(count)
        ]

    def select(self, population: Sequence[Member]) -> tuple[str, ...]:
        """Return the best that count, as many as an optimiser is shown."""
        return tuple(member.candidate for member in ranked(population)[: self.config.shown])

    def should_stop(self, population: Sequence[Member], generation: int) -> StopReason | None:
        """Return why no generation should follow the finished one, or None."""
        if not ranked(population):
            return StopReason.NO_START
        if near_floor(population):
            return StopReason.NEAR_FLOOR
        return StopReason.GENERATIONS if generation + 1 >= self.config.rounds else None

    def pipeline(self, operator: Operator) -> Pipeline:
        """Return the pipeline: the translation is converted first and mended; nothing else is."""
        if operator is Operator.TRANSLATION:
            return Pipeline(Stage.CONVERT, repair_rounds=self.config.retries, alignment=False)
        return Pipeline(Stage.WRITE, repair_rounds=0, alignment=False)
