"""Explain a job that ended without a kernel: its most frequent failure, with an example, and what to do next.

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
    "The model's answers do not have the requested form: choose a more capable one, or agents hybrid or playbook,"
    " whose first kernels need no model. What it answered: cupilot calls JOB"
)
_SILENT = (
    "The model gives no answers: run cupilot models test where the agent workers run; it says what is wrong and how to"
    " fix it"
)
_WRONG_KERNELS = (
    "Kernels were written, but none was correct: allow more repair rounds, choose a more capable model, or agents"
    " hybrid, which begins with the playbook's kernels"
)
_WRONG_TEMPLATES = "Let a model write kernels, where the service has one: agents hybrid"


def no_valid_kernel(session: Session, job: Job) -> str:
    """Return why none of a job's candidates came to anything, and what to try next."""
    failures = failures_of(session, job)
    return _joined("no kernel passed the judge", failures, _advice(job, failures))


def no_strategies(session: Session, job: Job, message: str) -> str:
    """Return why a job could not even begin: the agents' own words first."""
    failures = failures_of(session, job)
    return _joined(message, failures, _advice(job, failures)) if failures.calls else message


def _joined(first: str, failures: Failures, advice: str) -> str:
    parts = [first]
    if failures.candidates:
        kinds = ", ".join(f"{count} {kind}" for kind, count in failures.candidates[:KINDS_SHOWN])
        parts.append(f"candidates ended as: {kinds}")
    if failures.unusable or failures.unanswered:
        parts.append(
            f"of {failures.calls} model calls {failures.unusable} answers were unusable,"
            f" {failures.unanswered} never came"
        )
    if failures.complaint and failures.complaint not in first:
        parts.append(f"most often: {failures.complaint[:EXAMPLE_CHARACTERS]}")
    return f"{'; '.join(parts)}. {advice}".rstrip()


def _advice(job: Job, failures: Failures) -> str:
    """Return what to try next; nothing where neither answers nor kernels are to blame."""
    if job.agents is AgentKind.PLAYBOOK:
        return _WRONG_TEMPLATES
    if failures.unanswered > failures.unusable:
        return _SILENT
    model_to_blame = sum(count for kind, count in failures.candidates if kind == "bad_model_answer")
    judged = sum(count for _, count in failures.candidates) - model_to_blame
    if failures.unusable and model_to_blame >= judged:
        return _TOO_WEAK
    return _WRONG_KERNELS if failures.candidates else ""
