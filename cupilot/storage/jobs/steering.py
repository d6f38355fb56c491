"""Steering a job: pause and resume, and directives (pin, ban, inject) that its evolution then obeys.

Every change is made with the job locked, as is everything that finishes a step, so that none falls between two
others. What the evolution makes of directives is the workers' flow.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from cupilot.domain.errors import Conflict, InvalidInput, NotFound
from cupilot.domain.kernel import Kernel
from cupilot.domain.states import CandidateState, GenerationState, JobState, StepState
from cupilot.domain.steering import DirectiveKind
from cupilot.domain.strategy import Strategy
from cupilot.storage.db.engine import notify
from cupilot.storage.db.tables.jobs import Candidate, Directive, Generation, Job, StrategyRow
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import lock_job, move_job, record_event
from cupilot.storage.jobs.evolving import store_kernel
from cupilot.storage.jobs.jobs import get_job, measures_one_kernel
from cupilot.storage.people.quotas import check_queue, check_resume

MAX_OPEN = 200
"""Directives that one job may have in force."""


class SearchEnded(Conflict):
    """The job's evolution has ended."""

    code = "search_ended"


def pause_job(session: Session, team_id: uuid.UUID, job_id: uuid.UUID, author: str) -> Job:
    """Pause the job: running steps finish, and none begins. Repeating it is harmless.

    Raises :class:`NotFound`, and :class:`Conflict` for a job that has ended or is being cancelled.
    """
    job = _locked(session, team_id, job_id)
    if job.state is JobState.PAUSED:
        return job
    _refuse_ended(job)
    move_job(session, job, JobState.PAUSED, reason="pause_requested", message=f"paused by {author}")
    _recall_published_steps(session, job)
    notify(session)
    return job


def _recall_published_steps(session: Session, job: Job) -> None:
    """Recall published steps that no worker has claimed: the scheduler publishes them again after a resume.

    The rows are locked in the order of their ids, as whatever ends a job locks them. The dispatcher waits for none.
    """
    unclaimed = select(Step.id).where(Step.job_id == job.id, Step.state == StepState.QUEUED)
    steps = session.scalars(unclaimed.order_by(Step.id).with_for_update(key_share=True)).all()
    session.execute(
        update(Step)
        .where(Step.id.in_(steps))
        .values(dispatched_at=None, dispatches=0)
        .execution_options(synchronize_session=False)
    )


def resume_job(session: Session, team_id: uuid.UUID, job_id: uuid.UUID, author: str) -> Job:
    """Resume a paused job where it stands. Harmless where it is not paused.

    Raises :class:`NotFound`, :class:`Conflict` for a job that has ended, and
    :class:`cupilot.domain.quota.QuotaExceeded` where its team may not run another one now, or queue one that has not
    begun.
    """
    job = _locked(session, team_id, job_id)
    if job.state is not JobState.PAUSED:
        _refuse_ended(job)
        return job
    record_event(session, job.id, "job.resumed", data={"by": author})
    if job.started_at is None:
        move_job(session, job, JobState.QUEUED)
        check_queue(session, job.team_id)
    else:
        check_resume(session, job)
        move_job(session, job, JobState.EVOLVING if job.preparation is not None else JobState.PREPARING)
    notify(session)
    return job


def pin(session: Session, team_id: uuid.UUID, job_id: uuid.UUID, candidate: str, author: str) -> Directive:
    """Let a candidate survive every selection of its job. Repeating it is harmless."""
    job = _steered(session, team_id, job_id)
    row = candidate_of_job(session, job, candidate)
    if row.state not in (CandidateState.ACTIVE, CandidateState.EVALUATED):
        raise Conflict(f"candidate {row.ordinal} was never measured: {row.reason or row.state.value}")
    existing = next(
        (pinned for pinned in in_force(session, job.id, DirectiveKind.PIN) if pinned.candidate_id == row.id), None
    )
    if existing is not None:
        return existing
    if row.state is CandidateState.EVALUATED:
        row.survives = True  # selection may have dropped it before
    return _add(session, job, author, kind=DirectiveKind.PIN, candidate_id=row.id)


