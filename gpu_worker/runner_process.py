"""A runner process as the supervisor holds it: a fresh one for each kernel, in the tightest sandbox.

It is started without a kernel, and sees only those that it is given later.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from gpu_worker import runner
from gpu_worker.channel import Channel
from gpu_worker.messages.judge import Held
from gpu_worker.sandbox import private_user
from gpu_worker.sandbox.child import Child, Finished
from gpu_worker.sandbox.limits import KERNEL_THREADS, TORCH_THREADS, Limits, half_of_memory
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.base import Program, RunnerHost

RUNNER_MEMORY_BYTES = 4 * 2**30
"""Private memory of a cpu kernel; its tensors and workspace lie in the shared arena and do not count."""

RUNNER_CPU_SECONDS = 1800
COMPUTING = Limits(
    cpu_seconds=RUNNER_CPU_SECONDS,
    memory_bytes=RUNNER_MEMORY_BYTES,
    file_bytes=0,
    open_files=64,
    processes=KERNEL_THREADS,
)
MAX_PROCESSES = 200
"""Of a runner that may start processes: compilers of an extension need about twenty."""

ENDING_SECONDS = 2.0


class RunnerProcess:
    """One sandboxed runner; the judge talks to it, the supervisor watches how it ends."""

    def __init__(self, target: RunnerHost, sandbox: Sandbox, *, limits: Limits | None = None) -> None:
        """Start a runner; ``limits`` replace those of a kernel that only computes.

        A runner that cannot be started leaves nothing behind.
        """
        self._theirs, ours = Channel.pair()
        self._cpus = target.cpus
        self._inbox = Path(tempfile.mkdtemp(prefix="cupilot-runner-"))
        private_user.share(self._inbox)
        self._given = 0
        self._may_start_processes = False
        try:
            self._child = self._started(target, sandbox, limits or COMPUTING, ours.fileno())
        except BaseException:
            self._theirs.close()
            shutil.rmtree(self._inbox, ignore_errors=True)
            raise
        finally:
            ours.close()
        self._held = False
        self._overrun = False

    def _started(self, target: RunnerHost, sandbox: Sandbox, limits: Limits, channel: int) -> Child:
        access = target.runner_access()
        access = replace(access, accountable=True, read_only=(*access.read_only, self._inbox))
        argv = runner.command_line(sys.executable, target.runner_python_flags(), target.runner_device, channel)
        limits = replace(limits, cpus=target.cpus)
        if not access.bounded_address_space:
            # libcuda alone makes some dozen threads
            limits = replace(
                limits,
                memory_bytes=None,
                total_bytes=half_of_memory(),
                file_bytes=None,
                open_files=4096,
                processes=TORCH_THREADS,
            )
        self._may_start_processes = access.subprocesses
        return sandbox.start(Program(argv, access), limits, [channel])

    def give(self, binary: Path) -> str:
        """Let the runner read a kernel, and return the path under which it sees it."""
        self._given += 1
        folder = self._inbox / str(self._given)
        folder.mkdir()
        path = shutil.copy(binary, folder)
        private_user.share(folder)
        return str(path)

    def alive(self) -> bool:
        """Return whether the process still runs."""
        return self._child.running()

    def take_channel(self) -> int:
        """Return descriptor of the judge's end of the line; valid until :meth:`close`."""
        return self._theirs.fileno()

    def hold(self, on: bool) -> Held:
        """Stop or continue all threads of the runner; tell the moment since or until which they stand still.

        What they worked meanwhile, though stopped, counts as time after that moment.
        """
        moment, awake = time.perf_counter(), 0.0
        if on and not self._held:
            moment = self._child.freeze()
        elif self._held and not on:
            moment, awake = self._child.thaw(), self._child.awake_seconds()
        self._held = on
        return Held(at=moment - awake, awake=awake)

    def pin_threads(self) -> None:
        """Pin each thread that works to a core of its own, where the target is the CPU."""
        self._child.pin_threads(self._cpus)

    def overrun(self) -> bool:
        """Kill a runner that starts processes without end; whether it was killed for that."""
        if self._may_start_processes and not self._overrun and self._child.processes() > MAX_PROCESSES:
            self._overrun = True
            self._child.kill()
        return self._overrun

    def ending(self) -> Finished:
        """Return how the runner ended; it is killed if it has not."""
        return self._child.wait(ENDING_SECONDS)

    def close(self) -> None:
        """End the runner."""
        self._theirs.close()
        self._child.kill()
        shutil.rmtree(self._inbox, ignore_errors=True)
