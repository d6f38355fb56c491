"""Judge a champion that ships with the release again, by a job that measures only its kernel."""

from __future__ import annotations

from sqlalchemy.orm import Session

from cupilot.domain.champions import by_kernel
from cupilot.domain.job import AgentKind, JobSpec, Learning
from cupilot.domain.people import Caller
from cupilot.domain.value import digest
from cupilot.jobs.remeasuring import ONE_KERNEL, ONE_MEASUREMENT
from cupilot.jobs.submission import RELEASE, once
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.jobs.jobs import extend_first_payload, submit_job
from cupilot.storage.jobs.steering import add_injection

LABEL = "champion"
"""Label of a job that judges one: the kernel's hash."""
PAYLOAD = "champion"
"""Key of the kernel's hash in the first step's payload. Where it is there, only what was injected is measured."""


def judge(session: Session, caller: Caller, kernel: str, idempotency_key: str | None) -> tuple[Job, bool]:
    """Return the job that judges a champion's kernel, which measures nothing else, and whether it is new."""
    champion = by_kernel(kernel)
    request_hash = digest([LABEL, champion.kernel.content_hash(), champion.problem_hash])

    def make() -> tuple[Job, bool]:
        spec = JobSpec(
            problem=champion.load_problem(),
            target=champion.target,
            method=ONE_KERNEL,
            agents=AgentKind.PLAYBOOK,
            budgets=ONE_MEASUREMENT,
            labels={LABEL: champion.kernel.content_hash()},
            learning=Learning(),
        )
        job, is_new = submit_job(
            session,
            caller.team_id,
            spec,
            idempotency_key=idempotency_key,
            request_hash=request_hash,
            author=caller.user,
        )
        if is_new:
            measure_only(session, job, kernel)
        return job, is_new

    return once(session, caller.team_id, idempotency_key, request_hash, make)


def measure_only(session: Session, job: Job, kernel: str) -> None:
    """Have a new job measure the champion with this kernel, and nothing else."""
    champion = by_kernel(kernel)
    add_injection(session, job, RELEASE, strategy=champion.strategy, kernel=champion.kernel)
    extend_first_payload(session, job, **{PAYLOAD: champion.kernel.content_hash()})
