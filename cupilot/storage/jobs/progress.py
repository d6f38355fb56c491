"""Read a job's evolution as value objects, from which its next steps are made. Changes nothing."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Uuid, cast, func, or_, select, true
from sqlalchemy.orm import Session, aliased

from cupilot.domain.errors import Pruned
from cupilot.domain.evaluation import Evaluation, Preparation
from cupilot.domain.evolution import fitness
from cupilot.domain.evolution.notes import Notes
from cupilot.domain.evolution.novelty import kernel_key
from cupilot.domain.evolution.outcomes import outcomes
from cupilot.domain.evolution.population import Member
from cupilot.domain.imported import ImportedFile, ImportedKernel
from cupilot.domain.kernel import Kernel
from cupilot.domain.states import EvaluationPurpose, StepKind, StepState
from cupilot.domain.strategy import Strategy
from cupilot.storage.db.tables.jobs import (
    Candidate,
    CandidateParent,
    Directive,
    EvaluationRow,
    Generation,
    Job,
    KernelRow,
    StrategyRow,
)
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.caveats import CAVEATS, warnings_from

MEASURING = (StepKind.EVALUATE, StepKind.ATTRIBUTE)
"""Steps that count against the budget of candidates; a confirmation does not."""


@dataclass(frozen=True)
class MeasuredKernel:
    """One kernel of a candidate that was measured."""

    strategy: Strategy
    kernel: Kernel
    evaluation: Evaluation


def warnings_of(session: Session, job_id: uuid.UUID) -> list[str]:
    """Return :attr:`Preparation.warnings` of a job; none before it is prepared."""
    query = select(*CAVEATS).where(Job.id == job_id, Job.preparation.is_not(None))
    row = session.execute(query).one_or_none()
    return [] if row is None else warnings_from(*row)


def preparation_of(job: Job) -> Preparation:
    """Return what is known of the job's problem; it must have been prepared."""
    assert job.preparation is not None
    return job.preparation


CONTENDERS = 10
"""Candidates with the highest medians, of which the one with the highest lower bound is the best."""


def best_first(session: Session, job: Job, *, unconfirmed: bool = False) -> list[Candidate]:
    """Return the contenders of a job: reproduced ones first, then by the lower bound of their speed, then by age.

    ``unconfirmed``: only those that have not been measured a second time.
    """
    second = select(EvaluationRow.id).where(
        EvaluationRow.candidate_id == Candidate.id, EvaluationRow.purpose == EvaluationPurpose.CONFIRM
    )
    query = (
        select(Candidate)
        .where(Candidate.job_id == job.id, Candidate.speedup.is_not(None), ~second.exists() if unconfirmed else true())
        .order_by(Candidate.verdict.desc(), Candidate.speedup.desc(), Candidate.ordinal)
        .limit(CONTENDERS)
        .execution_options(populate_existing=True)
    )
    contenders = session.scalars(query).all()

    def place(candidate: Candidate) -> tuple[int, float, int]:
        assert candidate.verdict is not None
        return (-candidate.verdict.rank, -speed_of(session, job, candidate)[0], candidate.ordinal)

    return sorted(contenders, key=place)


def best_unconfirmed(session: Session, job: Job) -> Candidate | None:
    """Return the best candidate that counts and has not been measured a second time."""
    return next(iter(best_first(session, job, unconfirmed=True)), None)


def speed_of(session: Session, job: Job, candidate: Candidate) -> tuple[float, float]:
    """Return bounds of a candidate's speed, as selection goes by it; 0 and 0 of one without."""
    if candidate.evaluation_id is None:
        return 0.0, 0.0
    return fitness.speed_bounds(evaluation_of(session, candidate.evaluation_id), job.preparation) or (0.0, 0.0)


def survivors_of(session: Session, job: Job, limit: int) -> list[Candidate]:
    """Return candidates that count: what selection kept first, and of equals the fitter."""
    query = (
        select(Candidate)
        .where(Candidate.job_id == job.id, Candidate.speedup.is_not(None), Candidate.kernel_hash.is_not(None))
        .order_by(Candidate.survives.desc(), Candidate.fitness.desc(), Candidate.ordinal)
    )
    return list(session.scalars(query.limit(limit)))


