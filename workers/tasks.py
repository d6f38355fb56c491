"""The tasks of the Celery application. A message is only a hint that a step may be ready; the database decides."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from celery import Celery
from celery.worker import state

from cupilot.domain.errors import CupilotError, Unavailable
from workers.app import BUNDLE_TASK, POOL_TASK, STEP_TASK
from workers.bundles import run_bundle
from workers.draining import Draining
from workers.exhaustion import lack_of
from workers.indexing import index_pool
from workers.steps import return_step, run_step
from workers.tools import Tools

logger = logging.getLogger(__name__)


def _end_if_exhausted(error: CupilotError) -> None:
    """End this child where it can no longer even reach the database; its parent starts a fresh one in its place."""
    if (lack := lack_of(error)) is not None:
        logger.critical("this process ends: it %s", lack)
        os._exit(1)


def steps_at_work() -> set[uuid.UUID]:
    """Return the steps in the messages that this worker's children have in hand.

    A child that was killed has none, though it may take the pool ten seconds to notice.
    """
    steps: set[uuid.UUID] = set()
    for request in _active_requests():
        if _has_ended(request.worker_pid):
            continue
        if request.name == STEP_TASK:
            steps.add(uuid.UUID(request.args[0]))
        elif request.name == BUNDLE_TASK:
            steps.update(map(uuid.UUID, request.args[0]))
    return steps


def _active_requests() -> tuple[Any, ...]:
    """Return Celery's requests in hand; its main thread may change the set while it is read."""
    while True:
        with suppress(RuntimeError):
            return tuple(state.active_requests)


def _has_ended(pid: int | None) -> bool:
    """Return whether the process of a message, None before one has it, has ended."""
    if pid is None:
        return False
    try:
        state_and_more = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]  # proc(5)
    except OSError:
        return True
    return state_and_more.split()[0] in ("X", "Z")


def register_tasks(app: Celery, owner: str, tools: Callable[[], Tools], draining: Draining) -> None:
    """Add the tasks to an application, for the worker ``owner``; ``tools`` is called in its child processes only."""

    @app.task(name=STEP_TASK)  # type: ignore[untyped-decorator]
    def step(step_id: str, attempt: int) -> None:
        try:
            if draining.closed:
                return_step(uuid.UUID(step_id), attempt, tools())
            else:
                run_step(uuid.UUID(step_id), attempt, owner, tools(), draining)
        except Unavailable as error:
            # Not claimed, or not stored: the scheduler publishes it again, or the reaper finds it.
            logger.warning("step not finished: %s step=%s", error, step_id)
            _end_if_exhausted(error)

    @app.task(name=BUNDLE_TASK)  # type: ignore[untyped-decorator]
    def bundle(steps: dict[str, int]) -> None:
        wanted = {uuid.UUID(step_id): attempt for step_id, attempt in steps.items()}
        try:
            run_bundle(wanted, owner, tools(), lambda: draining.closed)
        except Unavailable as error:
            logger.warning("bundle not finished: %s steps=%d", error, len(wanted))
            _end_if_exhausted(error)

    @app.task(name=POOL_TASK)  # type: ignore[untyped-decorator]
    def index() -> None:
        try:
            logger.info("pool indexed entries=%d", index_pool(tools()))
        except CupilotError as error:
            logger.warning("pool not indexed: %s", error)
