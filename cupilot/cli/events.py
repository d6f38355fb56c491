"""The command ``events``: events of a job or of all the team's jobs, one line each."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from cupilot.cli.options import Data, Server
from cupilot.cli.session import connect, job_id
from cupilot.cli.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cupilot.client import Client
    from cupilot.schemas import EventView

MOST = 2**63 - 1
"""Ids are the database's bigints."""


def events(
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="Its id; 'last' is your team's newest job; without, of all jobs."),
    ] = None,
    *,
    after: Annotated[
        int | None, typer.Option("--after", min=0, max=MOST, metavar="ID", help="Only later ones.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most this many.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing events as they happen, until the job ends.")
    ] = False,
    server: Server = None,
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each as a line of JSON.")] = False,
) -> None:
    """Print what happened to a job, or to all of your team's jobs.

    A line an event, oldest first: id, time, kind, details. An id is a cursor: --after ID goes on behind it, and
    nothing is told twice. Without a JOB each line names its job, and --follow begins now, unless --after says
    where, and goes on until Ctrl-C.

    \b
    Examples:
        cupilot events last
        cupilot events last --follow --json | jq -c 'select(.kind == "job.best") | .data'
        cupilot events last --after 1234 --limit 100
        cupilot events --follow
    """
    with connect(server, data) as client:
        lines = _of_team(client, after, follow=follow) if job is None else _of_job(client, job, after, follow=follow)
        for event in islice(lines, limit):
            typer.echo(event.model_dump_json() if as_json else _line(event, whole_team=job is None))


def _of_job(client: Client, job: str, after: int | None, *, follow: bool) -> Iterator[EventView]:
    chosen = job_id(client, job)
    return client.stream_events(chosen, after=after or 0) if follow else client.all_events(chosen, after=after or 0)


def _of_team(client: Client, after: int | None, *, follow: bool) -> Iterator[EventView]:
    return client.stream_team_events(after=after) if follow else client.all_team_events(after=after or 0)


def _line(event: EventView, *, whole_team: bool) -> str:
    when = f"{event.created_at.astimezone():%Y-%m-%d %H:%M:%S}"
    job = f"  {event.job or '-'}" if whole_team else ""
    details = " ".join(f"{name}={value}" for name, value in event.data.items() if value is not None)
    return clean(f"{event.id}  {when}{job}  {event.kind}  {details}").rstrip()
