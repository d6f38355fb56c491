"""One HTTP call to a model through LiteLLM: no telemetry, no network at import, no hidden retries, one error type.

Retrying, budgets and what the answer means are :mod:`agents.llm.gateway`'s business.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import ModuleType
from typing import Any

from pydantic import JsonValue

from agents.llm.models import Model
from cupilot.domain.model_call import Answer, ToolCall
from cupilot.domain.redaction import redact_prompt
from cupilot.domain.value import storable

CONNECT_SECONDS = 30.0
"""Longest wait for a connection."""
CALL_THREAD = "model-call"
"""Name of the threads that ask."""


class TransportError(Exception):
    """No usable answer came."""

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        retryable: bool,
        retry_after: float | None = None,
        maybe_charged: bool = False,
        status: int | None = None,
        connected: bool = True,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        """One of ``timeout rate_limited unavailable refused_by_provider context_too_long bad_answer``."""
        self.retryable = retryable
        self.retry_after = retry_after
        """Seconds that the provider asked us to wait."""
        self.maybe_charged = maybe_charged
        """True if the provider may have worked, and charge for it, although no answer arrived."""
        self.status = status
        """The HTTP status that came back, where one did."""
        self.connected = connected
        """True if anybody took the connection."""


def litellm() -> ModuleType:
    """Return LiteLLM, imported late (it takes seconds) and silenced: local price list, no telemetry, no debug hints."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm as module

    module.telemetry = False
    module.suppress_debug_info = True
    return module


def price(model: Model, prompt_tokens: int, completion_tokens: int) -> float:
    """Return the USD for these tokens.

    The model's own price where it is configured, else LiteLLM's local list, else 0.
    """
    listed = _listed(model)
    million = 1e6
    per_input = model.input_usd_per_million
    per_output = model.output_usd_per_million
    input_price = per_input / million if per_input is not None else float(listed.get("input_cost_per_token") or 0)
    output_price = per_output / million if per_output is not None else float(listed.get("output_cost_per_token") or 0)
    return prompt_tokens * input_price + completion_tokens * output_price


def priced(model: Model) -> bool:
    """Return whether a price is known; a model without one costs nothing here, whatever its provider charges."""
    own = model.input_usd_per_million is not None and model.output_usd_per_million is not None
    return own or "output_cost_per_token" in _listed(model)


def _listed(model: Model) -> Mapping[str, Any]:
    costs = litellm().model_cost
    return costs.get(model.name) or costs.get(model.name.partition("/")[2]) or {}


def answer_tokens(model: Model) -> int:
    """Return the most tokens that an answer may have: as configured, but no more than LiteLLM's local list allows the
    model, and as many as that where the model is not told a limit.

    Many providers refuse a request for more than that.
    """
    listed = _listed(model).get("max_output_tokens")
    if not isinstance(listed, int) or listed <= 0:
        return model.max_output_tokens
    return listed if model.limit is None else min(model.max_output_tokens, listed)


