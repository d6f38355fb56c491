"""Load the outcomes of an experiment's jobs for its report; :mod:`cupilot.domain.experiments` interprets them."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, defer

from cupilot.domain.evaluation import Baseline, FailureKind, Interval
from cupilot.domain.experiments.matrix import ExperimentSpec
from cupilot.domain.hardware import Environment
from cupilot.domain.problem import Target
from cupilot.domain.states import CandidateState, JobState
from cupilot.reports.experiment import summarise
from cupilot.reports.outcomes import JobOutcome, OutcomeState
from cupilot.schemas import ExperimentReport
from cupilot.storage.db.json_columns import part
from cupilot.storage.db.tables.experiments import Experiment
from cupilot.storage.db.tables.jobs import Candidate, EvaluationRow, Generation, Job
from cupilot.storage.db.tables.models import LlmCall
from cupilot.storage.experiments.experiments import get_experiment
from cupilot.storage.experiments.views import experiment_view, position_of
from cupilot.storage.jobs.wall_time import wall_seconds
from cupilot.storage.models.money import COST_UNKNOWN

BLAMELESS = frozenset({"worker_lost", "infrastructure", "internal_error", "cancel_requested", "not_measured"})
"""Reasons of failed jobs that say nothing about their arm."""
TEAMS_LIMITS = frozenset({"team_gpu_quota", "team_budget"})
"""Reasons of jobs that ended because their team had used up what all of its jobs share."""


@dataclass
class _Tally:
    """Counts of one job's candidates."""

    judged: int = 0
    valid: int = 0
    failures: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    best: dict[int, float] = field(default_factory=dict)
    """Highest median speedup by generation, whatever the verdict."""


def experiment_report(session: Session, team: uuid.UUID, experiment_id: uuid.UUID) -> ExperimentReport:
    """Return what can be said about the arms so far; NotFound for another team's."""
    view = experiment_view(session, team, experiment_id)
    return summarise(view, outcomes(session, get_experiment(session, team, experiment_id)))


def outcomes(session: Session, experiment: Experiment) -> list[JobOutcome]:
    """Return every job of the experiment, in the order of work."""
    spec = experiment.spec
    tallies, speedups = _tallies(session, experiment), _speedups(session, experiment)
    tokens, reserved = _tokens(session, experiment), _reserved(session, experiment)
    now: datetime = session.execute(select(func.now())).scalar_one()
    environment = part(Job.preparation["environment"], Environment)
    jobs = select(Job, environment).where(Job.experiment_id == experiment.id).order_by(Job.created_at)
    rows = []
    for job, measured_in in session.execute(jobs):
        tally = tallies.get(job.id, _Tally())
        speedup = speedups.get(job.id)
        prompt, completion = tokens.get(job.id, (0, 0))
        rows.append(
            JobOutcome(
                job=str(job.id),
                position=position_of(experiment, job),
                arm=job.arm or "",
                problem=_problem(spec, position_of(experiment, job)),
                seed=job.seed,
                state=job.state.value,
                reason=job.reason,
                standing=_standing(job, speedup),
                speedup=speedup,
                judged=tally.judged,
                valid=tally.valid,
                failures=dict(sorted(tally.failures.items())),
                best_by_generation=_so_far(tally.best, job.generation),
                cost_usd=job.cost_usd,
                reserved_usd=reserved.get(job.id, 0.0),
                prompt_tokens=prompt,
                completion_tokens=completion,
                gpu_seconds=job.gpu_seconds,
                wall_seconds=wall_seconds(job, lambda: now),
                **_where(measured_in),
            )
        )
    return rows


def _problem(spec: ExperimentSpec, position: int) -> str:
    return spec.problems[spec.cells()[position].problem]


