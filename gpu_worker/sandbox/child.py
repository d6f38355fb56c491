"""A running sandboxed program: waiting for it, stopping and killing it with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpu_worker.sandbox import private_user
from gpu_worker.sandbox.cgroup import ControlGroup
from gpu_worker.sandbox.family import Family, descendants
from gpu_worker.sandbox.leftovers import remove_tree
from gpu_worker.sandbox.pinning import Pinning
from gpu_worker.sandbox.watch import Excess, Watch

MAX_CAPTURE_BYTES = 8 * 2**20
"""Of a program's stdout and stderr each; the rest is thrown away."""

_GONE_SECONDS = 2.0
_SLEEPS, _ENDED = "S", ("X", "Z")


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
        """Return what was written so far, once the writer has gone (waits at most a second for it)."""
        self.join(timeout=1.0)
        return self._kept.decode(errors="replace")


@dataclass(frozen=True)
class Finished:
    """The end of a program."""

    code: int
    """Exit code, or minus the signal."""
    stdout: str
    stderr: str
    timed_out: bool = False
    idle: bool = False
    """True if all its threads slept when its time was up: it waited for something, and not for a processor."""
    excess: Excess | None = None
    """Resource that it had too much of and was killed for."""


@dataclass
class Lent:
    """Things that a program has for as long as it runs."""

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
            remove_tree(self.scratch)
        self.user = self.group = self.scratch = None
        return exceeded


class Child:
    """A running sandboxed program."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        *,
        info: int | None = None,
        lent: Lent | None = None,
        may_start_processes: bool = False,
    ) -> None:
        self._process = process
        self._info = info
        self._in_bubblewrap = info is not None
        self._lent = lent or Lent()
        self._watch: Watch | None = None
        self._excess: Excess | None = None
        self._program_pid: int | None = None
        self._init: int | None = None
        self._may_start_processes = may_start_processes
        self._family: Family | None = None
        self._pinning: Pinning | None = None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdout = _Capture(process.stdout)
        self._stderr = _Capture(process.stderr)

    def running(self) -> bool:
        """Return whether the program has not ended yet."""
        return self._process.poll() is None

    def wait(self, timeout: float | None) -> Finished:
        """Return how the program ended; it is killed when it does not end in time."""
        timed_out = idle = False
        try:
            code = self._ended(timeout)
        except subprocess.TimeoutExpired:
            timed_out, idle = True, _sleep(self._members())
            self.kill()
            code = self._process.wait()
        if 128 < code <= 128 + signal.NSIG:  # bubblewrap and shells say so that a signal ended the program
            code = 128 - code
        self._settle()
        return Finished(code, self._stdout.text(), self._stderr.text(), timed_out, idle, self._excess)

    def watch(self, *, memory_bytes: int | None, threads: int | None, memory_files: bool) -> None:
        """Kill the program when all its processes together exceed a limit."""
        self._watch = Watch(
            self._members, self.end, memory_bytes=memory_bytes, threads=threads, memory_files=memory_files
        )
        self._watch.start()

    def _members(self) -> list[int]:
        """Return processes in the sandbox, bubblewrap's own included."""
        return [self._process.pid, *descendants(self._process.pid)]

    def _settle(self) -> None:
        """Clean up behind a program that has ended."""
        if self._watch is not None:
            self._watch.stop()
            self._excess = self._excess or self._watch.excess
        if self._in_bubblewrap and (self._process.returncode or 0) < 0:
            self._end_init()
        self._end_the_rest(self._lent.user)
        if self._lent.end():
            self._excess = self._excess or Excess.MEMORY

    def _end_init(self) -> None:
        """End the name space's init where bubblewrap was killed: one that had just been made may outlive it."""
        with contextlib.suppress(ProcessLookupError):  # it waits in bubblewrap's group for a word of bubblewrap's,
            os.killpg(self._process.pid, signal.SIGKILL)
        self._read_info()
        if self._init is not None:  # or went on, in a session of its own, before it asked to die with bubblewrap
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._init, signal.SIGKILL)

    def _end_the_rest(self, user: int | None) -> None:
        """End what the program has started and left behind: it could still write to the program's folders."""
        if not self._may_start_processes:
            return
        if self._in_bubblewrap:
            self.wait_until_gone()
        elif user is None:  # without namespaces none has left the group
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        else:
            subprocess.run(
                [*private_user.command(user), "/bin/kill", "-KILL", "--", "-1"], capture_output=True, check=False
            )

    def wait_until_gone(self) -> None:
        """Wait for the name space's init, which is killed when bubblewrap ends, and ends after all others in it."""
        self._read_info()
        deadline = time.monotonic() + _GONE_SECONDS
        while self._init is not None and _lives(self._init) and time.monotonic() < deadline:
            time.sleep(0.0005)

    def _ended(self, timeout: float | None) -> int:
        """Return the exit code as soon as there is one: with a timeout, subprocess only looks every 50 ms."""
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
        """Stop the program, and what it started, until :meth:`thaw`; see :meth:`Family.stop`."""
        family = self._whole_family()
        return family.stop() if family else time.perf_counter()

    def thaw(self) -> float:
        """Let the program go on; see :meth:`Family.resume`."""
        family = self._whole_family()
        return family.resume() if family else time.perf_counter()

    def awake_seconds(self) -> float:
        """Return the processor time that the program used while it was last frozen."""
        return self._family.awake_seconds if self._family else 0.0

    def pin_threads(self, cpus: Sequence[int] | None) -> None:
        """Pin threads of the program to these cores, if any are given; see :meth:`Pinning.update`."""
        if cpus is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._pinning = self._pinning or Pinning(self.program_pid(), cpus)
            self._pinning.update()

    def processes(self) -> int:
        """Return number of processes that live in the sandbox now."""
        return len(descendants(self._process.pid))

    def _whole_family(self) -> Family | None:
        """Return the processes of the program; None where it ended before it was seen."""
        if self._family is None:
            with contextlib.suppress(ProcessLookupError):
                self._family = Family(self.program_pid(), self._init, may_grow=self._may_start_processes)
        return self._family

    def program_pid(self) -> int:
        """Return the program's process id outside the sandbox."""
        if self._program_pid is None:
            self._program_pid = self._find_program()
        return self._program_pid

    def _find_program(self) -> int:
        if not self._in_bubblewrap:
            return self._process.pid
        self._read_info()
        for _ in range(200):  # the namespace's init starts the program within milliseconds
            processes = descendants(self._init) if self._init is not None else []
            if processes:
                return processes[0]
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
    """Return whether a process has not ended; a name space's init ends after all others in it."""
    return _state(Path(f"/proc/{pid}")) not in _ENDED


def _sleep(pids: Sequence[int]) -> bool:
    """Return whether every thread of these processes waits for something to happen."""
    tasks = [task for pid in pids for task in Path("/proc").glob(f"{pid}/task/*")]
    return all(_state(task) in (_SLEEPS, *_ENDED) for task in tasks)


def _state(task: Path) -> str:
    """Return the state of a process or thread, by its folder in /proc, as proc(5) has it."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def spawn(argv: list[str], descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a process group that inherits these descriptors and nothing else."""
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        pass_fds=tuple(descriptors),
        start_new_session=True,
    )