def first_measurement(session: Session, winner: Candidate) -> EvaluationRow | None:
    """Return what selection went by, before the winner was confirmed."""
    query = select(EvaluationRow).where(
        EvaluationRow.candidate_id == winner.id,
        EvaluationRow.purpose == EvaluationPurpose.EVALUATE,
        EvaluationRow.kernel_hash == winner.kernel_hash,
    )
    return session.scalars(query.limit(1)).one_or_none()


def steps_of(session: Session, job: Job, *kinds: StepKind, state: StepState | None = None) -> Sequence[Step]:
    """Return the job's steps of these kinds in a state; those that have not ended where no state is named."""
    condition = Step.finished_at.is_(None) if state is None else Step.state == state
    return session.scalars(select(Step).where(Step.job_id == job.id, Step.kind.in_(kinds), condition)).all()


def evaluations_asked(session: Session, job: Job) -> int:
    """Return how many kernels the job has evaluated or is about to."""
    query = select(func.count()).where(
        Step.job_id == job.id, Step.kind.in_(MEASURING), Step.state != StepState.CANCELLED
    )
    return session.execute(query).scalar_one()


def strategies_of(session: Session, job_id: uuid.UUID) -> list[Strategy]:
    """Return every strategy of the job's candidates, asked for or aligned, oldest first, then those banned."""
    query = (
        select(StrategyRow.body)
        .join(Candidate, or_(Candidate.strategy_id == StrategyRow.id, Candidate.aligned_strategy_id == StrategyRow.id))
        .where(Candidate.job_id == job_id)
        .order_by(Candidate.ordinal, StrategyRow.created_at)
    )
    banned = select(Directive.strategy).where(
        Directive.job_id == job_id, Directive.signature.is_not(None), Directive.lifted_at.is_(None)
    )
    return [*session.scalars(query), *(strategy for strategy in session.scalars(banned) if strategy is not None)]


def outcomes_of(session: Session, job_id: uuid.UUID) -> dict[str, str]:
    """Return what the job's strategies came to, by signature: a speedup (``1.57x``), or why there is none."""
    failure = EvaluationRow.body["failure"]["kind"].astext
    query = (
        select(StrategyRow.body, Candidate.speedup, func.coalesce(Candidate.reason, failure))
        .join(Candidate, or_(Candidate.strategy_id == StrategyRow.id, Candidate.aligned_strategy_id == StrategyRow.id))
        .outerjoin(EvaluationRow, EvaluationRow.id == Candidate.evaluation_id)
        .where(Candidate.job_id == job_id, Candidate.finished_at.is_not(None))
        .order_by(Candidate.ordinal)
    )
    return outcomes((strategy, speedup, reason) for strategy, speedup, reason in session.execute(query))


def has_kernel(session: Session, job: Job, kernel: Kernel) -> bool:
    """Return whether a candidate of the job has, or had and measured, this kernel or one like it."""
    alike = select(KernelRow.hash).where(
        or_(KernelRow.hash == kernel.content_hash(), KernelRow.likeness == kernel_key(kernel))
    )
    owned = select(Candidate.id).where(Candidate.job_id == job.id, Candidate.kernel_hash.in_(alike))
    measured = select(EvaluationRow.id).where(EvaluationRow.job_id == job.id, EvaluationRow.kernel_hash.in_(alike))
    return session.execute(select(or_(owned.exists(), measured.exists()))).scalar_one()


def notes_of(candidate: Candidate) -> Notes:
    """Return what is noted of a candidate."""
    return candidate.notes


def candidates_of(session: Session, ids: Sequence[str]) -> list[Candidate]:
    """Return the candidates of these ids, in this order; those that are not there any more are left out."""
    wanted = [uuid.UUID(identity) for identity in ids]
    rows = {row.id: row for row in session.scalars(select(Candidate).where(Candidate.id.in_(wanted)))}
    return [rows[key] for key in wanted if key in rows]


def ancestors_of(session: Session, candidate: Candidate) -> list[Candidate]:
    """Return all that a candidate comes from, the oldest first."""
    tree = select(CandidateParent.parent_id.label("id")).where(CandidateParent.candidate_id == candidate.id)
    above = tree.cte("ancestors", recursive=True)
    link = aliased(CandidateParent)
    above = above.union(select(link.parent_id).join(above, link.candidate_id == above.c.id))
    query = select(Candidate).where(Candidate.id.in_(select(above.c.id))).order_by(Candidate.ordinal)
    return list(session.scalars(query))


