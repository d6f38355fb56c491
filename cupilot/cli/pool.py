"""Commands about the strategy pool: search, show, share, export, import."""

from __future__ import annotations

import sys
from math import exp
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from cupilot.cli.options import Data, Json, OnlyJson, Server
from cupilot.cli.outcome import Exit
from cupilot.cli.session import connect, job_id
from cupilot.cli.text import clean
from cupilot.domain.counted import counted
from cupilot.domain.errors import InvalidInput
from cupilot.domain.imported import KernelKind
from cupilot.domain.pool import PoolMatch, PoolQuestion, Sharing
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.schemas import PoolEntryView

pool = typer.Typer(
    name="pool",
    help="What earlier jobs learned: search, share, export, import it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Job = Annotated[str | None, typer.Option("--job", metavar="JOB", help="A job's id, or 'last'.")]


@pool.command("search")
def search(
    name: Annotated[str, typer.Argument(metavar="[WORDS]", help="What the operator is called.")] = "",
    *,
    job: Job = None,
    op_class: Annotated[str | None, typer.Option("--op-class", help="E.g. softmax, norm, matmul.")] = None,
    operator: Annotated[list[str] | None, typer.Option("--operator", help="ATen operator; repeat.")] = None,
    target: Annotated[Target, typer.Option(help="What it is to run on.")] = Target.CUDA,
    policy: Annotated[NumericsPolicy, typer.Option(help="Allowed arithmetic.")] = NumericsPolicy.FP32,
    limit: Annotated[int, typer.Option(min=1, max=50)] = 8,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Ask what worked on similar problems, and what failed. With the reasons.

    \b
    Examples:
        cupilot pool search --job last
        cupilot pool search "row softmax" --op-class softmax --target cpu
    """
    with connect(server, data) as client:
        if job is not None:
            answer = client.pool_search(job=job_id(client, job), limit=limit)
        elif op_class is not None:
            question = PoolQuestion(
                name=name, op_class=op_class, operators=tuple(operator or ()), target=target, policy=policy
            )
            answer = client.pool_search(question, limit=limit)
        else:
            raise InvalidInput("say what to look for", hint="--job JOB, or --op-class CLASS", where="options")
        if as_json:
            typer.echo(answer.model_dump_json(indent=2))
            return
        for match in answer.matches:
            _show_match(match)
        if answer.techniques:
            typer.echo("\ntechniques, the best proven first:")
        for technique in answer.techniques:
            outcomes = _outcomes(technique.why.wins, technique.why.tries)
            typer.echo(f"  {clean(technique.technique):<24} {outcomes}, {_gain(technique.score)}")
        for note in (*answer.notes, *([f"{len(answer.left_out)} left out"] if answer.left_out else [])):
            typer.echo(f"note: {clean(note)}", err=True)
        if not answer.matches:
            typer.echo("the pool knows nothing about similar operators yet")


@pool.command("list")
def list_entries(
    *,
    job: Job = None,
    shared: Annotated[bool, typer.Option("--shared", help="Also what other teams share.")] = False,
    op_class: Annotated[str | None, typer.Option("--op-class")] = None,
    technique: Annotated[str | None, typer.Option("--technique")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200)] = 50,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List pool entries, newest first.

    \b
    Example:
        cupilot pool list --technique vector_loads
    """
    with connect(server, data) as client:
        of_job = None if job is None else job_id(client, job)
        page = client.pool_entries(shared=shared, op_class=op_class, technique=technique, job=of_job, limit=limit)
        if as_json:
            typer.echo(page.model_dump_json(indent=2))
            return
        for item in page.items:
            entry = item.entry
            result = f"{entry.speedup:.2f}x" if entry.speedup else (entry.failure or entry.verdict).value
            origin = _origin(item)
            techniques = ", ".join(entry.strategy.ids()) or "plain"
            head = f"{item.id}  {item.sharing.value:<9} {clean(entry.problem_name)}"
            typer.echo(f"{head}: {result}{origin}: {clean(techniques)}")


@pool.command("show")
def show(
    entry: Annotated[UUID, typer.Argument(metavar="ENTRY", help="Its id.")],
    server: Server = None,
    data: Data = None,
    as_json: OnlyJson = False,  # noqa: ARG001 - it is JSON in any case
) -> None:
    """Print everything about a pool entry.

    \b
    Example:
        cupilot pool show 3f2c8a52-9d0e-4a62-9a3f-0c3f8f1f6a10
    """
    with connect(server, data) as client:
        typer.echo(client.pool_entry(entry).model_dump_json(indent=2))


@pool.command("share")
def share(
    entries: Annotated[list[UUID] | None, typer.Argument(metavar="[ENTRY]...", help="Ids of entries.")] = None,
    *,
    job: Job = None,
    sharing: Annotated[
        Sharing, typer.Option("--as", help="anonymous hides names, hashes, prose and origin; private withdraws.")
    ] = Sharing.ANONYMOUS,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Share pool entries with all teams, or withdraw them. Entries on problems that are not built-in stay private.

    \b
    Examples:
        cupilot pool share --job last
        cupilot pool share --job last --as private
    """
    with connect(server, data) as client:
        of_job = None if job is None else job_id(client, job)
        if bool(entries) == (of_job is not None):
            raise InvalidInput("say what to share: either entries or --job", where="options")
        done = client.pool_share(sharing, entries=entries or (), job=of_job)
        if as_json:
            typer.echo(done.model_dump_json(indent=2))
            return
        typer.echo(f"{sharing.value} now: {counted(done.changed, 'entry', 'entries')}")
        if done.withheld:
            typer.echo(f"{done.withheld} stay private: only what was measured here on built-in problems can be shared")


@pool.command("export")
def export(
    out: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Where to [the standard output].")] = None,
    *,
    kernels: Annotated[bool, typer.Option("--kernels/--no-kernels", help="With sources, or hashes only.")] = True,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Write your team's pool entries as lines of JSON.

    \b
    Example:
        cupilot pool export pool.jsonl
    """
    with connect(server, data) as client:
        if out is None:
            for line in client.pool_export(kernels=kernels):
                typer.echo(line)
            return
        count = 0
        with out.open("w", encoding="utf-8") as file:
            for line in client.pool_export(kernels=kernels):
                file.write(line + "\n")
                count += 1
        typer.echo(
            f'{{"entries": {count}}}' if as_json else f"{counted(count, 'entry', 'entries')} in {out}", err=not as_json
        )


@pool.command("import")
def import_entries(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Lines of an export; - for the standard input.")],
    *,
    source: Annotated[str | None, typer.Option(help="Where they come from [the file's name].")] = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Take in pool entries; exits with 2 where a line is bad. Imported gains never count as measured here.

    \b
    Example:
        cupilot pool import pool.jsonl --source cluster-b
    """
    with connect(server, data) as client:
        label = source or ("stdin" if str(file) == "-" else file.name)
        if str(file) == "-":
            done = client.pool_import(sys.stdin, source=label)
        else:
            if not file.is_file():
                raise InvalidInput(f"there is no file {file}", where="FILE")
            with file.open(encoding="utf-8", errors="surrogateescape") as lines:
                done = client.pool_import((line.encode(errors="replace").decode() for line in lines), source=label)
        if as_json:
            typer.echo(done.model_dump_json(indent=2))
        else:
            for bad in done.bad:
                typer.echo(f"line {bad.line}: {clean(bad.reason)}", err=True)
            typer.echo(f"{done.added} added, {done.known} known already, {len(done.bad)} bad")
        if done.bad:
            raise typer.Exit(Exit.USAGE)


@pool.command("stats")
def stats(server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """Show what the pool holds, and what each technique came to.

    \b
    Example:
        cupilot pool stats
    """
    with connect(server, data) as client:
        statistics = client.pool_stats()
        if as_json:
            typer.echo(statistics.model_dump_json(indent=2))
            return
        entries, problems = counted(statistics.entries, "entry", "entries"), counted(statistics.problems, "problem")
        typer.echo(
            f"{entries} of {problems}: {statistics.measured} measured,"
            f" {statistics.imported} imported, {statistics.shared_with_us} from other teams;"
            f" {statistics.shared_by_us} shared"
        )
        for row in statistics.techniques:
            typical = "" if row.median_speedup is None else f", typically {row.median_speedup:.2f}x"
            winners = counted(row.credits, "winner")
            worth = "" if row.median_credit is None else f", worth {row.median_credit:.2f}x in {winners}"
            place = f"{clean(row.technique)} on {clean(row.op_class)}, {clean(row.target)}"
            typer.echo(f"  {place}: {_outcomes(row.wins, row.tries)}{typical}{worth}")


def _show_match(match: PoolMatch) -> None:
    entry = match.entry
    techniques = ", ".join(entry.strategy.ids()) or "plain"
    result = f"{entry.speedup:.2f}x" if entry.speedup else (entry.failure or entry.verdict).value
    typer.echo(f"{clean(entry.problem_name)} on {clean(entry.device_class)}: {result}: {clean(techniques)}")
    typer.echo(f"    {clean(match.why.words())}; score {_gain(match.score)}; entry {entry.id}")


def _origin(item: PoolEntryView) -> str:
    if not item.measured_here:
        return " (imported)"
    return " (imported file)" if item.entry.provenance.kernel_kind is KernelKind.IMPORTED else ""


def _gain(score: float) -> str:
    return f"at least {exp(score):.2f}x"


def _outcomes(wins: int, tries: int) -> str:
    return f"{wins} of {tries} count"
