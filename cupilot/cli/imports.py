"""The command ``judge``: measure a kernel file that people already have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer
from pydantic import ValidationError

from cupilot.cli.flags import invalid
from cupilot.cli.labels import parse_labels
from cupilot.cli.options import Data, IdempotencyKey, Json, Server
from cupilot.cli.outcome import exit_of
from cupilot.cli.problems import resolve
from cupilot.cli.requests import on_chosen_target
from cupilot.cli.session import connect
from cupilot.cli.text import clean
from cupilot.cli.waiting import warn_of_waiting
from cupilot.client import Client
from cupilot.domain.errors import InvalidInput
from cupilot.domain.imported import MAX_SOURCE_BYTES, InvalidImport, check_import
from cupilot.domain.job import Priority
from cupilot.domain.pool import Sharing
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.problems import Size
from cupilot.reports.tables import pull_request
from cupilot.schemas import ImportRequest, JobView

FP32 = NumericsPolicy.FP32


def judge(
    problem: Annotated[str, typer.Argument(metavar="PROBLEM", help="A file, -, a built-in, or an id of problems.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A ModelNew file, or a torch extension.")],
    *,
    target: Annotated[
        str, typer.Option("--target", metavar="auto|cuda|cpu", help="What to run on; auto is cuda where there is one.")
    ] = "auto",
    function: Annotated[
        str | None, typer.Option("--function", metavar="NAME", help="Of a torch extension that exports several.")
    ] = None,
    policy: Annotated[NumericsPolicy, typer.Option("--policy", help="What arithmetic may be used.")] = FP32,
    name: Annotated[str | None, typer.Option("--name", help="The problem's name.")] = None,
    size: Annotated[str | None, typer.Option("--size", metavar="small|full", help="Of a built-in problem.")] = None,
    priority: Annotated[Priority, typer.Option("--priority", help="Order in your team's share.")] = Priority.NORMAL,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="To list jobs by; repeat.")
    ] = None,
    sharing: Annotated[Sharing | None, typer.Option("--sharing", help="Who may learn from its pool entry.")] = None,
    idempotency_key: IdempotencyKey = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it to its end, as watch does.")] = False,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Judge a file that you have, as kernels are judged. That is a job of its own, whose id is printed.

    A ModelNew file (torch, load_inline, Triton) or the source of a torch extension (.cu, .cpp), marked "imported": its
    host code is its author's. With --wait, the result is also printed as a table for a pull request. Compare it with
    `cupilot compare JOB OTHER`.

    \b
    Examples:
        cupilot judge softmax their_softmax.py --wait
        cupilot judge my_op.py modelnew.py --target cuda --policy tf32
        cupilot judge my_op.py my_op.cu --target cuda --function run
    """
    request = _request(
        problem,
        file,
        target=target,
        function=function,
        policy=policy,
        name=name,
        size=size,
        priority=priority,
        label=label,
        sharing=sharing,
    )
    with connect(server, data) as client:
        made = client.judge(on_chosen_target(request, target, client), idempotency_key=idempotency_key)
        warn_of_waiting(client, made)
        if not wait:
            typer.echo(made.model_dump_json(indent=2) if as_json else str(made.id))
            return
        from cupilot.cli.live import watch as show

        typer.echo(f"job {made.id}", err=True)
        job = show(client, made.id, as_json=as_json)
        if job.best is not None and not as_json:
            _table(client, job)
        raise typer.Exit(exit_of(job))


def _table(client: Client, job: JobView) -> None:
    """Print the result as Markdown, to be pasted into a pull request."""
    evaluation = client.best(job.id).candidate.evaluation
    assert evaluation is not None
    typer.echo(f"\n{pull_request(evaluation, clean(job.problem.name))}")


def _request(
    problem: str,
    file: Path,
    *,
    target: str,
    function: str | None,
    policy: NumericsPolicy,
    name: str | None,
    size: str | None,
    priority: Priority,
    label: list[str] | None,
    sharing: Sharing | None,
) -> ImportRequest:
    """Return the request, checked as far as it can be without a server; InvalidInput otherwise."""
    if target not in ("auto", *Target):
        raise InvalidInput(f"{target!r} is not a target", hint="auto, cuda or cpu", where="--target")
    if size is not None and size not in get_args(Size):
        raise InvalidInput(f"{size!r} is not a size", hint="small or full", where="--size")
    chosen: Size | None = size  # type: ignore[assignment]
    fields = {
        "problem": resolve(problem, name=name, policy=policy, size=chosen),
        "target": Target.CPU if target == "auto" else Target(target),
        "source": _text(file),
        "function": function,
        "priority": priority,
        "labels": parse_labels(label),
        "sharing": sharing,
    }
    try:
        return ImportRequest.model_validate(fields)
    except ValidationError as error:
        raise invalid(error) from error


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_SOURCE_BYTES + 1)
        source = data.decode("utf-8-sig")
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}", where="FILE") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is not UTF-8 text", where="FILE") from error
    if len(data) > MAX_SOURCE_BYTES:
        raise InvalidInput(f"{file} is larger than {MAX_SOURCE_BYTES} bytes", where="FILE")
    try:
        check_import(source)
    except InvalidImport as error:
        line = (error.where or "").partition(":")[2]
        raise InvalidImport(error.message, hint=error.hint, where=f"{file}:{line}" if line else str(file)) from error
    return source
