"""Problems that jobs can be started on, the cluster, the version, and the service's health."""

from __future__ import annotations

from datetime import datetime

from cupilot.domain.hardware import Device
from cupilot.domain.job import AgentKind
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.schemas.base import Response

API_VERSION = "v1"


class ProblemSummary(Response):
    """A problem that jobs can be started on."""

    id: str
    """A built-in's name, or the id of one of the team's."""
    name: str
    policy: NumericsPolicy | None = None
    """Null for a built-in: it is chosen with the job."""
    hash: str | None = None
    builtin: bool
    summary: str | None = None
    created_at: datetime | None = None


class ProblemView(ProblemSummary):
    """A problem with its source; of a built-in, at its small size."""

    source: str


class ProblemPage(Response):
    """Built-in problems first, then the team's by id."""

    items: list[ProblemSummary]
    next_cursor: str | None = None


class WorkerView(Response):
    """A worker process."""

    name: str
    kind: str
    alive: bool
    """True if it reported itself lately."""
    healthy: bool
    note: str | None = None
    drained: str | None = None
    """Why it takes nothing new, where an operator drains it alone."""
    queues: list[str]
    slots: int
    busy: int
    """Steps of any team that it holds."""
    device: Device | None = None
    version: str
    started_at: datetime
    heartbeat_at: datetime


class QueueView(Response):
    """A queue's load, over all teams."""

    name: str
    queued: int
    running: int
    in_batches: int = 0
    """Steps that batches hold, on machines without a network."""


class ClusterView(Response):
    """The cluster: workers, queues and their load."""

    scheduler_alive: bool
    drained: str | None = None
    """Why nothing new is begun, where an operator drains the service: jobs are accepted, and wait."""
    workers: list[WorkerView]
    queues: list[QueueView]
    targets: list[Target]
    """Targets that a live worker can take now."""
    agents: list[AgentKind] = []
    """Kinds of agents that a live worker can play now."""


class VersionView(Response):
    """Versions of the service's software."""

    version: str
    api: str = API_VERSION


class Health(Response):
    """The process is alive."""

    status: str = "ok"


class Readiness(Response):
    """Readiness to serve requests, and the state of each dependency."""

    ready: bool
    checks: dict[str, str]
    """``ok``, or what is wrong, for ``database`` and ``migrations``, which decide, and ``scheduler``, ``webhooks``,
    ``redis`` and ``chroma``, which do not."""
