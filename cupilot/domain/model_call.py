"""A call to a language model and its answer, as agents make them and storage keeps them. Pure data."""

from __future__ import annotations

from enum import StrEnum

from pydantic import JsonValue

from cupilot.domain.errors import CupilotError
from cupilot.domain.value import Value, digest


class ToolCall(Value):
    """A model's call of a tool, as it wrote it."""

    id: str
    """By which the tool's result is matched with the call."""
    name: str
    arguments: str
    """A JSON object, if the model kept to the form."""


class Call(Value):
    """A call that is about to be made."""

    role: str
    purpose: str
    """Unique within its step, e.g. ``translate`` or ``translate/repair``."""
    model: str
    prompt_hash: str
    """Hash of the prompt file's text that the messages were made from."""
    messages: tuple[dict[str, JsonValue], ...]
    """In the form of OpenAI's chat completions: ``role`` and ``content``; in conversations with tools ``tool_calls`` of
    an assistant's turn and ``tool_call_id`` of a result."""
    parameters: dict[str, JsonValue] = {}
    """Further parameters that decide the answer, as they are sent: seed, temperature, endpoint, tools; no key."""
    seed: int | None = None
    """Seed of the question, also where the model is not sent it: each seed is a sample of its own."""
    worst_cost_usd: float
    """Upper bound of the call's cost: counted against budgets until the true cost is known."""

    def request_hash(self) -> str:
        """Return the key by which an answer is found again: the hash of model, messages, parameters and seed."""
        seed: dict[str, JsonValue] = {} if self.seed is None else {"seed": self.seed}
        return digest([self.model, list(self.messages), self.parameters | seed])


class Answer(Value):
    """Answer of a model call."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    prompt_tokens: int
    completion_tokens: int
    """Reasoning included."""
    reasoning_tokens: int = 0
    cost_usd: float
    finish_reason: str = "stop"
    seconds: float = 0.0
    cached: bool = False
    """True if it was paid for by an earlier, equal call of the team."""


class NoAnswer(Value):
    """Reason why a call got no answer."""

    error: str


class BudgetScope(StrEnum):
    """Budget that a call did not fit; the values are the codes of the error."""

    CALL = "call_budget"
    JOB = "cost_budget"
    TEAM = "team_budget"


_WORDS = {
    BudgetScope.CALL: ("that one call may cost", "raise budgets.call_usd, or lower the model's max_output_tokens"),
    BudgetScope.JOB: ("that the job has left", "raise budgets.cost_usd"),
    BudgetScope.TEAM: ("that the team has left in this period", "wait for the next period, or ask for a larger quota"),
}


class CostBudgetReached(CupilotError):
    """A call could cost more than what is left for it; it was not made."""

    code = "cost_budget"
    status = 402

    def __init__(self, worst_cost_usd: float, left_usd: float, scope: BudgetScope = BudgetScope.JOB) -> None:
        words, hint = _WORDS[scope]
        left = f"${max(left_usd, 0):.4f}"
        super().__init__(f"a model call may cost ${worst_cost_usd:.4f}, more than the {left} {words}", hint=hint)
        self.code = scope.value
        self.scope = scope
