"""Candidates and their lineage as the REST boundary shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import ColumnElement, Select, func, select, text, tuple_
from sqlalchemy.orm import Session, aliased, defer

from cupilot.domain.errors import InvalidInput, NotFound
from cupilot.domain.evaluation import Evaluation, Verdict
from cupilot.domain.imported import KernelKind
from cupilot.domain.strategy import Strategy
from cupilot.schemas import CandidatePage, CandidateSummary, CandidateView, KernelView, LineageEntry
from cupilot.storage.db.cursor import cut, decode_key, encode_key
from cupilot.storage.db.tables.jobs import Candidate, CandidateParent, EvaluationRow, Generation, KernelRow, StrategyRow
from cupilot.storage.jobs.credits import credits_of
from cupilot.storage.jobs.jobs import get_job
from cupilot.storage.jobs.progress import warnings_of

Order = Literal["ordinal", "speedup"]
"""The order in which they were made, or the fastest first."""
MAX_LINEAGE = 1_000
"""A bound, not an expectation: a hundred generations of crossover share most of their ancestors."""
MAX_ORDINAL = 2**31 - 1

_Listed = Select[Candidate, int, Strategy, str]
"""A candidate, its generation's number, the strategy that its code follows and its kind of failure, if any."""


def list_candidates(
    session: Session,
    team: UUID,
    job_id: UUID,
    *,
    verdict: Verdict | None = None,
    generation: int | None = None,
    order: Order = "ordinal",
    cursor: str | None = None,
    after: int | None = None,
    limit: int,
) -> CandidatePage:
    """Return a job's candidates by ordinal, or the fastest first, behind ``cursor``, or ``after`` that ordinal."""
    listed = f"candidates by {order}"
    if cursor is not None:
        (after,) = decode_key(cursor, listed, int)
    job = get_job(session, team, job_id)
    query = _listed().where(Candidate.job_id == job.id).options(defer(Candidate.notes))
    if verdict is not None:
        query = query.where(Candidate.verdict == verdict)
    if generation is not None:
        query = query.where(Generation.number == generation)
    if order == "speedup":
        query = _fastest_first(session, query, job.id, after)
    else:
        query = query.where(Candidate.ordinal > (-1 if after is None else after)).order_by(Candidate.ordinal)
    rows = session.execute(query.limit(limit + 1)).all()
    page, following = cut(rows, limit, lambda row: encode_key(listed, row[0].ordinal))
    parents = _parents(session, [candidate.id for candidate, *_ in page])
    return CandidatePage(
        items=[CandidateSummary(**_fields(*row, parents)) for row in page],
        next_cursor=following,
        next_after=page[-1][0].ordinal if following else None,
    )


def _fastest_first(session: Session, query: _Listed, job: UUID, after: int | None) -> _Listed:
    """Order by speedup; those without one come last. A page begins where the last candidate stands by now."""
    place = tuple_(func.coalesce(Candidate.speedup, 0.0), -Candidate.ordinal)
    if after is not None and after >= 0:
        last = select(Candidate.speedup).where(Candidate.job_id == job, Candidate.ordinal == after)
        row = session.execute(last).one_or_none()
        if row is None:
            raise InvalidInput(f"the job has no candidate {after} to continue after", where="query.after")
        query = query.where(place < (row.speedup or 0.0, -after))
    return query.order_by(Candidate.speedup.desc().nulls_last(), Candidate.ordinal)


def candidate_view(
    session: Session, team: UUID, job_id: UUID, reference: str, *, with_lineage: bool = True
) -> CandidateView:
    """Return one candidate of a job, by id or by ordinal; NotFound where the team's job has none such.

    Without its lineage where nobody reads it: it may be a thousand ancestors.
    """
    job = get_job(session, team, job_id)
    row = session.execute(_listed().where(Candidate.job_id == job.id, candidate_is(reference))).one_or_none()
    if row is None:
        raise _no_candidate()
    candidate, generation, strategy, failure = row
    lineage = _lineage(session, candidate.id) if with_lineage else []
    parents = {entry.candidate: entry.parents for entry in lineage}
    return CandidateView(
        **_fields(candidate, generation, strategy, failure, parents),
        job=job.id,
        strategy=_strategy(session, candidate.strategy_id),
        aligned_strategy=_strategy(session, candidate.aligned_strategy_id),
        fidelity=candidate.fidelity,
        **_note_fields(candidate),
        kernel=_kernel(session, candidate.kernel_hash),
        evaluation=_evaluation(session, candidate.evaluation_id),
        credits=credits_of(session, candidate.id),
        lineage=lineage,
        after_quarantine=any(
            ancestor.verdict is Verdict.QUARANTINED for ancestor in lineage if ancestor.candidate != candidate.id
        ),
        warnings=warnings_of(session, job.id),
    )


def _note_fields(candidate: Candidate) -> dict[str, Any]:
    notes = candidate.notes
    return {
        "name": notes.name or None,
        "insight": notes.insight or None,
        "inspirations": [UUID(inspiration) for inspiration in notes.inspirations],
        "repairs": list(notes.repairs),
    }


