"""The one way from an agent to a model: choose, record, call, retry, store, check, ask once for a repair.

Knows nothing of strategies or kernels: what an answer must look like is the caller's parser's business. The transport,
the ledger and the rate limits are given to it, so that nothing here knows HTTP or a database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from random import SystemRandom
from typing import TypeVar

from pydantic import JsonValue

from agents.interface import AgentError
from agents.llm.ledger import Ledger, Limits, NoLimits
from agents.llm.models import AgentRole, Model, RoleModels
from agents.llm.transport import TransportError, answer_tokens, complete, count_tokens, parameters, price
from cupilot.domain.errors import Unavailable
from cupilot.domain.model_call import Answer, Call
from cupilot.domain.redaction import redact_prompt

T = TypeVar("T")

MAX_TRIES = 5
"""Tries of one call; with waits of at least 1, 4, 16 and 60 s this outlasts a bad minute of a provider."""
FIRST_PAUSE_SECONDS, PAUSE_GROWTH = 1.0, 4.0
"""Wait after the first failed try of a call, and how many times longer each further one is."""
MAX_LOST_TRIES = 3
"""Of these, such as may have been charged without an answer (timeouts, broken connections): each reserves money."""
MAX_PAUSE_SECONDS = 60.0
"""Longest sleep at a stretch."""
MAX_TURN_SECONDS = 600.0
"""Longest wait for the shared rate limits, or for a provider that says Retry-After, to let a call through."""
MAX_ECHO_CHARACTERS = 8_000
"""Characters of a bad answer that are shown back to the model."""


class ModelUnavailable(AgentError):
    """No model answered; the same step may work later."""

    code = "model_unavailable"


class BadModelAnswer(AgentError):
    """The model answered, but twice not in the form that was asked for."""

    code = "bad_model_answer"


class AnswerError(Exception):
    """A parser's complaint about an answer, worded for the model."""


@dataclass(frozen=True)
class Question:
    """A question of a role to a model: messages, purpose, seed."""

    role: AgentRole
    purpose: str
    """Unique within its step, e.g. ``translate``."""
    messages: tuple[Mapping[str, JsonValue], ...]
    prompt_hash: str
    """Hash of the prompt file that the messages were made from."""
    seed: int
    json_answer: bool = False
    """Ask the provider for a JSON object, where it knows how to."""
    tools: tuple[Mapping[str, JsonValue], ...] = ()
    """Tools that the model may call, in the form of OpenAI's chat completions."""


