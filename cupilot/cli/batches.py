"""``cupilot batch``: steps for machines that reach neither database nor broker."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer
from pydantic import ValidationError

from cupilot.cli.options import All, Cursor, Data, Json, Limit, Server
from cupilot.cli.session import connect, job_id
from cupilot.cli.text import clean
from cupilot.domain.batches.errors import InvalidResultFile, NothingToExport
from cupilot.domain.batches.manifest import MAX_STEPS
from cupilot.domain.batches.results import read_header
from cupilot.domain.counted import counted
from cupilot.domain.errors import InvalidInput
from cupilot.domain.problem import Target
from cupilot.schemas import BatchPage, BatchRequest, BatchStepPage, BatchView, Receipt
from cupilot.schemas.base import Response

if TYPE_CHECKING:
    from cupilot.client import Client

WAIT_SECONDS = 2.0
SHOWN = 20
"""Refused lines that are printed one by one."""

app = typer.Typer(
    help="""Judge steps on GPUs without a network.

    On Slurm nodes, rented and air-gapped boxes:

    \b
    1. here:   cupilot batch export --target cuda --arch sm_90 -o night.batch
    2. there:  python -m gpu_worker batch run night.batch --devices all --minutes 55
    3. here:   cupilot batch import night.batch.results

    For cluster admins: a batch holds steps of every team.
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)

BatchId = Annotated[UUID, typer.Argument(metavar="BATCH", help="The batch's id.")]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the batch.")]


class BatchReport(Response):
    """Result of an import."""

    batch: BatchView
    receipts: list[Receipt]


