"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cupilot.cli.outcome import errors_always_as_json, errors_as_json
from cupilot.client.endpoint import URL_VARIABLE

Server = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help=f"The service [${URL_VARIABLE}, else the data folder's]."),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="FOLDER", help="Data folder of the embedded stack [$CUPILOT_DATA, ./.cupilot, ~/.cupilot]."
    ),
]
Json = Annotated[bool, typer.Option("--json", callback=errors_as_json, help="Print JSON for programs instead of text.")]
OnlyJson = Annotated[
    bool,
    typer.Option("--json", callback=errors_always_as_json, help="Print JSON for programs instead of text."),
]
"""Of a command that prints nothing else."""
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id; 'last' is your team's newest job.")]
CandidateId = Annotated[str, typer.Argument(metavar="CANDIDATE", help="The candidate's number in its job, or its id.")]
Cursor = Annotated[str | None, typer.Option("--cursor", help="next_cursor of the previous page.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=200, help="Length of the page.")]
All = Annotated[bool, typer.Option("--all", help="Every page, one after the other.")]
IdempotencyKey = Annotated[str | None, typer.Option("--idempotency-key", help="A repeated key starts no second job.")]