def parents_of(session: Session, candidate: Candidate) -> list[Candidate]:
    """Return the candidate's parents, the fitter first."""
    query = (
        select(Candidate)
        .join(CandidateParent, CandidateParent.parent_id == Candidate.id)
        .where(CandidateParent.candidate_id == candidate.id)
        .order_by(CandidateParent.position)
    )
    return list(session.scalars(query))


def parent_hash(session: Session, candidate_id: uuid.UUID) -> str | None:
    """Return the kernel that a candidate was made from: its fitter parent's, of a crossover."""
    query = (
        select(Candidate.kernel_hash)
        .join(CandidateParent, CandidateParent.parent_id == Candidate.id)
        .where(CandidateParent.candidate_id == candidate_id, CandidateParent.position == 0)
    )
    return session.scalars(query).one_or_none()


def strategy_of(session: Session, candidate: Candidate) -> Strategy:
    """Return what the candidate's code does, as far as is known: aligned, else as asked for."""
    return session.get_one(StrategyRow, candidate.aligned_strategy_id or candidate.strategy_id).body


def file_of(session: Session, kernel_hash: str) -> Kernel | ImportedKernel:
    """Return a kernel or an imported file by its hash; raises :class:`Pruned` where its source is gone."""
    row = session.get_one(KernelRow, kernel_hash)
    if row.pruned_at is not None:
        raise Pruned("the kernel's source", row.pruned_at)
    if row.plan is None:
        return ImportedKernel(target=row.target, source=row.source)
    return Kernel(target=row.target, source=row.source, plan=row.plan)


def kernel_of(session: Session, kernel_hash: str) -> Kernel:
    """Return a kernel by its hash; raises :class:`ImportedFile` for a file without a launch plan."""
    kernel = file_of(session, kernel_hash)
    if isinstance(kernel, ImportedKernel):
        raise ImportedFile("an imported file has no launch plan", hint="it can be judged, compared and downloaded")
    return kernel


def kernel_as_measured(session: Session, candidate: Candidate) -> Kernel | None:
    """Return the candidate's kernel with the tunable values that its times belong to; None where it has none."""
    if candidate.kernel_hash is None:
        return None
    kernel = kernel_of(session, candidate.kernel_hash)
    if candidate.evaluation_id is None:
        return kernel
    return kernel.tuned(evaluation_of(session, candidate.evaluation_id).tunables)


def evaluation_of(session: Session, evaluation_id: uuid.UUID) -> Evaluation:
    """Return a measurement by its id."""
    return session.get_one(EvaluationRow, evaluation_id).body


def rounds_of(session: Session, candidate: Candidate) -> list[MeasuredKernel]:
    """Return every kernel of the candidate that was measured, in order: the first and each repair."""
    asked = cast(Step.payload["strategy"].astext, Uuid)  # the other way about, no index would be of use
    query = (
        select(StrategyRow.body, EvaluationRow)
        .join(Step, EvaluationRow.step_id == Step.id)
        .join(StrategyRow, StrategyRow.id == asked)
        .where(EvaluationRow.candidate_id == candidate.id, EvaluationRow.purpose == EvaluationPurpose.EVALUATE)
        .order_by(Step.payload["round"].as_integer())
    )
    return [
        MeasuredKernel(strategy, kernel_of(session, row.kernel_hash), row.body)
        for strategy, row in session.execute(query).all()
    ]


def members(session: Session, job: Job, generation: Generation, utilisation_weight: float) -> list[Member]:
    """Return what selection looks at: earlier survivors and the candidates of this generation that were measured."""
    preparation = preparation_of(job)
    query = (
        select(Candidate, Generation.number, EvaluationRow.body)
        .join(Generation, Candidate.generation_id == Generation.id)
        .join(EvaluationRow, Candidate.evaluation_id == EvaluationRow.id)
        .where(Candidate.job_id == job.id, or_(Candidate.survives, Candidate.generation_id == generation.id))
        .order_by(Candidate.ordinal)
    )
    population = []
    for candidate, number, evaluation in session.execute(query).all():
        population.append(
            fitness.member(
                candidate=str(candidate.id),
                ordinal=candidate.ordinal,
                generation=number,
                strategy=strategy_of(session, candidate),
                evaluation=evaluation,
                placement=evaluation.placement or preparation.placement,
                utilisation_weight=utilisation_weight,
                preparation=preparation,
            )
        )
    return population