def ban(
    session: Session,
    team_id: uuid.UUID,
    job_id: uuid.UUID,
    author: str,
    *,
    technique: str | None = None,
    strategy: Strategy | None = None,
    candidate: str | None = None,
) -> Directive:
    """Ban a technique, a strategy, or a candidate's strategy from further proposals. Repeating it is harmless."""
    job = _steered(session, team_id, job_id)
    candidate_id = None
    if candidate is not None:
        row = candidate_of_job(session, job, candidate)
        candidate_id, strategy = row.id, _strategy(session, row)
    signature = strategy.signature() if strategy else None
    for existing in in_force(session, job.id, DirectiveKind.BAN):
        if (existing.technique, existing.signature) == (technique, signature):
            return existing
    return _add(
        session,
        job,
        author,
        kind=DirectiveKind.BAN,
        technique=technique,
        strategy=strategy,
        signature=signature,
        candidate_id=candidate_id,
    )


def inject(
    session: Session,
    team_id: uuid.UUID,
    job_id: uuid.UUID,
    author: str,
    *,
    strategy: Strategy,
    kernel: Kernel | None = None,
) -> Directive:
    """Make a strategy, perhaps with its kernel, a candidate of the job's next generation."""
    job = _steered(session, team_id, job_id)
    if measures_one_kernel(session, job):
        raise Conflict(
            "the job measures one kernel and searches for no other", hint="inject into a search, or submit a new job"
        )
    if job.state is JobState.EVOLVING or job.preparation is not None:
        going_on = select(Generation.id).where(Generation.job_id == job.id, Generation.state == GenerationState.RUNNING)
        if session.scalars(going_on).first() is None:
            raise SearchEnded(
                "the job's search has ended; its best kernel is being confirmed", hint="fork a candidate instead"
            )
    if kernel is not None and kernel.target is not job.target:
        raise InvalidInput(f"the kernel is for {kernel.target.value}, the job for {job.target.value}", where="kernel")
    banned = banned_in(session, job.id, strategy)
    if banned is not None:
        raise Conflict(f"{banned} is banned in this job", hint="lift the ban first")
    return add_injection(session, job, author, strategy=strategy, kernel=kernel)


def add_injection(
    session: Session,
    job: Job,
    author: str,
    *,
    strategy: Strategy,
    kernel: Kernel | None = None,
    source: Candidate | None = None,
) -> Directive:
    """Add an injection unchecked; ``source`` is the candidate that it was taken from. The job is locked, or new."""
    return _add(
        session,
        job,
        author,
        kind=DirectiveKind.INJECT,
        strategy=strategy,
        kernel_hash=store_kernel(session, kernel) if kernel else None,
        candidate_id=source.id if source else None,
    )


def mark_done(session: Session, directive: Directive, candidate: Candidate) -> None:
    """Record the candidate that an injection has become."""
    directive.made_id, directive.done_at = candidate.id, func.now()
    session.flush()


def lift(session: Session, team_id: uuid.UUID, job_id: uuid.UUID, directive_id: uuid.UUID, author: str) -> Directive:
    """Lift a directive. Repeating it is harmless; an injection that became a candidate is a :class:`Conflict`."""
    job = _locked(session, team_id, job_id)
    query = select(Directive).where(Directive.id == directive_id, Directive.job_id == job.id)
    directive = session.scalars(query).one_or_none()
    if directive is None:
        raise NotFound(f"no directive {directive_id}")
    if directive.lifted_at is not None:
        return directive
    if directive.done_at is not None:
        raise Conflict(
            "the injected strategy has already become a candidate", hint="ban the candidate's strategy instead"
        )
    directive.lifted_at = func.now()
    session.flush()
    session.refresh(directive)
    data = {"directive": str(directive.id), "kind": directive.kind.value, "by": author}
    record_event(session, job.id, "directive.lifted", candidate_id=directive.candidate_id, data=data)
    return directive


def in_force(session: Session, job_id: uuid.UUID, kind: DirectiveKind | None = None) -> Sequence[Directive]:
    """Return a job's directives that were not lifted and, of injections, not done; the oldest first."""
    query = select(Directive).where(
        Directive.job_id == job_id, Directive.lifted_at.is_(None), Directive.done_at.is_(None)
    )
    if kind is not None:
        query = query.where(Directive.kind == kind)
    return session.scalars(query.order_by(Directive.created_at, Directive.id)).all()


