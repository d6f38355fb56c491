"""Read the numbers behind ``/metrics`` from the tables: every replica of the API reports the same ones.

Two queries of different cost. :func:`open_work` reads what is open now, through partial indexes; :func:`totals` sums
over everything that ever was, and is asked for less often. Names and types of metrics are the API's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, case, func, literal_column, select, text
from sqlalchemy.orm import Session

from cupilot.domain.states import JobState, LlmCallState, StepState, WorkerKind
from cupilot.storage.db.tables.jobs import EvaluationRow, Event, Job
from cupilot.storage.db.tables.models import LlmCall
from cupilot.storage.db.tables.people import Team
from cupilot.storage.db.tables.queue import AT_A_WORKER, Outbox, Step, WorkerRow
from cupilot.storage.db.tables.webhooks import WebhookDelivery, WebhookEndpoint
from cupilot.storage.queue.cluster import is_live, scheduler_alive
from cupilot.storage.webhooks.deliveries import waiting_seconds

LATELY = timedelta(minutes=15)
"""Age up to which kernels' builds are counted: their reports are in the evaluations, which nobody wants to read all."""
TOTALS_TIMEOUT_MS = 300_000
"""Limit on each statement of :func:`totals`: whoever asks does not wait for them."""


@dataclass(frozen=True)
class QueueNow:
    """A queue's open steps."""

    running: int
    published: int
    """On their way to a worker."""
    waiting: int
    """In the backlog."""
    oldest_seconds: float
    """Age of the oldest queued step that waits for a worker only; 0 where there is none."""


@dataclass(frozen=True)
class OpenWork:
    """Open work of the service now."""

    jobs: Mapping[str, int]
    """Jobs that have not ended, by state."""
    queues: Mapping[str, QueueNow]
    workers: Mapping[tuple[str, str], int]
    """Workers by kind and health: ``live``, ``silent`` or ``unhealthy``."""
    slots: Mapping[str, int]
    """Slots of live workers by kind."""
    scheduler_up: bool
    outbox_unsent: int
    outbox_lag_seconds: float
    webhooks: Mapping[str, int]
    """Webhooks by state: ``enabled``, ``failing``, ``disabled``."""
    webhook_pending: int
    webhook_lag_seconds: float
    """Age of the oldest due message of an enabled webhook, or of the oldest event not yet read."""


@dataclass(frozen=True)
class ModelCalls:
    """Calls of one model."""

    ended: Mapping[str, int]
    """By state: ``answered``, ``failed``, ``lost``."""
    open: int
    """Begun and not ended yet."""
    cost_usd: float
    """Of answered calls."""
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Totals:
    """Totals so far; they do not decrease, but for calls that were taken for lost and are answered late."""

    jobs: Mapping[str, int]
    """Jobs that have ended, by state."""
    lease_expirations: int
    evaluations: Mapping[tuple[str, str], int]
    """By purpose and verdict."""
    models: Mapping[str, ModelCalls]
    gpu_seconds: Mapping[str, float]
    """Seconds on a device by team name."""
    cost_usd: Mapping[str, float]
    """Money for models by team name."""
    jobs_pruned: int
    """Jobs whose details were pruned."""
    builds: Mapping[tuple[str, str], int]
    """Kernels measured within :data:`LATELY`, by queue and by how their build came: ``made`` meanwhile, ``ahead`` of
    their turn, ``known`` from the cache."""


def open_work(session: Session) -> OpenWork:
    """Return the open work of the service."""
    jobs = select(Job.state, func.count()).where(Job.finished_at.is_(None)).group_by(Job.state)
    state = case((WorkerRow.healthy.is_(False), "unhealthy"), (is_live(session), "live"), else_="silent")
    workers = session.execute(
        select(WorkerRow.kind, state, func.count(), func.sum(WorkerRow.slots)).group_by(WorkerRow.kind, state)
    ).all()
    unsent, lag = session.execute(
        select(func.count(), _age(func.min(Outbox.created_at))).where(Outbox.sent_at.is_(None))
    ).one()
    standing = case(
        (WebhookEndpoint.enabled.is_(False), "disabled"),
        (WebhookEndpoint.failing_since.is_not(None), "failing"),
        else_="enabled",
    )
    webhooks = session.execute(select(standing, func.count()).group_by(standing))
    pending = session.execute(
        select(func.count())
        .select_from(WebhookDelivery)
        .join(WebhookEndpoint, WebhookEndpoint.id == WebhookDelivery.endpoint_id)
        .where(WebhookDelivery.finished_at.is_(None), WebhookEndpoint.enabled)
    ).scalar_one()
    return OpenWork(
        jobs={state.value: count for state, count in session.execute(jobs)},
        queues=_queues(session),
        workers={(kind.value, health): count for kind, health, count, _ in workers},
        slots={kind.value: slots for kind, health, _, slots in workers if health == "live"},
        scheduler_up=scheduler_alive(session),
        outbox_unsent=unsent,
        outbox_lag_seconds=_seconds(lag),
        webhooks={"enabled": 0, "failing": 0, "disabled": 0} | {str(state): int(count) for state, count in webhooks},
        webhook_pending=pending,
        webhook_lag_seconds=waiting_seconds(session),
    )