def _standing(job: Job, speedup: Interval | None) -> OutcomeState:
    if not job.state.final:
        return OutcomeState.OPEN
    blameless = {JobState.FAILED: BLAMELESS, JobState.BUDGET_EXHAUSTED: TEAMS_LIMITS}.get(job.state, frozenset())
    if job.state is JobState.CANCELLED or job.reason in blameless:
        return OutcomeState.LOST
    return OutcomeState.UNSOLVED if speedup is None else OutcomeState.SOLVED


def _tallies(session: Session, experiment: Experiment) -> Mapping[uuid.UUID, _Tally]:
    """Return candidates that were judged, or could not be written; duplicates cost nothing and are left out."""
    failure = EvaluationRow.body["failure"]["kind"].astext
    query = (
        select(Candidate, Generation.number, failure)
        .join(Job, Job.id == Candidate.job_id)
        .join(Generation, Generation.id == Candidate.generation_id)
        .outerjoin(EvaluationRow, EvaluationRow.id == Candidate.evaluation_id)
        .where(Job.experiment_id == experiment.id)
        .where(Candidate.state.in_((CandidateState.EVALUATED, CandidateState.FAILED)))
        .options(defer(Candidate.notes))
    )
    tallies: dict[uuid.UUID, _Tally] = defaultdict(_Tally)
    for candidate, number, kind in session.execute(query):
        why = kind or candidate.reason or "unknown"
        if candidate.speedup is None and why in (FailureKind.INFRASTRUCTURE.value, *BLAMELESS):
            continue
        tally = tallies[candidate.job_id]
        tally.judged += 1
        if candidate.speedup is None:
            tally.failures[why] += 1
            continue
        tally.valid += 1
        tally.best[number] = max(tally.best.get(number, 0.0), candidate.speedup)
    return tallies


def _speedups(session: Session, experiment: Experiment) -> Mapping[uuid.UUID, Interval]:
    """Return each job's best proven kernel over eager, as measured last."""
    query = (
        select(Job.id, EvaluationRow.body)
        .join(Candidate, Candidate.id == Job.best_candidate_id)
        .join(EvaluationRow, EvaluationRow.id == Candidate.evaluation_id)
        .where(Job.experiment_id == experiment.id)
    )
    speedups = {}
    for job, evaluation in session.execute(query):
        eager = evaluation.comparison(Baseline.EAGER)
        if eager is not None and evaluation.verdict.counts:
            speedups[job] = eager.speedup
    return speedups


def _tokens(session: Session, experiment: Experiment) -> Mapping[uuid.UUID, tuple[int, int]]:
    query = (
        select(LlmCall.job_id, func.sum(LlmCall.prompt_tokens), func.sum(LlmCall.completion_tokens))
        .join(Job, Job.id == LlmCall.job_id)
        .where(Job.experiment_id == experiment.id)
        .group_by(LlmCall.job_id)
    )
    return {job: (prompt or 0, completion or 0) for job, prompt, completion in session.execute(query)}


def _reserved(session: Session, experiment: Experiment) -> Mapping[uuid.UUID, float]:
    query = (
        select(LlmCall.job_id, func.sum(LlmCall.cost_usd))
        .join(Job, Job.id == LlmCall.job_id)
        .where(Job.experiment_id == experiment.id, LlmCall.state.in_(COST_UNKNOWN))
        .group_by(LlmCall.job_id)
    )
    return {job: cost or 0.0 for job, cost in session.execute(query)}


def _so_far(best: Mapping[int, float], last: int) -> tuple[float | None, ...]:
    if not best:
        return ()
    line: list[float | None] = []
    top: float | None = None
    for number in range(max(last, *best) + 1):
        top = max((speed for speed in (top, best.get(number)) if speed is not None), default=None)
        line.append(top)
    return tuple(line)


def _where(environment: Environment | None) -> dict[str, Any]:
    if environment is None:
        return {}
    device = environment.device
    kind = "cpu" if device.target is Target.CPU else device.arch
    return {"device_class": kind, "device": device.name, "load_average": environment.load_average}
