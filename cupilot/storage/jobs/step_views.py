"""Steps and their logs as the REST boundary shows them. A log is told from what the database holds: the transitions,
errors, the compiler's output and what the judge found. Processes' own logs are the operator's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from sqlalchemy import Select, case, func, select, tuple_
from sqlalchemy.orm import Session, defer

from cupilot.domain.errors import NotFound, Pruned
from cupilot.domain.evaluation import Evaluation
from cupilot.domain.model_call import NoAnswer
from cupilot.domain.states import StepState
from cupilot.schemas.steps import StepPage, StepView
from cupilot.storage.db.cursor import decode_cursor, encode_cursor
from cupilot.storage.db.tables.jobs import Candidate, EvaluationRow, Event, Job
from cupilot.storage.db.tables.models import LlmCall
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.candidate_views import find_candidate
from cupilot.storage.jobs.jobs import get_job

MAX_LOG_CHARACTERS = 1_000_000
"""Of a step's log. Compilers' outputs are cut to less when they are stored; this bounds their sum."""

_Row = Select[Step, int | None, float]
"""A step, its candidate's ordinal, and the seconds for which it has been held."""


def list_steps(
    session: Session,
    team: UUID,
    job_id: UUID,
    *,
    state: StepState | None = None,
    key: str | None = None,
    candidate: str | None = None,
    cursor: str | None,
    limit: int,
) -> StepPage:
    """Return a job's steps, oldest first; ``candidate`` is an id or an ordinal. NotFound without it."""
    query = _rows().where(Step.job_id == get_job(session, team, job_id).id)
    if state is not None:
        query = query.where(Step.state == state)
    if key is not None:
        query = query.where(Step.key == key)
    if candidate is not None:
        query = query.where(Candidate.id == find_candidate(session, team, job_id, candidate).id)
    if cursor:
        query = query.where(tuple_(Step.created_at, Step.id) > decode_cursor(cursor))
    rows = session.execute(query.order_by(Step.created_at, Step.id).limit(limit + 1)).all()
    page = rows[:limit]
    return StepPage(
        items=[_view(*row) for row in page],
        next_cursor=encode_cursor(page[-1][0].created_at, page[-1][0].id) if len(rows) > limit else None,
    )


def job_log(session: Session, team: UUID, job_id: UUID, *, lines: int) -> str:
    """Return the newest ``lines`` events of a job, a line each, oldest first."""
    job = get_job(session, team, job_id)
    newest = session.scalars(select(Event).where(Event.job_id == job.id).order_by(Event.id.desc()).limit(lines)).all()
    text = "".join(f"{_line(event)}\n" for event in reversed(newest))
    if job.pruned_at is not None:
        return f"(pruned {job.pruned_at:%Y-%m-%d %H:%M} UTC: only the job's own transitions are left)\n{text}"
    return text


def step_log(session: Session, team: UUID, job_id: UUID, step_id: UUID) -> str:
    """Return a step's log: each attempt, errors, model calls, the build and the judge's findings."""
    job = get_job(session, team, job_id)
    row = session.execute(_rows().where(Step.job_id == job.id, Step.id == step_id)).one_or_none()
    if row is None:
        raise NotFound("the job has no such step", hint="list them with GET .../steps", where="step")
    if job.pruned_at is not None:
        raise Pruned("the step's log", job.pruned_at)
    step, ordinal, _ = row
    text = "\n".join(_log_lines(session, job, step, ordinal)) + "\n"
    if len(text) > MAX_LOG_CHARACTERS:
        text = text[:MAX_LOG_CHARACTERS] + f"\n(cut: {len(text) - MAX_LOG_CHARACTERS} characters more)\n"
    return text


def _rows() -> _Row:
    held = func.extract("epoch", func.clock_timestamp() - Step.started_at)
    return (
        select(Step, Candidate.ordinal, case((Step.state == StepState.RUNNING, func.greatest(held, 0.0)), else_=0.0))
        .outerjoin(Candidate, Candidate.id == Step.candidate_id)
        .options(defer(Step.payload))
    )


def _view(step: Step, candidate: int | None, held_seconds: float) -> StepView:
    names = ("id", "key", "kind", "queue", "state", "attempt", "max_attempts", "error", "busy_seconds")
    times = ("created_at", "started_at", "finished_at")
    return StepView(
        **{name: getattr(step, name) for name in (*names, *times)},
        worker=step.lease_owner,
        candidate=candidate,
        held_seconds=held_seconds,
    )


def _log_lines(session: Session, job: Job, step: Step, candidate: int | None) -> Iterator[str]:
    yield f"job        {job.id}"
    yield f"step       {step.key} ({step.kind.value}), {step.id}"
    if candidate is not None:
        yield f"candidate  {candidate}"
    yield f"state      {step.state.value}, attempt {step.attempt} of {step.max_attempts} on {step.queue}"
    yield ""
    events = select(Event).where(Event.job_id == job.id, Event.step_id == step.id).order_by(Event.id)
    for event in session.scalars(events):
        yield _line(event)
    if step.error:
        yield from ("", "last error", _json(step.error))
    yield from _calls(session, step)
    evaluation = session.scalars(select(EvaluationRow.body).where(EvaluationRow.step_id == step.id)).one_or_none()
    if evaluation is not None:
        yield from _judged(evaluation)


def _calls(session: Session, step: Step) -> Iterator[str]:
    query = (
        select(LlmCall)
        .where(LlmCall.step_id == step.id)
        .options(defer(LlmCall.request))
        .order_by(LlmCall.created_at, LlmCall.id)
    )
    for number, call in enumerate(session.scalars(query)):
        if number == 0:
            yield from ("", "model calls")
        why = call.response.error if isinstance(call.response, NoAnswer) else call.complaint
        yield f"  {call.id} {call.purpose} {call.model} {call.state.value}{f': {why}' if why else ''}"


def _judged(evaluation: Evaluation) -> Iterator[str]:
    yield from ("", f"verdict    {evaluation.verdict.value}, after {evaluation.seconds:.1f} s")
    if evaluation.failure:
        yield f"failure    {evaluation.failure.kind.value}: {evaluation.failure.message}"
        if evaluation.failure.details:
            yield _json(evaluation.failure.details)
    for phase in evaluation.phases:
        yield f"phase      {phase.name}: {phase.seconds:.3f} s"
    for law in evaluation.laws:
        result = "passed" if law.passed else "failed"
        yield f"law        {law.law}: {result}, error {law.error:.4g}, tolerance {law.tolerance:.4g}"
    for item in evaluation.comparisons:
        middle = item.speedup
        yield (
            f"time       {item.kernel_us.median:.2f} us against {item.baseline_us.median:.2f} us of"
            f" {item.baseline.value}: {middle.median:.3f}x [{middle.low:.3f}, {middle.high:.3f}]"
        )
    if evaluation.build:
        cached = ", from the cache" if evaluation.build.cached else ""
        yield from ("", f"build      {evaluation.build.compiler}, {evaluation.build.seconds:.2f} s{cached}")
        yield " ".join(evaluation.build.flags)
        yield evaluation.build.log or "(the compiler said nothing)"


def _line(event: Event) -> str:
    """Return one event; what a value holds stays on its line."""
    data: dict[str, Any] = dict(event.data)
    words = [f"{event.created_at:%Y-%m-%dT%H:%M:%S.%fZ}", event.kind]
    words += [str(data.pop("key"))] if "key" in data else []
    return " ".join([*words, *(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in data.items())])


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
