"""Measure an old winner or a quarantined kernel again, by a job that begins from the kernel, without agents.

A job, so that budgets, cancelling, fair share and recovery from any fault hold for it as for every other. Its first
step prepares the problem afresh, since driver, PyTorch and device may be others now; its payload says what follows.
"""

from __future__ import annotations

import uuid

from sqlalchemy.orm import Session

from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import AgentKind, Budgets, JobSpec, Learning
from cupilot.domain.people import Caller
from cupilot.domain.pool import Sharing
from cupilot.domain.value import digest
from cupilot.jobs.learning import wanted_sharing
from cupilot.jobs.submission import once
from cupilot.storage.db.tables.jobs import Candidate, Job
from cupilot.storage.jobs.candidate_views import find_candidate
from cupilot.storage.jobs.jobs import extend_first_payload, first_payload, get_job, job_spec, submit_job
from cupilot.storage.jobs.measurements import check_measurable
from cupilot.storage.people.people import team_of_job
from cupilot.storage.pool.rows import sharings_of

PAYLOAD = "remeasures"
"""Key, in the payload of the first step, of the candidate whose kernel is measured."""
LABEL = "remeasures"
"""Label of the job: the candidate, so that such jobs can be listed."""
MAX_LABELS = 16
ONE_KERNEL = SceConfig(
    population=2, generations=1, elites=1, repair_rounds=0, performance_rounds=0, pool=False, alignment=False
)
"""Of a job that measures a kernel which is there: no agents, no second generation."""
ONE_MEASUREMENT = Budgets(candidates=1, wall_seconds=3_600.0, cost_usd=0)


def remeasure(
    session: Session, caller: Caller, job: uuid.UUID, candidate: str, idempotency_key: str | None
) -> tuple[Job, bool]:
    """Return the job that measures a candidate's kernel again, in the job's own team, and whether it is new."""
    team = team_of_job(session, caller, job)
    row = find_candidate(session, team, job, candidate)

    def make() -> tuple[Job, bool]:
        check_measurable(row)
        return submit_remeasurement(session, team, row, author=caller.user, idempotency_key=idempotency_key)

    return once(session, team, idempotency_key, _request_hash(row.id), make)


def submit_remeasurement(
    session: Session, team: uuid.UUID, candidate: Candidate, *, author: str, idempotency_key: str | None
) -> tuple[Job, bool]:
    """Make a job that measures the kernel of a candidate, and whether it is new."""
    before = job_spec(session, get_job(session, team, candidate.job_id))
    labels = dict(list(before.labels.items())[: MAX_LABELS - 1]) | {LABEL: str(candidate.id)}
    spec = JobSpec(
        problem=before.problem,
        target=before.target,
        method=ONE_KERNEL,
        agents=AgentKind.PLAYBOOK,
        budgets=ONE_MEASUREMENT,
        priority=before.priority,
        labels=labels,
        learning=Learning(sharing=_sharing(session, team, candidate)),
    )
    job, is_new = submit_job(
        session, team, spec, idempotency_key=idempotency_key, request_hash=_request_hash(candidate.id), author=author
    )
    if is_new:
        extend_first_payload(session, job, **{PAYLOAD: str(candidate.id)})
    return job, is_new


def measures_again(session: Session, job: Job) -> bool:
    """Return whether the job is one of these: no earlier evaluation may stand for its measurement."""
    return PAYLOAD in first_payload(session, job)


def _sharing(session: Session, team: uuid.UUID, candidate: Candidate) -> Sharing:
    """Return the audience of the measurement: that of the job before, or of its entries where they were withdrawn."""
    before = wanted_sharing(session, get_job(session, team, candidate.job_id))
    return Sharing.most_private(before, *sharings_of(session, candidate))


def _request_hash(candidate: uuid.UUID) -> str:
    """Return what tells a request to measure this candidate from others under the same key."""
    return digest({LABEL: str(candidate)})
