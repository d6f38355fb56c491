"""The cluster as the REST boundary shows it."""

from __future__ import annotations

from sqlalchemy.orm import Session

from cupilot.domain.job import AgentKind
from cupilot.domain.problem import Target
from cupilot.schemas import ClusterView, QueueView, WorkerView
from cupilot.storage.queue import cluster
from cupilot.storage.queue.drains import SERVICE, drains
from cupilot.storage.queue.steps import AGENTS_QUEUE, MODELS_QUEUE


def cluster_view(session: Session) -> ClusterView:
    """Return workers, queues and the scheduler; the same for every team, and nothing of any team's work."""
    overview = cluster.cluster_overview(session)
    reasons = {drain.scope: drain.reason for drain in drains(session)}
    workers = [_worker(seen, reasons.get(seen.worker.name)) for seen in overview.workers]
    return ClusterView(
        scheduler_alive=overview.scheduler_alive,
        drained=reasons.get(SERVICE),
        workers=workers,
        queues=[
            QueueView(name=name, queued=counts.queued, running=counts.running, in_batches=counts.in_batches)
            for name, counts in sorted(overview.queues.items())
        ],
        targets=_targets(workers),
        agents=_agents(workers),
    )


def _worker(seen: cluster.WorkerView, drained: str | None) -> WorkerView:
    row = seen.worker
    return WorkerView(
        name=row.name,
        kind=row.kind,
        alive=seen.live,
        healthy=row.healthy,
        note=row.note,
        drained=drained,
        queues=row.queues,
        slots=row.slots,
        busy=seen.busy,
        device=row.device,
        version=row.version,
        started_at=row.started_at,
        heartbeat_at=row.heartbeat_at,
    )


def _targets(workers: list[WorkerView]) -> list[Target]:
    live = {worker.device.target for worker in workers if worker.alive and worker.device}
    return [target for target in Target if target in live]


def _agents(workers: list[WorkerView]) -> list[AgentKind]:
    heard = {queue for worker in workers if worker.alive for queue in worker.queues}
    return [kind for kind in AgentKind if (AGENTS_QUEUE if kind is AgentKind.PLAYBOOK else MODELS_QUEUE) in heard]
