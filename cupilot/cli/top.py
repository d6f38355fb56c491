"""The command ``top``: cluster, queues and open jobs, live in the terminal. Changes nothing."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cupilot.cli.options import Data, Json, Server
from cupilot.cli.session import OPEN_STATES
from cupilot.cli.text import clean
from cupilot.client import ApiError, Client, UnreachableError
from cupilot.domain.counted import counted
from cupilot.schemas import ClusterView, JobSummary, WorkerView

JOBS_SHOWN = 200
OLD_SECONDS = 30.0
"""A heartbeat older than this is worth showing."""


@dataclass(frozen=True)
class Snapshot:
    """Answers of the service at one moment."""

    taken: datetime
    cluster: ClusterView
    jobs: list[JobSummary]

    def as_json(self) -> str:
        """Return the snapshot as one line of JSON."""
        jobs = ",".join(job.model_dump_json() for job in self.jobs)
        taken = json.dumps(self.taken.isoformat())
        return f'{{"taken_at":{taken},"cluster":{self.cluster.model_dump_json()},"jobs":[{jobs}]}}'


def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and leave.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.2, max=60.0, help="Seconds between updates.")] = 2.0,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Watch workers, queues and your team's open jobs. q or Ctrl-C ends it; with --json a line a snapshot.

    \b
    Examples:
        cupilot top
        cupilot top --once
        cupilot top --json --interval 10 | jq -c '.cluster.queues'
    """
    with Client(server, data=data, retries=0 if not once else 4) as client:
        if once:
            snapshot = fetch(client)
            typer.echo(snapshot.as_json() if as_json else _plain(snapshot))
        elif as_json or not sys.stdout.isatty():
            _stream(client, interval, as_json=as_json)
        else:
            _live(client, interval)


def fetch(client: Client) -> Snapshot:
    """Ask once."""
    cluster = client.cluster()
    jobs = client.list(state=(*OPEN_STATES, "paused"), limit=JOBS_SHOWN).items
    return Snapshot(datetime.now().astimezone(), cluster, jobs)


def _stream(client: Client, interval: float, *, as_json: bool) -> None:
    while True:
        try:
            snapshot = fetch(client)
        except ApiError as error:
            if not _passes(error):
                raise
            typer.echo(f"{clean(error.message)}; asking again", err=True)
        else:
            typer.echo(snapshot.as_json() if as_json else _plain(snapshot))
            sys.stdout.flush()
        time.sleep(interval)


def _live(client: Client, interval: float) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        last: Snapshot | None = None
        trouble: str | None = None
        while True:
            try:
                last, trouble = fetch(client), None
            except ApiError as error:
                if not _passes(error):
                    raise
                trouble = clean(error.message)
            size: tuple[int, int] | None = None
            deadline = time.monotonic() + interval
            while time.monotonic() < deadline:
                # Drawn again when the terminal has another size.
                if (console.size.width, console.size.height) != size:
                    size = console.size.width, console.size.height
                    live.update(screen(last, trouble, console.size.height), refresh=True)
                if pressed(min(0.2, max(deadline - time.monotonic(), 0.0))) in ("q", "Q", "\x03"):
                    return


