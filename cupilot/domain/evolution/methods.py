"""The registry of evolution methods: a new one adds a module and a line here.

A method decides; it never does: whoever drives it (workers, the local driver) runs the candidates it proposes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Annotated, Any, Protocol, get_args

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter

from cupilot.domain.evolution.agentic import Agentic, AgenticConfig, AgentLimits
from cupilot.domain.evolution.ai_cuda_engineer import AiCudaEngineer, AiCudaEngineerConfig
from cupilot.domain.evolution.eoh import Eoh, EohConfig
from cupilot.domain.evolution.evoengineer import (
    EvoEngineerFree,
    EvoEngineerFreeConfig,
    EvoEngineerFull,
    EvoEngineerFullConfig,
    EvoEngineerInsight,
    EvoEngineerInsightConfig,
)
from cupilot.domain.evolution.funsearch import FunSearch, FunSearchConfig
from cupilot.domain.evolution.pipeline import Pipeline
from cupilot.domain.evolution.population import Member, Operator, Proposal, StopReason
from cupilot.domain.evolution.sce import CupilotPaperConfig, Sce, SceConfig
from cupilot.domain.value import BUILD_LATER

DEFAULT = "sce"


class Method(Protocol):
    """Evolution method: four pure functions.

    A driver's round: ``propose`` from the survivors, run the candidates, each along its operator's ``pipeline``,
    ``select`` from survivors plus candidates, ``should_stop``, and again.
    """

    def propose(self, population: Sequence[Member], generation: int, rng: Random) -> list[Proposal]:
        """Return the candidates that a generation (from 0) should have, given the survivors of the former ones."""
        ...

    def select(self, population: Sequence[Member]) -> tuple[str, ...]:
        """Return ids of the candidates that survive a finished generation, best first."""
        ...

    def should_stop(self, population: Sequence[Member], generation: int) -> StopReason | None:
        """Return why no generation should follow the finished ``generation``, or None."""
        ...

    def pipeline(self, operator: Operator) -> Pipeline:
        """Return how a candidate of this operator goes from proposal to end."""
        ...


def _named(value: Any) -> Any:
    """Return parameters with the default method's name, where they have none."""
    return {"name": DEFAULT, **value} if isinstance(value, dict) else value


_Config = Annotated[
    SceConfig
    | CupilotPaperConfig
    | EvoEngineerFreeConfig
    | EvoEngineerInsightConfig
    | EvoEngineerFullConfig
    | AiCudaEngineerConfig
    | EohConfig
    | FunSearchConfig
    | AgenticConfig,
    Field(discriminator="name"),
]
MethodConfig = Annotated[_Config, BeforeValidator(_named)]
"""The parameters of a method, told apart by ``name``; ``sce`` where there is none."""

CONFIGS: dict[str, type[Any]] = {kind.model_fields["name"].default: kind for kind in get_args(get_args(_Config)[0])}
"""The parameters' class of each method, by the method's name."""

NEEDS_MODEL = frozenset(name for name, kind in CONFIGS.items() if not issubclass(kind, SceConfig))
"""Methods whose operators write code freely, which the playbook's templates cannot."""

_METHODS: dict[type[Any], Callable[[Any], Method]] = {
    SceConfig: Sce,
    CupilotPaperConfig: Sce,
    EvoEngineerFreeConfig: EvoEngineerFree,
    EvoEngineerInsightConfig: EvoEngineerInsight,
    EvoEngineerFullConfig: EvoEngineerFull,
    AiCudaEngineerConfig: AiCudaEngineer,
    EohConfig: Eoh,
    FunSearchConfig: FunSearch,
    AgenticConfig: Agentic,
}
_ADAPTER: TypeAdapter[_Config] = TypeAdapter(MethodConfig, config=ConfigDict(defer_build=BUILD_LATER))


def method_for(config: MethodConfig) -> Method:
    """Return the method that a job's configuration asks for."""
    return _METHODS[type(config)](config)


def agent_limits(config: MethodConfig) -> AgentLimits | None:
    """Return the budget of each candidate that is worked on with tools; None where a method has none such."""
    if isinstance(config, AgenticConfig):
        return config
    return config.agent_limits if isinstance(config, SceConfig) else None


def read_config(data: Any) -> MethodConfig:
    """Read a method's parameters from JSON-compatible data, as jobs keep them."""
    return _ADAPTER.validate_python(data)
