"""Confirm a job's best kernel: measure it again in fresh processes; only then is it ``reproduced``.

A kernel that does not hold is corrected to what the second measurement says, and the next best is tried. Up to three
are raced: as long as the best confirmed lower bound falls below that of one that was not confirmed.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from cupilot.domain.evaluation import Verdict
from cupilot.domain.states import JobState, StepKind
from cupilot.jobs.attribution import begin_attribution
from cupilot.jobs.budget import Exhausted
from cupilot.jobs.explanation import no_valid_kernel
from cupilot.storage.db.tables.jobs import Candidate, Generation, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.endings import end_job
from cupilot.storage.jobs.evolving import choose_best
from cupilot.storage.jobs.progress import best_unconfirmed, evaluation_of, preparation_of, speed_of
from cupilot.storage.queue.steps import add_step, device_queue

MAX_TRIES = 3
"""Kernels that are measured again at most; if none of three holds, the measurements are the problem."""


def begin_confirmation(session: Session, job: Job, reached: Exhausted | None, tried: int = 0) -> None:
    """Queue the confirmation of the best kernel that has had none, or end the job where there is nothing to confirm.

    ``reached`` is the budget that ended the evolution, if one did.
    """
    candidate = best_unconfirmed(session, job) if tried < MAX_TRIES else None
    if candidate is None:
        conclude(session, job, reached)
        return
    add_step(
        session,
        job,
        StepKind.CONFIRM,
        f"confirm/{tried}",
        queue=device_queue(preparation_of(job).environment.device),
        avoids=_measured_on(session, job, candidate),
        candidate=candidate,
        generation=session.get_one(Generation, candidate.generation_id),
        payload={"tried": tried, "reached": reached.value if reached else None},
    )


def _measured_on(session: Session, job: Job, candidate: Candidate) -> str:
    """Return the device that the time was measured on: another one should reproduce it, where there is one."""
    assert candidate.evaluation_id is not None
    evaluation = evaluation_of(session, candidate.evaluation_id)
    return (evaluation.environment or preparation_of(job).environment).device.uid


def after_confirmation(session: Session, job: Job, step: Step) -> None:
    """End the job with the kernel that held, or measure the next: where none held, or one may yet be faster."""
    best = choose_best(session, job)
    reached, tried = reached_before(step), step.payload["tried"] + 1
    if (
        best is None
        or best.verdict is not Verdict.REPRODUCED
        or (reached is None and tried < MAX_TRIES and _has_rival(session, job, best))
    ):
        begin_confirmation(session, job, reached, tried)
    elif reached is not None or not begin_attribution(session, job, best):
        conclude(session, job, reached)


def _has_rival(session: Session, job: Job, best: Candidate) -> bool:
    """Return whether what the confirmed one has shown falls below what another one has: then that is confirmed too."""
    rival = best_unconfirmed(session, job)
    if rival is None:
        return False
    return speed_of(session, job, rival)[0] > speed_of(session, job, best)[0]


def reached_before(step: Step) -> Exhausted | None:
    """Return the budget that ended the evolution before this confirmation."""
    value = step.payload["reached"]
    return Exhausted(value) if value else None


def conclude(session: Session, job: Job, reached: Exhausted | None, failure: str | None = None) -> None:
    """End the job as what it has come to; ``failure`` says why its best could not be measured again, if that failed."""
    best = choose_best(session, job)
    if reached is not None:
        end_job(session, job, JobState.BUDGET_EXHAUSTED, reason=reached.value, message=reached.message)
    elif best is None:
        end_job(session, job, JobState.FAILED, reason="no_valid_kernel", message=no_valid_kernel(session, job))
    elif best.verdict is Verdict.REPRODUCED:
        end_job(session, job, JobState.SUCCEEDED)
    elif failure is not None:
        message = f"the best kernel is audited, but could not be measured again: {failure}"
        end_job(session, job, JobState.SUCCEEDED, reason="not_confirmed", message=message)
    else:
        message = "the best kernel is audited, but its speed was not reproduced"
        end_job(session, job, JobState.SUCCEEDED, reason="not_reproduced", message=message)
