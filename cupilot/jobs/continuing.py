"""Make jobs that continue others: a retry of an ended job, a fork from one of its candidates.

Both are new jobs, linked to what they continue. An ended job stays as it ended: what was reported of it stays true.
Kernels that are taken over are measured again in the new job, like any others.
"""

from __future__ import annotations

import uuid

from sqlalchemy.orm import Session

from cupilot.domain.errors import Conflict
from cupilot.domain.evaluation import FailureKind
from cupilot.domain.imported import ImportedFile
from cupilot.domain.job import JobSpec
from cupilot.domain.people import Caller
from cupilot.domain.states import JobState
from cupilot.domain.steering import DirectiveKind
from cupilot.domain.value import digest, stated
from cupilot.jobs import champions, remeasuring
from cupilot.jobs.importing import judges_a_file
from cupilot.jobs.submission import check_agents, once
from cupilot.schemas.steering import ForkRequest, RetryRequest
from cupilot.storage.db.tables.jobs import Candidate, Directive, Job
from cupilot.storage.jobs.estimates import NO_TEMPLATE
from cupilot.storage.jobs.jobs import extend_first_payload, first_payload, get_job, job_spec, submit_job
from cupilot.storage.jobs.progress import kernel_of, strategy_of, survivors_of
from cupilot.storage.jobs.steering import add_injection, candidate_of_job, in_force

TAKEN_OVER = 16
"""Kernels of the old job that a retry begins with at most: its survivors, and of those the fittest."""
_CARRIED_ON = {
    DirectiveKind.BAN: ("technique", "signature"),
    DirectiveKind.INJECT: ("kernel_hash", "candidate_id"),
}
"""Directives of the old job that a retry has too, with their own fields: a fork that never began is an injection."""


def retry(
    session: Session, caller: Caller, job: uuid.UUID, request: RetryRequest, idempotency_key: str | None
) -> tuple[Job, bool]:
    """Return the job that goes on with an ended one, and whether it is new."""
    request_hash = digest(["retry", str(job), stated(request)])

    def make() -> tuple[Job, bool]:
        spec = _changed(session, caller, job, request)
        return retry_job(
            session,
            caller.team_id,
            job,
            spec,
            author=caller.user,
            idempotency_key=idempotency_key,
            request_hash=request_hash,
        )

    return once(session, caller.team_id, idempotency_key, request_hash, make)


def fork(
    session: Session,
    caller: Caller,
    job: uuid.UUID,
    candidate: str,
    request: ForkRequest,
    *,
    idempotency_key: str | None,
) -> tuple[Job, bool]:
    """Return the job that goes on from a candidate, and whether it is new."""
    request_hash = digest(["fork", str(job), candidate, stated(request)])

    def make() -> tuple[Job, bool]:
        spec = _changed(session, caller, job, request)
        return fork_job(
            session,
            caller.team_id,
            job,
            candidate,
            spec,
            author=caller.user,
            idempotency_key=idempotency_key,
            request_hash=request_hash,
        )

    return once(session, caller.team_id, idempotency_key, request_hash, make)


def retry_job(
    session: Session,
    team_id: uuid.UUID,
    job_id: uuid.UUID,
    spec: JobSpec,
    *,
    author: str,
    idempotency_key: str | None,
    request_hash: str,
) -> tuple[Job, bool]:
    """Return a new job that goes on with what an ended one had found, and keeps its bans; ``spec`` has the new budgets.

    (job, False) for a repeated key. Raises :class:`Conflict` for a job that goes on, or that has succeeded.
    """
    old = get_job(session, team_id, job_id)
    _refuse_futile(session, old, spec)
    job, is_new = submit_job(
        session, team_id, spec, idempotency_key=idempotency_key, request_hash=request_hash, author=author
    )
    if is_new:
        job.retry_of_id = old.id
        if not _measures_one_kernel(session, old, job):
            _go_on(session, old, job, min(TAKEN_OVER, spec.budgets.candidates), author)
        session.flush()
    return job, is_new


def _refuse_futile(session: Session, old: Job, spec: JobSpec) -> None:
    if not old.state.final:
        raise Conflict(f"the job has not ended: {old.state.value}", hint="steer it, or cancel it first")
    if judges_a_file(session, old):
        raise ImportedFile(
            "the job judged an imported file, so there is no search to continue", hint="judge the file again"
        )
    if old.state is JobState.SUCCEEDED:
        raise Conflict("the job has succeeded", hint="fork one of its candidates to continue from it")
    if old.reason == FailureKind.INVALID_PROBLEM:
        raise Conflict(
            "a retry would fail as the job did: its problem cannot be judged",
            hint="mend the file as the job's message says, and submit it again",
        )
    if old.reason == NO_TEMPLATE and spec.agents is old.agents:
        raise Conflict(
            f"a retry would fail as the job did: agents {old.agents.value} have no template for its operator",
            hint="submit the problem with agents hybrid or llm, where the service has a model",
        )


def _measures_one_kernel(session: Session, old: Job, job: Job) -> bool:
    """Have a retry measure the kernel that the old job was there for; False where that was a search."""
    payload = first_payload(session, old)
    if champions.PAYLOAD in payload:
        champions.measure_only(session, job, payload[champions.PAYLOAD])
    elif remeasuring.PAYLOAD in payload:
        extend_first_payload(session, job, **{remeasuring.PAYLOAD: payload[remeasuring.PAYLOAD]})
    else:
        return False
    return True


def _go_on(session: Session, old: Job, job: Job, kernels: int, author: str) -> None:
    """Begin a retry with the old job's best kernels and its directives."""
    for survivor in survivors_of(session, old, kernels):
        _take_over(session, job, survivor, author)
    job.forked_from_id = old.forked_from_id
    for kind, names in _CARRIED_ON.items():
        for directive in in_force(session, old.id, kind):
            values = {name: getattr(directive, name) for name in (*names, "kind", "strategy", "author")}
            session.add(Directive(id=uuid.uuid4(), job_id=job.id, **values))


def fork_job(
    session: Session,
    team_id: uuid.UUID,
    job_id: uuid.UUID,
    candidate: str,
    spec: JobSpec,
    *,
    author: str,
    idempotency_key: str | None,
    request_hash: str,
) -> tuple[Job, bool]:
    """Return a new job whose first generation has the candidate's strategy and kernel; (job, False) for a repeated key.

    Raises :class:`Conflict` for a candidate without a kernel.
    """
    source = candidate_of_job(session, get_job(session, team_id, job_id), candidate)
    if source.kernel_hash is None or (source.aligned_strategy_id or source.strategy_id) is None:
        raise Conflict(f"candidate {source.ordinal} has no kernel to begin from")
    job, is_new = submit_job(
        session, team_id, spec, idempotency_key=idempotency_key, request_hash=request_hash, author=author
    )
    if is_new:
        job.forked_from_id = source.id
        _take_over(session, job, source, author)
    return job, is_new


def _changed(session: Session, caller: Caller, job: uuid.UUID, request: RetryRequest) -> JobSpec:
    """Return the old job's specification with what the request says otherwise."""
    old = job_spec(session, get_job(session, caller.team_id, job))
    changes = {name: getattr(request, name) for name in request.model_fields_set if getattr(request, name) is not None}
    spec = old.model_copy(update=changes)
    check_agents(session, spec.method, spec.agents, spec.problem)
    return spec


def _take_over(session: Session, job: Job, source: Candidate, author: str) -> None:
    assert source.kernel_hash is not None
    kernel = kernel_of(session, source.kernel_hash)
    add_injection(session, job, author, strategy=strategy_of(session, source), kernel=kernel, source=source)
