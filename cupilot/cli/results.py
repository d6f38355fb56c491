"""Commands about results and problems: result, problems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cupilot.cli.files import write_result
from cupilot.cli.options import Data, JobId, Json, Server
from cupilot.cli.outcome import Exit
from cupilot.cli.session import connect, job_id
from cupilot.cli.text import clean
from cupilot.client import ApiError, Client
from cupilot.schemas import JobView, ProblemView


def result(
    job: JobId,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where to put the files [./cupilot-results/JOB].")
    ] = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Print a job's report and write the winner's files. They are kernel, launch plan, problem and report.

    Exits with 1 where the job has no proven kernel.

    \b
    Examples:
        cupilot result last
        cupilot result last --out kernel --json | jq .headline
    """
    with connect(server, data) as client:
        shown = finish(client, client.get(job_id(client, job)), out=out, as_json=as_json)
        raise typer.Exit(Exit.OK if shown else Exit.FAILED)


def problems(
    problem: Annotated[
        str | None, typer.Argument(metavar="[PROBLEM]", help="An id from the list: print this one's source.")
    ] = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List the problems that jobs can be started on. The built-in ones, then your team's newest.

    With a PROBLEM its source, as a file to begin with; a built-in's is at its small size. Names may end with
    _bfloat16 or _float16: parameters and floating-point inputs are then of that type.

    \b
    Examples:
        cupilot problems
        cupilot problems softmax > my_op.py
    """
    with connect(server, data) as client:
        if problem is not None:
            _show_problem(client.problem(problem), as_json=as_json)
            return
        page = client.problems(limit=200)
        if as_json:
            typer.echo(page.model_dump_json(indent=2))
            return
        width = max(len(problem.id) for problem in page.items)
        for item in page.items:
            typer.echo(f"{clean(item.id):<{width}}  {clean(item.summary or item.name)}")


def _show_problem(view: ProblemView, *, as_json: bool) -> None:
    from cupilot.cli.render import show_source

    if as_json:
        typer.echo(view.model_dump_json(indent=2))
    else:
        show_source(view.source)


def finish(client: Client, job: JobView, *, out: Path | None, as_json: bool) -> bool:
    """Fetch, write and print a job's result; return whether there is a proven kernel."""
    from cupilot.cli.render import show_no_result, show_report

    try:
        report = client.best(job.id)
    except ApiError as error:
        if error.code != "no_result" or as_json:
            raise
        show_no_result(client, job)
        return False
    folder = write_result(client.download(job.id), job.id, out)
    if as_json:
        typer.echo(report.model_dump_json(indent=2))
    else:
        show_report(report, folder)
    return True
