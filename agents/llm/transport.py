"""One HTTP call to a model through LiteLLM: no telemetry, no network at import, no hidden retries, one error type.

Retrying, budgets and what the answer means are :mod:`agents.llm.gateway`'s business.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from agents.llm.models import Model
from cupilot.model_call import Answer


class TransportError(Exception):
    """No usable answer came."""

    def __init__(self, reason: str, message: str, *, retryable: bool, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        """One of ``timeout rate_limited unavailable refused_by_provider context_too_long bad_answer``."""
        self.retryable = retryable
        self.retry_after = retry_after
        """Seconds that the provider asked us to wait."""


def litellm() -> ModuleType:
    """LiteLLM, imported late (it takes seconds) and silenced: local price list, no telemetry, no debug hints."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm as module

    module.telemetry = False
    module.suppress_debug_info = True
    return module


def price(model: Model, prompt_tokens: int, completion_tokens: int) -> float:
    """USD for these tokens: the model's own price where it is configured, else LiteLLM's local list, else 0."""
    listed = litellm().model_cost.get(model.name) or litellm().model_cost.get(model.name.partition("/")[2]) or {}
    million = 1e6
    per_input = model.input_usd_per_million
    per_output = model.output_usd_per_million
    input_price = per_input / million if per_input is not None else float(listed.get("input_cost_per_token") or 0)
    output_price = per_output / million if per_output is not None else float(listed.get("output_cost_per_token") or 0)
    return prompt_tokens * input_price + completion_tokens * output_price


def count_tokens(messages: Sequence[dict[str, str]]) -> int:
    """An upper estimate of the prompt's tokens without a tokenizer: one for three characters, plus four a message."""
    return sum(len(message["content"]) // 3 + 4 for message in messages) + 1


def complete(model: Model, messages: Sequence[dict[str, str]], *, json_answer: bool, seed: int) -> Answer:
    """Ask once; raises :class:`TransportError` for everything that is not an answer with text in it."""
    module = litellm()
    started = time.monotonic()
    try:
        response = module.completion(**_arguments(model, messages, json_answer=json_answer, seed=seed))
    except Exception as error:
        # LiteLLM raises its own types, its providers' and httpx's; all end here as one.
        raise _translated(module, error) from error
    return _answer(model, response, time.monotonic() - started)


def _arguments(model: Model, messages: Sequence[dict[str, str]], *, json_answer: bool, seed: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": model.name,
        "messages": list(messages),
        "timeout": model.timeout_seconds,
        "max_tokens": model.max_output_tokens,
        "seed": seed,
        "drop_params": True,
        "max_retries": 0,  # LiteLLM's default hides two retries, each of which may be paid
        "num_retries": 0,
    }
    if model.temperature is not None:
        arguments["temperature"] = model.temperature
    if model.api_base:
        arguments["api_base"] = model.api_base
        # Clients of OpenAI-compatible servers refuse to start without a key, even where the server wants none.
        arguments["api_key"] = "none"
    if model.api_key:
        arguments["api_key"] = model.api_key.get_secret_value()
    if json_answer:
        arguments["response_format"] = {"type": "json_object"}
    return arguments


def _answer(model: Model, response: Any, seconds: float) -> Answer:
    try:
        choice = response.choices[0]
        text = choice.message.content
        finish = str(choice.finish_reason or "stop")
        prompt_tokens = int(response.usage.prompt_tokens or 0)
        completion_tokens = int(response.usage.completion_tokens or 0)
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise TransportError("bad_answer", f"the answer is not a chat completion: {error}", retryable=True) from error
    return Answer(
        text=text if isinstance(text, str) else "",
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cost_usd=price(model, prompt_tokens, completion_tokens),
        finish_reason=finish,
        seconds=seconds,
    )


def _translated(module: ModuleType, error: Exception) -> TransportError:
    kinds = module.exceptions
    message = f"{type(error).__name__}: {str(error)[:500]}"
    if isinstance(error, kinds.Timeout):
        return TransportError("timeout", message, retryable=True)
    if isinstance(error, kinds.RateLimitError):
        return TransportError("rate_limited", message, retryable=True, retry_after=_retry_after(error))
    if isinstance(error, kinds.ContextWindowExceededError):
        return TransportError("context_too_long", message, retryable=False)
    if isinstance(error, kinds.UnsupportedParamsError) or _is_refusal(getattr(error, "status_code", None)):
        return TransportError("refused_by_provider", message, retryable=False)
    return TransportError("unavailable", message, retryable=True, retry_after=_retry_after(error))


def _is_refusal(status: object) -> bool:
    """Client errors that the same request will meet again; not 408 (timeout), 409 (conflict) and 429 (rate limit)."""
    return isinstance(status, int) and 400 <= status < 500 and status not in (408, 409, 429)


def _retry_after(error: Exception) -> float | None:
    """Seconds of the provider's Retry-After header, which LiteLLM keeps on the error or on the one it wraps."""
    for source in (error, error.__cause__, error.__context__):
        headers = getattr(source, "litellm_response_headers", None) or getattr(
            getattr(source, "response", None), "headers", None
        )
        try:
            return max(0.0, float((headers or {})["retry-after"]))
        except (KeyError, ValueError):
            continue
    return None
