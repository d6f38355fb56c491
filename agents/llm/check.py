"""Try each configured model with one cheap call, and say what fails and how to mend it.

A fraction of a cent a model; nothing is recorded in a ledger. ``python -m agents.llm`` prints it as JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from agents.llm.models import Model, RoleModels
from agents.llm.probe import Trouble, diagnose
from agents.llm.transport import TransportError, complete, parameters, priced
from cupilot.domain.model_call import Answer
from cupilot.domain.redaction import redact_prompt

SECONDS = 60.0
SHOWN = 120
"""Characters of a wrong answer that are quoted."""

MESSAGES = (
    {"role": "system", "content": "Answer with one JSON object and nothing else."},
    {"role": "user", "content": 'Answer with exactly this JSON object: {"ready": true}'},
)


@dataclass(frozen=True)
class ModelCheck:
    """The result of one call."""

    model: str
    roles: tuple[str, ...]
    works: bool
    found: str
    mend: str | None = None
    trouble: Trouble | None = None
    """Code of the defect, for programs; also of a model that works, but not well."""
    cost_usd: float = 0.0


def examine(models: RoleModels) -> list[ModelCheck]:
    """Return one check for each different model, in the order of the configuration."""
    roles: dict[str, list[str]] = {}
    named: dict[str, Model] = {}
    for role, several in [
        ("default", models.default),
        *((role.value, several) for role, several in models.roles.items()),
    ]:
        for model in several:
            named.setdefault(model.endpoint, model)
            roles.setdefault(model.endpoint, []).append(role)
    return [_try(model, tuple(roles[endpoint])) for endpoint, model in named.items()]


def _try(model: Model, roles: tuple[str, ...]) -> ModelCheck:
    bounded = model.model_copy(update={"timeout_seconds": min(model.timeout_seconds, SECONDS)})
    try:
        # With all parameters as jobs send them, the limit of tokens too: a server may refuse any of them.
        answer = complete(bounded, MESSAGES, parameters(bounded, json_answer=True, seed=0))
    except TransportError as error:
        finding = f"{error.reason}: {redact_prompt(str(error))}"
        why, advice = diagnose(bounded, error)
        return ModelCheck(model.name, roles, works=False, found=finding, mend=advice, trouble=why)
    finding = f"answers in {answer.seconds:.1f} s, {answer.prompt_tokens} + {answer.completion_tokens} tokens"
    trouble, mend = _shortcoming(model, answer)
    return ModelCheck(
        model.name, roles, works=True, found=finding, mend=mend, trouble=trouble, cost_usd=answer.cost_usd
    )


def _shortcoming(model: Model, answer: Answer) -> tuple[Trouble | None, str | None]:
    """Return what will be in the way of a model that answers."""
    if not _is_json(answer.text):
        text = " ".join(redact_prompt(answer.text).split())[:SHOWN] or "nothing"
        advice = "a model that cannot do this cannot do the work: choose a more capable one"
        if answer.finish_reason == "length":
            advice = "it ran out of tokens: if it reasons, set reasoning in the models file"
        return Trouble.NO_JSON, f"it was asked for one JSON object and said: {text} - {advice}"
    if not priced(model):
        return Trouble.NO_PRICE, "its price is not known and counts as nothing: set input_ and output_usd_per_million"
    return None, None


def _is_json(text: str) -> bool:
    start, end = text.find("{"), text.rfind("}")
    try:
        return isinstance(json.loads(text[start : end + 1]), dict) if start >= 0 else False
    except json.JSONDecodeError:
        return False
