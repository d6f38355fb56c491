"""Find out why a model does not answer: a wrong key, URL or name, no server, or a refused request.

Where a server of one's own is named, it is asked for its list of models (``GET /models``, as OpenAI-compatible servers
have it); that costs nothing. Knows the transport's errors, and calls no model.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from enum import StrEnum

from agents.llm.models import Model
from agents.llm.transport import TransportError
from cupilot.domain.redaction import redact_prompt

SECONDS = 10.0
NAMES_SHOWN = 12
MAX_BYTES = 1_000_000


class Trouble(StrEnum):
    """A kind of fault; the values are stable, for programs."""

    WRONG_KEY = "wrong_key"
    WRONG_URL = "wrong_url"
    WRONG_MODEL = "wrong_model"
    UNREACHABLE = "unreachable"
    REFUSED = "refused_parameters"
    RATE_LIMITED = "rate_limited"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"
    NO_JSON = "no_json"
    NO_PRICE = "no_price"


def diagnose(model: Model, error: TransportError) -> tuple[Trouble, str]:
    """Return what is wrong, and how to mend it."""
    if error.status in (401, 403):
        return Trouble.WRONG_KEY, _key_advice(model)
    if error.reason == "rate_limited":
        return Trouble.RATE_LIMITED, "wait, raise the provider's limit, or set requests_per_minute in the models file"
    if error.reason == "timeout":
        return Trouble.TIMEOUT, "the server is slow or silent: see whether it answers, or raise timeout_seconds"
    if "LLM Provider NOT provided" in str(error):
        return Trouble.WRONG_MODEL, f"write the name as PROVIDER/NAME, e.g. openai/{model.name}; see docs/models.md"
    if not error.connected:
        where = redact_prompt(model.api_base or "the provider")
        return Trouble.UNREACHABLE, f"nothing answers at {where}: check host and port, that it runs, proxy and firewall"
    if model.api_base:
        return _own_server(model, model.api_base.rstrip("/"), error)
    if error.status == 404 or _names_model(error):
        return Trouble.WRONG_MODEL, f"the provider has no model {_name(model)}: check the name in CUPILOT_LLM_MODEL"
    return _other(error)


def _own_server(model: Model, base: str, error: TransportError) -> tuple[Trouble, str]:
    names, shown_base = _served(model, f"{base}/models"), redact_prompt(base)
    if names is not None and _name(model) not in names:
        shown = ", ".join(names[:NAMES_SHOWN]) or "none"
        return Trouble.WRONG_MODEL, f"the server at {shown_base} has no model {_name(model)}; it has: {shown}"
    if names is None and _names_model(error):
        return Trouble.WRONG_MODEL, f"the server at {shown_base} has no model {_name(model)}: check CUPILOT_LLM_MODEL"
    astray = names is None and (error.status in (404, 405) or error.reason == "bad_answer")
    if astray and _served(model, f"{base}/v1/models") is not None:
        return Trouble.WRONG_URL, f"the API is at {shown_base}/v1: set CUPILOT_LLM_API_BASE to that"
    if astray:
        advice = "what answers there is no OpenAI-compatible API; CUPILOT_LLM_API_BASE usually ends in /v1"
        return Trouble.WRONG_URL, f"{shown_base}: {advice}"
    return _other(error)


def _other(error: TransportError) -> tuple[Trouble, str]:
    if error.reason == "refused_by_provider":
        advice = "the server refuses the request, see above; name parameters that it does not know in `omit`"
        return Trouble.REFUSED, f"{advice} of the models file"
    return Trouble.UNAVAILABLE, "the server answers with errors of its own: see its log or the provider's status page"


def _key_advice(model: Model) -> str:
    if model.api_key is None:
        return "no key is set: set CUPILOT_LLM_API_KEY or the provider's own variable"
    return "the server rejects the key: check CUPILOT_LLM_API_KEY, and that it may use this model"


def _names_model(error: TransportError) -> bool:
    text = str(error).lower()
    return "model" in text and any(words in text for words in ("not found", "not exist", "unknown", "no such"))


def _name(model: Model) -> str:
    """Return the model as its server calls it."""
    return model.name.partition("/")[2] or model.name


def _served(model: Model, url: str) -> list[str] | None:
    """Return the names of the models that a server has; None where the URL is no such list."""
    request = urllib.request.Request(url)
    if model.api_key:
        request.add_header("Authorization", f"Bearer {model.api_key.get_secret_value()}")
    for name, value in model.headers.items():
        request.add_header(name, value.get_secret_value())
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            listed = json.loads(answer.read(MAX_BYTES))
        return [str(entry["id"]) for entry in listed["data"]]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None
