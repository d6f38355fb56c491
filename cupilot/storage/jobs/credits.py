"""Store credits of a winner's techniques: written once each, read in the strategy's order."""

from __future__ import annotations

import uuid

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from cupilot.domain.attribution import Credit
from cupilot.storage.db.tables.jobs import Candidate, CreditRow, EvaluationRow
from cupilot.storage.db.transitions import record_event


def store_credit(
    session: Session, candidate: Candidate, position: int, credit: Credit, evaluation: EvaluationRow | None = None
) -> None:
    """Store a technique's credit; a second one for the same technique is ignored."""
    made = session.execute(
        insert(CreditRow)
        .values(
            id=uuid.uuid4(),
            candidate_id=candidate.id,
            position=position,
            technique=credit.technique,
            evaluation_id=evaluation.id if evaluation else None,
            body=credit,
        )
        .on_conflict_do_nothing(index_elements=["candidate_id", "technique"])
        .returning(CreditRow.id)
    ).scalar_one_or_none()
    if made is not None:
        factor = credit.factor.median if credit.factor else None
        data = {"technique": credit.technique, "outcome": credit.outcome.value, "factor": factor}
        record_event(session, candidate.job_id, "candidate.credited", candidate_id=candidate.id, data=data)


def credits_of(session: Session, candidate_id: uuid.UUID) -> list[Credit]:
    """Return a candidate's credits, in the order of its strategy; empty where nothing was attributed."""
    query = select(CreditRow.body).where(CreditRow.candidate_id == candidate_id).order_by(CreditRow.position)
    return list(session.scalars(query))
