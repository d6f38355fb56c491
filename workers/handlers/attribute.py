"""Step ``attribute``: the judge measures the winner without one technique, and so what that technique is worth."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from cupilot.domain.attribution import Credit, CreditOutcome
from cupilot.domain.evaluation import Evaluation, Preparation
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem
from cupilot.domain.states import EvaluationPurpose
from cupilot.jobs.attribution import credit_of, end_when_done
from cupilot.jobs.learning import learn
from cupilot.storage.db.tables.jobs import Job, StrategyRow
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.credits import store_credit
from cupilot.storage.jobs.evolving import store_evaluation
from cupilot.storage.jobs.jobs import job_spec
from cupilot.storage.jobs.progress import evaluation_of, kernel_of, preparation_of
from cupilot.storage.queue.steps import Claim
from workers.handlers.handler import Handler
from workers.handlers.rows import candidate_of
from workers.tools import Tools


@dataclass(frozen=True)
class AttributeInput:
    """Input of the step ``attribute``, read in one transaction."""

    problem: Problem
    preparation: Preparation
    kernel: Kernel


def load(session: Session, claim: Claim) -> AttributeInput:
    """Read the kernel that the step was made for."""
    job = session.get_one(Job, claim.job_id)
    return AttributeInput(
        job_spec(session, job).problem, preparation_of(job), kernel_of(session, claim.payload["kernel"])
    )


def work(step: AttributeInput, tools: Tools, cancelled: Callable[[], bool]) -> Evaluation:
    """Measure the variant as candidates are, to the end: credit is the difference of two times."""
    judge = tools.step_judge(cancelled)
    return judge.evaluate(step.problem, step.preparation, step.kernel, incumbent=None, candidate=False)


def store(session: Session, job: Job, step: Step, evaluation: Evaluation) -> None:
    """Keep the measurement and the credit; the pool learns from the kernel as from any other."""
    winner = candidate_of(session, step)
    row = store_evaluation(session, job, winner, step, evaluation, purpose=EvaluationPurpose.ATTRIBUTE)
    strategy = session.get_one(StrategyRow, uuid.UUID(step.payload["strategy"]))
    learn(session, job, row, evaluation, strategy.body)
    assert winner.evaluation_id is not None
    known = {name: step.payload[name] for name in ("technique", "removed", "way")}
    unmeasured = Credit.model_validate({**known, "outcome": CreditOutcome.NOT_MEASURED})
    credit = credit_of(unmeasured, evaluation_of(session, winner.evaluation_id), evaluation)
    store_credit(session, winner, step.payload["position"], credit, row)
    end_when_done(session, job, winner)


ATTRIBUTE = Handler(load, work, store)
