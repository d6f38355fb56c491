"""Steering of jobs: changes, retries, forks, directives; and a team's quota."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, model_validator

from cupilot.domain.evolution.methods import MethodConfig
from cupilot.domain.job import AgentKind, Budgets, Priority
from cupilot.domain.kernel import Kernel
from cupilot.domain.quota import Quota
from cupilot.domain.steering import DirectiveKind
from cupilot.domain.strategy import Strategy
from cupilot.schemas.base import Request, Response, open_enum
from cupilot.schemas.jobs import Label, LabelValue

CandidateRef = Annotated[str, Field(min_length=1, max_length=40, examples=["3"])]


class JobChange(Request):
    """Changes to a job; fields that are left out stay as they are."""

    labels: Annotated[dict[Label, LabelValue | None], Field(max_length=32)] | None = None
    """Added or replaced one by one; null removes a label."""
    priority: Priority | None = None


class RetryRequest(Request):
    """Differences of the new job from the ended one; fields that are left out stay the same."""

    budgets: Budgets | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    priority: Priority | None = None
    labels: Annotated[dict[Label, LabelValue], Field(max_length=16)] | None = None


class ForkRequest(RetryRequest):
    """Differences of the new job from the candidate's; fields that are left out stay the same."""

    method: MethodConfig | None = None
    agents: AgentKind | None = None


class DirectiveRequest(Request):
    """A directive to the job's evolution: something to keep, avoid or try."""

    kind: DirectiveKind
    candidate: CandidateRef | None = None
    """By id or ordinal: the one to pin, or whose strategy to ban."""
    technique: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{1,63}$")] | None = None
    """A technique to ban: of the catalogue, or one that your team's agents invented."""
    any_name: bool = False
    """Ban a technique of a name that nobody knows yet; without it such a name is refused, for it may be misspelt."""
    strategy: Strategy | None = None
    """To ban, or to inject."""
    kernel: Kernel | None = None
    """To inject with its strategy; without one the agents write it."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> DirectiveRequest:
        given = {name for name in ("candidate", "technique", "strategy", "kernel") if getattr(self, name) is not None}
        allowed: dict[DirectiveKind, list[set[str]]] = {
            DirectiveKind.PIN: [{"candidate"}],
            DirectiveKind.BAN: [{"candidate"}, {"technique"}, {"strategy"}],
            DirectiveKind.INJECT: [{"strategy"}, {"strategy", "kernel"}],
        }
        if given not in allowed[self.kind]:
            words = " or ".join(" and ".join(sorted(names)) for names in allowed[self.kind])
            raise ValueError(f"a directive of kind {self.kind.value} has {words}")
        return self


class DirectiveView(Response):
    """A directive with its state."""

    id: UUID
    kind: Annotated[str, open_enum(DirectiveKind)]
    candidate: UUID | None = None
    """The pinned one; whose strategy is banned; the one, perhaps of another job, that is injected."""
    technique: str | None = None
    strategy: Strategy | None = None
    kernel_hash: str | None = None
    became: UUID | None = None
    """The candidate that an injection became."""
    in_force: bool
    author: str
    created_at: datetime
    done_at: datetime | None = None
    lifted_at: datetime | None = None


class DirectiveList(Response):
    """A job's directives, the oldest first."""

    items: list[DirectiveView]


class QuotaUse(Response):
    """A limit of a team and its use."""

    used: float
    limit: float | None = None
    """Null where nothing limits it."""


class QueueShare(Response):
    """A team's share of a queue."""

    queue: str
    seconds: float
    """Seconds of workers that the team has used or holds, fading with their age: what fair shares are made from."""
    of_all: float
    """The same of all teams together."""


class QuotaView(Response):
    """A team's limits and their use."""

    team: str
    weight: float
    """Share of the cluster relative to other teams."""
    quota: Quota
    running_jobs: QuotaUse
    queued_jobs: QuotaUse
    gpu_seconds: QuotaUse
    """In this period."""
    model_usd: QuotaUse
    """In this period."""
    period_began_at: datetime
    shares: list[QueueShare]


DIRECTIVE_EXAMPLES: dict[str, Any] = {
    "pin": {"summary": "Keep a candidate", "value": {"kind": "pin", "candidate": "3"}},
    "ban": {"summary": "Do not propose a technique again", "value": {"kind": "ban", "technique": "vectorized_access"}},
    "inject": {
        "summary": "Try a strategy",
        "value": {
            "kind": "inject",
            "strategy": {"techniques": [{"id": "simd", "parameters": {}}], "rationale": "the rows are contiguous"},
        },
    },
}