def directives(session: Session, team_id: uuid.UUID, job_id: uuid.UUID) -> Sequence[Directive]:
    """Return all directives of a job, the oldest first."""
    job = get_job(session, team_id, job_id)
    query = select(Directive).where(Directive.job_id == job.id)
    return session.scalars(query.order_by(Directive.created_at, Directive.id)).all()


def banned_techniques(session: Session, job_id: uuid.UUID) -> tuple[str, ...]:
    """Return techniques that the job may not propose, in order of their names."""
    return tuple(
        sorted(directive.technique for directive in in_force(session, job_id, DirectiveKind.BAN) if directive.technique)
    )


def banned_strategies(session: Session, job_id: uuid.UUID) -> list[Strategy]:
    """Return strategies that the job may not propose."""
    bans = in_force(session, job_id, DirectiveKind.BAN)
    return [directive.strategy for directive in bans if directive.strategy is not None]


def banned_in(session: Session, job_id: uuid.UUID, strategy: Strategy) -> str | None:
    """Return what of a strategy is banned, in words; None where nothing is."""
    techniques = sorted(set(strategy.ids()) & set(banned_techniques(session, job_id)))
    if techniques:
        return ", ".join(techniques)
    if strategy.signature() in {banned.signature() for banned in banned_strategies(session, job_id)}:
        return "the strategy"
    return None


def candidate_of_job(session: Session, job: Job, reference: str) -> Candidate:
    """Return a candidate of the job by id or by ordinal; raises :class:`NotFound`."""
    named = Candidate.ordinal == int(reference) if reference.isdecimal() and len(reference) < 10 else None
    if named is None:
        try:
            named = Candidate.id == uuid.UUID(reference)
        except ValueError:
            raise NotFound(f"no candidate {reference}") from None
    row = session.scalars(select(Candidate).where(Candidate.job_id == job.id, named)).one_or_none()
    if row is None and reference.isdecimal() and not job.state.final and int(reference) >= job.candidates:
        raise Conflict(
            f"candidate {reference} is not made yet: the job is {job.state.value} and has {job.candidates}",
            hint="try again when it is there; cupilot watch JOB shows candidates as they come",
        )
    if row is None:
        raise NotFound(f"no candidate {reference}", hint="cupilot candidates JOB lists them", where="candidate")
    return row


def _strategy(session: Session, candidate: Candidate) -> Strategy:
    key = candidate.aligned_strategy_id or candidate.strategy_id
    if key is None:
        raise Conflict(f"candidate {candidate.ordinal} has no strategy")
    return session.get_one(StrategyRow, key).body


def _steered(session: Session, team_id: uuid.UUID, job_id: uuid.UUID) -> Job:
    job = _locked(session, team_id, job_id)
    _refuse_ended(job)
    if len(in_force(session, job.id)) >= MAX_OPEN:
        raise Conflict(f"the job has {MAX_OPEN} directives in force", hint="lift some of them")
    return job


def _locked(session: Session, team_id: uuid.UUID, job_id: uuid.UUID) -> Job:
    get_job(session, team_id, job_id)
    return lock_job(session, job_id)


def _refuse_ended(job: Job) -> None:
    if job.state.final or job.state is JobState.CANCELLING:
        raise Conflict(f"the job has ended already: {job.state.value}", hint="retry it, or fork one of its candidates")


def _add(session: Session, job: Job, author: str, **values: object) -> Directive:
    # By the clock, not by the transaction: several that are given in one keep their order.
    now = func.clock_timestamp()
    directive = Directive(id=uuid.uuid4(), job_id=job.id, author=author, created_at=now, **values)
    session.add(directive)
    session.flush()
    session.refresh(directive)
    data = {
        "directive": str(directive.id),
        "kind": directive.kind.value,
        "by": author,
        "technique": directive.technique,
    }
    record_event(session, job.id, "directive.given", candidate_id=directive.candidate_id, data=data)
    return directive
