"""Calls to language models: prompts, answers, costs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from cupilot.domain.states import LlmCallState
from cupilot.schemas.base import Response, open_enum

CallStateText = Annotated[str, open_enum(LlmCallState)]


class CallSummary(Response):
    """A model call in a list."""

    id: UUID
    candidate: int | None = None
    """Ordinal of the candidate that it was made for; null for a generation's initial strategies."""
    step: str
    """Name of the step within its job, e.g. ``c12/revise/1``."""
    role: str
    purpose: str
    """E.g. ``translate``; ``translate/repair`` is the second turn after an answer that could not be used."""
    attempt: int
    """Tries of this call before it, by this or a former worker."""
    model: str
    state: CallStateText
    cached: bool
    """Answered from an earlier, equal call of the team, at no cost."""
    complaint: str | None = None
    """Defect of an answer that could not be used."""
    error: str | None = None
    """Why no answer came."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """Reasoning included."""
    cost_usd: float
    """Charged once answered; the worst case, reserved, while it is started or lost."""
    created_at: datetime
    finished_at: datetime | None = None


class CallPage(Response):
    """Model calls in the order in which they were made."""

    items: list[CallSummary]
    next_cursor: str | None = None
    """Give it as ``cursor`` to get the next page; null on the last."""


class ToolUse(Response):
    """A model's call of a tool."""

    name: str
    arguments: str
    """As the model wrote them: a JSON object, if it kept to the form."""


class Turn(Response):
    """One message of a conversation."""

    role: str
    """``system``, ``user``, ``assistant`` or ``tool``."""
    content: str
    tool_calls: list[ToolUse] = []
    """Tools that the assistant calls in it."""


class CallView(CallSummary):
    """A model call with its prompt and its answer, secrets removed."""

    job: UUID
    messages: list[Turn]
    prompt_hash: str
    """Of the prompt file that the messages were made from."""
    parameters: dict[str, object]
    """Seed, token limit and whatever else was sent; no key."""
    answer: str | None = None
    tool_calls: list[ToolUse] = []
    """Tools that the answer calls."""
    finish_reason: str | None = None
    reasoning_tokens: int | None = None
    seconds: float | None = None


class Spending(Response):
    """Cost and tokens of one role on one model."""

    role: str
    model: str
    calls: int
    cached: int
    """Of these, answered at no cost from what the team had paid for."""
    unusable: int
    """Answers that could not be used."""
    unanswered: int
    """Tries that failed or were lost."""
    prompt_tokens: int
    """Of paid calls."""
    completion_tokens: int
    cost_usd: float
    reserved_usd: float
    """Worst cost of calls that are on their way or were lost; counts against budgets."""
