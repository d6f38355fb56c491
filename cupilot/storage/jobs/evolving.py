"""Write a job's evolution: generations, candidates, strategies, kernels, evaluations.

The job must be locked. What comes next is decided in ``workers``; states change through
:mod:`cupilot.storage.db.transitions`; reading is :mod:`cupilot.storage.jobs.progress`' business.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from cupilot.domain.evaluation import Evaluation, Preparation
from cupilot.domain.evolution import fitness
from cupilot.domain.evolution.notes import Notes
from cupilot.domain.evolution.novelty import kernel_key
from cupilot.domain.evolution.population import Operator
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import Kernel
from cupilot.domain.states import EvaluationPurpose, StrategyOrigin
from cupilot.domain.strategy import Strategy
from cupilot.storage.db.tables.jobs import (
    Candidate,
    CandidateParent,
    EvaluationRow,
    Generation,
    Job,
    KernelRow,
    StrategyRow,
)
from cupilot.storage.db.tables.pool import PoolRow
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import record_event
from cupilot.storage.jobs.progress import best_first, preparation_of


def set_preparation(session: Session, job: Job, preparation: Preparation) -> None:
    """Store the preparation of the job's problem."""
    job.preparation = preparation
    session.flush()


def add_generation(session: Session, job: Job, number: int, pending: int) -> Generation:
    """Begin a round; ``pending`` is what has to become final before it ends."""
    generation = Generation(id=uuid.uuid4(), job_id=job.id, number=number, pending=pending)
    session.add(generation)
    _set(session, job, generation=number)
    record_event(session, job.id, "generation.running", data={"number": number})
    return generation


def count_down(session: Session, generation: Generation, change: int = -1) -> int:
    """Change a locked generation's fan-in counter; return the new value."""
    _set(session, generation, pending=Generation.pending + change)
    return generation.pending


def cut_short(session: Session, generation: Generation) -> None:
    """Mark a generation for which a budget allowed fewer candidates than the method proposed."""
    _set(session, generation, cut_short=True)


def add_candidate(
    session: Session,
    job: Job,
    generation: Generation,
    operator: Operator,
    parents: Sequence[uuid.UUID] = (),
    *,
    notes: Notes | None = None,
) -> Candidate:
    """Make a new individual with the job's next ordinal; ``parents`` the fitter first."""
    candidate = Candidate(
        id=uuid.uuid4(),
        job_id=job.id,
        generation_id=generation.id,
        ordinal=job.candidates,
        operator=operator,
        notes=notes or Notes(),
    )
    session.add(candidate)
    _set(session, job, candidates=Job.candidates + 1)
    session.add_all(
        CandidateParent(candidate_id=candidate.id, position=position, parent_id=parent)
        for position, parent in enumerate(parents)
    )
    record_event(
        session,
        job.id,
        "candidate.active",
        candidate_id=candidate.id,
        data={"ordinal": candidate.ordinal, "operator": operator.value, "generation": generation.number},
    )
    return candidate


def add_strategy(
    session: Session, job: Job, strategy: Strategy, origin: StrategyOrigin, pool_entry: str | None = None
) -> StrategyRow:
    """Store a strategy of the job; ``pool_entry`` is its origin, if the pool still has that entry."""
    entry = session.get(PoolRow, uuid.UUID(pool_entry)) if pool_entry else None
    row = StrategyRow(
        id=uuid.uuid4(),
        job_id=job.id,
        hash=strategy.content_hash(),
        signature=strategy.signature(),
        origin=origin,
        body=strategy,
        pool_entry_id=entry.id if entry else None,
    )
    session.add(row)
    session.flush()
    return row


def set_strategy(session: Session, candidate: Candidate, row: StrategyRow) -> None:
    """Set the strategy that the candidate is asked to follow."""
    _set(session, candidate, strategy_id=row.id)


def set_kernel(session: Session, candidate: Candidate, kernel: Kernel | ImportedKernel, *, repair_round: int) -> str:
    """Set the candidate's code; return its hash."""
    kept = store_kernel(session, kernel)
    _set(session, candidate, kernel_hash=kept, repair_rounds=repair_round)
    return kept


def replace_kernel(session: Session, candidate: Candidate, kernel_hash: str) -> None:
    """Set the candidate's code to a stored kernel that was measured to be faster; the evaluation is set apart."""
    _set(session, candidate, kernel_hash=kernel_hash)