def count_tokens(messages: Sequence[Mapping[str, JsonValue]], sent: Mapping[str, JsonValue]) -> int:
    """Return an upper estimate of the prompt's tokens without a tokenizer: one for two bytes, plus some for each
    message. ``sent`` are the request's parameters, of which tools are part of the prompt.

    Source code has about three bytes a token, CJK text three for one.
    """
    tools = json.dumps(sent["tools"]) if "tools" in sent else ""
    return sum(len(_text(message).encode()) // 2 + 8 for message in messages) + len(tools.encode()) // 2 + 1


def _text(message: Mapping[str, JsonValue]) -> str:
    calls = message.get("tool_calls")
    return str(message["content"]) + (json.dumps(calls) if calls else "")


def parameters(
    model: Model, *, json_answer: bool, seed: int, tools: Sequence[Mapping[str, JsonValue]] = ()
) -> dict[str, JsonValue]:
    """Return what is sent beside model and messages, without secrets.

    Recorded, and part of what an answer is cached by.
    """
    sent: dict[str, JsonValue] = {"seed": seed}
    if model.limit is not None:
        sent[model.limit] = answer_tokens(model)
    if model.temperature is not None and not model.reasoning:
        sent["temperature"] = model.temperature
    if model.reasoning_effort is not None:
        sent["reasoning_effort"] = model.reasoning_effort
    if json_answer:
        sent["response_format"] = {"type": "json_object"}
    if tools:
        sent["tools"] = [dict(tool) for tool in tools]
    if model.api_base:
        sent["api_base"] = redact_prompt(model.api_base)
    return {name: value for name, value in (sent | model.extra).items() if name not in model.omit}


def complete(model: Model, messages: Sequence[Mapping[str, JsonValue]], sent: Mapping[str, JsonValue]) -> Answer:
    """Ask once, for ``timeout_seconds`` at the most.

    Raises :class:`TransportError` for everything that is not a chat completion.
    """
    module = litellm()
    arguments, asked = _arguments(model, messages, sent), threading.Event()
    arguments["logger_fn"] = lambda _: asked.set()  # which LiteLLM calls first when it has the request ready
    started = time.monotonic()
    try:
        response = _within(model.timeout_seconds, lambda: module.completion(**arguments))
    except TransportError:
        raise
    except Exception as error:
        # LiteLLM raises its own types, its providers' and httpx's; all end here as one.
        raise _translated(module, error, asked=asked.is_set()) from error
    return _answer(model, response, time.monotonic() - started)


def _within(seconds: float, ask: Callable[[], Any]) -> Any:
    """Return what ``ask`` returns or raises, or a :class:`TransportError` when the time is up.

    LiteLLM's ``timeout`` bounds each read and not the call: a server that sends a byte now and then is read for ever.
    So the call has a thread of its own, which is ended when nobody waits for it any more.
    """
    outcome: Future[Any] = Future()

    def work() -> None:
        try:
            outcome.set_result(ask())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=work, name=CALL_THREAD, daemon=True)
    thread.start()
    try:
        if not wait([outcome], timeout=seconds).done:
            message = f"no whole answer within {seconds:g} s"
            raise TransportError("timeout", message, retryable=True, maybe_charged=True)
        return outcome.result()
    finally:
        if not outcome.done():
            _end(thread)