def find_candidate(session: Session, team: UUID, job_id: UUID, reference: str) -> Candidate:
    """Return the row of a job's candidate, by id or by ordinal; NotFound where the team's job has none such."""
    job = get_job(session, team, job_id)
    row = session.scalars(select(Candidate).where(Candidate.job_id == job.id, candidate_is(reference))).one_or_none()
    if row is None:
        raise _no_candidate()
    return row


def candidate_is(reference: str) -> ColumnElement[bool]:
    """Return the condition that a candidate is the one of this id or ordinal; NotFound for anything else."""
    if reference.isascii() and reference.isdigit() and len(reference) <= 10 and int(reference) <= MAX_ORDINAL:
        return Candidate.ordinal == int(reference)
    try:
        return Candidate.id == UUID(reference)
    except ValueError:
        raise _no_candidate() from None


def _no_candidate() -> NotFound:
    return NotFound("the job has no such candidate", hint="give its id or its ordinal", where="candidate")


def _listed() -> _Listed:
    return (
        select(Candidate, Generation.number, StrategyRow.body, EvaluationRow.body["failure"]["kind"].astext)
        .join(Generation, Generation.id == Candidate.generation_id)
        .outerjoin(StrategyRow, StrategyRow.id == func.coalesce(Candidate.aligned_strategy_id, Candidate.strategy_id))
        .outerjoin(EvaluationRow, EvaluationRow.id == Candidate.evaluation_id)
    )


def _parents(session: Session, candidates: Sequence[UUID]) -> dict[UUID, list[UUID]]:
    query = (
        select(CandidateParent.candidate_id, CandidateParent.parent_id)
        .where(CandidateParent.candidate_id.in_(candidates))
        .order_by(CandidateParent.candidate_id, CandidateParent.position)
    )
    parents: dict[UUID, list[UUID]] = {}
    for candidate, parent in session.execute(query):
        parents.setdefault(candidate, []).append(parent)
    return parents


def _fields(
    candidate: Candidate,
    generation: int,
    strategy: Strategy | None,
    failure: str | None,
    parents: dict[UUID, list[UUID]],
) -> dict[str, Any]:
    return {
        "id": candidate.id,
        "ordinal": candidate.ordinal,
        "generation": generation,
        "operator": candidate.operator,
        "state": candidate.state,
        "reason": candidate.reason,
        "verdict": candidate.verdict,
        "failure": failure,
        "speedup": candidate.speedup,
        "fitness": candidate.fitness,
        "utilisation": candidate.utilisation,
        "techniques": _techniques(strategy),
        "parents": parents.get(candidate.id, []),
        "repair_rounds": candidate.repair_rounds,
        "survives": candidate.survives,
        "created_at": candidate.created_at,
        "finished_at": candidate.finished_at,
    }


def _techniques(strategy: Strategy | None) -> list[str]:
    return list(strategy.ids()) if strategy else []


def _lineage(session: Session, candidate: UUID) -> list[LineageEntry]:
    """Return the candidate and all its ancestors, newest first: every parent stands below its children."""
    tree = select(Candidate.id.label("id")).where(Candidate.id == candidate).cte("lineage", recursive=True)
    link = aliased(CandidateParent)
    tree = tree.union(select(link.parent_id).join(tree, link.candidate_id == tree.c.id))
    # A thousand ancestors are told without reading a strategy of theirs.
    techniques = func.jsonb_path_query_array(StrategyRow.body, text("'$.techniques[*].id'"))
    fields = (Candidate.id, Candidate.ordinal, Candidate.operator, Candidate.verdict, Candidate.speedup)
    query = (
        select(*fields, Generation.number, techniques.label("techniques"))
        .join(Generation, Generation.id == Candidate.generation_id)
        .outerjoin(StrategyRow, StrategyRow.id == func.coalesce(Candidate.aligned_strategy_id, Candidate.strategy_id))
        .where(Candidate.id.in_(select(tree.c.id)))
    )
    rows = session.execute(query.order_by(Candidate.ordinal.desc()).limit(MAX_LINEAGE)).all()
    parents = _parents(session, [ancestor.id for ancestor in rows])
    return [
        LineageEntry(
            candidate=ancestor.id,
            ordinal=ancestor.ordinal,
            generation=ancestor.number,
            operator=ancestor.operator,
            parents=parents.get(ancestor.id, []),
            verdict=ancestor.verdict,
            speedup=ancestor.speedup,
            techniques=ancestor.techniques or [],
        )
        for ancestor in rows
    ]


def _strategy(session: Session, strategy: UUID | None) -> Strategy | None:
    row = session.get(StrategyRow, strategy) if strategy else None
    return row.body if row else None


def _kernel(session: Session, kernel: str | None) -> KernelView | None:
    row = session.get(KernelRow, kernel) if kernel else None
    if row is None:
        return None
    return KernelView(
        hash=row.hash,
        target=row.target,
        source=row.source,
        pruned_at=row.pruned_at,
        kind=KernelKind.IMPORTED if row.plan is None else KernelKind.PLANNED,
        plan=row.plan,
    )


def _evaluation(session: Session, evaluation: UUID | None) -> Evaluation | None:
    row = session.get(EvaluationRow, evaluation) if evaluation else None
    return row.body if row else None
