"""The Celery application: how messages are delivered. What they mean is up to :mod:`workers.tasks` and the database.

All processes on one broker must have the same visibility timeout.
"""

from __future__ import annotations

from celery import Celery

from cupilot.domain.states import WorkerKind
from cupilot.settings import Settings

STEP_TASK = "cupilot.step"
BUNDLE_TASK = "cupilot.steps"
POOL_TASK = "cupilot.pool.index"

SOCKET_SECONDS = 5.0
"""Time limit of a socket operation; without one, a publish on a dead connection waits for ever."""


def make_app(settings: Settings, kind: WorkerKind | None = None) -> Celery:
    """Return the application of this process: of a worker of a kind, or of one that only publishes."""
    app = Celery("cupilot", broker=settings.redis_url.get_secret_value(), set_as_current=False)
    app.conf.update(
        # JSON only: nothing that comes from the broker is ever unpickled.
        task_serializer="json",
        accept_content=["json"],
        # State is in Postgres; a result would be a second truth.
        task_ignore_result=True,
        result_backend=None,
        # One message a slot, acknowledged when its step is done: a killed worker's messages come back, and the claim
        # makes each copy but one a no-op.
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        task_acks_on_failure_or_timeout=True,
        # A kernel that kills its process would be redelivered for ever; the reaper counts attempts instead.
        task_reject_on_worker_lost=False,
        # The step goes on over a broker restart and is stored in Postgres; a second delivery finds it claimed.
        worker_cancel_long_running_tasks_on_connection_loss=False,
        # Third line of defence, behind the judge's deadline and the lease.
        task_time_limit=_longest_step(settings, kind) + 300.0,
        # Long-lived children leak; a fresh one costs a fork.
        worker_max_tasks_per_child=500,
        # Workers report themselves in Postgres.
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        broker_transport="workers.transport:Transport",
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=SOCKET_SECONDS,
        broker_transport_options={
            # Above the longest step: a message that is unacknowledged for longer is delivered again.
            "visibility_timeout": settings.visibility_timeout_seconds,
            # Kombu looks for such messages every 10 s x 10 by default.
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "socket_timeout": SOCKET_SECONDS,
            "socket_connect_timeout": SOCKET_SECONDS,
            "socket_keepalive": True,
            "health_check_interval": 25,
            "retry_on_timeout": True,
        },
    )
    return app


def _longest_step(settings: Settings, kind: WorkerKind | None) -> float:
    """Return the seconds that the longest step of such a worker may take."""
    device = (settings.prepare_timeout_seconds, settings.evaluate_timeout_seconds, settings.confirm_timeout_seconds)
    if kind is WorkerKind.GPU:
        return max(device)
    return settings.agent_timeout_seconds if kind is WorkerKind.AGENT else max(*device, settings.agent_timeout_seconds)
