"""Commands about techniques: the list with standings, and one with its results."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from cupilot.cli.options import Data, Json, Server
from cupilot.cli.session import connect
from cupilot.cli.text import clean
from cupilot.domain.counted import counted
from cupilot.domain.errors import NotFound
from cupilot.domain.problem import Target
from cupilot.domain.standing import Standing
from cupilot.schemas import TechniquePage, TechniqueView


def techniques(
    technique: Annotated[str | None, typer.Argument(metavar="[TECHNIQUE]", help="Only this one, in full.")] = None,
    *,
    kind: Annotated[Standing | None, typer.Option(help="Only techniques of this standing.")] = None,
    target: Annotated[Target | None, typer.Option(help="Only for this target.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000)] = 200,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List techniques, how they stand and what came of them. The catalogue's, and those that your team's agents
    invented and results promoted or demoted.

    \b
    Examples:
        cupilot techniques --kind promoted
        cupilot techniques vector_loads --target cuda
    """
    with connect(server, data) as client:
        if technique is not None:
            page = client.techniques(kind=kind, target=target, technique=technique)
            if not page.items:
                raise NotFound("no such technique", hint="cupilot techniques lists what there is", where="TECHNIQUE")
        else:
            page = TechniquePage(items=list(islice(client.all_techniques(kind=kind, target=target), limit)))
        if as_json:
            typer.echo(page.model_dump_json(indent=2))
            return
        for item in page.items:
            typer.echo(_line(item))
            if technique is not None:
                _show(item)
        if not page.items:
            typer.echo("there are none")


def _line(view: TechniqueView) -> str:
    text = f"{view.kind.value:10}  {view.target.value:4}  {clean(view.id):24}  {view.wins} of {view.tries} count"
    if view.effect is not None:
        text += f", {view.effect.factor:.2f}x [{view.effect.low:.2f}, {view.effect.high:.2f}]"
    return text


def _show(view: TechniqueView) -> None:
    typer.echo(f"    {clean(view.meaning)}")
    if view.families:
        typer.echo(f"    won on {counted(view.problems, 'problem')}: {clean(', '.join(view.families))}")
    if view.failures:
        typer.echo(
            "    failed: " + clean(", ".join(f"{kind} {count}" for kind, count in sorted(view.failures.items())))
        )
    if view.since is not None:
        where = f" in job {view.job}" if view.job else ""
        typer.echo(f"    named first by {view.origin}{where} at {view.since:%Y-%m-%d %H:%M}")
