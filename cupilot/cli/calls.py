"""Commands about model calls: prompts, answers, costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from cupilot.cli.options import Data, JobId, Json, Server
from cupilot.cli.session import connect, job_id
from cupilot.cli.text import clean, clean_lines
from cupilot.client import Client
from cupilot.domain.errors import NotFound
from cupilot.schemas import CallPage, CallSummary, CallView, ToolUse

PAGE = 200
PREFIX = 8
"""Characters of an id that a list shows; so many, or more, name a call."""


def calls(
    *,
    job: JobId,
    candidate: Annotated[
        str | None, typer.Option("--candidate", metavar="N", help="Only this candidate's, by ordinal or id.")
    ] = None,
    role: Annotated[str | None, typer.Option("--role", help="Only this agent's, e.g. translator.")] = None,
    state: Annotated[str | None, typer.Option("--state", help="Only started, answered, failed or lost ones.")] = None,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Continue after the previous page.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=PAGE)] = 50,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List a job's model calls, oldest first, with what each cost. Show one whole with: cupilot prompt JOB CALL.

    \b
    Examples:
        cupilot calls last
        cupilot calls last --candidate 3
        cupilot calls last --role translator --json | jq .items
    """
    with connect(server, data) as client:
        page = client.model_calls(
            job_id(client, job), candidate=candidate, role=role, state=state, cursor=cursor, limit=limit
        )
        if as_json:
            typer.echo(page.model_dump_json(indent=2))
        else:
            _show_page(page)


def prompt(
    job: JobId,
    call: Annotated[str, typer.Argument(metavar="CALL", help="The call's id, or its beginning.")],
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Print a model call whole, every message and the answer. Secrets are removed.

    \b
    Example:
        cupilot prompt last 3f2a91c0 | less
    """
    with connect(server, data) as client:
        owner = job_id(client, job)
        view = client.model_call(owner, _full_id(client, str(owner), call))
        typer.echo(view.model_dump_json(indent=2) if as_json else _as_text(view))


def _full_id(client: Client, job: str, start: str) -> str:
    """Return the id that begins like this; NotFound where none or several do."""
    if len(start) == 36:
        return start
    matches = [str(listed.id) for listed in client.all_model_calls(job) if str(listed.id).startswith(start.lower())]
    if len(matches) != 1:
        count = f"{len(matches)} calls begin" if matches else "no call of the job begins"
        raise NotFound(f"{count} with {start}", hint="list them with cupilot calls JOB", where="CALL")
    return matches[0]


def _show_page(page: CallPage) -> None:
    if not page.items:
        typer.echo("no model calls")
        return
    rows: list[tuple[str, ...]] = [("call", "step", "role", "model", "state", "tokens", "USD", "")]
    rows += [_row(call) for call in page.items]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if page.next_cursor:
        typer.echo(f"more: --cursor {page.next_cursor}")


def _row(call: CallSummary) -> tuple[str, ...]:
    tokens = f"{call.prompt_tokens}+{call.completion_tokens}" if call.prompt_tokens is not None else "-"
    reserved = "" if call.state == "answered" or not call.cost_usd else " reserved"
    return (
        str(call.id)[:PREFIX],
        clean(call.step),
        clean(call.purpose),
        clean(call.model),
        "cached" if call.cached else clean(call.state),
        tokens,
        f"{call.cost_usd:.4f}{reserved}",
        clean(call.complaint or call.error or "")[:100],
    )


def _called(tools: Sequence[ToolUse]) -> str:
    return "".join(f"\n-> {tool.name} {tool.arguments}" for tool in tools)


def _as_text(view: CallView) -> str:
    head = [
        f"call {view.id}: {view.purpose} for step {view.step}, model {view.model}, {view.state}"
        + (", cached" if view.cached else ""),
        f"tokens {view.prompt_tokens or 0} + {view.completion_tokens or 0}, {view.cost_usd:.4f} USD, "
        f"prompt file {view.prompt_hash[:12]}",
    ]
    parts = ["\n".join(head)]
    parts += [f"=== {turn.role}\n{turn.content}" + _called(turn.tool_calls) for turn in view.messages]
    answer = view.answer if view.answer is not None else view.error or "none yet"
    parts.append(f"=== answer\n{answer}" + _called(view.tool_calls))
    if view.complaint:
        parts.append(f"=== why it could not be used\n{view.complaint}")
    return clean_lines("\n\n".join(parts))
