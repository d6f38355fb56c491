"""Commands about a job's candidates: the list with verdicts and failures, and one in detail."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cupilot.cli.options import All, CandidateId, Cursor, Data, JobId, Json, Limit, Server
from cupilot.cli.session import connect, job_id
from cupilot.cli.text import clean
from cupilot.domain.errors import InvalidInput, NotFound, Pruned
from cupilot.domain.evaluation import Verdict
from cupilot.schemas.results import CandidatePage, CandidateSummary, CandidateView

TECHNIQUES_SHOWN = 70
"""Characters of a strategy in a list."""


def candidates(
    *,
    job: JobId,
    verdict: Annotated[Verdict | None, typer.Option("--verdict", help="Only those with exactly this verdict.")] = None,
    generation: Annotated[int | None, typer.Option("--generation", min=1, help="Only this one's, from 1.")] = None,
    order: Annotated[
        str,
        typer.Option("--order", metavar="ordinal|speedup", help="In the order they were made, or the fastest first."),
    ] = "ordinal",
    limit: Limit = 50,
    cursor: Cursor = None,
    everything: All = False,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List a job's candidates in the order they were made. A * marks those that selection kept.

    The number of each is what candidate, pin, ban, fork, compare and calls take.

    \b
    Examples:
        cupilot candidates last
        cupilot candidates last --verdict audited
        cupilot candidates last --order speedup --limit 5
        cupilot candidates last --json | jq '.items[] | select(.speedup > 1.5)'
    """
    with connect(server, data) as client:
        number = None if generation is None else generation - 1  # people count from 1 everywhere, REST from 0
        filters: dict[str, Any] = {"verdict": verdict, "generation": number, "order": order}
        chosen = job_id(client, job)
        if everything:
            page = CandidatePage(items=list(client.all_candidates(chosen, **filters)))
        else:
            page = client.candidates(chosen, **filters, cursor=cursor, limit=limit)
        if as_json:
            typer.echo(page.model_dump_json(indent=2))
        else:
            _show(page)


def candidate(
    job: JobId,
    candidate: CandidateId,
    *,
    source: Annotated[bool, typer.Option("--source", help="Print only the kernel's source.")] = False,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Show a candidate. Strategy, verdict, speedups, metrics, lineage; of one that failed, why.

    \b
    Examples:
        cupilot candidate last 3
        cupilot candidate last 3 --source > kernel.cu
        cupilot candidate last 3 --json | jq .evaluation.profile.metrics
    """
    if source and as_json:
        raise InvalidInput(
            "--source prints the kernel and --json the record",
            hint="choose one; the record has the source too",
            where="options",
        )
    with connect(server, data) as client:
        view = client.candidate(job_id(client, job), candidate)
        if as_json:
            typer.echo(view.model_dump_json(indent=2))
        elif source:
            _print_source(view)
        else:
            from cupilot.cli.render import show_candidate

            show_candidate(view)


def _print_source(view: CandidateView) -> None:
    from cupilot.cli.render import show_source

    if view.kernel is None:
        hint = f"cupilot candidate {view.job} {view.ordinal} shows how far it got"
        raise NotFound(f"candidate {view.ordinal} has no kernel", hint=hint, where="CANDIDATE")
    if view.kernel.pruned_at is not None:
        raise Pruned(f"the source of candidate {view.ordinal}", view.kernel.pruned_at)
    show_source(view.kernel.source)


def _show(page: CandidatePage) -> None:
    if not page.items:
        typer.echo("no candidates")
        return
    rows: list[tuple[str, ...]] = [("", "generation", "made by", "came to", "speedup", "strategy")]
    rows += [_row(item) for item in page.items]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if page.next_cursor is not None:
        typer.echo(f"more: --cursor {page.next_cursor}")


def _row(summary: CandidateSummary) -> tuple[str, ...]:
    why = summary.failure or summary.reason
    end = summary.verdict.value if summary.verdict else summary.state
    return (
        f"{summary.ordinal}{'*' if summary.survives else ''}",
        str(summary.generation + 1),
        clean(summary.operator),
        clean(f"{end}: {why}" if why else end),
        f"{summary.speedup:.2f}x" if summary.speedup is not None else "-",
        clean(", ".join(summary.techniques))[:TECHNIQUES_SHOWN] or "-",
    )
