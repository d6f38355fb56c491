"""A runner process as the supervisor holds it: a fresh one for each kernel, in the tightest sandbox."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from gpu_worker import runner
from gpu_worker.channel import Channel
from gpu_worker.sandbox import Finished, Limits, Sandbox
from gpu_worker.targets.base import HostTarget, Program

RUNNER_MEMORY_BYTES = 4 * 2**30
"""Private memory of a cpu kernel; its tensors and workspace lie in the shared arena and do not count."""

RUNNER_CPU_SECONDS = 1800
ENDING_SECONDS = 2.0


class RunnerProcess:
    """One sandboxed runner; the judge talks to it, the supervisor watches how it ends."""

    def __init__(self, target: HostTarget, sandbox: Sandbox, *binaries: Path) -> None:
        """``binaries`` are what it may be told to load."""
        self._theirs, ours = Channel.pair()
        access = target.runner_access()
        access = replace(access, read_only=(*access.read_only, *binaries))
        argv = runner.command(sys.executable, target.runner_python_flags(), target.runner_device, ours.fileno())
        limits = Limits(
            cpu_seconds=RUNNER_CPU_SECONDS,
            memory_bytes=RUNNER_MEMORY_BYTES if access.bounded_address_space else None,
            file_bytes=0 if access.bounded_address_space else None,
            open_files=64 if access.bounded_address_space else 4096,
            cpus=target.cpus,
        )
        self._child = sandbox.start(Program(argv, access), limits, [ours.fileno()])
        ours.close()
        self._held = False

    def take_channel(self) -> int:
        """Descriptor of the judge's end of the line; valid until :meth:`close`."""
        return self._theirs.fileno()

    def hold(self, on: bool) -> None:
        """Stop or continue all threads of the runner."""
        if on and not self._held:
            self._child.freeze()
        elif self._held and not on:
            self._child.thaw()
        self._held = on

    def ending(self) -> Finished:
        """How the runner ended; it is killed if it has not."""
        return self._child.wait(ENDING_SECONDS)

    def close(self) -> None:
        """End the runner."""
        self._theirs.close()
        self._child.kill()
