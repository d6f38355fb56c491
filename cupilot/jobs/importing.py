"""Judge an imported file by a job that only measures it, without agents.

A job, so that budgets, quotas, cancelling, fair share and recovery from any fault hold for it as for every other. Its
first step prepares the problem; that step's payload says which file follows.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from sqlalchemy.orm import Session

from cupilot.domain.errors import InvalidInput
from cupilot.domain.imported import MAX_SOURCE_BYTES, ImportedKernel, check_import, with_function
from cupilot.domain.job import AgentKind, JobSpec, Learning, Priority
from cupilot.domain.people import Caller
from cupilot.domain.problem import Problem
from cupilot.domain.value import digest, stated
from cupilot.jobs.remeasuring import MAX_LABELS, ONE_KERNEL, ONE_MEASUREMENT
from cupilot.jobs.submission import once, problem_of
from cupilot.schemas import ImportRequest
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.jobs.evolving import store_kernel
from cupilot.storage.jobs.jobs import extend_first_payload, first_payload, submit_job

PAYLOAD = "imports"
"""Key, in the payload of the first step, of the file's hash."""
LABEL = "imported"
"""Label of the job: the file's hash, so that such jobs can be listed."""


def submit_file(
    session: Session, caller: Caller, request: ImportRequest, idempotency_key: str | None
) -> tuple[Job, bool]:
    """Return the job that judges a file, and whether it is new; InvalidImport for what is no such file."""
    request_hash = digest(["import", stated(request)])

    def make() -> tuple[Job, bool]:
        check_import(request.source)
        source = with_function(request.source, request.function)
        if len(source.encode()) > MAX_SOURCE_BYTES:
            raise InvalidInput(f"the file is larger than {MAX_SOURCE_BYTES} bytes", where="body.source")
        return submit_import(
            session,
            caller.team_id,
            problem_of(session, caller.team_id, request.problem, request.target),
            ImportedKernel(target=request.target, source=source),
            author=caller.user,
            labels=request.labels,
            priority=request.priority,
            learning=Learning(sharing=request.sharing),
            idempotency_key=idempotency_key,
            request_hash=request_hash,
        )

    return once(session, caller.team_id, idempotency_key, request_hash, make)


def submit_import(
    session: Session,
    team: uuid.UUID,
    problem: Problem,
    kernel: ImportedKernel,
    *,
    author: str,
    labels: Mapping[str, str] | None = None,
    priority: Priority = Priority.NORMAL,
    learning: Learning | None = None,
    idempotency_key: str | None = None,
    request_hash: str | None = None,
) -> tuple[Job, bool]:
    """Make a job that judges the file against the problem, and whether it is new. ``request_hash``: else its spec's."""
    spec = JobSpec(
        problem=problem,
        target=kernel.target,
        method=ONE_KERNEL,
        agents=AgentKind.PLAYBOOK,
        budgets=ONE_MEASUREMENT,
        priority=priority,
        labels=dict(list((labels or {}).items())[: MAX_LABELS - 1]) | {LABEL: kernel.content_hash()},
        learning=learning or Learning(),
    )
    request = request_hash or digest([PAYLOAD, kernel.content_hash(), spec.model_dump(mode="json")])
    job, is_new = submit_job(session, team, spec, idempotency_key=idempotency_key, request_hash=request, author=author)
    if is_new:
        extend_first_payload(session, job, **{PAYLOAD: store_kernel(session, kernel)})
    return job, is_new


def judges_a_file(session: Session, job: Job) -> bool:
    """Return whether the job is one of these."""
    return PAYLOAD in first_payload(session, job)
