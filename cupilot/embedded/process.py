"""One child process: own session, own log file, and a signal of its own when its parent dies.

Does not decide what to run or when to run it again. Children must be spawned from a thread that lives as long as the
stack: Linux sends the death signal when the *thread* that spawned the child ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000


@dataclass(frozen=True)
class Command:
    """Command, and the signal that ends it."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    stop_signal: signal.Signals = signal.SIGTERM
    """Also sent by the kernel when the supervisor dies."""
    unprivileged: bool = False
    """Refuses to run as root (Postgres): give it another identity when we are root."""


@dataclass
class Process:
    """A running child."""

    command: Command
    log: Path
    gated: bool = False
    """True if its standard input is a pipe, and closing it lets the process continue; otherwise it is empty."""
    popen: subprocess.Popen[bytes] = field(init=False)
    log_start: int = field(init=False)
    """Offset in the log at which this run begins."""

    def __post_init__(self) -> None:
        with self.log.open("ab") as log:
            self.log_start = log.tell()
            self.popen = subprocess.Popen(
                self.command.argv,
                stdin=subprocess.PIPE if self.gated else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.command.folder,
                env=dict(self.command.environment),
                start_new_session=True,
                user=unprivileged_user() if self.command.unprivileged else None,
                preexec_fn=_in_child(self.command),  # noqa: PLW1509 - it calls libc and writes /proc only
            )

    @property
    def pid(self) -> int:
        """The child's process id, which is its group's and session's too."""
        return self.popen.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code; None while it runs."""
        return self.popen.poll()

    def tail(self, lines: int = 12) -> str:
        """Return the last lines of this run's output."""
        with self.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(min(self.log_start, end), end - 8_192))
            return "\n".join(log.read().decode(errors="replace").strip().splitlines()[-lines:])

    def ask_to_stop(self) -> None:
        """Send the stop signal; returns at once."""
        if self.exit_code is None:
            self.popen.send_signal(self.command.stop_signal)

    def stop(self, grace: float = 10.0) -> int:
        """End it in order, by force after ``grace`` seconds; returns its exit code."""
        self.ask_to_stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(grace)
        return self.kill()

    def kill(self) -> int:
        """End it and all of its process group by SIGKILL; returns its exit code."""
        kill_group(self.pid)
        if self.popen.stdin:
            self.popen.stdin.close()
        return self.popen.wait()


def kill_group(group: int) -> None:
    """Kill every process of a group; an empty group is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def group_exists(group: int) -> bool:
    """Return whether any process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@cache
def unprivileged_user() -> str | None:
    """Return the user as whom root runs Postgres where user namespaces are barred.

    None where no change of user is needed.
    """
    return "nobody" if os.geteuid() == 0 and not _user_namespaces_work() else None


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _namespace_identity() -> tuple[int, int]:
    """Return the uid and gid that root takes on in a user namespace.

    They are those of a user that the machine knows: initdb ends where its own user has no entry.
    """
    user = next((entry for entry in pwd.getpwall() if entry.pw_uid), None)
    return (user.pw_uid, user.pw_gid) if user else (1000, 1000)


def _enter_user_namespace(uid: int, gid: int) -> None:
    """Enter a user namespace under these ids, whose files stay root's outside."""
    if _libc().unshare(CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} 0 1"), ("gid_map", f"{gid} 0 1")):
        file = os.open(f"/proc/self/{name}", os.O_WRONLY)
        os.write(file, text.encode())
        os.close(file)


def _user_namespaces_work() -> bool:
    if sys.platform != "linux":
        return False
    try:
        enter = partial(_enter_user_namespace, *_namespace_identity())
        return subprocess.run(["/bin/true"], preexec_fn=enter, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def _in_child(command: Command) -> Callable[[], None] | None:
    """Return what the child runs between fork and exec; libc is loaded, and users are read, before the fork."""
    if sys.platform != "linux":
        return None
    libc, parent = _libc(), os.getpid()
    map_user = command.unprivileged and os.geteuid() == 0 and unprivileged_user() is None
    identity = _namespace_identity() if map_user else None

    def run() -> None:
        if identity:
            _enter_user_namespace(*identity)
        # After the change of identity, which would clear it.
        libc.prctl(PR_SET_PDEATHSIG, command.stop_signal)
        if os.getppid() != parent:
            os._exit(1)

    return run
