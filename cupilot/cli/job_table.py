"""Print jobs as a table. Apart from the other printing, since a list needs nothing of evaluations and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cupilot.cli.text import clean

if TYPE_CHECKING:
    from cupilot.schemas import JobPage

STATE_COLUMN = 4
_COLOURS = {
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "budget_exhausted": "yellow",
    "paused": "yellow",
    "preparing": "blue",
    "evolving": "blue",
}
"""Of states, on a terminal; elsewhere nothing is coloured."""


def show_jobs(page: JobPage) -> None:
    """Print a page of jobs as a table."""
    if not page.items:
        typer.echo("no jobs")
        return
    rows = [("job", "problem", "target", "priority", "state", "generation", "best", "submitted", "by")]
    for job in page.items:
        generation = f"{min(job.generation + 1, job.generations)}/{job.generations}" if job.candidates else "-"
        rows.append(
            (
                str(job.id),
                clean(job.problem.name),
                job.target.value,
                job.priority.value,
                clean(job.state + (f" ({job.reason})" if job.reason else "")),
                generation,
                f"{job.best_speedup:.2f}x" if job.best_speedup is not None else "-",
                f"{job.created_at.astimezone():%Y-%m-%d %H:%M}",
                clean(job.author or "-"),
            )
        )
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if number:
            cells[STATE_COLUMN] = typer.style(cells[STATE_COLUMN], fg=_COLOURS.get(page.items[number - 1].state))
        typer.echo("  ".join(cells).rstrip())
    if page.next_cursor:
        typer.echo(f"more: --cursor {page.next_cursor}")
