"""``cupilot webhooks``: have events sent to a URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from pydantic import ValidationError

from cupilot.cli.options import Data, Json, Server
from cupilot.cli.session import connect
from cupilot.cli.text import clean
from cupilot.domain.errors import InvalidInput
from cupilot.schemas import DeliveryDetail, WebhookChange, WebhookView, WebhookWithSecret

app = typer.Typer(
    help="Have events sent to a URL, signed.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="The webhook's id.")]
DeliveryId = Annotated[str, typer.Argument(metavar="DELIVERY", help="The message's id, which is its webhook-id.")]
Events = Annotated[
    list[str] | None, typer.Option("--event", metavar="KIND", help="E.g. job.* or candidate.evaluated; repeat.")
]


@app.command("add")
def add(
    *,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where messages are POSTed.")],
    event: Events = None,
    description: Annotated[str, typer.Option("--description")] = "",
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Make a webhook and print its secret, which is not shown again. Slack and Microsoft Teams get words to show.

    \b
    Example:
        cupilot webhooks add https://ci.example.org/hook --event 'job.*'
        cupilot webhooks add https://hooks.slack.com/services/... --event job.succeeded
    """
    with _checked(), connect(server, data) as client:
        _show(client.create_webhook(url, events=event, description=description), as_json=as_json)


@app.command("list")
def list_webhooks(server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """List your team's webhooks.

    \b
    Example:
        cupilot webhooks list
    """
    with connect(server, data) as client:
        webhooks = list(client.all_webhooks())
        if as_json:
            typer.echo("[" + ",".join(item.model_dump_json() for item in webhooks) + "]")
        for item in webhooks if not as_json else ():
            standing = "enabled" if item.enabled else f"disabled ({item.disabled_reason})"
            failing = f", failing since {item.failing_since:%Y-%m-%d %H:%M}" if item.failing_since else ""
            waiting = f", {item.pending} waiting" if item.pending else ""
            typer.echo(f"{item.id}  {clean(item.url)}  {','.join(item.events)}  {standing}{failing}{waiting}")


@app.command("set")
def change(
    *,
    webhook: WebhookId,
    url: Annotated[str | None, typer.Option("--url")] = None,
    event: Events = None,
    description: Annotated[str | None, typer.Option("--description")] = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable")] = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Change a webhook, disable or enable it. Enabling sends what still waits.

    \b
    Example:
        cupilot webhooks set 3f2b... --disable
    """
    fields = {"url": url, "events": event, "description": description, "enabled": enabled}
    with _checked(), connect(server, data) as client:
        wanted = WebhookChange.model_validate({name: value for name, value in fields.items() if value is not None})
        _show(client.change_webhook(webhook, wanted), as_json=as_json)


@app.command("rotate")
def rotate(webhook: WebhookId, server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """Replace a webhook's secret. Messages carry both signatures for 24 hours.

    \b
    Example:
        cupilot webhooks rotate 3f2b...
    """
    with connect(server, data) as client:
        _show(client.rotate_webhook_secret(webhook), as_json=as_json)


@app.command("remove")
def remove(webhook: WebhookId, server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """Remove a webhook with its log.

    \b
    Example:
        cupilot webhooks remove 3f2b...
    """
    with connect(server, data) as client:
        client.delete_webhook(webhook)
        typer.echo("{}" if as_json else "removed")


@app.command("ping")
def ping(webhook: WebhookId, server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """Send a test message. Read what came of it with cupilot webhooks show.

    \b
    Example:
        cupilot webhooks ping 3f2b...
    """
    with connect(server, data) as client:
        _show_delivery(client.ping_webhook(webhook), as_json=as_json)


@app.command("log")
def log(
    *,
    webhook: WebhookId,
    state: Annotated[str | None, typer.Option("--state", metavar="pending|delivered|failed")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=200)] = 20,
    cursor: Annotated[str | None, typer.Option("--cursor", help="next_cursor of the previous page.")] = None,
    server: Server = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List the messages to a webhook, newest first.

    \b
    Example:
        cupilot webhooks log 3f2b... --state failed
    """
    with connect(server, data) as client:
        page = client.deliveries(webhook, state=state, limit=limit, cursor=cursor)
        if as_json:
            typer.echo(page.model_dump_json(indent=2))
            return
        for item in page.items:
            last = f"{item.last_outcome or 'not tried'}{f' {item.last_status}' if item.last_status else ''}"
            typer.echo(
                f"{item.created_at.astimezone():%Y-%m-%d %H:%M:%S}  {item.id}  {item.kind}  {item.state}  {last}"
            )
        if page.next_cursor:
            typer.echo(f"more: --cursor {page.next_cursor}")


@app.command("show")
def show(
    webhook: WebhookId, delivery: DeliveryId, server: Server = None, data: Data = None, as_json: Json = False
) -> None:
    """Show a message with every attempt.

    \b
    Example:
        cupilot webhooks show 3f2b... 8f14...
    """
    with connect(server, data) as client:
        _show_delivery(client.delivery(webhook, delivery), as_json=as_json)


@app.command("redeliver")
def redeliver(
    webhook: WebhookId, delivery: DeliveryId, server: Server = None, data: Data = None, as_json: Json = False
) -> None:
    """Send a message again, with its old id.

    \b
    Example:
        cupilot webhooks redeliver 3f2b... 8f14...
    """
    with connect(server, data) as client:
        _show_delivery(client.redeliver(webhook, delivery), as_json=as_json)


@contextmanager
def _checked() -> Iterator[None]:
    """Raise the schema's refusals as the errors that the service would answer with."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or None
        raise InvalidInput(first["msg"].removeprefix("Value error, "), where=where) from error


def _show(view: WebhookView, *, as_json: bool) -> None:
    if as_json:
        typer.echo(view.model_dump_json(indent=2))
        return
    typer.echo(f"{view.id}  {clean(view.url)}  {'enabled' if view.enabled else 'disabled'}")
    if isinstance(view, WebhookWithSecret):
        typer.echo(f"secret  {view.secret}")


def _show_delivery(view: DeliveryDetail, *, as_json: bool) -> None:
    if as_json:
        typer.echo(view.model_dump_json(indent=2))
        return
    typer.echo(f"{view.id}  {view.kind}  {view.state}")
    for attempt in view.log:
        status = f" {attempt.status}" if attempt.status else ""
        took = f" in {attempt.milliseconds} ms" if attempt.milliseconds is not None else ""
        excerpt = f": {clean(attempt.excerpt)}" if attempt.excerpt else ""
        typer.echo(f"  {attempt.number}. {attempt.outcome or 'under way, or cut off'}{status}{took}{excerpt}")
