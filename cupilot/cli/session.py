"""Connect a command's client: to the named server, to the folder's running stack, or to one started for it."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import typer

from cupilot.client import ApiError, Client
from cupilot.client.endpoint import URL_VARIABLE, data_folder
from cupilot.domain.errors import InvalidInput, NotFound, Unavailable
from cupilot.embedded.checkout import require_service

if TYPE_CHECKING:
    from cupilot.embedded.report import Progress

OPEN_STATES = ("queued", "preparing", "evolving", "cancelling")
_BEGINNING_OF_ID = re.compile(r"[0-9a-f-]{6,35}")
_TOLD = ("ready", "done", "failed", "restarting", "stopped")


@contextmanager
def connect(server: str | None, data: Path | None) -> Iterator[Client]:
    """Yield a client of a service that must run already."""
    with Client(server, data=data) as client:
        yield client


@contextmanager
def connect_or_start(server: str | None, data: Path | None, mine: Collection[uuid.UUID]) -> Iterator[Client]:
    """Yield a client; where no server is named and no stack runs, start one and stop it again.

    It is left running where jobs other than ``mine`` are open on it by then.
    """
    if server is not None or (data is None and os.environ.get(URL_VARIABLE)):
        with connect(server, data) as client:
            yield client
        return
    stack = embedded_stack()
    folder = data_folder(data)
    if stack.running(folder) is not None:
        with connect(None, folder) as client:
            yield client
        return
    typer.echo(f"no server is running: starting the embedded stack in {folder}", err=True)
    endpoint = stack.up(folder, foreground=False, on_progress=show_progress)
    with Client(endpoint.url, endpoint.api_key) as client:
        try:
            yield client
        finally:
            if _others_work(client, mine):
                typer.echo("the embedded stack keeps running for other jobs; stop it with cupilot down", err=True)
            else:
                typer.echo("stopping the embedded stack; its data stays", err=True)
                stack.down(folder)


def embedded_stack() -> ModuleType:
    """Return :mod:`cupilot.embedded.stack`; raise Unavailable where only the client is installed."""
    require_service()
    try:
        return import_module("cupilot.embedded.stack")
    except ImportError as error:
        raise Unavailable(
            f"the embedded stack is not installed ({error})",
            hint=f"pip install 'cupilot[embedded]', or name a server with --server or {URL_VARIABLE}",
        ) from error


def _others_work(client: Client, mine: Collection[uuid.UUID]) -> bool:
    try:
        open_jobs = client.list(state=OPEN_STATES, limit=200).items
    except ApiError:
        return False
    return any(job.id not in mine for job in open_jobs)


def show_progress(progress: Progress) -> None:
    """Print a line on the standard error: a part of the embedded stack reached a state."""
    if progress.state not in _TOLD:
        return
    note = f": {progress.note}" if progress.note else ""
    typer.echo(f"  {progress.seconds:5.1f} s  {progress.part} {progress.state.value}{note}", err=True)


def job_id(client: Client, reference: str) -> uuid.UUID:
    """Return the id that the user means: a UUID, its first six characters or more, or ``last``."""
    if reference == "last":
        newest = client.list(limit=1).items
        if not newest:
            raise NotFound("your team has no jobs yet", hint="start one with cupilot submit", where="JOB")
        return newest[0].id
    try:
        return uuid.UUID(reference)
    except ValueError:
        return _beginning_with(client, reference)


def _beginning_with(client: Client, reference: str) -> uuid.UUID:
    """Return the id of the team's only job whose id begins so."""
    beginning = reference.lower()
    if not _BEGINNING_OF_ID.fullmatch(beginning):
        hint = "give last, an id, or its first six characters or more: cupilot list shows them"
        raise NotFound(f"{reference} is not the id of a job", hint=hint, where="JOB")
    ids = [job.id for job in client.list(text=beginning, limit=200).items if str(job.id).startswith(beginning)]
    if not ids:
        raise NotFound(f"no job's id begins with {reference}", hint="list them with cupilot list", where="JOB")
    if len(ids) > 1:
        raise InvalidInput(f"the ids of {len(ids)} jobs begin with {reference}", hint="name more of it", where="JOB")
    return ids[0]
