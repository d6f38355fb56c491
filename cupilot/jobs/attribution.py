"""Attribute a confirmed winner's speed to its techniques, within the job's budget.

One agent step writes the winner without each technique, one device step a kernel measures it; whoever finishes the
last of them ends the job. The winner is confirmed by then, so nothing that happens here can cost the job its result.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from cupilot.domain.attribution import MAX_UNASKED_EVALUATIONS, UNASKED_SHARE, Credit, CreditOutcome, credit_factor
from cupilot.domain.evaluation import Evaluation
from cupilot.domain.evolution.population import Operator
from cupilot.domain.job import AgentKind
from cupilot.domain.kernel import LaunchPlan
from cupilot.domain.states import JobState, StepKind, StepState
from cupilot.domain.strategy import Strategy
from cupilot.jobs.budget import Exhausted, evaluations_left, no_evaluation
from cupilot.storage.db.tables.jobs import Candidate, Generation, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.credits import credits_of, store_credit
from cupilot.storage.jobs.endings import end_job, stop_queued_work
from cupilot.storage.jobs.progress import first_measurement, kernel_as_measured, steps_of, strategy_of
from cupilot.storage.pool.rows import credit_entry
from cupilot.storage.queue.steps import AGENTS_QUEUE, add_step

KINDS = (StepKind.ABLATE, StepKind.ATTRIBUTE)


def begin_attribution(session: Session, job: Job, winner: Candidate) -> bool:
    """Queue the attribution of a confirmed winner; False where the job wants none or its budget has no room."""
    if no_evaluation(session, job) is not None:
        return False
    learning, left = job.learning, evaluations_left(session, job)
    wanted = learning.attribution
    if not wanted and learning.cheap_attribution and left > 0:
        wanted = _unasked(session, job, winner)
    limit = min(wanted, left)
    if limit <= 0:
        return False
    add_step(
        session,
        job,
        StepKind.ABLATE,
        "ablate",
        queue=AGENTS_QUEUE,  # whoever wrote the winner, no model is asked
        candidate=winner,
        generation=session.get_one(Generation, winner.generation_id),
        payload={"limit": limit},
    )
    return True


def _unasked(session: Session, job: Job, winner: Candidate) -> int:
    """Return kernels to measure of a job that says nothing about it: few, and none that costs more than a little."""
    first = first_measurement(session, winner)
    if first is None or not (_is_rendered(job, winner) or _has_switches(session, winner)):
        return 0
    seconds = first.body.seconds
    affordable = job.gpu_seconds * UNASKED_SHARE / seconds if seconds > 0 else 0.0
    return min(int(affordable), MAX_UNASKED_EVALUATIONS)


def _is_rendered(job: Job, winner: Candidate) -> bool:
    """Return whether templates wrote the winner, as far as the job and the operator tell."""
    first = winner.operator is Operator.INITIAL and not winner.notes.repairs
    return job.agents is AgentKind.PLAYBOOK or (job.agents is AgentKind.HYBRID and first)


def _has_switches(session: Session, winner: Candidate) -> bool:
    kernel = kernel_as_measured(session, winner)
    return kernel is not None and switches(kernel.plan, strategy_of(session, winner))


def switches(plan: LaunchPlan, strategy: Strategy) -> bool:
    """Return whether a tunable has the name of one of the strategy's techniques, or of a parameter of one."""
    names = [name.lower() for name in plan.tunables]
    return any(name == technique or name.startswith(f"{technique}_") for name in names for technique in strategy.ids())


def end_when_done(session: Session, job: Job, winner: Candidate) -> None:
    """End the job if no step of its attribution is open any more; the pool then knows the credits.

    Where its device seconds are used up, what has not begun never will.
    """
    if no_evaluation(session, job) is Exhausted.GPU:
        stop_queued_work(session, job)
        for step in steps_of(session, job, StepKind.ATTRIBUTE, state=StepState.CANCELLED):
            _not_measured(session, winner, step, Exhausted.GPU.message)
    if not steps_of(session, job, *KINDS):
        _conclude(session, job, winner)


def skip_attribution(session: Session, job: Job, step: Step, message: str) -> None:
    """Continue after an attribution step that failed for good: its technique's credit stays unknown."""
    winner = session.get_one(Candidate, step.candidate_id, populate_existing=True)
    if step.kind is StepKind.ATTRIBUTE:
        _not_measured(session, winner, step, message)
    end_when_done(session, job, winner)


def end_attribution(session: Session, job: Job) -> bool:
    """End a locked job whose time is up while it attributes: its winner is confirmed, so it has succeeded.

    False where the job does not attribute.
    """
    steps = steps_of(session, job, *KINDS)
    if not steps or job.state is not JobState.EVOLVING:
        return False
    _conclude(session, job, session.get_one(Candidate, steps[0].candidate_id, populate_existing=True))
    return True


def _conclude(session: Session, job: Job, winner: Candidate) -> None:
    credits, first = credits_of(session, winner.id), first_measurement(session, winner)
    if credits and first is not None:
        credit_entry(session, first.id, credits)
    end_job(session, job, JobState.SUCCEEDED)


def _not_measured(session: Session, winner: Candidate, step: Step, note: str) -> None:
    fields = {"technique": step.payload["technique"], "removed": step.payload["removed"]}
    credit = Credit.model_validate({**fields, "outcome": CreditOutcome.NOT_MEASURED, "note": note})
    store_credit(session, winner, step.payload["position"], credit)


def credit_of(credit: Credit, winner: Evaluation, without: Evaluation) -> Credit:
    """Return a technique's credit from both measurements."""
    full, rest = winner.comparison(), without.comparison()
    if not without.verdict.counts or full is None or rest is None:
        failure = without.failure.kind if without.failure else None
        return credit.model_copy(update={"outcome": CreditOutcome.BROKEN, "failure": failure})
    factor = credit_factor(full.speedup, rest.speedup)
    changed = {"outcome": CreditOutcome.MEASURED, "factor": factor, "speedup_without": rest.speedup}
    return credit.model_copy(update=changed)
