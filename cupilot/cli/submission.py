"""Commands that start a job: evolve, submit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from cupilot.cli.options import Data, IdempotencyKey, Json, Server
from cupilot.cli.outcome import exit_of
from cupilot.cli.requests import JobOptions, on_chosen_target, takes_job_options
from cupilot.cli.session import connect, connect_or_start
from cupilot.cli.text import way_on
from cupilot.cli.waiting import warn_of_waiting

if TYPE_CHECKING:
    from cupilot.client import Client
    from cupilot.schemas import JobRequest


@takes_job_options
def evolve(
    options: JobOptions,
    *,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where to put the result [./cupilot-results/JOB].")
    ] = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Submit a problem, show its progress, and fetch the result.

    Where no server is named and none runs in the data folder, the embedded stack is started for the time it takes.

    \b
    Examples:
        cupilot evolve softmax
        cupilot evolve my_op.py --target cuda --policy tf32 --minutes 20
        cat my_op.py | cupilot evolve - --name my_op --json > report.json
    """
    from cupilot.cli.live import watch as show
    from cupilot.cli.results import finish

    request = options.request()
    own_jobs: set[UUID] = set()
    with connect_or_start(server, data, own_jobs) as client:
        job = client.submit(on_chosen_target(request, options.target, client))
        own_jobs.add(job.id)
        typer.echo(f"job {job.id} on {job.target.value}", err=True)
        warn_of_waiting(client, job)
        try:
            final = show(client, job.id, as_json=as_json, quiet=as_json)
        except KeyboardInterrupt:
            kept = f"the job is kept: cupilot watch {job.id}, or cupilot cancel {job.id}"
            typer.echo(f"interrupted; {kept}", err=True)
            raise
        finish(client, final, out=out, as_json=as_json)
    raise typer.Exit(exit_of(final))


@takes_job_options
def submit(
    options: JobOptions,
    *,
    idempotency_key: IdempotencyKey = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it to its end, as watch does.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check it and show what it may cost; start nothing.")
    ] = False,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Start a job and print its id. With --wait, follow it to its end and exit as watch does.

    \b
    Examples:
        cupilot submit my_op.py
        cupilot submit softmax --target cuda --label model=llama --server https://cupilot.example
        job=$(cupilot submit my_op.py) && cupilot watch $job
        cupilot submit my_op.py --wait && cupilot export last --format torch
        cupilot submit my_op.py --agents llm --cost 5 --dry-run
    """
    request = options.request()
    with connect(server, data) as client:
        chosen = on_chosen_target(request, options.target, client)
        if dry_run:
            _show_plan(client, chosen, as_json=as_json)
            return
        job = client.submit(chosen, idempotency_key=idempotency_key)
        warn_of_waiting(client, job)
        if not wait:
            typer.echo(job.model_dump_json(indent=2) if as_json else str(job.id))
            return
        from cupilot.cli.live import watch as show

        typer.echo(f"job {job.id}", err=True)
        final = show(client, job.id, as_json=as_json)
        if not as_json:
            typer.echo(way_on(final))
        raise typer.Exit(exit_of(final))


def _show_plan(client: Client, request: JobRequest, *, as_json: bool) -> None:
    from cupilot.cli.render import show_plan

    plan = client.plan(request)
    if as_json:
        typer.echo(plan.model_dump_json(indent=2))
    else:
        show_plan(plan)
