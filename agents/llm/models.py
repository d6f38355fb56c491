"""Configuration of models by role: names, endpoints, prices, weights. Calls nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Annotated

from pydantic import Field, JsonValue, SecretStr, TypeAdapter, ValidationError, field_validator

from cupilot.domain.errors import InvalidInput
from cupilot.domain.redaction import redact_prompt
from cupilot.domain.value import Value


class AgentRole(StrEnum):
    """A role that asks a model."""

    MANAGER = "manager"
    TRANSLATOR = "translator"
    REVISOR = "revisor"
    PROPHET = "prophet"
    ENGINEER = "engineer"
    """Writes kernels freely, for the methods that have no strategies."""
    AGENT = "agent"
    """Works on a kernel with tools; needs a model that can call them."""


LIMITS = ("max_tokens", "max_completion_tokens")
"""Request parameters that bound an answer."""


class Model(Value):
    """One model as LiteLLM reaches it."""

    name: str = Field(min_length=1, max_length=200)
    """LiteLLM's model string, e.g. ``anthropic/NAME``, ``openai/NAME``, ``ollama/NAME``, ``hosted_vllm/NAME``."""
    api_base: str | None = None
    """URL of an OpenAI-compatible server (vLLM, Ollama, a company proxy); None for the provider's own."""
    api_key: SecretStr | None = None
    """None lets LiteLLM read the provider's own environment variable."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Share of a role's calls, relative to the role's other models."""
    input_usd_per_million: Annotated[float, Field(ge=0)] | None = None
    """Price of a million prompt tokens; None takes LiteLLM's local price list, and 0 where that has none."""
    output_usd_per_million: Annotated[float, Field(ge=0)] | None = None
    max_output_tokens: Annotated[int, Field(ge=256, le=200_000)] = 16_000
    """Reasoning counts. A kernel takes 1,000 to 5,000 tokens. No more are asked for than LiteLLM's list allows."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """None sends none, which leaves it to the provider."""
    reasoning: bool = False
    """A reasoning model: ``max_completion_tokens`` instead of ``max_tokens``, and never a temperature. LiteLLM does the
    same by itself for models that it knows."""
    reasoning_effort: str | None = Field(default=None, pattern="^(none|minimal|low|medium|high)$")
    extra: dict[str, JsonValue] = {}
    """Further request parameters, as they stand, e.g. ``{"top_p": 0.9}``."""
    omit: tuple[str, ...] = ()
    """Parameters that a server refuses and that are not to be sent, e.g. ``["seed", "response_format"]``."""
    headers: dict[str, SecretStr] = {}
    """Further HTTP headers, e.g. of a company proxy. Never recorded."""
    timeout_seconds: Annotated[float, Field(gt=0, le=3_600)] = 300.0
    """Of one whole try, from the connection to the answer's last byte."""
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    """Over all workers together; None for no limit of our own."""
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = None
    """Prompt and answer, over all workers together."""

    @field_validator("extra")
    @classmethod
    def _names_no_limit(cls, extra: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Refuse limits of answers: what a call may cost is reserved by ``max_output_tokens``."""
        named = [name for name in LIMITS if name in extra]
        if named:
            raise ValueError(f"{named[0]} is set by max_output_tokens, from which the cost of a call is reserved")
        return extra

    @property
    def limit(self) -> str | None:
        """Return the request parameter that bounds an answer; None where it is not sent."""
        name = "max_completion_tokens" if self.reasoning else "max_tokens"
        return None if name in self.omit else name

    @property
    def endpoint(self) -> str:
        """Return the key that rate limits are counted by: the model, and where it is, without a password."""
        return redact_prompt(f"{self.name} {self.api_base or ''}".strip())[:300]

    @property
    def limited(self) -> bool:
        """True if the model has limits set here."""
        return self.requests_per_minute is not None or self.tokens_per_minute is not None


class RoleModels(Value):
    """The models of each role; a role without its own uses ``default``."""

    default: Annotated[tuple[Model, ...], Field(min_length=1)]
    roles: dict[AgentRole, Annotated[tuple[Model, ...], Field(min_length=1)]] = {}

    def choose(self, role: AgentRole, seed: int) -> Model:
        """Return one of the role's models, drawn by weight; the same for the same seed."""
        models = self.roles.get(role, self.default)
        return Random(seed).choices(models, [model.weight for model in models])[0]


def from_environment(environment: Mapping[str, str] = os.environ) -> RoleModels | None:
    """Return the models that the environment names; None where it names none.

    ``CUPILOT_LLM_MODEL`` (with ``CUPILOT_LLM_API_BASE``, ``CUPILOT_LLM_API_KEY``) names one for every role;
    ``CUPILOT_LLM_MODELS_FILE`` a JSON file with the fields of :class:`RoleModels` for ensembles and roles.
    Raises :class:`InvalidInput` where the file cannot be read or is not of that form.
    """
    path = environment.get("CUPILOT_LLM_MODELS_FILE")
    if path:
        return _from_file(Path(path))
    name = environment.get("CUPILOT_LLM_MODEL")
    if not name:
        return None
    key = environment.get("CUPILOT_LLM_API_KEY")
    model = Model(
        name=name,
        api_base=environment.get("CUPILOT_LLM_API_BASE") or None,
        api_key=SecretStr(key) if key else None,
    )
    return RoleModels(default=(model,))


def _from_file(path: Path) -> RoleModels:
    try:
        return TypeAdapter(RoleModels).validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"CUPILOT_LLM_MODELS_FILE: {error}", where="CUPILOT_LLM_MODELS_FILE") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(f"{path}: {where}: {first['msg']}", where="CUPILOT_LLM_MODELS_FILE") from error
