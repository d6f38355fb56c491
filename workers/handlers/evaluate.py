"""Step ``evaluate``: the judge builds, checks, times and profiles a candidate's kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from cupilot.domain.evaluation import Evaluation
from cupilot.domain.evolution.pipeline import Judged
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import Kernel
from cupilot.domain.states import EvaluationPurpose
from cupilot.jobs.flow import advance, config_of
from cupilot.jobs.learning import learn
from cupilot.storage.db.tables.jobs import Candidate, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.evolving import add_evaluation
from cupilot.storage.jobs.progress import file_of, strategy_of
from cupilot.storage.queue.steps import Claim
from workers.handlers.common import Assignment, candidate_of, check_infrastructure, load_assignment, stage_of
from workers.tools import Tools


@dataclass(frozen=True)
class Wish:
    """What is asked for."""

    assignment: Assignment
    kernel: Kernel | ImportedKernel
    incumbent: float | None
    """Speedup of the job's best kernel so far."""


def load(session: Session, claim: Claim) -> Wish:
    """The kernel that the step was made for."""
    _, assignment = load_assignment(session, claim)
    best = session.get_one(Job, claim.job_id).best_candidate_id
    incumbent = session.get_one(Candidate, best).speedup if best is not None else None
    return Wish(assignment, file_of(session, claim.payload["kernel"]), incumbent)


def work(wish: Wish, tools: Tools, cancelled: Callable[[], bool]) -> Evaluation:
    """Have the judge evaluate it."""
    evaluation = tools.judge().evaluate(
        wish.assignment.spec.problem,
        wish.assignment.preparation,
        wish.kernel,
        incumbent=wish.incumbent,
        timeout=tools.settings.evaluate_timeout_seconds,
        cancelled=cancelled,
    )
    return check_infrastructure(evaluation)


def store(session: Session, job: Job, step: Step, evaluation: Evaluation) -> None:
    """Keep the measurement, learn from it, go on."""
    candidate = candidate_of(session, step)
    weight = config_of(job).utilisation_weight
    purpose = EvaluationPurpose.EVALUATE
    row = add_evaluation(session, job, candidate, step, evaluation, purpose=purpose, utilisation_weight=weight)
    learn(session, job, row, evaluation, strategy_of(session, candidate))
    outcome = Judged(evaluation.verdict, evaluation.failure.kind if evaluation.failure else None)
    advance(session, job, candidate, stage_of(step), outcome)
