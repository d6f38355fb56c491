"""``cupilot techniques``: what techniques there are, how they stand, and what came of them."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from cupilot.cli.options import Data, Json, Server
from cupilot.cli.session import connect
from cupilot.cli.text import clean
from cupilot.domain.errors import NotFound
from cupilot.domain.problem import Target
from cupilot.domain.standing import Standing
from cupilot.schemas import TechniquePage, TechniqueView


def techniques(
    technique: Annotated[str | None, typer.Argument(metavar="[TECHNIQUE]", help="Only this one, in full.")] = None,
    *,
    kind: Annotated[Standing | None, typer.Option(help="Only those that stand like this.")] = None,
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
        for one in page.items:
            typer.echo(_line(one))
            if technique is not None:
                _show(one)
        if not page.items:
            typer.echo("there are none")


def _line(one: TechniqueView) -> str:
    text = f"{one.kind.value:10}  {one.target.value:4}  {clean(one.id):24}  {one.wins} of {one.tries} count"
    if one.effect is not None:
        text += f", {one.effect.factor:.2f}x [{one.effect.low:.2f}, {one.effect.high:.2f}]"
    return text


def _show(one: TechniqueView) -> None:
    typer.echo(f"    {clean(one.meaning)}")
    if one.families:
        typer.echo(f"    won on {one.problems} problems: {clean(', '.join(one.families))}")
    if one.failures:
        typer.echo("    failed: " + clean(", ".join(f"{kind} {count}" for kind, count in sorted(one.failures.items()))))
    if one.since is not None:
        where = f" in job {one.job}" if one.job else ""
        typer.echo(f"    named first by {one.origin}{where} at {one.since:%Y-%m-%d %H:%M}")
