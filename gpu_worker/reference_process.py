"""A reference process as the supervisor holds it: the user's PyTorch code in a sandbox of its own, one a problem.

The judge talks to it; the supervisor watches how it ends.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from gpu_worker.bytecode import Bytecode
from gpu_worker.channel import Channel
from gpu_worker.sandbox.child import Child, Finished
from gpu_worker.sandbox.files import SOURCE_ROOT
from gpu_worker.sandbox.limits import TORCH_THREADS, Limits, half_of_memory
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.base import HostTarget, Program

FILE_BYTES = 2**30
"""Of a single file; private /tmp has a limit of its own."""

OPEN_FILES = 1024
MAX_PROCESSES = 200
"""In a process that may start others (torch.compile): the compiler needs about ten."""

ENDING_SECONDS = 10.0
"""A process that has hung up takes seconds to give its memory back; one that hung up but lives on is killed."""

SCRIPT = Path(__file__).resolve().parent / "reference" / "main.py"


class ReferenceProcess:
    """One sandboxed reference."""

    def __init__(self, target: HostTarget, sandbox: Sandbox, bytecode: Bytecode, *, compiling: bool) -> None:
        """Start the process; ``compiling`` allows a compiler process, for ``torch.compile``."""
        self._theirs, ours = Channel.pair()
        self._cpus = target.cpus
        access = target.judge_access()
        self._may_start_processes = compiling or access.subprocesses
        access = replace(
            access,
            subprocesses=self._may_start_processes,
            accountable=True,
            read_only=(*access.read_only, bytecode.folder),
        )
        argv = (
            *(sys.executable, "-I", *bytecode.flags(), str(SCRIPT), str(SOURCE_ROOT)),
            *(target.judge_device, json.dumps(target.judge_options()), str(ours.fileno())),
        )
        limits = Limits(
            memory_bytes=half_of_memory() if access.bounded_address_space else None,
            total_bytes=half_of_memory(),
            processes=TORCH_THREADS,
            file_bytes=FILE_BYTES,
            open_files=OPEN_FILES,
            cpus=target.cpus,
        )
        try:
            self._child: Child = sandbox.start(Program(argv, access), limits, [ours.fileno()])
        except BaseException:
            self._theirs.close()
            raise
        finally:
            ours.close()

    def channel(self) -> int:
        """Return descriptor of the judge's end of the line; valid until :meth:`close`."""
        return self._theirs.fileno()

    def alive(self) -> bool:
        """Return whether the process still runs."""
        return self._child.running()

    def pause(self) -> None:
        """Stop the process until :meth:`resume`: it computes only to answer."""
        self._child.freeze()

    def resume(self) -> None:
        """Continue after :meth:`pause`."""
        self._child.thaw()

    def pin_threads(self) -> None:
        """Pin each thread that works to a core of its own, where the target is the CPU."""
        self._child.pin_threads(self._cpus)

    def overrun(self) -> bool:
        """Return whether it has started an absurd number of processes."""
        return self._may_start_processes and self._child.processes() > MAX_PROCESSES

    def ending(self) -> Finished:
        """Return how the process ended; it is killed if it has not."""
        return self._child.wait(ENDING_SECONDS)

    def close(self) -> None:
        """End the process, and wait until its memory is free: the next one may open the device at once."""
        self._theirs.close()
        self._child.kill()
        self._child.wait_until_gone()
