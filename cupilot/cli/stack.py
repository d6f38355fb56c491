"""Commands about the embedded stack and this machine: up, down, env, backup, restore, doctor, version."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cupilot import __version__
from cupilot.cli.options import Data, Json, Server
from cupilot.cli.session import embedded_stack, show_progress
from cupilot.client.endpoint import data_folder
from cupilot.domain.errors import InvalidInput
from cupilot.domain.problem import Target

if TYPE_CHECKING:
    from cupilot.embedded.report import Progress


def up(
    detach: Annotated[bool, typer.Option("--detach", help="Return when it is up and leave it running.")] = False,
    target: Annotated[
        str, typer.Option("--target", metavar="auto|cuda|cpu", help="auto is cuda if there is a usable GPU, else cpu.")
    ] = "auto",
    model_calls: Annotated[
        int | None,
        typer.Option("--model-calls", metavar="N", min=1, max=32, help="Model calls at a time [8]."),
    ] = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Start the embedded stack: the whole service, on this machine. Postgres, Valkey, Chroma, API, scheduler and
    workers, from Python wheels alone.

    Without --detach it runs until Ctrl-C. What it holds lies in the data folder and is there again at the next start.

    \b
    Examples:
        cupilot up
        cupilot up --detach --data ~/.cupilot
    """
    embedded = embedded_stack()
    if target not in ("auto", *Target):
        raise InvalidInput(f"{target!r} is not a target", hint="auto, cuda or cpu", where="--target")
    folder = data_folder(data)
    wanted = None if target == "auto" else Target(target)

    def show_line(progress: Progress) -> None:
        show_progress(progress)
        if progress.part == "stack" and progress.state == "ready":
            url = progress.note.split()[0]
            if as_json:
                typer.echo(json.dumps({"url": url, "data": str(folder.absolute())}))
            elif not detach:
                typer.echo(f"{_ready(url)}; stop with Ctrl-C")

    endpoint = embedded.up(folder, foreground=not detach, target=wanted, model_calls=model_calls, on_progress=show_line)
    if detach and not as_json:
        typer.echo(f"{_ready(endpoint.url)}; stop with cupilot down")


def down(data: Data = None, as_json: Json = False) -> None:
    """Stop the embedded stack. Its data stays; unfinished jobs go on at the next start.

    \b
    Example:
        cupilot down
    """
    folder = data_folder(data)
    stopped = embedded_stack().down(folder)
    if as_json:
        typer.echo(json.dumps({"stopped": stopped, "data": str(folder.absolute())}))
    else:
        typer.echo("stopped" if stopped else f"nothing runs in {folder}")


def env(data: Data = None, as_json: Json = False) -> None:
    """Print the embedded stack's addresses and secrets. As a shell's variables, for the operator's commands.

    \b
    Example:
        eval "$(cupilot env)"
        python -m workers drain --reason upgrade --wait 600
    """
    addresses = embedded_stack().addresses(data_folder(data))
    if as_json:
        typer.echo(json.dumps(addresses, indent=2))
        return
    for name, value in addresses.items():
        typer.echo(f"export {name}={shlex.quote(value)}")


def backup(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A new file [./cupilot-<time>.dump].")] = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Write a backup of the embedded stack, running or not. It holds what cannot be made anew. Prints its path.

    \b
    Example:
        cupilot backup ~/backups/monday.dump
    """
    made = embedded_stack().backup(data_folder(data), file)
    typer.echo(json.dumps({"file": str(made.absolute()), "bytes": made.stat().st_size}) if as_json else str(made))


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What cupilot backup, or deploy/backup, has written.")],
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Bring a backup into a new data folder. Then start it with cupilot up, which migrates it where it is older.

    \b
    Example:
        cupilot restore ~/backups/monday.dump --data second
        cupilot up --detach --data second
    """
    folder = data_folder(data)
    embedded_stack().restore(folder, file)
    shown = str(folder.absolute())
    start = f"start it with: cupilot up --data {shlex.quote(str(folder))}"
    typer.echo(json.dumps({"data": shown}) if as_json else f"restored into {shown}; {start}")


def doctor(data: Data = None, as_json: Json = False) -> None:
    """Say what this machine has and lacks, and how to get it. Exits with 1 when something essential is missing.

    \b
    Example:
        cupilot doctor
    """
    from cupilot.embedded.doctor import examine, exit_code

    checks = examine(data_folder(data))
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            typer.echo(f"{check.level.value:<8} {check.name:<{width}}  {check.found}")
            if check.mend:
                typer.echo(f"{'':<8} {'':<{width}}  -> {check.mend}")
    raise typer.Exit(exit_code(checks))


def version(server: Server = None, data: Data = None, as_json: Json = False) -> None:
    """Print this program's version, and the service's. The latter where one is named or runs in the data folder.

    \b
    Example:
        cupilot version --server https://cupilot.example
    """
    from cupilot.client import Client
    from cupilot.client.endpoint import NoServer

    answer: dict[str, str | None] = {"client": __version__, "server": None, "url": None}
    try:
        with Client(server, data=data, retries=0) as client:
            answer |= {"server": client.version().version, "url": client.url}
    except NoServer:
        pass
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        typer.echo(f"cupilot {__version__}")
        if answer["server"]:
            typer.echo(f"service {answer['server']} at {answer['url']}")


def _ready(url: str) -> str:
    return f"ready at {url}, pages at {url}/ui, API documentation at {url}/docs"