def _passes(error: ApiError) -> bool:
    """Return whether it may be over soon: a restart, a deploy, a busy moment."""
    return isinstance(error, UnreachableError) or error.status in (429, 502, 503, 504)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits so many seconds for a key; nothing is echoed meanwhile."""
    if os.name != "posix" or not sys.stdin.isatty():

        def asleep(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield asleep
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return os.read(descriptor, 1).decode(errors="replace") if ready else ""

    tty.setcbreak(descriptor)
    try:
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def screen(snapshot: Snapshot | None, trouble: str | None, height: int) -> RenderableType:
    """Return everything that fits: queues and workers first, then as many jobs as there are lines left."""
    if snapshot is None:
        return Text(f"no answer yet: {trouble}" if trouble else "asking", style="bold")
    head = Text(_headline(snapshot), style="bold", no_wrap=True, overflow="ellipsis")
    parts: list[RenderableType] = [head]
    if trouble:
        old = f"no answer since {snapshot.taken:%H:%M:%S}: {trouble}"
        parts.append(Text(old, style="bold red", no_wrap=True, overflow="ellipsis"))
    queues, workers = _queues(snapshot.cluster), _workers(snapshot)
    room = max(height - len(parts) - 4, 3)  # three titles, and the line that the cursor needs
    for_queues = min(len(queues), max(room // 4, 1))
    for_workers = min(len(workers), max(room // 2 - 1, 1))
    parts += _section("queue       waiting  running  in batches", queues, for_queues)
    parts += _section("worker", workers, for_workers)
    parts.append(_job_table(snapshot.jobs, max(room - max(for_queues, 1) - max(for_workers, 1), 1)))
    return Group(*parts)


def _section(title: str, lines: list[str], room: int) -> list[RenderableType]:
    cut = lines if len(lines) <= room else [*lines[: room - 1], f"... {len(lines) - room + 1} more"]
    texts = [Text(line, no_wrap=True, overflow="ellipsis") for line in cut or ["none"]]
    return [Text(title, style="dim", no_wrap=True), *texts]


def _headline(snapshot: Snapshot) -> str:
    cluster = snapshot.cluster
    live = [worker for worker in cluster.workers if worker.alive]
    cards = [worker for worker in live if worker.device]
    busy = sum(1 for worker in cards if worker.busy)
    scheduler = "scheduler up" if cluster.scheduler_alive else "NO SCHEDULER"
    if cluster.drained is not None:
        scheduler += f", DRAINED ({clean(cluster.drained)})"
    return (
        f"{snapshot.taken:%H:%M:%S}  {scheduler}  {len(live)}/{len(cluster.workers)} workers live, "
        f"{busy}/{len(cards)} devices busy, {counted(len(snapshot.jobs), 'open job')} of your team   (q quits)"
    )


def _queues(cluster: ClusterView) -> list[str]:
    return [
        f"{clean(queue.name):12} {queue.queued:6}  {queue.running:7}  {queue.in_batches:10}" for queue in cluster.queues
    ]


def _workers(snapshot: Snapshot) -> list[str]:
    ordered = sorted(snapshot.cluster.workers, key=lambda worker: (not worker.alive, worker.kind, worker.name))
    return [_worker(worker, snapshot.taken) for worker in ordered]


def _worker(worker: WorkerView, now: datetime) -> str:
    state = "busy" if worker.busy else "idle"
    if not worker.alive:
        state = "silent"
    elif not worker.healthy:
        state = "unhealthy"
    elif worker.drained is not None:
        state = "drained"
    device = f"  {clean(worker.device.name)}" if worker.device else ""
    silence = (now - worker.heartbeat_at).total_seconds()
    reason = worker.note or worker.drained
    note = f"  {clean(reason)}" if reason else ""
    seen = f"  last seen {silence:.0f} s ago" if silence > OLD_SECONDS else ""
    return f"{state:9} {worker.busy}/{worker.slots}  {clean(worker.kind):6} {clean(worker.name)}{device}{seen}{note}"


def _job_table(jobs: list[JobSummary], room: int) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=False)
    for title in ("job", "problem", "target", "state", "generation", "candidates", "best"):
        table.add_column(title, no_wrap=True, overflow="ellipsis")
    shown = jobs if len(jobs) <= room else jobs[: room - 1]
    for job in shown:
        table.add_row(*_job(job))
    if len(shown) < len(jobs):
        table.add_row("... more")
    return table if jobs else Text("no open jobs", style="dim")


def _job(job: JobSummary) -> tuple[str, ...]:
    best = f"{job.best_speedup:.2f}x {job.best_verdict.value if job.best_verdict else ''}" if job.best_speedup else "-"
    generation = f"{min(job.generation + 1, job.generations)}/{job.generations}" if job.candidates else "-"
    reason = f" ({clean(job.reason)})" if job.reason else ""
    return (
        str(job.id)[:8], clean(job.problem.name), job.target.value, f"{clean(job.state)}{reason}", generation,
        str(job.candidates), best,
    )  # fmt: skip


def _plain(snapshot: Snapshot) -> str:
    """Return one snapshot for a pipe."""
    lines = [_headline(snapshot).replace("   (q quits)", ""), "", "queue       waiting  running  in batches"]
    lines += _queues(snapshot.cluster) or ["none"]
    lines += ["", "workers", *(_workers(snapshot) or ["none"]), "", "jobs"]
    rows: list[Any] = [_job(job) for job in snapshot.jobs]
    lines += ["  ".join(row) for row in rows] or ["none"]
    return "\n".join(lines)
