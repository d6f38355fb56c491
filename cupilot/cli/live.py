"""Show a job's progress: a view that redraws itself on a terminal, plain lines elsewhere, or a JSON line an update."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol
from uuid import UUID

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cupilot.cli.following import updates
from cupilot.cli.text import clean, counts, event_line, interval, queue_words, seconds
from cupilot.client import Client
from cupilot.domain.counted import counted
from cupilot.reports.job import technique_lines
from cupilot.reports.problem import preparation_notes
from cupilot.schemas import EventView, JobView

LAST_EVENTS = 6
BAR_WIDTH = 40


class Display(Protocol):
    """Display of a job's updates."""

    silence: float
    """Seconds without news after which it wants to be updated all the same."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, job: JobView, events: Sequence[EventView]) -> None:
        """Show where the job stands and what happened since the last update."""
        ...


def watch(client: Client, job: UUID, *, as_json: bool, quiet: bool = False) -> JobView:
    """Show a job until it is final. ``quiet`` keeps the standard output free: progress goes to standard error."""
    display: Display = JsonLines() if as_json and not quiet else _for_people(to_stderr=quiet)
    with display:
        for view, events in updates(client, job, display.silence):
            display.update(view, events)
    return view


def _for_people(*, to_stderr: bool) -> Display:
    stream = sys.stderr if to_stderr else sys.stdout
    return LiveView(stderr=to_stderr) if stream.isatty() else PlainLines(to_stderr=to_stderr)


class JsonLines:
    """One JSON object a line: ``{"job": ..., "events": [...]}``."""

    silence = 10.0

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def update(self, job: JobView, events: Sequence[EventView]) -> None:
        """Print the update."""
        listed = ",".join(event.model_dump_json() for event in events)
        typer.echo(f'{{"job":{job.model_dump_json()},"events":[{listed}]}}')
        sys.stdout.flush()


class PlainLines:
    """A line an event, and one whenever the summary has changed."""

    silence = 10.0

    def __init__(self, *, to_stderr: bool) -> None:
        self._err = to_stderr
        self._last = ""
        self._notes_told = 0

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def update(self, job: JobView, events: Sequence[EventView]) -> None:
        """Print what is new."""
        for event in events:
            line = event_line(event)
            if line:
                typer.echo(f"{event.created_at.astimezone():%H:%M:%S}  {line}", err=self._err)
        for note in preparation_notes(job.preparation)[self._notes_told :]:
            typer.echo(f"{'':8}  note: {clean(note)}", err=self._err)
            self._notes_told += 1
        summary = summary_line(job)
        if summary != self._last:
            typer.echo(f"{'':8}  [{seconds(job.wall_seconds)}] {summary}", err=self._err)
            self._last = summary


class LiveView:
    """A few lines that redraw themselves."""

    silence = 1.0

    def __init__(self, *, stderr: bool) -> None:
        self._console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
        self._events: deque[str] = deque(maxlen=LAST_EVENTS)
        self._live = Live(console=self._console, auto_refresh=False)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def update(self, job: JobView, events: Sequence[EventView]) -> None:
        """Redraw."""
        for event in events:
            line = event_line(event)
            if line:
                self._events.append(f"{event.created_at.astimezone():%H:%M:%S}  {line}")
        self._live.update(Group(_facts(job), *(Text(line, style="dim") for line in self._events)), refresh=True)


def summary_line(job: JobView) -> str:
    """Return where a job stands, in one line."""
    if job.queue_position is not None:
        return f"{job.state}: {queue_words(job.queue_position)}"
    best = f"best {interval(job.best.speedup)} {job.best.verdict.value}" if job.best else "no proven kernel yet"
    if not job.candidates:
        return f"{job.state}: {best}"
    generation = f"generation {job.generation + 1}/{job.generations}"
    return f"{job.state}: {generation}, {counted(job.candidates, 'candidate')} ({counts(job.verdicts)}), {best}"


def progress(job: JobView) -> float:
    """Return the share of the job's candidates that are done, 0 to 1; a job may end before all are made."""
    if job.final:
        return 1.0
    most = min(getattr(job.method, "max_candidates", job.budgets.candidates), job.budgets.candidates)
    done = job.candidates - job.candidate_states.get("active", 0)
    return min(done / most, 1.0)


def _facts(job: JobView) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    name = f"{clean(job.problem.name)} on {job.target.value}, policy {job.problem.policy.value}"
    table.add_row("job", f"{name}  ({job.id})")
    reason = f" ({clean(job.reason)})" if job.reason else ""
    queue = f", {queue_words(job.queue_position)}" if job.queue_position is not None else ""
    table.add_row("state", f"{job.state}{reason}{queue}")
    if job.preparation:
        baseline, floor = job.preparation.baseline_us.median, job.preparation.floor_us
        table.add_row(
            "problem",
            f"{job.preparation.op_class}, {job.preparation.zone.value} bound on {clean(job.preparation.device)};"
            f" PyTorch {baseline:.0f} us at preparation, roofline bound {floor:.0f} us",
        )
        for note in preparation_notes(job.preparation):
            table.add_row("note", clean(note))
    table.add_row("generation", f"{min(job.generation + 1, job.generations)} of {job.generations}")
    table.add_row("progress", ProgressBar(total=1.0, completed=progress(job), width=BAR_WIDTH))
    table.add_row("candidates", f"{job.candidates} ({counts(job.verdicts)})")
    table.add_row("best", _best(job))
    table.add_row(
        "spent", f"{seconds(job.wall_seconds)}, {seconds(job.gpu_seconds)} on the device, {job.cost_usd:.2f} USD"
    )
    return table


def _best(job: JobView) -> str:
    if job.best is None:
        return "none proven yet"
    over = f"{interval(job.best.speedup)} over PyTorch eager, {job.best.verdict.value}"
    return f"{over}: {', '.join(technique_lines(job.best.strategy))}"
