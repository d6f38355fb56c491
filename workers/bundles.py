"""Run a bundle: short steps that came in one message are claimed together, done one by one and stored together.

What a step does, and what becomes of it, is as if it had come by itself (:mod:`workers.steps`). A bundle that takes
longer than it should gives back what it has not begun.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlalchemy.orm import Session

from cupilot.domain.states import StepState
from cupilot.logs import log_context
from cupilot.storage.db.transitions import Stale, move_steps
from cupilot.storage.queue.bundles import claim_together, lock_claimed_together
from cupilot.storage.queue.steps import Claim
from workers.handlers.registry import HANDLERS
from workers.lease import Lease
from workers.steps import Finish, Write, cancel_running, release, return_step, step_span, store, work_claimed
from workers.tools import Tools

logger = logging.getLogger(__name__)

STORE_SECONDS = 0.1
"""For so long a finished step waits to be stored together with those after it."""
PATIENCE = 4.0
"""A bundle that takes this many times as long as it should gives back what it has not begun."""


def run_bundle(wanted: Mapping[uuid.UUID, int], owner: str, tools: Tools, draining: Callable[[], bool]) -> None:
    """Claim and run those of the ``wanted`` steps, by id with their attempts, that no other worker has."""
    if draining() or tools.retired.is_set():
        for step_id, attempt in wanted.items():
            return_step(step_id, attempt, tools)
        return
    with tools.database.transaction() as session:
        claims = claim_together(session, wanted, owner, timedelta(seconds=tools.settings.lease_seconds))
    if len(claims) < len(wanted):
        logger.info("%d of %d steps already claimed, ended or held back", len(wanted) - len(claims), len(wanted))
    if claims:
        with Lease(tools.database, tools.settings, claims, draining) as lease:
            _run(claims, tools, lease)


@dataclass(frozen=True)
class Done:
    """A step whose work succeeded, and how long that took."""

    finish: Finish
    seconds: float


def _run(claims: Sequence[Claim], tools: Tools, lease: Lease) -> None:
    patience = PATIENCE * tools.settings.bundle_seconds
    begun = stored = time.monotonic()
    waiting: list[Done] = []
    for claim in claims:
        over = tools.retired.is_set() or lease.draining() or time.monotonic() > begun + patience
        write = _give_back(claim, lease) if over else _work(claim, tools, lease)
        if isinstance(write, Done):
            waiting.append(write)
        else:
            _store_one(claim, write, tools, lease)
        if time.monotonic() - stored > STORE_SECONDS:
            _store_together(waiting, tools, lease)
            waiting, stored = [], time.monotonic()
    _store_together(waiting, tools, lease)
    logger.info("%d steps in %.2fs", len(claims), time.monotonic() - begun)


def _give_back(claim: Claim, lease: Lease) -> Write:
    unused = replace(claim, since=time.monotonic())
    return lambda session: release(session, unused, lease.of(claim))


def _work(claim: Claim, tools: Tools, lease: Lease) -> Done | Write:
    claim = replace(claim, since=time.monotonic())
    hold = lease.of(claim)
    with (
        log_context(job=claim.job_id, step=claim.step_id, key=claim.key, attempt=claim.attempt),
        step_span(claim),
    ):
        if hold.cancelled():
            return _give_back(claim, lease)
        write = work_claimed(claim, tools, hold, lease.draining)
        return Done(write, claim.busy_seconds) if isinstance(write, Finish) else write


def _store_together(done: Sequence[Done], tools: Tools, lease: Lease) -> None:
    """Store in one transaction; where that fails, each by itself, so that no step fails over another one."""
    if not done:
        return
    try:
        with tools.database.transaction() as session:
            _finish_together(session, done)
    except Exception as error:
        logger.info("stored one by one: %s", type(error).__name__)
        for each in done:
            _store_one(each.finish.claim, each.finish, tools, lease)
    for each in done:
        lease.end(each.finish.claim.step_id)


def _store_one(claim: Claim, write: Write, tools: Tools, lease: Lease) -> None:
    try:
        outcome = store(tools, claim, lease.of(claim), write)
        logger.info("%s %s step=%s", claim.kind.value, outcome, claim.step_id)
    except Exception:  # not even as a failed attempt: its lease ends, and it is reaped; the others go on
        logger.exception("step not stored step=%s attempt=%d", claim.step_id, claim.attempt)
    lease.end(claim.step_id)


def _finish_together(session: Session, done: Sequence[Done]) -> None:
    locked = lock_claimed_together(session, [each.finish.claim for each in done])
    held = [each for each in done if each.finish.claim.step_id in locked]
    for each in held:
        job, step = locked[each.finish.claim.step_id]
        if job.cancel_requested_at is not None:
            cancel_running(session, job, step, each.seconds)
    finished = [each for each in held if locked[each.finish.claim.step_id][1].state is StepState.RUNNING]
    if not finished:
        return
    steps = [locked[each.finish.claim.step_id][1] for each in finished]
    busy = {each.finish.claim.step_id: each.seconds for each in finished}
    move_steps(session, steps, StepState.SUCCEEDED, busy_seconds=busy)
    for each, step in zip(finished, steps, strict=True):
        job = locked[step.id][0]
        if job.state.final:
            raise Stale(f"job {job.id} ended with a step before this one; each is stored by itself")
        store_result = HANDLERS[step.kind].store
        store_result(session, job, step, each.finish.result)
