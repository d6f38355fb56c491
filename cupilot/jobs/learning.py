"""Record what the strategy pool learns from a measurement, in the measurement's transaction."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.orm import Session

from cupilot.domain.evaluation import Evaluation
from cupilot.domain.imported import KernelKind
from cupilot.domain.pool import Provenance, Sharing, entry_of
from cupilot.domain.strategy import Strategy
from cupilot.storage.db.engine import settings_of
from cupilot.storage.db.tables.jobs import EvaluationRow, Job
from cupilot.storage.jobs.jobs import problem_of
from cupilot.storage.jobs.progress import parent_hash, preparation_of
from cupilot.storage.pool.rows import is_known, recall, remember


def learn(
    session: Session,
    job: Job,
    row: EvaluationRow,
    evaluation: Evaluation,
    strategy: Strategy,
    *,
    improved: str | None = None,
) -> None:
    """Remember a measurement, with the strategy that the kernel was asked to follow.

    ``improved`` is the candidate's own kernel that it was made from, of a performance revision.

    Nothing is learned from a reference bound by the host, which any kernel beats, nor once more from a measurement that
    was given again: that is no further evidence.
    """
    preparation = preparation_of(job)
    if preparation.host_bound or (evaluation.reused and is_known(session, job.team_id, evaluation)):
        return
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
        provenance=Provenance(
            job=str(job.id),
            candidate=str(row.candidate_id),
            method=_method(job, evaluation),
            agents=job.agents.value if evaluation.kernel_kind is KernelKind.PLANNED else None,
            kernel_kind=evaluation.kernel_kind,
        ),
        parent_hash=improved or parent_hash(session, row.candidate_id),
    )
    remember(session, entry, wanted_sharing(session, job))


def wanted_sharing(session: Session, job: Job) -> Sharing:
    """Return the audience of what a job learns: as it was submitted, by default the service's setting."""
    return job.learning.sharing or Sharing(settings_of(session).pool_sharing)


def correct(
    session: Session, row: EvaluationRow, *, strategy: Strategy | None = None, evaluation: Evaluation | None = None
) -> None:
    """Correct what was remembered of a measurement: to what the code really does, or to what a second one says."""
    entry = recall(session, row.id)
    if entry is None:
        return
    if strategy is not None:
        requested = entry.asked or entry.strategy
        changed = {"strategy": strategy, "asked": requested if requested.signature() != strategy.signature() else None}
        entry = entry.model_copy(update=changed)
    if evaluation is not None:
        failure = evaluation.failure.kind if evaluation.failure else None
        outcome = {"verdict": evaluation.verdict, "speedup": evaluation.speedup, "failure": failure}
        entry = entry.model_copy(update=outcome)
    remember(session, entry)


def _method(job: Job, evaluation: Evaluation) -> str | None:
    """Return what made the kernel; no method makes an imported file."""
    planned = evaluation.kernel_kind is KernelKind.PLANNED
    return job.method.name if planned else None
