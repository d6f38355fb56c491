"""The one way from an agent to a model: choose, record, call, retry, store, check, ask once for a repair.

Knows nothing of strategies or kernels: what an answer must look like is the caller's parser's business. The transport
and the ledger are given to it, so that nothing here knows HTTP or a database.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

import tenacity

from agents.interface import AgentError
from agents.llm.ledger import Ledger
from agents.llm.models import AgentRole, Model, RoleModels
from agents.llm.transport import TransportError, complete, count_tokens, price
from cupilot.model_call import Answer, Call

T = TypeVar("T")

MAX_TRIES = 5
"""Tries of one call; with waits of about 1, 2, 4 and 8 s this outlasts a provider's short hiccup."""
MAX_WAIT_SECONDS = 60.0
"""Longest wait between tries, whatever Retry-After says: a step must not sleep past its lease's patience."""
MAX_ECHO_CHARACTERS = 8_000
"""How much of a bad answer is shown back to the model."""

_SECRET = re.compile(r"(?i)\b(sk-[a-z0-9_-]{16,}|cpk_[a-z0-9_-]{16,}|hf_[a-z0-9]{16,}|bearer\s+[a-z0-9._-]{16,})")


class ModelUnavailable(AgentError):
    """No model answered; the same step may work later."""

    code = "model_unavailable"


class BadModelAnswer(AgentError):
    """The model answered, but twice not in the form that was asked for."""

    code = "bad_model_answer"


class AnswerError(Exception):
    """A parser's complaint about an answer, worded for the model."""


def without_secrets(text: str) -> str:
    """The text with everything that looks like an API key blanked."""
    return _SECRET.sub("[removed]", text)


@dataclass(frozen=True)
class Question:
    """What a role wants to know."""

    role: AgentRole
    purpose: str
    """Unique within its step, e.g. ``translate``."""
    messages: tuple[Mapping[str, str], ...]
    prompt_hash: str
    """Hash of the prompt file that the messages were made from."""
    seed: int
    json_answer: bool = False
    """Ask the provider for a JSON object, where it knows how to."""


class Gateway:
    """Models by role, one ledger."""

    def __init__(self, models: RoleModels, ledger: Ledger, *, sleep: Callable[[float], None] | None = None) -> None:
        self._models = models
        self._ledger = ledger
        self._sleep = sleep or tenacity.nap.sleep

    def ask(self, question: Question, parse: Callable[[str], T]) -> T:
        """The parsed answer, after one repair turn if need be.

        ``parse`` raises :class:`AnswerError`. Raises :class:`ModelUnavailable`, :class:`BadModelAnswer` or
        :class:`cupilot.model_call.CostBudgetReached`.
        """
        model = self._models.choose(question.role, question.seed)
        answer = self._answer(model, question)
        try:
            return self._parsed(answer, parse)
        except AnswerError as complaint:
            repair = _repair(question, answer, complaint)
        second = self._answer(model, repair)
        try:
            return self._parsed(second, parse)
        except AnswerError as complaint:
            raise BadModelAnswer(
                f"{model.name} answered {question.purpose} twice in an unusable form: {complaint}"
            ) from complaint

    def _parsed(self, answer: Answer, parse: Callable[[str], T]) -> T:
        if not answer.text.strip():
            raise AnswerError("the answer was empty")
        try:
            return parse(answer.text)
        except AnswerError as complaint:
            if answer.finish_reason == "length":
                raise AnswerError(f"the answer was cut off at the token limit; be shorter ({complaint})") from complaint
            raise

    def _answer(self, model: Model, question: Question) -> Answer:
        messages = [{"role": turn["role"], "content": without_secrets(turn["content"])} for turn in question.messages]
        call = Call(
            role=question.role.value,
            purpose=question.purpose,
            model=model.name,
            prompt_hash=question.prompt_hash,
            messages=tuple(messages),
            worst_cost_usd=price(model, count_tokens(messages), model.max_output_tokens),
        )
        stored = self._ledger.begin(call)
        if stored is not None:
            return stored
        try:
            answer = self._complete(model, messages, question)
        except TransportError as error:
            self._ledger.failed(call, f"{error.reason}: {without_secrets(str(error))}")
            raise ModelUnavailable(
                f"{model.name} gave no answer ({error.reason}): {without_secrets(str(error))}",
                hint=_HINTS.get(error.reason),
            ) from error
        answer = answer.model_copy(update={"text": without_secrets(answer.text)})
        self._ledger.answered(call, answer)
        return answer

    def _complete(self, model: Model, messages: Sequence[dict[str, str]], question: Question) -> Answer:
        jitter = Random(question.seed)
        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, TransportError) and error.retryable),
            stop=tenacity.stop_after_attempt(MAX_TRIES),
            wait=lambda state: _wait(state, jitter),
            sleep=self._sleep,
            reraise=True,
        )
        return tries(complete, model, messages, json_answer=question.json_answer, seed=question.seed)


_HINTS = {
    "refused_by_provider": "check CUPILOT_LLM_MODEL, CUPILOT_LLM_API_KEY and CUPILOT_LLM_API_BASE",
    "context_too_long": "choose a model with a longer context",
    "rate_limited": "lower the load or raise the provider's limit",
}


def _wait(state: tenacity.RetryCallState, jitter: Random) -> float:
    """Exponential with full jitter, but never less than the provider asked for."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after if isinstance(error, TransportError) and error.retry_after is not None else 0.0
    backoff = 2.0 ** (state.attempt_number - 1) * (0.5 + jitter.random())
    return min(max(asked, backoff), MAX_WAIT_SECONDS)


def _repair(question: Question, answer: Answer, complaint: AnswerError) -> Question:
    complaint_turn = f"That answer cannot be used: {complaint}\nAnswer again, whole, in exactly the form asked for."
    turns = (
        {"role": "assistant", "content": answer.text[:MAX_ECHO_CHARACTERS] or "(nothing)"},
        {"role": "user", "content": complaint_turn},
    )
    return replace(question, purpose=f"{question.purpose}/repair", messages=(*question.messages, *turns))
