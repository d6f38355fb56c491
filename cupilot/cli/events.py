"""The command ``events``: everything that happened to a job, a line an event, to read or to pipe on."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from cupilot.cli.options import Data, JobId, Server
from cupilot.cli.outcome import outcome
from cupilot.cli.session import connect, job_id
from cupilot.cli.text import clean

if TYPE_CHECKING:
    from cupilot.schemas import EventView

MOST = 2**63 - 1
"""Ids are the database's bigints."""


def events(
    *,
    job: JobId,
    after: Annotated[int, typer.Option("--after", min=0, max=MOST, metavar="ID", help="Only later ones.")] = 0,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Not more than so many.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they happen, until the job ends.")] = False,
    server: Server = None,
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each as a line of JSON.")] = False,
) -> None:
    """Print what happened to a job, a line an event.

    Oldest first: id, time, kind, details. An id is a cursor: --after ID goes on behind it, and nothing is told twice.

    \b
    Examples:
        cupilot events last
        cupilot events last --follow --json | jq -c 'select(.kind == "job.best") | .data'
        cupilot events last --after 1234 --limit 100
    """
    with outcome(as_json=as_json), connect(server, data) as client:
        chosen = job_id(client, job)
        found = client.stream_events(chosen, after=after) if follow else client.all_events(chosen, after=after)
        for event in islice(found, limit):
            typer.echo(event.model_dump_json() if as_json else _line(event))


def _line(event: EventView) -> str:
    details = " ".join(f"{name}={value}" for name, value in event.data.items() if value is not None)
    return clean(f"{event.id}  {event.created_at.astimezone():%Y-%m-%d %H:%M:%S}  {event.kind}  {details}").rstrip()
