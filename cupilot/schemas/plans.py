"""Plans of jobs: the job that a request would make, its upper bounds, and what similar jobs used."""

from __future__ import annotations

from cupilot.domain.evolution.methods import MethodConfig
from cupilot.domain.job import AgentKind, Budgets
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.schemas.base import Response


class JobBound(Response):
    """Upper bounds of what a job can use."""

    candidates: int
    """That its method proposes; what people inject comes on top."""
    kernels: int
    """Evaluated: candidates with their repairs, within the budget."""
    wall_seconds: float
    gpu_seconds: float | None = None
    """The least of the job's budget and what its team has left, beyond which nothing begins but the confirmation of the
    best kernel; null where neither is limited."""
    cost_usd: float
    """The same for model calls; 0 where the agents call no model. Nothing counts tokens: money limits them."""


class JobGuess(Response):
    """Estimate of what a job will use: medians of earlier jobs per candidate, times its candidates."""

    jobs: int
    """Number of earlier jobs of your team that it rests on, the newest ones: same target, method and kind of agents."""
    same_problem: bool
    """True if they worked on this very problem, rather than on any."""
    wall_seconds: float
    gpu_seconds: float
    cost_usd: float
    tokens: int
    """Read and written by models."""


class JobPlan(Response):
    """The job that a submission would become; nothing was made."""

    problem: str
    """Its name."""
    problem_hash: str
    policy: NumericsPolicy
    target: Target
    method: MethodConfig
    """The whole configuration, defaults written out."""
    agents: AgentKind
    budgets: Budgets
    at_most: JobBound
    guess: JobGuess | None = None
    """Null where your team has no such jobs yet."""
    queue_position: int
    """Queued jobs that would come before it."""
    notes: list[str] = []
    """Obstacles, and what could not be estimated."""