def store_kernel(session: Session, kernel: Kernel | ImportedKernel) -> str:
    """Store a kernel, once for all that arrive at it, again where retention emptied it; return its hash."""
    row = {
        "hash": kernel.content_hash(),
        "target": kernel.target,
        "source": kernel.source,
        "plan": kernel.plan if isinstance(kernel, Kernel) else None,
        "likeness": kernel_key(kernel) if isinstance(kernel, Kernel) else None,
    }
    new = insert(KernelRow).values(row)
    again = {"source": new.excluded.source, "pruned_at": None}
    # Locks a known row also where nothing is to be done: retention leaves it alone until this transaction ends.
    statement = new.on_conflict_do_update(index_elements=["hash"], set_=again, where=KernelRow.pruned_at.is_not(None))
    session.execute(statement.execution_options(synchronize_session=False))
    return kernel.content_hash()


def add_notes(session: Session, candidate: Candidate, **fields: Any) -> None:
    """Add to what is noted of the candidate; fields of :class:`cupilot.domain.evolution.notes.Notes`."""
    _set(session, candidate, notes=Notes.model_validate({**dict(candidate.notes), **fields}))


def set_alignment(session: Session, candidate: Candidate, row: StrategyRow, fidelity: float) -> None:
    """Set the strategy that the candidate's code really follows."""
    _set(session, candidate, aligned_strategy_id=row.id, fidelity=fidelity)


def add_evaluation(
    session: Session,
    job: Job,
    candidate: Candidate,
    step: Step,
    evaluation: Evaluation,
    *,
    purpose: EvaluationPurpose,
    utilisation_weight: float,
) -> EvaluationRow:
    """Store a measurement and set the candidate's verdict by it."""
    row = store_evaluation(session, job, candidate, step, evaluation, purpose=purpose)
    placement = evaluation.placement or preparation_of(job).placement
    _set(
        session,
        candidate,
        evaluation_id=row.id,
        verdict=evaluation.verdict,
        speedup=evaluation.speedup,
        fitness=fitness.fitness(evaluation, placement, utilisation_weight, preparation_of(job)),
        utilisation=fitness.utilisation(evaluation.profile, placement.zone),
    )
    data = {
        "ordinal": candidate.ordinal,
        "purpose": purpose.value,
        "verdict": evaluation.verdict.value,
        "speedup": evaluation.speedup,
        "speedup_low": fitness.speedup_low(evaluation),
        "failure": evaluation.failure.kind.value if evaluation.failure else None,
    }
    record_event(session, job.id, "candidate.measured", candidate_id=candidate.id, step_id=step.id, data=data)
    return row


def store_evaluation(
    session: Session, job: Job, candidate: Candidate, step: Step, evaluation: Evaluation, *, purpose: EvaluationPurpose
) -> EvaluationRow:
    """Store a measurement, and charge the job for it."""
    row = EvaluationRow(
        id=uuid.uuid4(),
        job_id=job.id,
        candidate_id=candidate.id,
        step_id=step.id,
        kernel_hash=evaluation.kernel_hash,
        problem_hash=evaluation.problem_hash,
        purpose=purpose,
        verdict=evaluation.verdict,
        body=evaluation,
    )
    session.add(row)
    session.flush()
    return row


def choose_best(session: Session, job: Job) -> Candidate | None:
    """Point the job to its best kernel: a reproduced one before an audited one, then the faster, then the older."""
    best = next(iter(best_first(session, job)), None)
    chosen = best.id if best else None
    if chosen != job.best_candidate_id:
        _set(session, job, best_candidate_id=chosen)
        if best is not None:
            measured = session.get_one(EvaluationRow, best.evaluation_id).body
            data = {"ordinal": best.ordinal, "speedup": best.speedup, "speedup_low": fitness.speedup_low(measured)}
            record_event(session, job.id, "job.best", candidate_id=best.id, data=data)
    return best


def set_survivors(session: Session, job: Job, survivors: Sequence[str]) -> None:
    """Mark which candidates go on to the next generation; all others do not."""
    chosen = [uuid.UUID(survivor) for survivor in survivors]
    session.execute(
        update(Candidate)
        .where(Candidate.job_id == job.id, Candidate.survives != Candidate.id.in_(chosen))
        .values(survives=~Candidate.survives)
        .execution_options(synchronize_session=False)
    )


def _set(session: Session, row: Any, **values: Any) -> None:
    """Write columns of a row and read it back, so that expressions over the stored values are seen."""
    session.flush()
    table = type(row)
    session.scalars(
        update(table)
        .where(table.id == row.id)
        .values(**values)
        .returning(table)
        .execution_options(synchronize_session=False, populate_existing=True)
    ).one()
