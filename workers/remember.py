"""What the strategy pool learns from a measurement. The entry is written with the measurement, and corrected by it."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.orm import Session

from cupilot.evaluation import Evaluation
from cupilot.pool import entry_of
from cupilot.storage.jobs import problem_of
from cupilot.storage.pool_rows import recall, remember
from cupilot.storage.progress import preparation_of
from cupilot.storage.tables import EvaluationRow, Job
from cupilot.strategy import Strategy


def learn(session: Session, job: Job, row: EvaluationRow, evaluation: Evaluation, strategy: Strategy) -> None:
    """Remember a measurement, with the strategy that the kernel was asked to follow."""
    preparation = preparation_of(job)
    placement = evaluation.placement or preparation.placement
    entry = entry_of(
        evaluation,
        id=str(row.id),
        team=str(job.team_id),
        problem_name=problem_of(session, job).name,
        facts=preparation.facts,
        target=job.target,
        device_class=(evaluation.environment or preparation.environment).device.device_class,
        zone=placement.zone,
        strategy=strategy,
        created_at=datetime.now(UTC).isoformat(),
    )
    remember(session, entry)


def correct(
    session: Session, row: EvaluationRow, *, strategy: Strategy | None = None, evaluation: Evaluation | None = None
) -> None:
    """Correct what was remembered of a measurement: to what the code really does, or to what a second one says."""
    entry = recall(session, row.id)
    if strategy is not None:
        entry = entry.model_copy(update={"strategy": strategy})
    if evaluation is not None:
        failure = evaluation.failure.kind if evaluation.failure else None
        changed = {"verdict": evaluation.verdict, "speedup": evaluation.speedup, "failure": failure}
        entry = entry.model_copy(update=changed)
    remember(session, entry)
