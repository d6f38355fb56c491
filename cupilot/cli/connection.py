"""Commands about the way to a service: login, logout, open, mcp."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from typing import Annotated

import typer

from cupilot.cli.options import Data, Json, OnlyJson, Server
from cupilot.cli.session import connect, job_id
from cupilot.client import AsyncClient, Client, profiles
from cupilot.client.endpoint import KEY_VARIABLE, data_folder
from cupilot.domain.errors import InvalidInput, NotFound, Unavailable

ProfileName = Annotated[str, typer.Option("--profile", metavar="NAME", help="What to call it.")]


def login(
    url: Annotated[str, typer.Argument(metavar="URL", help="The service, e.g. https://cupilot.example.")],
    profile: ProfileName = profiles.DEFAULT,
    as_json: Json = False,
) -> None:
    """Keep a service's address and your key for it. For all later commands, in a file that only you can read.

    The key is asked for, or read from CUPILOT_API_KEY or the standard input; never from the command line, which others
    can see. CUPILOT_PROFILE=NAME chooses among several; an embedded stack's data folder comes before them.

    \b
    Examples:
        cupilot login https://cupilot.example
        cupilot login https://lab.example --profile lab < key.txt
    """
    asked = os.environ.get(KEY_VARIABLE) or (
        typer.prompt("API key", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    )
    key = asked.strip()
    if not key:
        raise InvalidInput("no API key was given", hint="paste the key that cupilot key create printed", where="key")
    with Client(url, key) as client:
        quota = client.quota()  # refused where the key is not valid
        kept = profiles.load()
        kept.profiles[profile] = profiles.Profile(url=client.url, api_key=key)
    kept.current = profile
    path = profiles.save(kept)
    if as_json:
        typer.echo(json.dumps({"profile": profile, "url": url, "team": quota.team, "file": str(path)}))
    else:
        typer.echo(f"logged in to {url} with a key of team {quota.team}; kept as {profile} in {path}")


def logout(profile: ProfileName = profiles.DEFAULT, as_json: Json = False) -> None:
    """Forget a service and its key, which stays valid. To end it: cupilot key revoke.

    \b
    Example:
        cupilot logout --profile lab
    """
    kept = profiles.load()
    if kept.profiles.pop(profile, None) is None:
        raise NotFound(f"there is no profile {profile}", hint=f"there are: {', '.join(kept.profiles) or 'none'}")
    if kept.current == profile:
        kept.current = next(iter(kept.profiles), None)
    profiles.save(kept)
    typer.echo(json.dumps({"profile": profile, "current": kept.current}) if as_json else f"forgot {profile}")


def open_page(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="A job's id, or 'last'; without, the list of jobs.")
    ] = None,
    server: Server = None,
    data: Data = None,
    print_only: Annotated[bool, typer.Option("--print", help="Print the address, start no browser.")] = False,
    as_json: Json = False,
) -> None:
    """Open a job's page in the browser, or print its address. Where there is no browser, the address is what you get.

    \b
    Examples:
        cupilot open last
        cupilot open --print
    """
    with connect(server, data) as client:
        page = f"{client.url}/ui" if job is None else f"{client.url}/ui/jobs/{job_id(client, job)}"
    typer.echo(json.dumps({"page": page}) if as_json else page)
    key = data_folder(data) / "api_key"
    if server is None and key.exists():
        typer.echo(f"sign in with the key in {key}", err=True)
    if not (print_only or as_json):
        webbrowser.open(page)


def mcp(server: Server = None, data: Data = None, as_json: OnlyJson = True) -> None:  # noqa: ARG001
    """Serve the tools for coding agents over stdio. A client of the service, started by the agent's program.

    It speaks JSON-RPC in any case.

    \b
    Example, for a client's configuration:
        {"mcpServers": {"cupilot": {"command": "cupilot", "args": ["mcp"]}}}
    """
    try:
        from cupilot.mcp.server import build
    except ImportError as error:
        raise Unavailable(f"the tools are not installed ({error})", hint="pip install 'cupilot[mcp]'") from error

    build(lambda _: AsyncClient(server, data=data)).run("stdio")
