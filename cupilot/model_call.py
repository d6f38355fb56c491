"""A call to a language model and its answer, as agents make them and storage keeps them. Pure data."""

from __future__ import annotations

from cupilot.errors import CupilotError
from cupilot.value import Value, digest


class Call(Value):
    """A call that is about to be made."""

    role: str
    purpose: str
    """Unique within its step, e.g. ``translate`` or ``translate/repair``."""
    model: str
    prompt_hash: str
    """Hash of the prompt file's text that the messages were made from."""
    messages: tuple[dict[str, str], ...]
    worst_cost_usd: float
    """What the call can cost at the most: counted against budgets until the true cost is known."""

    def request_hash(self) -> str:
        """What an answer is found by again: model and messages."""
        return digest([self.model, list(self.messages)])


class Answer(Value):
    """What came back."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float
    finish_reason: str = "stop"
    seconds: float = 0.0


class CostBudgetReached(CupilotError):
    """A call would cost more than what its job has left."""

    code = "cost_budget"
    status = 402

    def __init__(self, worst_cost_usd: float, left_usd: float) -> None:
        left = f"${max(left_usd, 0):.4f}"
        super().__init__(
            f"a model call of up to ${worst_cost_usd:.4f} does not fit the {left} that the job has left",
            hint="raise budgets.cost_usd",
        )