@app.command("export")
def export(
    *,
    output: Output,
    target: Annotated[Target, typer.Option("--target", help="What the steps run on.")] = Target.CUDA,
    arch: Annotated[str | None, typer.Option("--arch", metavar="sm_90", help="Of the cards; for cuda.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MAX_STEPS, help="Steps at most.")] = 500,
    lease: Annotated[float, typer.Option("--lease", metavar="HOURS", help="How long no worker gets the steps.")] = 24.0,
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only this job's; an id, or last.")] = None,
    wait: Annotated[
        float, typer.Option("--wait", metavar="MINUTES", min=0, help="Wait so long at most for agents to finish.")
    ] = 0.0,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Write waiting steps to a signed file.

    They leave the queue: preparations, evaluations, confirmations, attributions, fairly between teams and jobs.
    No worker gets them until their results are imported, the lease ends, or you cancel the batch.

    With --wait, agents first write what they are at: then a whole generation of all jobs is in one file.

    \b
    Examples:
        cupilot batch export --target cuda --arch sm_90 --wait 20 -o night.batch
        cupilot batch export --arch sm_80 --limit 200 --lease 8 -o a100.batch
        cupilot batch export --target cpu --job last -o job.batch
    """
    with connect(server, data) as client:
        request = _request(
            target=target, arch=arch, limit=limit, lease_hours=lease, job=job_id(client, job) if job else None
        )
        _wait_for_agents(client, wait * 60)
        view = client.wait_for_batch(client.export_batch(request).id)
        if view.state == "empty":
            raise NothingToExport(
                f"no step waits for {view.device_class}",
                hint="cupilot list shows open jobs; agents may still be writing their kernels, and the scheduler's log"
                " names steps whose preparation is too large for a batch",
            )
        _write(client, view, output)
        if as_json:
            typer.echo(view.model_dump_json(indent=2))
            return
        typer.echo(f"{output}: {counted(view.steps, 'step')} for {view.device_class}, batch {view.id}")
        typer.echo(f"they are held until {_moment(view)}; judge them there:")
        typer.echo(f"    python -m gpu_worker batch run {output.name}")
        typer.echo(f"and bring the results back: cupilot batch import {output.name}.results")


@app.command("fetch")
def fetch(*, batch: BatchId, output: Output, server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """Write the file of an open batch again.

    \b
    Example:
        cupilot batch fetch 3f2b... -o night.batch
    """
    with connect(server, data) as client:
        view = client.batch(batch)
        _write(client, view, output)
        text = f"{output}: {counted(view.steps, 'step')} for {view.device_class}, held until {_moment(view)}"
        typer.echo(view.model_dump_json(indent=2) if as_json else text)


@app.command("import")
def import_results(
    *,
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="What `python -m gpu_worker batch run` wrote.")],
    release: Annotated[
        bool, typer.Option("--release", help="Then put steps without a result back into the queue.")
    ] = False,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Settle the results of a batch, as those of a worker.

    Half a result is settled as far as it goes; the rest stays held, or with --release waits for the next export.
    Importing again changes nothing. Refused, one by one: duplicates, steps that the batch does not hold any more,
    lines that were changed, and answers to other questions; all but duplicates make the exit code 1. A batch of
    another service, or one that was changed after its export, is refused as a whole.

    \b
    Examples:
        cupilot batch import night.batch.results
        cupilot batch import night.batch.results --release
    """
    lines = _lines(result)
    batch = read_header(lines[0]).batch
    with connect(server, data) as client:
        receipts = client.import_results(batch, lines)
        view = client.wait_for_batch(batch)
        if release and view.state == "open":
            client.cancel_batch(batch)
            view = client.wait_for_batch(batch)
        refused = [receipt for receipt in receipts if receipt.outcome not in ("received", "duplicate")]
        if as_json:
            typer.echo(BatchReport(batch=view, receipts=receipts).model_dump_json(indent=2))
        else:
            _report(view, receipts, refused)
        if refused:
            raise typer.Exit(1)


@app.command("status")
def status(
    *,
    batch: BatchId,
    steps: Annotated[bool, typer.Option("--steps", help="Every step, with what came of it.")] = False,
    outcome: Annotated[
        str | None, typer.Option("--outcome", metavar="settled|stale|...", help="Only steps of this outcome.")
    ] = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Show a batch, and what came of its steps.

    \b
    Examples:
        cupilot batch status 3f2b...
        cupilot batch status 3f2b... --steps --outcome stale
    """
    with connect(server, data) as client:
        view = client.batch(batch)
        wanted = steps or outcome is not None
        items = list(client.all_batch_steps(batch, outcome=outcome)) if wanted else []
        if as_json:
            typer.echo((BatchStepPage(items=items) if wanted else view).model_dump_json(indent=2))
            return
        typer.echo(_line(view))
        for item in items:
            detail = f" ({clean(item.detail)})" if item.detail else ""
            seconds = f" {item.seconds:.1f} s" if item.seconds is not None else ""
            where = f" on {clean(item.device.name)}" if item.device else ""
            typer.echo(f"  {item.job} {item.key}  {item.outcome or 'waiting'}{detail}{seconds}{where}")


@app.command("list")
def list_batches(
    *,
    limit: Limit = 20,
    cursor: Cursor = None,
    everything: All = False,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List batches, newest first.

    \b
    Example:
        cupilot batch list
    """
    with connect(server, data) as client:
        page = BatchPage(items=list(client.all_batches())) if everything else client.batches(cursor=cursor, limit=limit)
        if as_json:
            typer.echo(page.model_dump_json(indent=2))
            return
        for view in page.items:
            typer.echo(_line(view))
        if page.next_cursor is not None:
            typer.echo(f"more: --cursor {page.next_cursor}")


@app.command("cancel")
def cancel(*, batch: BatchId, server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """Put back into the queue what a batch still holds.

    Results that come later are refused.

    \b
    Example:
        cupilot batch cancel 3f2b...
    """
    with connect(server, data) as client:
        client.cancel_batch(batch)
        view = client.wait_for_batch(batch)
        typer.echo(view.model_dump_json(indent=2) if as_json else _line(view))


def _wait_for_agents(client: Client, seconds: float) -> None:
    """Wait until no agent has anything to do, for so long at most."""
    deadline = time.monotonic() + seconds
    while (busy := _agents_steps(client)) and time.monotonic() < deadline:
        time.sleep(WAIT_SECONDS)
    if busy:
        typer.echo(f"agents have {busy} more steps: what comes of them is not in this batch", err=True)


def _agents_steps(client: Client) -> int:
    queues = client.cluster().queues
    return sum(queue.queued + queue.running for queue in queues if queue.name.startswith("agents"))


def _request(**fields: object) -> BatchRequest:
    if fields["arch"] is None and fields["target"] is Target.CUDA:
        raise InvalidInput(
            "a batch for cuda is for cards of one architecture", hint="name it, e.g. --arch sm_90", where="--arch"
        )
    try:
        return BatchRequest.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInput(f"{first['loc'][0]}: {first['msg']}", where="options") from error


def _write(client: Client, view: BatchView, output: Path) -> None:
    """Write the batch's file, whole or not at all."""
    scratch = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        scratch.write_bytes(client.batch_file(view.id))
        scratch.replace(output)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        hint = f"batch {view.id} is exported: cupilot batch fetch {view.id} -o FILE"
        raise InvalidInput(f"{output} cannot be written: {error.strerror}", hint=hint, where="--output") from error


def _lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode().split("\n")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", where="RESULT") from error
    except UnicodeDecodeError as error:
        raise InvalidResultFile(f"{path} is no result of a batch: it is not text", where="RESULT") from error


def _report(view: BatchView, receipts: list[Receipt], refused: list[Receipt]) -> None:
    counts = Counter(receipt.outcome for receipt in receipts)
    typer.echo(", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "no results in the file")
    for receipt in refused[:SHOWN]:
        step = f" step {receipt.step}" if receipt.step else ""
        typer.echo(f"  line {receipt.line}:{step} {receipt.outcome}: {clean(receipt.detail or '')}", err=True)
    if len(refused) > SHOWN:
        typer.echo(f"  and {len(refused) - SHOWN} more", err=True)
    typer.echo(_line(view))


def _line(view: BatchView) -> str:
    counts = [f"{count} {outcome}" for outcome, count in view.counts.model_dump().items() if count]
    held = f", held until {_moment(view)}" if view.state == "open" else ""
    return f"{view.id}  {view.state}  {view.device_class}  {', '.join(counts) or 'no steps'}{held}"


def _moment(view: BatchView) -> str:
    return f"{view.expires_at.astimezone():%Y-%m-%d %H:%M}" if view.expires_at else "?"
