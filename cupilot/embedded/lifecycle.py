"""Start and stop the embedded stack of a data folder.

A stack belongs to its data folder: one supervisor holds the folder's lock for as long as it lives, whatever ends it.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import psutil

from cupilot import __version__
from cupilot.domain.problem import Target
from cupilot.embedded.errors import AlreadyRunning, StartFailed
from cupilot.embedded.folder import Folder, open_folder
from cupilot.embedded.lookup import DEFAULT_DATA, STACK, holder, is_locked, running, supervisor_pid
from cupilot.embedded.report import Endpoint, OnProgress, PartState, Progress
from cupilot.embedded.roles import Cluster
from cupilot.embedded.supervisor import Supervisor
from cupilot.embedded.target import choose_target

OTHERS_START_SECONDS = 120.0
"""Time for which ``up`` waits for an earlier ``up`` on the same folder."""
STOP_SECONDS = 60.0
"""Above the sum of the parts' own limits."""


@dataclass(frozen=True)
class Options:
    """Options of a stack's start."""

    target: Target | None = None
    """A usable NVIDIA GPU decides where there is none."""
    model_calls: int | None = None
    """Steps at a time of the agent worker; None for the default of :func:`cupilot.embedded.roles.make_workers`."""

    @classmethod
    def load(cls, line: str) -> Options:
        """Return the options from the JSON that :func:`json.dumps` makes of their fields."""
        fields = json.loads(line)
        return cls(Target(fields["target"]) if fields["target"] else None, fields["model_calls"])


def up(
    data: Path = DEFAULT_DATA,
    *,
    foreground: bool,
    target: Target | None = None,
    model_calls: int | None = None,
    on_progress: OnProgress,
) -> Endpoint:
    """Start the stack of a data folder and return where it is; one that runs already is left as it is,
    and refused where it is of another release.

    In the foreground this returns only after the stack has been stopped by SIGINT, SIGTERM or :func:`down`; a part
    ``stack`` is reported ready in between, with the URL as its note. Otherwise a supervisor of its own session keeps
    the stack. ``target`` and ``model_calls`` are those of :class:`Options`. Raises :class:`StartFailed`.
    """
    if os.environ.get("CUPILOT_ENVIRONMENT") == "production":
        raise StartFailed(
            "the embedded stack is for one person on one machine, and CUPILOT_ENVIRONMENT is production",
            hint="unset it here, or run the roles by themselves: docs/deploy.md",
        )
    folder = open_folder(data)
    endpoint = _wait_for_other(folder)
    if endpoint:
        _refuse_other_release(folder, endpoint)
        on_progress(Progress("stack", PartState.READY, 0.0, f"{endpoint.url} (was already running)"))
        return endpoint
    if foreground:
        return supervise(folder, Options(target, model_calls), on_progress)
    return _detach(folder, Options(target, model_calls), on_progress)


def down(data: Path = DEFAULT_DATA) -> bool:
    """Stop the stack of a data folder and wait until all of it is gone; False when none ran.

    Raises :class:`AlreadyRunning` while a backup or a restore works there.
    """
    folder = Folder(data.expanduser().resolve())
    _refuse_commands(folder)
    pid = supervisor_pid(folder)
    if pid is None:
        return False
    for end, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, 10.0)):
        with suppress(ProcessLookupError):
            os.kill(pid, end)
        if _wait_until_gone(pid, seconds):
            return True
    raise StartFailed(f"the supervisor of {folder.root} does not end", hint=f"look at process {pid} and its log")


def supervise(folder: Folder, options: Options, on_progress: OnProgress) -> Endpoint:
    """Run as the supervisor until told to stop; return where the stack was."""
    with lock_folder(folder):
        return asyncio.run(_supervise(folder, options, on_progress))


async def _supervise(folder: Folder, options: Options, on_progress: OnProgress) -> Endpoint:
    choice = choose_target(options.target)
    supervisor = Supervisor(folder, choice, on_progress, options.model_calls)
    stop = asyncio.Event()
    endpoints: list[Endpoint] = []

    def asked() -> None:
        if stop.is_set():
            supervisor.kill()
        stop.set()

    def ready(endpoint: Endpoint) -> None:
        endpoints.append(endpoint)
        on_progress(Progress("stack", PartState.READY, supervisor.seconds, endpoint.url))

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, asked)
    await supervisor.run(stop, ready)
    if not endpoints:
        raise StartFailed("stopped before everything was up")
    return endpoints[0]


