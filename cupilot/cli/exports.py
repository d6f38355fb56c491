"""The command ``export``: a proven kernel as files in the format that its user needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cupilot.cli.files import export_folder, write_export
from cupilot.cli.options import Data, JobId, Json, Server
from cupilot.cli.session import connect, job_id
from cupilot.cli.text import clean
from cupilot.domain.errors import InvalidInput


def export(
    job: JobId,
    *,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="torch|kernelbench|cupy|bundle", help="Without it, list the formats."),
    ] = None,
    candidate: Annotated[
        str | None, typer.Option("--candidate", metavar="N", help="Another candidate that counts, by ordinal or id.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Of package, operator and files [the problem's].")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Where to put the files [./cupilot-exports/JOB/FORMAT]."),
    ] = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Write a job's best kernel in a format to take along. PyTorch package, KernelBench or CuPy file, or a bundle that
    measures it again.

    \b
    Examples:
        cupilot export last                                    the formats that there are
        cupilot export last --format torch -o my_softmax       then: pip install ./my_softmax
        cupilot export last --format torch --name wide         then: from cupilot_wide import Model
        cupilot export last --format bundle -o proof           then: python proof/reproduce.py
        cupilot export last --format kernelbench --candidate 12
    """
    if form is not None:
        _check(form)
    with connect(server, data) as client:
        chosen = job_id(client, job)
        if form is None:
            offers = client.exports(chosen, candidate)
            if as_json:
                typer.echo(offers.model_dump_json(indent=2))
                return
            typer.echo(f"candidate {offers.ordinal} of job {chosen}")
            for offer in offers.items:
                typer.echo(f"  {offer.format:<12} {clean(offer.refused) if offer.refused else 'available'}")
            return
        folder = out or export_folder(str(chosen), form, candidate, name)
        files = write_export(client.export(chosen, form, candidate, name), folder)
        if as_json:
            typer.echo(json.dumps({"folder": str(folder), "files": files}, indent=2))
        else:
            typer.echo("\n".join(str(folder / file) for file in files))


def _check(form: str) -> None:
    from cupilot.exports import ExportFormat

    if form not in tuple(ExportFormat):
        raise InvalidInput(f"{form!r} is not a format", hint=", ".join(ExportFormat), where="--format")
