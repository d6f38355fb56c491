"""The command ``best``: the proven kernel for a built-in problem that ships with the release."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cupilot.cli.files import DEFAULT_FOLDER, export_folder, write_export, write_result
from cupilot.cli.options import Data, IdempotencyKey, Json, Server
from cupilot.cli.outcome import exit_of
from cupilot.cli.session import connect
from cupilot.cli.waiting import warn_of_waiting
from cupilot.domain.champions import Champion
from cupilot.domain.champions import best as best_champion
from cupilot.domain.errors import InvalidInput
from cupilot.domain.problem import NumericsPolicy, Target


def best(
    problem: Annotated[str, typer.Argument(metavar="PROBLEM", help="A built-in problem's name.")],
    *,
    target: Annotated[Target, typer.Option("--target", metavar="cuda|cpu")] = Target.CUDA,
    policy: Annotated[
        NumericsPolicy | None, typer.Option("--policy", metavar="fp32|tf32|half", help="Any by default, fp32 first.")
    ] = None,
    arch: Annotated[str | None, typer.Option("--arch", metavar="sm_90", help="Of the device; any by default.")] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="torch|kernelbench|cupy|bundle", help="Export it in this format instead."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Of package, operator and files [PROBLEM].")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Where to put files [printed: in ./cupilot-results, ./cupilot-exports]."
        ),
    ] = None,
    judge: Annotated[
        bool, typer.Option("--judge", help="Judge it again on the service's device: a job, whose id is printed.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="With --judge: follow the job to its end.")] = False,
    idempotency_key: IdempotencyKey = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Print and write the best kernel that ships for a problem. Needs no service.

    It was reproduced on the device that it names; elsewhere judge it, or let a job begin from it.

    \b
    Examples:
        cupilot best softmax --target cuda
        cupilot best max_pool2d --target cuda --format torch -o my_pool
        cupilot best silu_and_multiply_bfloat16 --policy half
        cupilot best max_pool2d --target cuda --judge --wait
    """
    champion = best_champion(problem, target, policy=policy, arch=arch)
    if judge:
        _judge(champion, server, data, idempotency_key, wait=wait, as_json=as_json)
        return
    folder = _write(champion, form, name, out)
    if as_json:
        from cupilot.reports.champion import report_of

        typer.echo(report_of(champion).model_dump_json(indent=2))
        return
    _show(champion, folder)


def _judge(
    champion: Champion, server: str | None, data: Path | None, key: str | None, *, wait: bool, as_json: bool
) -> None:
    with connect(server, data) as client:
        made = client.judge_champion(champion.kernel.content_hash(), idempotency_key=key)
        warn_of_waiting(client, made)
        if not wait:
            typer.echo(made.model_dump_json(indent=2) if as_json else str(made.id))
            return
        from cupilot.cli.live import watch as show

        typer.echo(f"job {made.id}", err=True)
        raise typer.Exit(exit_of(show(client, made.id, as_json=as_json)))


def _write(champion: Champion, form: str | None, name: str | None, out: Path | None) -> Path:
    from cupilot.exports import ExportFormat, Winner, archive, result_archive
    from cupilot.reports.champion import report_of

    report = report_of(champion)
    if form is None:
        return write_result(result_archive(report), report.job.id, out or DEFAULT_FOLDER / _place(champion))
    if form not in tuple(ExportFormat):
        raise InvalidInput(f"{form!r} is not a format", hint=", ".join(ExportFormat), where="--format")
    folder = out or export_folder(_place(champion), form, name)
    write_export(archive(Winner.of(report, name), ExportFormat(form)), folder)
    return folder


def _place(champion: Champion) -> str:
    """Return a folder of its own: a problem has champions for several devices and policies."""
    return f"{champion.problem}/{champion.arch}-{champion.policy.value}"


def _show(champion: Champion, folder: Path) -> None:
    from cupilot.cli.text import clean
    from cupilot.reports.champion import lines, report_of

    report = report_of(champion)
    typer.echo(f"\n{clean(report.headline)}\n")
    pairs = [
        ("problem", f"{champion.problem} ({champion.size}, {champion.policy.value}) on {champion.target.value}"),
        *lines(champion),
        ("files", str(folder)),
        *(("next", step) for step in report.next_steps),
    ]
    width = max(len(name) for name, _ in pairs)
    for name, text in pairs:
        typer.echo(f"{name:<{width}}  {clean(text)}")