def totals(session: Session) -> Totals:
    """Return what has been done so far; after years of jobs that takes longer than other transactions may."""
    session.execute(text(f"SET LOCAL statement_timeout = {TOTALS_TIMEOUT_MS}"))
    purpose, verdict = EvaluationRow.purpose, EvaluationRow.verdict
    evaluations = session.execute(select(purpose, verdict, func.count()).group_by(purpose, verdict))
    used = session.execute(
        select(Team.name, func.sum(Job.gpu_seconds), func.sum(Job.cost_usd))
        .join(Job, Job.team_id == Team.id)
        .group_by(Team.name)
    ).all()
    ended = select(Job.state, func.count()).where(Job.finished_at.is_not(None)).group_by(Job.state)
    # The literal, not a parameter: only then does the planner use the partial index on this kind.
    reaped = select(func.count()).select_from(Event).where(Event.kind == literal_column("'step.reaped'"))
    return Totals(
        jobs={state.value: count for state, count in session.execute(ended)},
        lease_expirations=session.execute(reaped).scalar_one(),
        evaluations={(why.value, how.value): count for why, how, count in evaluations},
        models=_models(session),
        gpu_seconds={team: float(seconds) for team, seconds, _ in used},
        cost_usd={team: float(cost) for team, _, cost in used},
        jobs_pruned=session.execute(select(func.count()).where(Job.pruned_at.is_not(None))).scalar_one(),
        builds=_builds(session),
    )


def _builds(session: Session) -> dict[tuple[str, str], int]:
    """Return how kernels were built lately, for the queues that live workers of devices listen to."""
    queues = select(func.jsonb_array_elements_text(WorkerRow.queues)).where(WorkerRow.kind == WorkerKind.GPU)
    build = EvaluationRow.body["build"]
    how = case((build["ahead"].as_boolean(), "ahead"), (build["cached"].as_boolean(), "known"), else_="made")
    rows = session.execute(
        select(Step.queue, how, func.count())
        .join(EvaluationRow, EvaluationRow.step_id == Step.id)
        .where(Step.queue.in_(queues), Step.finished_at > func.now() - LATELY, build["ok"].is_not(None))
        .group_by(Step.queue, how)
    )
    return {(queue, came): count for queue, came, count in rows}


def _queues(session: Session) -> dict[str, QueueNow]:
    queued = Step.state == StepState.QUEUED
    # A step that has to wait before its next attempt is not late before that.
    ready_at = func.greatest(Step.created_at, func.coalesce(Step.not_before, Step.created_at))
    rows = session.execute(
        select(
            Step.queue,
            func.count().filter(AT_A_WORKER),
            func.count().filter(queued, Step.dispatched_at.is_not(None)),
            func.count().filter(queued, Step.dispatched_at.is_(None)),
            _age(func.min(ready_at).filter(queued, _may_go_on())),
        )
        .join(Job, Job.id == Step.job_id)
        .where(Step.finished_at.is_(None))
        .group_by(Step.queue)
    )
    return {queue: QueueNow(run, out, wait, _seconds(oldest)) for queue, run, out, wait, oldest in rows}


def _may_go_on() -> ColumnElement[bool]:
    """Return the condition on a job that it waits for nobody's word and no quota, as in the chart's query for KEDA.

    That a quota holds it back, the scheduler has written on it.
    """
    held = (Job.state == JobState.QUEUED) & func.coalesce(Job.reason, "").in_(["gpu_quota", "running_quota"])
    return Job.finished_at.is_(None) & Job.cancel_requested_at.is_(None) & (Job.state != JobState.PAUSED) & ~held


def _models(session: Session) -> dict[str, ModelCalls]:
    answered = LlmCall.state == LlmCallState.ANSWERED
    rows = session.execute(
        select(
            LlmCall.model,
            LlmCall.state,
            func.count(),
            func.sum(LlmCall.cost_usd).filter(answered),
            func.sum(LlmCall.prompt_tokens),
            func.sum(LlmCall.completion_tokens),
        )
        .where(~LlmCall.cached)  # an answer that was there already asked no model
        .group_by(LlmCall.model, LlmCall.state)
    )
    models: dict[str, ModelCalls] = {}
    for model, state, count, cost, prompt, completion in rows:
        so_far = models.get(model, ModelCalls({}, 0, 0.0, 0, 0))
        is_open = state is LlmCallState.STARTED
        models[model] = ModelCalls(
            ended=so_far.ended if is_open else {**so_far.ended, state.value: count},
            open=count if is_open else so_far.open,
            cost_usd=so_far.cost_usd + float(cost or 0.0),
            prompt_tokens=so_far.prompt_tokens + int(prompt or 0),
            completion_tokens=so_far.completion_tokens + int(completion or 0),
        )
    return models


def _age(moment: Any) -> Any:
    return func.extract("epoch", func.now() - moment)


def _seconds(age: Any) -> float:
    """Return an age as a number of seconds: none is 0, and clocks of two transactions may make it negative."""
    return max(float(age), 0.0) if age is not None else 0.0
