"""Remove what old jobs no longer need, in bounded batches, each a transaction of its own.

Of a job that ended long enough ago go its events but the job's own transitions, the prompts and answers of its model
calls, and the sources and build logs of kernels that did not prove themselves. Every row stays, and with it states,
verdicts, measurements, strategies, lineage, tokens and costs. So does every source that a kernel which counts has, or
one in quarantine, which a person may still release: winners, leaderboards and the strategy pool lean on those. A
source that several jobs have goes with the last of them.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Delete, Update, and_, case, delete, func, literal_column, or_, select, update
from sqlalchemy.orm import Session

from cupilot.domain.evaluation import Verdict
from cupilot.domain.states import StepKind
from cupilot.storage.db.tables.jobs import Candidate, Directive, EvaluationRow, Event, Job, KernelRow
from cupilot.storage.db.tables.models import LlmCall
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import record_event
from cupilot.storage.people.audit import add_own_entry

ROWS = 1_000
"""Of each kind that one batch touches at most."""
KEPT = (Verdict.AUDITED, Verdict.REPRODUCED, Verdict.QUARANTINED)
"""Verdicts whose kernels are kept whole."""
SETTING = "CUPILOT_JOB_KEEP_DAYS"
_LOG = EvaluationRow.body["build"]["log"].astext


def prune_some(session: Session, kept: timedelta) -> uuid.UUID | None:
    """Prune one batch of the job that ended first, longer than ``kept`` ago; return its id, or None for no such job."""
    old = (Job.finished_at < func.now() - kept) & Job.pruned_at.is_(None)
    job = session.scalars(
        select(Job).where(old).order_by(Job.finished_at).limit(1).with_for_update(skip_locked=True)
    ).one_or_none()
    if job is None:
        return None
    counts = [_events(session, job), _calls(session, job), _build_logs(session, job), _sources(session, job)]
    if max(counts) < ROWS:
        _pruned(session, job)
    return job.id


def _events(session: Session, job: Job) -> int:
    """Delete events but the job's own, from which its history is made, and lost leases, which are counted."""
    details = and_(Event.kind.not_like("job.%"), Event.kind != "step.reaped")
    some = select(Event.id).where(Event.job_id == job.id, details).limit(ROWS)
    return _done(session, delete(Event).where(Event.id.in_(some)))


def _calls(session: Session, job: Job) -> int:
    """Delete prompts and answers; equal calls must not find a deleted answer, so its hash goes too."""
    some = select(LlmCall.id).where(LlmCall.job_id == job.id, LlmCall.request_hash != "").limit(ROWS)
    complaint = case((LlmCall.complaint.is_not(None), "pruned"))
    values: dict[str, Any] = {"request": None, "response": None, "request_hash": "", "complaint": complaint}
    return _done(session, update(LlmCall).where(LlmCall.id.in_(some)).values(values))


def _build_logs(session: Session, job: Job) -> int:
    some = select(EvaluationRow.id).where(
        EvaluationRow.job_id == job.id, EvaluationRow.verdict.not_in(KEPT), func.coalesce(_LOG, "") != ""
    )
    empty = func.jsonb_set(EvaluationRow.body, literal_column("'{build,log}'"), literal_column("'\"\"'::jsonb"))
    return _done(session, update(EvaluationRow).where(EvaluationRow.id.in_(some.limit(ROWS))).values(body=empty))


def _sources(session: Session, job: Job) -> int:
    """Empty sources that nobody needs. They are locked first: whoever takes a kernel over locks it too.

    Kernels that another transaction has locked are in use, so they are skipped.
    """
    unneeded = _unneeded(job.id)
    locked = select(KernelRow.hash).where(unneeded).limit(ROWS).with_for_update(skip_locked=True)
    hashes = session.scalars(locked).all()
    values = {"source": "", "pruned_at": func.now()}
    return _done(session, update(KernelRow).where(KernelRow.hash.in_(hashes), unneeded).values(values))


def _unneeded(job: uuid.UUID) -> ColumnElement[bool]:
    """Return the condition that a job's kernel is unproven, and no job that keeps its details has or awaits it."""
    tried = select(Candidate.kernel_hash).where(Candidate.job_id == job, Candidate.kernel_hash.is_not(None))
    measured = select(EvaluationRow.kernel_hash).where(EvaluationRow.job_id == job)
    proven = select(EvaluationRow.id).where(
        EvaluationRow.kernel_hash == KernelRow.hash, EvaluationRow.verdict.in_(KEPT)
    )
    # Any other open step's kernel is its candidate's.
    asked = select(Step.payload["kernel"].astext).where(Step.job_id == job, Step.kind == StepKind.EVALUATE)
    named = func.coalesce(Step.payload["kernel"].astext, Step.payload["imports"].astext)
    waiting = select(Step.id).where(
        Step.finished_at.is_(None),
        Step.kind.in_((StepKind.PREPARE, StepKind.EVALUATE, StepKind.ATTRIBUTE)),
        named == KernelRow.hash,
    )
    return and_(
        KernelRow.pruned_at.is_(None),
        or_(KernelRow.hash.in_(tried), KernelRow.hash.in_(measured), KernelRow.hash.in_(asked)),
        ~proven.exists(),
        ~waiting.exists(),
        *(~_elsewhere(table, job) for table in (Candidate, EvaluationRow, Directive)),
    )


def _elsewhere(table: Any, job: uuid.UUID) -> ColumnElement[bool]:
    others = select(table.id).join(Job, Job.id == table.job_id).where(table.kernel_hash == KernelRow.hash)
    return others.where(Job.id != job, Job.pruned_at.is_(None)).exists()


def _pruned(session: Session, job: Job) -> None:
    """Record in the job, its events and the audit log that the job's details were removed."""
    session.execute(
        update(Job).where(Job.id == job.id).values(pruned_at=func.now()).execution_options(synchronize_session=False)
    )
    record_event(session, job.id, "job.pruned", data={"setting": SETTING})
    add_own_entry(session, "scheduler", "PRUNE", SETTING, f"/v1/jobs/{job.id}", team=job.team_id)


def _done(session: Session, statement: Update | Delete) -> int:
    result: Any = session.execute(statement.execution_options(synchronize_session=False))
    return int(result.rowcount)
