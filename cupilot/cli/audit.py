"""The command ``audit``: requests that changed something or were refused, by caller."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any

import typer

from cupilot.cli.options import All, Cursor, Data, Json, Limit, Server
from cupilot.cli.session import connect
from cupilot.cli.text import clean
from cupilot.schemas import AuditPage


def audit(
    *,
    principal: Annotated[str | None, typer.Option("--principal", help="Who.")] = None,
    key_prefix: Annotated[str | None, typer.Option("--key-prefix", metavar="cpk_12345678")] = None,
    route: Annotated[str | None, typer.Option("--route", help="E.g. /v1/jobs/{job}/cancel.")] = None,
    resource: Annotated[str | None, typer.Option("--resource", help="Its beginning, e.g. /v1/jobs/3f2b.")] = None,
    result: Annotated[str | None, typer.Option("--outcome", metavar="done|refused|failed")] = None,
    since: Annotated[datetime | None, typer.Option("--since")] = None,
    until: Annotated[datetime | None, typer.Option("--until")] = None,
    all_teams: Annotated[
        bool, typer.Option("--all-teams", help="Every team's, and those of nobody; for cluster admins.")
    ] = False,
    limit: Limit = 20,
    cursor: Cursor = None,
    everything: All = False,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List who changed what, or was not allowed to, newest first. Times are this machine's.

    \b
    Examples:
        cupilot audit --outcome refused
        cupilot audit --all-teams --since 2026-01-31
        cupilot audit --resource /v1/jobs/3f2b --json
    """
    with connect(server, data) as client:
        filters: dict[str, Any] = {
            "principal": principal,
            "key_prefix": key_prefix,
            "route": route,
            "resource": resource,
            "outcome": result,
            "all_teams": all_teams,
            "since": since.astimezone() if since else None,
            "until": until.astimezone() if until else None,
        }
        if everything:
            page = AuditPage(items=list(client.all_audit(**filters)))
        else:
            page = client.audit(**filters, cursor=cursor, limit=limit)
        if as_json:
            typer.echo(page.model_dump_json(indent=2))
            return
        for item in page.items:
            who = clean(item.principal or "nobody")
            where = clean(item.address or "-")
            line = f"{item.method} {clean(item.resource)} {item.status} {item.outcome}"
            typer.echo(
                f"{item.at.astimezone():%Y-%m-%d %H:%M:%S}  {who} ({item.key_prefix or 'no key'}, {where})  {line}"
            )
            for name, (old, new) in (item.changes or {}).items():
                typer.echo(f"    {clean(name)}: {clean(json.dumps(old))} -> {clean(json.dumps(new))}")
        if page.next_cursor is not None:
            typer.echo(f"more: --cursor {page.next_cursor}")
