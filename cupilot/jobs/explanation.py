"""What a job that ends without a kernel tells its user: what failed most, with an example, and what to do about it.

Counting is :mod:`cupilot.storage.jobs.failures`' business; when a job ends so, the flow's.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from cupilot.domain.job import AgentKind
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.jobs.failures import Failures, failures_of

KINDS_SHOWN = 3
EXAMPLE_CHARACTERS = 240

_TOO_WEAK = (
    "The model does not keep the form that it is asked for: choose a more capable one, or agents hybrid or playbook,"
    " whose first kernels need no model. What it answered: cupilot calls JOB"
)
_SILENT = "The model gives no answers: run cupilot models test where the agent workers run; it says what to mend"
_WRONG_KERNELS = (
    "Kernels were written, but none was right: allow more repair rounds, choose a more capable model, or agents hybrid,"
    " which begins from proven templates. What failed where: cupilot result JOB"
)
_WRONG_TEMPLATES = "What failed where: cupilot result JOB"


def no_valid_kernel(session: Session, job: Job) -> str:
    """Why none of a job's candidates came to anything, and what to try next."""
    found = failures_of(session, job)
    return _joined("no kernel passed the judge", found, _advice(job, found))


def no_strategies(session: Session, job: Job, message: str) -> str:
    """Why a job could not even begin: the agents' own words first."""
    found = failures_of(session, job)
    return _joined(message, found, _advice(job, found)) if found.calls else message


def _joined(first: str, found: Failures, advice: str) -> str:
    parts = [first]
    if found.candidates:
        kinds = ", ".join(f"{count} {kind}" for kind, count in found.candidates[:KINDS_SHOWN])
        parts.append(f"candidates ended as: {kinds}")
    if found.unusable or found.unanswered:
        parts.append(
            f"of {found.calls} model calls {found.unusable} answers were unusable, {found.unanswered} never came"
        )
    if found.complaint and found.complaint not in first:
        parts.append(f"most often: {found.complaint[:EXAMPLE_CHARACTERS]}")
    return f"{'; '.join(parts)}. {advice}"


def _advice(job: Job, found: Failures) -> str:
    if job.agents is AgentKind.PLAYBOOK:
        return _WRONG_TEMPLATES
    if found.unanswered > found.unusable:
        return _SILENT
    model_to_blame = sum(count for kind, count in found.candidates if kind == "bad_model_answer")
    judged = sum(count for _, count in found.candidates) - model_to_blame
    return _TOO_WEAK if found.unusable and model_to_blame >= judged else _WRONG_KERNELS
