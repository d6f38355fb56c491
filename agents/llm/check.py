"""Tries each configured model with one cheap call, and says what fails and how to mend it.

A fraction of a cent a model; nothing is recorded in a ledger. ``python -m agents.llm`` prints it as JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from agents.llm.models import Model, RoleModels
from agents.llm.redaction import without_secrets
from agents.llm.transport import TransportError, complete, parameters, priced

MAX_TOKENS, MAX_REASONING_TOKENS = 256, 4_000
SECONDS = 60.0

MESSAGES = (
    {"role": "system", "content": "Answer with one JSON object and nothing else."},
    {"role": "user", "content": 'Answer with exactly this JSON object: {"ready": true}'},
)

_MENDS = {
    "refused_by_provider": "check the model's name, the key and the URL: CUPILOT_LLM_MODEL (PROVIDER/NAME, as LiteLLM "
    "writes it), CUPILOT_LLM_API_KEY or the provider's own variable, CUPILOT_LLM_API_BASE (with /v1); name parameters "
    "that the server refuses in `omit` of the models file",
    "timeout": "the server is slow or not reached: see whether it answers, or raise the model's timeout_seconds",
    "rate_limited": "wait, raise the provider's limit, or set requests_per_minute in the models file",
    "unavailable": "see whether the server at CUPILOT_LLM_API_BASE runs and can be reached from here (proxy, firewall)",
    "context_too_long": "the model's context is too short for any prompt of this service; choose another one",
    "bad_answer": "what answers at CUPILOT_LLM_API_BASE is no OpenAI-compatible server; the URL usually ends in /v1",
}


@dataclass(frozen=True)
class ModelCheck:
    """What one call showed."""

    model: str
    roles: tuple[str, ...]
    works: bool
    found: str
    mend: str | None = None
    cost_usd: float = 0.0


def examine(models: RoleModels) -> list[ModelCheck]:
    """One check for each different model, in the order of the configuration."""
    roles: dict[str, list[str]] = {}
    named: dict[str, Model] = {}
    for role, several in [("default", models.default), *((role.value, each) for role, each in models.roles.items())]:
        for model in several:
            named.setdefault(model.endpoint, model)
            roles.setdefault(model.endpoint, []).append(role)
    return [_try(model, tuple(roles[endpoint])) for endpoint, model in named.items()]


def _try(model: Model, roles: tuple[str, ...]) -> ModelCheck:
    tokens = MAX_REASONING_TOKENS if model.reasoning else MAX_TOKENS
    cheap = model.model_copy(
        update={"max_output_tokens": tokens, "timeout_seconds": min(model.timeout_seconds, SECONDS)}
    )
    try:
        answer = complete(cheap, MESSAGES, parameters(cheap, json_answer=True, seed=0))
    except TransportError as error:
        found = f"{error.reason}: {without_secrets(str(error))}"
        return ModelCheck(model.name, roles, works=False, found=found, mend=_MENDS.get(error.reason))
    found = f"answers in {answer.seconds:.1f} s, {answer.prompt_tokens} + {answer.completion_tokens} tokens"
    notes = []
    if not _is_json(answer.text):
        notes.append("it did not answer with the JSON object that was asked for; a model this small cannot do the work")
    if not priced(model):
        notes.append("its price is not known and counts as nothing: set input_ and output_usd_per_million")
    return ModelCheck(
        model.name, roles, works=True, found=found, mend="; ".join(notes) or None, cost_usd=answer.cost_usd
    )


def _is_json(text: str) -> bool:
    start, end = text.find("{"), text.rfind("}")
    try:
        return isinstance(json.loads(text[start : end + 1]), dict) if start >= 0 else False
    except json.JSONDecodeError:
        return False