class Gateway:
    """Models by role, one ledger, shared limits."""

    def __init__(
        self,
        models: RoleModels,
        ledger: Ledger,
        limits: Limits | None = None,
        *,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._models = models
        self._ledger = ledger
        self._limits = limits or NoLimits()
        self._sleep = sleep or ledger.pause

    def ask(self, question: Question, parse: Callable[[str], T]) -> T:
        """Return the parsed answer, after one repair turn if need be.

        ``parse`` raises :class:`AnswerError`. Raises :class:`ModelUnavailable`, :class:`BadModelAnswer` or
        :class:`cupilot.domain.model_call.CostBudgetReached`.
        """
        model = self._models.choose(question.role, question.seed)
        call, answer = self._answer(model, question)
        try:
            return self._parsed(call, answer, parse)
        except AnswerError as complaint:
            repair = _repair(question, answer, complaint)
        call, answer = self._answer(model, repair)
        try:
            return self._parsed(call, answer, parse)
        except AnswerError as complaint:
            raise BadModelAnswer(
                f"{model.name} answered {question.purpose} twice in an unusable form: {complaint}"
            ) from complaint

    def turn(self, question: Question) -> Answer:
        """Return one turn of a conversation with tools, as the model wrote it, recorded and charged.

        Raises :class:`ModelUnavailable` or :class:`cupilot.domain.model_call.CostBudgetReached`.
        """
        return self._answer(self._models.choose(question.role, question.seed), question)[1]

    def _parsed(self, call: Call, answer: Answer, parse: Callable[[str], T]) -> T:
        try:
            return _checked(answer, parse)
        except AnswerError as complaint:
            self._ledger.rejected(call, str(complaint))
            raise

    def _answer(self, model: Model, question: Question) -> tuple[Call, Answer]:
        messages = [{**turn, "content": redact_prompt(str(turn["content"]))} for turn in question.messages]
        sent = parameters(model, json_answer=question.json_answer, seed=question.seed, tools=question.tools)
        call = Call(
            role=question.role.value,
            purpose=question.purpose,
            model=model.name,
            prompt_hash=question.prompt_hash,
            messages=tuple(messages),
            parameters=sent,
            seed=question.seed,
            worst_cost_usd=price(model, count_tokens(messages, sent), answer_tokens(model)),
        )
        lost = 0
        for number in range(1, MAX_TRIES + 1):
            known = self._ledger.begin(call)
            if known is not None:
                return call, known
            try:
                return call, self._try(model, call)
            except TransportError as error:
                self._ledger.failed(call, f"{error.reason}: {redact_prompt(str(error))}", lost=error.maybe_charged)
                lost += error.maybe_charged
                asked_to_wait, backoff = error.retry_after or 0.0, _backoff(number)
                others = _endpoint_pause(error, backoff)
                if others > 0:
                    self._limits.back_off(model.endpoint, others)
                hopeless = not error.retryable or asked_to_wait > MAX_TURN_SECONDS
                if hopeless or number == MAX_TRIES or lost == MAX_LOST_TRIES:
                    raise _unavailable(model, error) from error
                self._pause(max(asked_to_wait, _jittered(backoff)))
        raise AssertionError("unreachable: the last try returns or raises")

    def _try(self, model: Model, call: Call) -> Answer:
        """Make one recorded try and return the stored answer.

        A try that is left before it is sent, as where its worker ends, costs nothing.
        """
        tokens = count_tokens(call.messages, call.parameters)
        try:
            self._wait_for_turn(model, tokens)
        except TransportError:
            raise
        except Exception:
            with suppress(Unavailable):
                self._ledger.failed(call, "left while it waited for its turn; it was not sent", lost=False)
            raise
        answer = complete(model, call.messages, call.parameters)
        answer = _redacted(answer)
        self._ledger.answered(call, answer)
        if model.limited:
            self._limits.settle(model.endpoint, taken=tokens, used=answer.prompt_tokens + answer.completion_tokens)
        return answer

    def _wait_for_turn(self, model: Model, tokens: int) -> None:
        waited = 0.0
        while True:
            wait = self._limits.take(
                model.endpoint,
                requests_per_minute=model.requests_per_minute,
                tokens_per_minute=model.tokens_per_minute,
                tokens=tokens,
            )
            if wait <= 0:
                return
            if waited >= MAX_TURN_SECONDS:
                message = f"the configured limits of {model.name} allowed no call for {waited:.0f} s"
                raise TransportError("rate_limited", message, retryable=False)
            pause = min(wait, MAX_PAUSE_SECONDS)
            waited += pause
            self._sleep(pause)

    def _pause(self, seconds: float) -> None:
        while seconds > 0:
            self._sleep(min(seconds, MAX_PAUSE_SECONDS))
            seconds -= MAX_PAUSE_SECONDS


def _redacted(answer: Answer) -> Answer:
    calls = tuple(call.model_copy(update={"arguments": redact_prompt(call.arguments)}) for call in answer.tool_calls)
    return answer.model_copy(update={"text": redact_prompt(answer.text), "tool_calls": calls})


def _checked(answer: Answer, parse: Callable[[str], T]) -> T:
    if not answer.text.strip():
        if answer.finish_reason == "length":
            raise AnswerError("all tokens went into reasoning and none were left for the answer; think less")
        raise AnswerError("the answer was empty")
    try:
        return parse(answer.text)
    except AnswerError as complaint:
        if answer.finish_reason == "length":
            raise AnswerError(f"the answer was cut off at the token limit; be shorter ({complaint})") from complaint
        raise


_HINTS = {
    "refused_by_provider": "check CUPILOT_LLM_MODEL, CUPILOT_LLM_API_KEY and CUPILOT_LLM_API_BASE",
    "context_too_long": "choose a model with a longer context",
    "rate_limited": "lower the load or raise the provider's limit",
    "timeout": "raise the model's timeout_seconds, or choose a faster one",
    "unavailable": "see whether the provider or the server at CUPILOT_LLM_API_BASE answers: cupilot models test",
}


def _unavailable(model: Model, error: TransportError) -> ModelUnavailable:
    text = f"{model.name} gave no answer ({error.reason}): {redact_prompt(str(error))}"
    return ModelUnavailable(text, hint=_HINTS.get(error.reason))


def _backoff(number: int) -> float:
    """Return seconds to wait after a call's failed try of that number, from 1, where the provider names none."""
    return min(FIRST_PAUSE_SECONDS * PAUSE_GROWTH ** (number - 1), MAX_PAUSE_SECONDS)


def _endpoint_pause(error: TransportError, backoff: float) -> float:
    """Return seconds for which no other call to the endpoint is made either, over one that failed; 0 for none.

    A rate limit is everybody's. Any other fault may be this call's alone: one that fails whenever it is sent would hold
    up all others for as long as its own waits grow, so they wait the first of them only. Where the provider is down,
    each call finds out for itself, and waits longer by itself.
    """
    if error.retry_after:
        return min(error.retry_after, MAX_TURN_SECONDS)
    if error.maybe_charged or not error.retryable:
        return 0.0
    return backoff if error.reason == "rate_limited" else FIRST_PAUSE_SECONDS


def _jittered(seconds: float) -> float:
    """Return the seconds plus up to half as many, so that workers that failed together, or jobs of one seed, do not
    retry together.
    """
    return seconds * SystemRandom().uniform(1.0, 1.5)


def _repair(question: Question, answer: Answer, complaint: AnswerError) -> Question:
    complaint_turn = f"That answer cannot be used: {complaint}\nAnswer again, whole, in exactly the form asked for."
    turns = (
        {"role": "assistant", "content": answer.text[:MAX_ECHO_CHARACTERS] or "(nothing)"},
        {"role": "user", "content": complaint_turn},
    )
    return replace(question, purpose=f"{question.purpose}/repair", messages=(*question.messages, *turns))
