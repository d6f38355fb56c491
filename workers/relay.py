"""The outbox relay, the only publisher of messages: at least once, in order, each attempt bounded in time."""

from __future__ import annotations

import logging
from contextlib import nullcontext

from celery import Celery
from kombu.exceptions import OperationalError

from cupilot import tracing
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.queue import Outbox
from cupilot.storage.queue.dispatch import (
    BUNDLE_TOPIC,
    POOL_TOPIC,
    STEP_TOPIC,
    count_attempt,
    mark_sent,
    take_messages,
)
from workers.app import BUNDLE_TASK, POOL_TASK, STEP_TASK

logger = logging.getLogger(__name__)

BATCH = 50
"""Messages per transaction: few enough that a slow broker does not lock their rows for long."""
RETRY_POLICY = {"max_retries": 2, "interval_start": 0, "interval_step": 0.2, "interval_max": 0.5}
POOL_TASK_EXPIRES_SECONDS = 30
"""Lifetime of a request to index; the scheduler makes a new one by then."""


class Relay:
    """Moves messages from the outbox to the broker."""

    def __init__(self, database: Database, app: Celery) -> None:
        self._database = database
        self._app = app

    def run(self) -> bool:
        """Publish all messages; return False where the broker does not accept them now."""
        while True:
            with self._database.transaction() as session:
                messages = take_messages(session, BATCH)
                for sent, message in enumerate(messages):
                    try:
                        self._publish(message)
                    except (OperationalError, OSError) as error:
                        mark_sent(session, messages[:sent])
                        count_attempt(session, message)
                        logger.warning("broker does not answer: %s outbox=%d", type(error).__name__, message.id)
                        return False
                mark_sent(session, messages)
            if len(messages) < BATCH:
                return True

    def _publish(self, message: Outbox) -> None:
        payload = message.payload
        match message.topic:
            case t if t == STEP_TOPIC:
                parent = payload.get("trace")
                # Without the job's trace, this span would begin a trace of its own.
                with tracing.span("publish", parent=parent, step=payload["step"]) if parent else nullcontext():
                    self._send(STEP_TASK, [payload["step"], payload["attempt"]], payload["queue"], None)
            case t if t == BUNDLE_TOPIC:
                self._send(BUNDLE_TASK, [payload["steps"]], payload["queue"], None)
            case t if t == POOL_TOPIC:
                self._send(POOL_TASK, [], payload["queue"], POOL_TASK_EXPIRES_SECONDS)
            case _:
                # Of a newer release, say: an error would hold up all that comes after it.
                logger.error("message dropped, its topic is unknown: %s outbox=%d", message.topic, message.id)

    def _send(self, task: str, arguments: list[object], queue: str, expires: float | None) -> None:
        self._app.send_task(
            task,
            args=arguments,
            queue=queue,
            expires=expires,
            ignore_result=True,
            retry=True,
            retry_policy=RETRY_POLICY,
        )