def _detach(folder: Folder, options: Options, on_progress: OnProgress) -> Endpoint:
    argv = [sys.executable, "-P", "-m", "cupilot.embedded", str(folder.root), json.dumps(asdict(options))]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with folder.log("supervisor").open("ab") as log:
        starter = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env=environment,
            start_new_session=True,
            text=True,
        )
    assert starter.stdout is not None
    with starter.stdout as lines:
        starter.wait()
        supervisor = json.loads(lines.readline())["pid"]
        try:
            return _follow(lines, on_progress, folder)
        except BaseException:
            with suppress(ProcessLookupError):
                os.kill(supervisor, signal.SIGTERM)
            _wait_until_gone(supervisor, STOP_SECONDS)
            raise


def _follow(lines: IO[str], on_progress: OnProgress, folder: Folder) -> Endpoint:
    """Pass the supervisor's reports on until the stack is ready."""
    for line in lines:
        report = json.loads(line)
        if "error" in report:
            raise StartFailed(report["error"], hint=report["hint"])
        progress = Progress(**report | {"state": PartState(report["state"])})
        on_progress(progress)
        if progress.part == "stack":
            return Endpoint(progress.note, folder.api_key.read_text().strip())
    raise StartFailed("the supervisor ended", hint=f"see {folder.log('supervisor')}")


def report_line(progress: Progress) -> str:
    """Return a progress as the line that a detached supervisor prints."""
    return json.dumps(asdict(progress))


def _wait_for_other(folder: Folder) -> Endpoint | None:
    """Wait for another supervisor of the folder and return its endpoint; None when there is none, or no longer."""
    deadline = time.monotonic() + OTHERS_START_SECONDS
    while is_locked(folder):
        _refuse_commands(folder)
        endpoint = running(folder.root)
        if endpoint and Cluster(endpoint.url, folder.api_key).api_is_ready():
            return endpoint
        if time.monotonic() > deadline:
            message = "another supervisor holds this folder but its stack does not get ready"
            raise AlreadyRunning(message, hint="stop it with cupilot down", where=str(folder.root))
        time.sleep(0.1)
    return None


def _refuse_other_release(folder: Folder, endpoint: Endpoint) -> None:
    """Raise :class:`AlreadyRunning` where the stack that runs is of another release, as after an upgrade."""
    version = Cluster(endpoint.url, folder.api_key).version()
    if version not in (__version__, None):
        message = f"release {version} runs in this folder, and this is release {__version__}"
        raise AlreadyRunning(message, hint="cupilot down first, then cupilot up", where=str(folder.root))


def _refuse_commands(folder: Folder) -> None:
    """Raise :class:`AlreadyRunning` where a backup or a restore holds the folder, which is to end by itself."""
    held = holder(folder)
    if held and held.purpose != STACK:
        hint = f"try again when process {held.pid} has ended"
        raise AlreadyRunning(f"a {held.purpose} runs in this folder", hint=hint, where=str(folder.root))


@contextmanager
def lock_folder(folder: Folder, purpose: str = STACK) -> Iterator[None]:
    """Hold the folder for a purpose (:class:`~cupilot.embedded.lookup.Holder`).

    The kernel lets go of it when this process ends, so a lock is never stale.
    """
    with folder.lock.open("a+") as file:
        for _ in range(20):  # a look by is_locked holds it for an instant
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.05)
        else:
            _refuse_commands(folder)
            hint = "stop it with cupilot down, or name another folder with --data"
            raise AlreadyRunning("another supervisor holds this folder", hint=hint, where=str(folder.root))
        file.truncate(0)
        file.write(f"{os.getpid()} {purpose}")
        file.flush()
        yield


def _wait_until_gone(pid: int, seconds: float) -> bool:
    """Wait until the process has ended and return whether it has in time.

    A zombie has, only its parent does not know yet.
    """
    deadline = time.monotonic() + seconds
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
    return True
