"""Make, read and cancel a team's experiments. Their jobs are made and cancelled like any others."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from cupilot.domain.errors import Conflict, NotFound
from cupilot.domain.experiments.matrix import Cell, ExperimentSpec
from cupilot.domain.job import JobSpec, Learning
from cupilot.domain.problem import Problem, Target
from cupilot.domain.states import ExperimentState, JobState, StepState
from cupilot.storage.db.scope import scoped
from cupilot.storage.db.tables.experiments import Experiment
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.jobs import IdempotencyMismatch, request_cancels, submit_job


def create_experiment(
    session: Session,
    team_id: uuid.UUID,
    name: str,
    spec: ExperimentSpec,
    problems: Sequence[Problem],
    *,
    idempotency_key: str | None,
    request_hash: str,
    author: str | None = None,
) -> tuple[Experiment, bool]:
    """Make an experiment with all its jobs; (experiment, True), or (the earlier one, False) for a repeated key.

    All in the caller's transaction: there is no experiment with half of its jobs. Raises :class:`IdempotencyMismatch`
    where the key belongs to another request.
    """
    values = {
        "id": uuid.uuid4(),
        "team_id": team_id,
        "name": name,
        "spec": spec,
        "idempotency_key": idempotency_key,
        "request_hash": request_hash,
    }
    made = session.execute(
        insert(Experiment)
        .values(values)
        .on_conflict_do_nothing(index_elements=["team_id", "idempotency_key"])
        .returning(Experiment.id)
    ).scalar_one_or_none()
    if made is None:
        assert idempotency_key is not None
        earlier = earlier_experiment(session, team_id, idempotency_key, request_hash)
        assert earlier is not None
        return earlier, False
    experiment = session.get_one(Experiment, made)
    for position, cell in enumerate(spec.cells()):
        job_spec = _job_spec(spec, cell, problems[cell.problem])
        job, _ = submit_job(
            session,
            team_id,
            job_spec,
            idempotency_key=None,
            request_hash=job_spec.content_hash(),
            author=author,
        )
        _place(session, job, experiment, spec, cell=cell, position=position)
    session.flush()
    return experiment, True


def earlier_experiment(
    session: Session, team_id: uuid.UUID, idempotency_key: str, request_hash: str
) -> Experiment | None:
    """Return what this key made before; :class:`IdempotencyMismatch` where the key belongs to another request."""
    query = scoped(select(Experiment), team_id).where(Experiment.idempotency_key == idempotency_key)
    experiment = session.scalars(query).one_or_none()
    if experiment is not None and experiment.request_hash != request_hash:
        raise IdempotencyMismatch(
            "this idempotency key was used for a different request", hint="use a new key for a new request"
        )
    return experiment


def get_experiment(session: Session, team_id: uuid.UUID, experiment_id: uuid.UUID) -> Experiment:
    """Return one experiment of the team; raises :class:`NotFound`."""
    query = scoped(select(Experiment), team_id).where(Experiment.id == experiment_id)
    experiment = session.scalars(query).one_or_none()
    if experiment is None:
        raise NotFound(f"no experiment {experiment_id}", hint="GET /v1/experiments lists your team's")
    return experiment


def cancel_experiment(session: Session, team_id: uuid.UUID, experiment_id: uuid.UUID) -> Experiment:
    """Stop every job that has not ended, as :func:`cupilot.storage.jobs.jobs.request_cancel` does. Repeating it is
    harmless.

    Raises :class:`NotFound`, and :class:`Conflict` where all jobs have ended by themselves.
    """
    get_experiment(session, team_id, experiment_id)
    experiment = session.get_one(Experiment, experiment_id, with_for_update={"key_share": True}, populate_existing=True)
    open_jobs = session.scalars(
        select(Job.id).where(Job.experiment_id == experiment.id, Job.finished_at.is_(None)).order_by(Job.created_at)
    ).all()
    if experiment.cancel_requested_at is None:
        if not open_jobs:
            raise Conflict("the experiment has ended already: all its jobs are final")
        experiment.cancel_requested_at = func.now()
    request_cancels(session, team_id, open_jobs)
    session.flush()
    session.refresh(experiment)
    return experiment


def state_of(experiment: Experiment, states: Mapping[JobState, int]) -> ExperimentState:
    """Return where an experiment stands, given how many of its jobs are in which state."""
    cancelled = experiment.cancel_requested_at is not None
    if all(state.final for state in states):
        return ExperimentState.CANCELLED if cancelled else ExperimentState.FINISHED
    if cancelled:
        return ExperimentState.CANCELLING
    return ExperimentState.QUEUED if set(states) == {JobState.QUEUED} else ExperimentState.RUNNING


def pool_cutoff(session: Session, job: Job) -> datetime | None:
    """Return the time after which pool entries are hidden from a job: when its experiment began; None for no limit."""
    if job.experiment_id is None:
        return None
    experiment = session.get_one(Experiment, job.experiment_id)
    return None if experiment.spec.live_pool else experiment.created_at


def _job_spec(spec: ExperimentSpec, cell: Cell, problem: Problem) -> JobSpec:
    arm = spec.arms[cell.arm]
    return JobSpec.model_validate(
        {
            "problem": problem,
            "target": spec.target,
            "method": arm.method,
            "agents": arm.agents,
            "budgets": spec.budgets,
            "seed": spec.seeds[cell.seed],
            "priority": spec.priority,
            "labels": spec.labels,
            # An arm's time is what its search took, and not what is learned of its winner afterwards.
            "learning": Learning(cheap_attribution=False),
        }
    )


def _place(
    session: Session, job: Job, experiment: Experiment, spec: ExperimentSpec, *, cell: Cell, position: int
) -> None:
    """Set a new job's arm, its turn, and the class of devices that it has to run on."""
    job.experiment_id, job.arm = experiment.id, spec.arms[cell.arm].name
    # The scheduler takes the older job first; without this all would be of one age.
    job.created_at = experiment.created_at + timedelta(microseconds=position)
    if spec.device_class is not None and spec.target is Target.CUDA:
        for step in session.scalars(select(Step).where(Step.job_id == job.id, Step.state == StepState.QUEUED)):
            step.queue = f"gpu.{spec.device_class}"