def _end(thread: threading.Thread) -> None:
    """Raise ``SystemExit`` in the thread: at its next byte, or when a read times out, it closes its connection."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))


def _arguments(
    model: Model, messages: Sequence[Mapping[str, JsonValue]], sent: Mapping[str, JsonValue]
) -> dict[str, Any]:
    import httpx  # as late as LiteLLM, which brings it

    seconds = model.timeout_seconds
    arguments: dict[str, Any] = {
        "model": model.name,
        "messages": [dict(message) for message in messages],
        # Where nobody takes the connection nothing is charged, and there is no need to wait as long as for an answer.
        "timeout": httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds / 2)),
        "drop_params": True,
        "max_retries": 0,  # LiteLLM's default hides two retries, each of which may be paid
        "num_retries": 0,
        **sent,
    }
    if model.api_base:
        arguments["api_base"] = model.api_base  # as it is: what is recorded has no password
        # Clients of OpenAI-compatible servers refuse to start without a key, even where the server wants none.
        arguments["api_key"] = "none"
    if model.api_key:
        arguments["api_key"] = model.api_key.get_secret_value()
    if model.headers:
        arguments["extra_headers"] = {name: value.get_secret_value() for name, value in model.headers.items()}
    return arguments


_THINKING = re.compile(r"\A.*</think(?:ing)?>|\A\s*<think(?:ing)?>.*\Z", re.DOTALL)
"""Up to the last end of thoughts: chat templates may hold their beginning, so that the text has the end alone."""


def _answer(model: Model, response: Any, seconds: float) -> Answer:
    try:
        choice = response.choices[0]
        text = choice.message.content
        tool_calls = tuple(_tool_call(call) for call in choice.message.tool_calls or ())
        finish = str(choice.finish_reason or "stop")
        prompt_tokens = int(response.usage.prompt_tokens or 0)
        completion_tokens = int(response.usage.completion_tokens or 0)
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        message = f"the answer is not a chat completion: {error}"
        raise TransportError("bad_answer", message, retryable=True, maybe_charged=True) from error
    details = getattr(response.usage, "completion_tokens_details", None)
    return Answer(
        # Servers without a reasoning parser leave the thoughts in the text.
        text=storable(_THINKING.sub("", text).replace("\r\n", "\n")) if isinstance(text, str) else "",
        tool_calls=tool_calls,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        reasoning_tokens=int(getattr(details, "reasoning_tokens", None) or 0),
        cost_usd=price(model, prompt_tokens, completion_tokens),
        finish_reason=finish,
        seconds=seconds,
    )


def _tool_call(call: Any) -> ToolCall:
    name, arguments = str(call.function.name), str(call.function.arguments)
    return ToolCall(id=storable(str(call.id)), name=storable(name), arguments=storable(arguments))


def _translated(module: ModuleType, error: Exception, *, asked: bool) -> TransportError:
    """Return the error as one of ours; nothing is charged for a request that was not ``asked``."""
    kinds = module.exceptions
    message = f"{type(error).__name__}: {str(error)[:500]}"
    never_connected = _never_connected(error)
    if isinstance(error, kinds.Timeout) and not never_connected:
        return TransportError("timeout", message, retryable=True, maybe_charged=True)
    if isinstance(error, kinds.RateLimitError):
        return TransportError("rate_limited", message, retryable=True, retry_after=_retry_after(error))
    if isinstance(error, kinds.ContextWindowExceededError):
        return TransportError("context_too_long", message, retryable=False)
    status = getattr(error, "status_code", None)
    if isinstance(error, kinds.UnsupportedParamsError) or _is_refusal(status):
        return TransportError("refused_by_provider", message, retryable=False, status=status)
    return TransportError(
        "unavailable",
        message,
        retryable=True,
        retry_after=_retry_after(error),
        maybe_charged=asked and not _answered_with_error(error) and not never_connected,
        connected=not never_connected,
    )


def _is_refusal(status: object) -> bool:
    """Return whether the same request will meet this client error again.

    Not for 408 (timeout), 409 (conflict), 429 (rate limit).
    """
    return isinstance(status, int) and 400 <= status < 500 and status not in (408, 409, 429)


def _answered_with_error(error: BaseException) -> bool:
    """Return whether the server itself said that it failed.

    LiteLLM gives broken connections a status 500 of its own.
    """
    return any(
        _status_of(getattr(cause, "response", None)) >= 400 and type(cause).__module__.startswith("openai")
        for cause in _chain(error)
    )


def _never_connected(error: BaseException) -> bool:
    return any(
        type(cause).__name__ in ("ConnectError", "ConnectTimeout", "ConnectionRefusedError") for cause in _chain(error)
    )


def _status_of(response: object) -> int:
    status = getattr(response, "status_code", None)
    return status if isinstance(status, int) else 0


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    return chain


def _retry_after(error: Exception) -> float | None:
    """Return seconds of the provider's Retry-After header, which LiteLLM keeps on the error or on the one it wraps."""
    for source in _chain(error):
        headers = getattr(source, "litellm_response_headers", None) or getattr(
            getattr(source, "response", None), "headers", None
        )
        value = (headers or {}).get("retry-after")
        if value is not None:
            return _seconds(str(value))
    return None


def _seconds(value: str) -> float | None:
    """Parse either form of the header (RFC 9110 section 10.2.3): seconds, or a date."""
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
