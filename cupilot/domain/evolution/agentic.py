"""The method ``agentic``: models that work on kernels with tools, each over several measurements.

No published method: what coding agents do, under this project's judge and books. ``agents`` candidates a generation are
worked on side by side. Each begins from the best kernel so far (from nothing in the first generation), and has a budget
of its own; the next generation begins from the best of them all. In ``sce`` the same is an operator
(:class:`cupilot.domain.evolution.sce.SceConfig`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from cupilot.domain.evolution.pipeline import Pipeline, Stage
from cupilot.domain.evolution.population import Member, Operator, Proposal, StopReason
from cupilot.domain.evolution.selection import near_floor, ranked
from cupilot.domain.value import Value


class AgentLimits(Value):
    """Budget of one candidate that is worked on with tools."""

    measurements: Annotated[int, Field(ge=1, le=50)] = 6
    """Kernels that may be measured: builds, checks and timings on a device."""
    tool_calls: Annotated[int, Field(ge=1, le=500)] = 40
    """Calls of tools, over all measurements."""
    tokens: Annotated[int, Field(ge=1_000, le=50_000_000)] = 400_000
    """Tokens of prompts and answers, over all measurements; no turn is begun once they are spent."""


class AgenticConfig(AgentLimits):
    """Parameters of the method ``agentic``: a budget of each candidate, and how many there are."""

    # Answers always have the name, by which older clients know that this is a method that they do not know.
    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    name: Literal["agentic"] = "agentic"
    generations: Annotated[int, Field(ge=1, le=100)] = 2
    agents: Annotated[int, Field(ge=1, le=50)] = 3
    """Candidates a generation, worked on side by side."""

    utilisation_weight: ClassVar[float] = 0.0
    roofline_guidance: ClassVar[bool] = True
    pool: ClassVar[bool] = True

    @property
    def rounds(self) -> int:
        """Generations at most."""
        return self.generations

    @property
    def max_candidates(self) -> int:
        """Proposed at most, over all generations."""
        return self.generations * self.agents

    @property
    def max_kernels(self) -> int:
        """Measured at most, over all candidates."""
        return self.max_candidates * self.measurements


class Agentic:
    """The method ``agentic``."""

    def __init__(self, config: AgenticConfig) -> None:
        self.config = config

    def propose(self, population: Sequence[Member], generation: int, rng: Random) -> list[Proposal]:  # noqa: ARG002
        """Return as many agents as are asked for, each with the best kernel so far before it."""
        best = tuple(member.candidate for member in ranked(population)[:1])
        count = self.config.agents
        return [Proposal(operator=Operator.AGENTIC, parents=best, place=place, places=count) for place in range(count)]

    def select(self, population: Sequence[Member]) -> tuple[str, ...]:
        """Return the best that count, as many as there are agents."""
        return tuple(member.candidate for member in ranked(population)[: self.config.agents])

    def should_stop(self, population: Sequence[Member], generation: int) -> StopReason | None:
        """Return why no generation should follow the finished one, or None."""
        if near_floor(population):
            return StopReason.NEAR_FLOOR
        return StopReason.GENERATIONS if generation + 1 >= self.config.generations else None

    def pipeline(self, operator: Operator) -> Pipeline:  # noqa: ARG002 - there is one
        """Return the pipeline: act and evaluate, in turns."""
        return agentic_pipeline(self.config, alignment=False)


def agentic_pipeline(limits: AgentLimits, *, alignment: bool) -> Pipeline:
    """Return the pipeline of a candidate that is worked on with tools: it mends and improves its kernel by acting."""
    rounds = limits.measurements - 1
    return Pipeline(
        Stage.ACT,
        repair_rounds=rounds,
        alignment=alignment,
        performance_rounds=rounds,
        repairing=Stage.ACT,
        improving=Stage.ACT,
    )
