"""Plan a job without starting it: a submission's checks, its upper bounds, and what similar jobs used.

Makes nothing, and promises nothing: the queue, the quota and the workers may be others a second later.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from sqlalchemy.orm import Session

from cupilot.domain.job import AgentKind, JobSpec
from cupilot.domain.problem import NumericsPolicy, ProblemFacts, Target
from cupilot.domain.undefined import undefined_names
from cupilot.jobs.submission import spec_of
from cupilot.schemas import JobBound, JobGuess, JobPlan, JobRequest
from cupilot.storage.db.tables.people import Team
from cupilot.storage.db.usage import begin_of, gpu_seconds_since
from cupilot.storage.jobs.estimates import futile_end, guess, traced
from cupilot.storage.jobs.job_views import queued_before
from cupilot.storage.models.money import allowance
from cupilot.storage.people.quotas import check_queue, quota_of
from cupilot.storage.queue.cluster import live_workers

_FUTILE_NOTES = {
    "no_template": (
        "A job of your team on this very problem ended as no_template: these agents have no template for the operator,"
        " and this one would end in the same way. Agents hybrid or llm, where a model is configured, can write its"
        " kernels: cupilot submit FILE --agents hybrid."
    ),
    "invalid_problem": (
        "A job of your team on this very file ended as invalid_problem, and this one would end in the same way: mend"
        " the file first."
    ),
}
_BROKEN = "Once that is reached, the job ends as invalid_problem: mend the line first."
BROKEN_SHOWN = 3
Foresight = Callable[[str, NumericsPolicy, Target, ProblemFacts | None], list[str]]
"""Notes of agents without a model on a problem before its job, from its source, policy and target, and from facts that
an earlier job traced."""


def plan(session: Session, team: UUID, request: JobRequest, foresee: Foresight) -> JobPlan:
    """Return what the job would be; what would be refused is refused with the same error."""
    spec = spec_of(session, team, request)
    check_queue(session, team, coming=1)
    bound = _at_most(session, team, spec)
    futile = futile_end(session, team, spec)
    known: list[str] = []
    if spec.agents is AgentKind.PLAYBOOK and futile is None:
        problem = spec.problem
        known = foresee(problem.source, problem.policy, spec.target, traced(session, team, spec))
    guessed = None if futile is not None else guess(session, team, spec, min(bound.candidates, bound.kernels))
    broken = [f"{sentence} {_BROKEN}" for sentence in undefined_names(spec.problem.source)][:BROKEN_SHOWN]
    return JobPlan(
        problem=spec.problem.name,
        problem_hash=spec.problem.content_hash(),
        policy=spec.problem.policy,
        target=spec.target,
        method=spec.method,
        agents=spec.agents,
        budgets=spec.budgets,
        at_most=bound,
        guess=guessed,
        queue_position=queued_before(session, spec.target, spec.priority),
        notes=_futile(*futile) if futile is not None else [*broken, *known, *_notes(session, spec, bound, guessed)],
    )


def _futile(reason: str, message: str) -> list[str]:
    return [_FUTILE_NOTES[reason], *([f"That job said: {message}"] if message else [])]


def _at_most(session: Session, team: UUID, spec: JobSpec) -> JobBound:
    return JobBound(
        candidates=spec.method.max_candidates,
        kernels=min(spec.method.max_kernels + spec.learning.max_kernels, spec.budgets.candidates),
        wall_seconds=spec.budgets.wall_seconds,
        gpu_seconds=_gpu_seconds(session, team, spec),
        cost_usd=_cost_usd(session, team, spec),
    )


def _gpu_seconds(session: Session, team: UUID, spec: JobSpec) -> float | None:
    quota = quota_of(session.get_one(Team, team))
    limits = [] if spec.budgets.gpu_seconds is None else [spec.budgets.gpu_seconds]
    if quota.gpu_seconds is not None:
        used = gpu_seconds_since(session, team, begin_of(session, quota.period))
        limits.append(max(quota.gpu_seconds - used, 0.0))
    return min(limits, default=None)


def _cost_usd(session: Session, team: UUID, spec: JobSpec) -> float:
    if spec.agents is AgentKind.PLAYBOOK:
        return 0.0
    allowed = allowance(session, team)
    return spec.budgets.cost_usd if allowed is None else min(spec.budgets.cost_usd, max(allowed.left_usd, 0.0))


def _notes(session: Session, spec: JobSpec, bound: JobBound, guess: JobGuess | None) -> list[str]:
    target = spec.target.value
    notes = []
    if all(worker.device is None or worker.device.target is not spec.target for worker in live_workers(session)):
        notes.append(f"No live worker has the target {target}: the job would wait for one.")
    if bound.gpu_seconds == 0:
        notes.append("The team's device seconds of this period are used up: the job would wait for the next one.")
    if bound.cost_usd == 0 and spec.agents is not AgentKind.PLAYBOOK:
        notes.append("No money is left for model calls, which these agents need.")
    if guess is None:
        notes.append(
            f"No job of your team on {target} with the method {spec.method.name} and agents of kind"
            f" {spec.agents.value} has run to its end yet, so nothing can be guessed."
        )
    return notes
