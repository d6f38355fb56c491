"""Commands about jobs: status, watch, list, cancel."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from cupilot.cli.labels import parse_labels
from cupilot.cli.options import All, Cursor, Data, JobId, Json, Limit, Server
from cupilot.cli.outcome import exit_of
from cupilot.cli.session import connect, job_id
from cupilot.cli.text import way_on
from cupilot.cli.waiting import tried_again, waits_for


def status(job: JobId, server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """Show where a job stands. Exits with 1 when it failed, was cancelled, or ended without a proven kernel.

    \b
    Examples:
        cupilot status last
        cupilot status 3f2b... --json | jq .best.speedup
    """
    with connect(server, data) as client:
        from cupilot.cli.render import show_job

        view = client.get(job_id(client, job))
        if as_json:
            typer.echo(view.model_dump_json(indent=2))
        else:
            waits = waits_for(client, view.target) if view.queue_position is not None else []
            show_job(view, waits, tried_again(client, view))
        raise typer.Exit(exit_of(view))


def watch(job: JobId, server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """Follow a job until it ends. A live view on a terminal, plain lines in a pipe, with --json a JSON line an update.

    \b
    Examples:
        cupilot watch last
        cupilot watch last --json | jq -c '.job.verdicts'
    """
    with connect(server, data) as client:
        from cupilot.cli.live import watch as show

        view = show(client, job_id(client, job), as_json=as_json)
        if not as_json:
            typer.echo(way_on(view))
        raise typer.Exit(exit_of(view))


def list_jobs(
    *,
    team: Annotated[str | None, typer.Option("--team", help="Of which team; for cluster admins.")] = None,
    state: Annotated[str | None, typer.Option("--state", help="E.g. evolving or succeeded.")] = None,
    target: Annotated[str | None, typer.Option("--target", metavar="cuda|cpu")] = None,
    problem: Annotated[str | None, typer.Option("--problem", help="The problem's name.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="All; repeat.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Who asked for it.")] = None,
    text: Annotated[
        str | None, typer.Option("--text", help="Part of the problem's name, or the beginning of the job's id.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="Part of the device's name, e.g. H200.")] = None,
    since: Annotated[datetime | None, typer.Option("--since", help="Submitted then or later, local time.")] = None,
    until: Annotated[datetime | None, typer.Option("--until", help="Submitted before.")] = None,
    order: Annotated[str, typer.Option("--order", metavar="newest|oldest", help="Which comes first.")] = "newest",
    limit: Limit = 20,
    cursor: Cursor = None,
    everything: All = False,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List your team's jobs, newest first unless you say otherwise.

    \b
    Examples:
        cupilot list
        cupilot list --state evolving --label model=llama
        cupilot list --user ann --device H200 --since 2026-01-31
        cupilot list --team compilers --state queued
        cupilot list --state queued --order oldest
        cupilot list --all --json | jq '.items | length'
    """
    with connect(server, data) as client:
        from cupilot.cli.job_table import show_jobs
        from cupilot.schemas.jobs import JobFilter, JobPage

        filters = JobFilter(
            state=state,
            target=target,
            problem=problem,
            labels=parse_labels(label),
            user=user,
            text=text,
            device=device,
            since=since.astimezone() if since else None,
            until=until.astimezone() if until else None,
        )
        if everything:
            page = JobPage(items=list(client.all_jobs(team=team, order=order, **filters)))
        else:
            page = client.list(team=team, order=order, cursor=cursor, limit=limit, **filters)
        if as_json:
            typer.echo(page.model_dump_json(indent=2))
        else:
            show_jobs(page)


def cancel(job: JobId, server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """Stop a job. Its best kernel so far is kept. Cancelling twice is harmless; a job that has ended is an error.

    \b
    Example:
        cupilot cancel last
    """
    with connect(server, data) as client:
        view = client.cancel(job_id(client, job))
        typer.echo(view.model_dump_json(indent=2) if as_json else f"job {view.id} is {view.state}")
