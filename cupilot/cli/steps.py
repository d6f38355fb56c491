"""The commands ``steps`` and ``logs``: a job's steps, and the log of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from cupilot.cli.options import Data, JobId, Json, Server
from cupilot.cli.session import connect, job_id
from cupilot.cli.text import clean, seconds
from cupilot.domain.errors import NotFound

if TYPE_CHECKING:
    from cupilot.client import Client
    from cupilot.schemas.steps import StepPage, StepView


def steps(
    *,
    job: JobId,
    state: Annotated[
        str | None, typer.Option("--state", metavar="queued|running|succeeded|failed|cancelled", help="Only these.")
    ] = None,
    candidate: Annotated[str | None, typer.Option("--candidate", metavar="N", help="Only this candidate's.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=200)] = 50,
    cursor: Annotated[str | None, typer.Option("--cursor", help="next_cursor of the previous page.")] = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List what was done for a job, oldest first. Model calls and work on devices, with attempts, times and errors.

    \b
    Examples:
        cupilot steps last
        cupilot steps last --state failed
        cupilot logs last --step c3/evaluate/0        how one of them went
    """
    with connect(server, data) as client:
        page = client.steps(job_id(client, job), state=state, candidate=candidate, cursor=cursor, limit=limit)
        if as_json:
            typer.echo(page.model_dump_json(indent=2))
        else:
            _show(page)


def logs(
    *,
    job: JobId,
    step: Annotated[
        str | None, typer.Option("--step", metavar="STEP", help="Only the log of this step, in full: its name or id.")
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=10_000, help="Only this many of the job's newest lines.")
    ] = 1_000,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write it there instead.")] = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Print a job's log, or with --step all about a step. A job's has a line an event; a step's its attempts, errors,
    the compiler's output and what the judge found.

    \b
    Examples:
        cupilot logs last
        cupilot logs last --step c3/evaluate/0
        cupilot logs last --lines 10000 --out job.log
    """
    with connect(server, data) as client:
        chosen = job_id(client, job)
        text = client.job_log(chosen, lines=lines) if step is None else _step_log(client, chosen, step)
        if out is not None:
            out.write_bytes(text)
            typer.echo(json.dumps({"file": str(out)}) if as_json else str(out))
            return
        log_lines = text.decode("utf-8", "replace").splitlines()
        if as_json:
            typer.echo(json.dumps({"lines": log_lines}, indent=2))
            return
        for line in log_lines:  # what models and compilers wrote may hold codes that a terminal obeys
            typer.echo(clean(line))


def _step_log(client: Client, job: UUID, step: str) -> bytes:
    try:
        return client.step_log(job, UUID(step))
    except ValueError:
        matches = client.steps(job, key=step, limit=1).items
    if not matches:
        raise NotFound(f"the job has no step {step!r}", hint=f"cupilot steps {job} lists them", where="--step")
    return client.step_log(job, matches[0].id)


def _show(page: StepPage) -> None:
    if not page.items:
        typer.echo("no steps")
        return
    rows: list[tuple[str, ...]] = [("step", "kind", "state", "attempt", "queue", "held for", "worker or error")]
    rows += [_row(item) for item in page.items]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if page.next_cursor:
        typer.echo(f"more: --cursor {page.next_cursor}")


def _row(step: StepView) -> tuple[str, ...]:
    error = str((step.error or {}).get("message") or (step.error or {}).get("reason") or "")
    return (
        clean(step.key),
        clean(step.kind),
        clean(step.state),
        f"{step.attempt}/{step.max_attempts}",
        clean(step.queue),
        seconds(step.busy_seconds + step.held_seconds),
        clean(step.worker or error) or "-",
    )
