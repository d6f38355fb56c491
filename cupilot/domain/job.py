"""A job as a team submits it. Its state machine is in :mod:`cupilot.storage.db.transitions`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cupilot.domain.attribution import MAX_EXTRA_EVALUATIONS, MAX_UNASKED_EVALUATIONS
from cupilot.domain.errors import InvalidInput
from cupilot.domain.evolution.methods import NEEDS_MODEL, MethodConfig
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.pool import Sharing
from cupilot.domain.problem import Problem, Target
from cupilot.domain.value import Value, Vocabulary


class AgentKind(Vocabulary):
    """Kind of agents that write the kernels."""

    PLAYBOOK = "playbook"
    """Parametric templates; no model, no key, no cost."""
    LLM = "llm"
    HYBRID = "hybrid"
    """Seeded by the playbook, evolved by a model."""


class MethodNeedsModel(InvalidInput):
    """The method's operators write code freely, which the playbook's templates cannot."""

    code = "method_needs_model"


class Priority(Vocabulary):
    """Order within a team's share of the cluster."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


MAX_USD = 100_000
MAX_MINUTES = 7 * 24 * 60


class Budgets(Value):
    """Hard limits; a job that reaches one ends as ``budget_exhausted`` and keeps its best kernel."""

    candidates: Annotated[int, Field(ge=1, le=10_000)] = 200
    """Kernels that may be evaluated in all."""
    wall_seconds: Annotated[float, Field(gt=0, le=MAX_MINUTES * 60)] = 3_600.0
    """From the start of preparation, without pauses and times in which the service was away."""
    cost_usd: Annotated[float, Field(ge=0, le=MAX_USD)] = 10.0
    """Model calls; the playbook costs nothing."""
    gpu_seconds: Annotated[float, Field(gt=0, le=100 * 86_400)] | None = None
    """Seconds of GPU workers; none is begun beyond them but the confirmation of the best kernel. None for no limit."""
    call_usd: Annotated[float, Field(ge=0, le=MAX_USD)] | None = None
    """Most that one model call may cost, reasoning included; None for no limit of its own."""
    reuse_answers: bool = True
    """True if an answer that the team has paid for already may be used again: same model, prompt and seed."""


class Learning(Value):
    """Entries that a job may leave in the strategy pool, for later jobs."""

    attribution: Annotated[int, Field(ge=0, le=MAX_EXTRA_EVALUATIONS)] = 0
    """Kernels that may be measured after the winner is confirmed, each without one of its techniques, so that each
    technique's share of the gain is known. Within the budget of candidates; 0 leaves it at ``cheap_attribution``."""
    cheap_attribution: bool = True
    """True if a few kernels are measured without being asked for: where templates wrote the winner or a tunable
    switches a technique off, within a tenth of the job's GPU time."""
    sharing: Sharing | None = None
    """Teams that may learn from its entries in the strategy pool; by default the service's setting. Entries on a
    problem that is not built-in are private in any case."""

    @property
    def max_kernels(self) -> int:
        """Kernels that attribution measures at most."""
        return self.attribution or (MAX_UNASKED_EVALUATIONS if self.cheap_attribution else 0)


class JobSpec(Value):
    """Everything that defines a job; two jobs of one spec and one set of measurements evolve alike."""

    problem: Problem
    target: Target
    method: MethodConfig = SceConfig()
    agents: AgentKind = AgentKind.PLAYBOOK
    budgets: Budgets = Budgets()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    priority: Priority = Priority.NORMAL
    labels: Annotated[dict[str, str], Field(max_length=16)] = {}
    learning: Learning = Learning()


def check_playable(method: MethodConfig, agents: AgentKind) -> None:
    """Raise :class:`MethodNeedsModel` where these agents cannot play this method."""
    if agents is AgentKind.PLAYBOOK and isinstance(method, SceConfig) and method.agentic:
        raise MethodNeedsModel(
            "working with tools (method.agentic) needs a model, which the playbook has not",
            hint="let agents of kind llm or hybrid play it, or set agentic to 0",
            where="body.agents",
        )
    if agents is AgentKind.PLAYBOOK and method.name in NEEDS_MODEL:
        raise MethodNeedsModel(
            f"the method {method.name} writes kernels freely, which the playbook cannot",
            hint="let agents of kind llm or hybrid play it, or take the method sce",
            where="body.agents",
        )
