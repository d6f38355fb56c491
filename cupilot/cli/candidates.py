"""The command that lists what a job tried: each candidate with its verdict, or why it has none."""

from __future__ import annotations

from typing import Annotated

import typer

from cupilot.cli.options import Data, JobId, Json, Server
from cupilot.cli.outcome import outcome
from cupilot.cli.session import connect, job_id
from cupilot.cli.text import clean
from cupilot.evaluation import Verdict
from cupilot.schemas.results import CandidatePage, CandidateSummary

PAGE = 200
TECHNIQUES_SHOWN = 70
"""Characters of a strategy in a list."""


def candidates(
    *,
    job: JobId,
    verdict: Annotated[
        Verdict | None, typer.Option("--verdict", help="Only those that climbed exactly so far.")
    ] = None,
    generation: Annotated[int | None, typer.Option("--generation", min=1, help="Only this one's, from 1.")] = None,
    order: Annotated[
        str, typer.Option("--order", metavar="ordinal|speedup", help="As they were made, or the fastest first.")
    ] = "ordinal",
    after: Annotated[int | None, typer.Option("--after", metavar="N", help="Go on where a page ended.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=PAGE)] = 50,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List a job's candidates in the order they were made. A * marks those that selection kept.

    The number of each is what pin, ban, fork, compare and calls take.

    \b
    Examples:
        cupilot candidates last
        cupilot candidates last --verdict audited
        cupilot candidates last --order speedup --limit 5
        cupilot candidates last --json | jq '.items[] | select(.speedup > 1.5)'
    """
    with outcome(as_json=as_json), connect(server, data) as client:
        number = None if generation is None else generation - 1  # people count from 1 everywhere, REST from 0
        page = client.candidates(
            job_id(client, job), verdict=verdict, generation=number, order=order, after=after, limit=limit
        )
        if as_json:
            typer.echo(page.model_dump_json(indent=2))
        else:
            _show(page)


def _show(page: CandidatePage) -> None:
    if not page.items:
        typer.echo("no candidates")
        return
    rows: list[tuple[str, ...]] = [("", "generation", "made by", "came to", "speedup", "strategy")]
    rows += [_row(one) for one in page.items]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if page.next_after is not None:
        typer.echo(f"more: --after {page.next_after}")


def _row(one: CandidateSummary) -> tuple[str, ...]:
    why = one.failure or one.reason
    end = one.verdict.value if one.verdict else one.state
    return (
        f"{one.ordinal}{'*' if one.survives else ''}",
        str(one.generation + 1),
        clean(one.operator),
        clean(f"{end}: {why}" if why else end),
        f"{one.speedup:.2f}x" if one.speedup is not None else "-",
        clean(", ".join(one.techniques))[:TECHNIQUES_SHOWN] or "-",
    )
