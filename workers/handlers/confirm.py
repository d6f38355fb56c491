"""Step ``confirm``: the job's best kernel is measured again, in fresh processes and against every baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from cupilot.domain.evaluation import Evaluation, Preparation
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem
from cupilot.domain.states import EvaluationPurpose
from cupilot.jobs.confirmation import after_confirmation
from cupilot.jobs.flow import config_of
from cupilot.jobs.learning import correct, learn
from cupilot.storage.db.tables.jobs import Candidate, EvaluationRow, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.evolving import add_evaluation
from cupilot.storage.jobs.jobs import job_spec
from cupilot.storage.jobs.progress import evaluation_of, file_of, preparation_of, strategy_of
from cupilot.storage.pool.rows import recall
from cupilot.storage.queue.steps import Claim
from workers.handlers.handler import Handler
from workers.handlers.rows import candidate_of
from workers.tools import Tools


@dataclass(frozen=True)
class ConfirmInput:
    """Input of the step ``confirm``, read in one transaction."""

    problem: Problem
    preparation: Preparation
    kernel: Kernel | ImportedKernel
    tunables: dict[str, int]
    """Those that the evaluation to be confirmed chose."""


def load(session: Session, claim: Claim) -> ConfirmInput:
    """Read the candidate's kernel."""
    job = session.get_one(Job, claim.job_id)
    candidate = session.get_one(Candidate, claim.candidate_id)
    assert candidate.kernel_hash is not None
    assert candidate.evaluation_id is not None
    kernel = file_of(session, candidate.kernel_hash)
    tunables = evaluation_of(session, candidate.evaluation_id).tunables
    return ConfirmInput(job_spec(session, job).problem, preparation_of(job), kernel, tunables)


def work(step: ConfirmInput, tools: Tools, cancelled: Callable[[], bool]) -> Evaluation:
    """Confirm the kernel with the judge."""
    judge = tools.step_judge(cancelled)
    return judge.confirm(step.problem, step.preparation, step.kernel, tunables=step.tunables)


def store(session: Session, job: Job, step: Step, evaluation: Evaluation) -> None:
    """Store the second measurement, also in the pool; then end the job or try the next best."""
    candidate = candidate_of(session, step)
    first = session.get_one(EvaluationRow, candidate.evaluation_id)
    weight = config_of(job).utilisation_weight
    purpose = EvaluationPurpose.CONFIRM
    add_evaluation(session, job, candidate, step, evaluation, purpose=purpose, utilisation_weight=weight)
    if recall(session, first.id) is None:  # the first one was given again: only this one is new
        learn(session, job, first, evaluation, strategy_of(session, candidate))
    correct(session, first, evaluation=evaluation)
    after_confirmation(session, job, step)


CONFIRM = Handler(load, work, store)
