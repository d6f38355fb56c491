"""The judge process as the supervisor holds it: starting, asking, watching over deadlines, ending.

Everything the judge says is checked: it runs the user's reference, which may have taken it over.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_worker.bytecode import Bytecode
from gpu_worker.channel import Channel, ChannelClosed, ChannelError, ChannelTimeout
from gpu_worker.sandbox import SOURCE_ROOT, Child, Finished, Limits, Sandbox
from gpu_worker.targets.base import HostTarget, Program

START_SECONDS = 120.0
"""Importing torch takes 2 s, 14 s without compiled bytecode; a busy machine may need more."""

ENDING_SECONDS = 10.0
"""A process that has hung up takes seconds to give its memory back; one that hung up but lives on is killed."""

POLL_SECONDS = 0.05
"""How often a cancellation, a deadline and the number of processes are looked at while the judge works."""

JUDGE_MEMORY_SHARE = 0.6
JUDGE_FILE_BYTES = 64 * 2**30
"""The arena is a memory file; private /tmp has a limit of its own."""

MAX_PROCESSES = 200
"""In a judge that may start processes (torch.compile): the compiler needs about ten."""

JUDGE_SCRIPT = Path(__file__).resolve().parent / "judge" / "main.py"

Cancelled = Callable[[], bool]


class JudgeLost(Exception):
    """The judge process ended, or said something that makes no sense."""

    def __init__(self, stage: str, finished: Finished) -> None:
        super().__init__(f"the judge ended while {stage}")
        self.stage = stage
        self.finished = finished


class JudgeTimeout(Exception):
    """The judge did not finish a stage in time."""

    def __init__(self, stage: str, seconds: float) -> None:
        super().__init__(f"{stage} did not finish within {seconds:.0f} s")
        self.stage = stage


class TooManyProcesses(Exception):
    """The sandboxed judge started an absurd number of processes."""


class Interrupted(Exception):
    """The caller does not want the answer any more."""


@dataclass
class _Deadline:
    """The whole request's and the present stage's time limits."""

    total: float
    stage: float
    name: str
    limit: float

    def expired(self) -> bool:
        return time.monotonic() > min(self.total, self.stage)


class JudgeProcess:
    """A warm judge. Not thread safe; one request at a time."""

    def __init__(self, target: HostTarget, sandbox: Sandbox, bytecode: Bytecode, *, subprocesses: bool = False) -> None:
        self._channel, theirs = Channel.pair()
        access = target.judge_access()
        self._may_start_processes = subprocesses or access.subprocesses
        access = replace(access, subprocesses=self._may_start_processes, read_only=(*access.read_only, bytecode.folder))
        options = json.dumps(target.judge_options())
        argv = (
            *(sys.executable, "-I", *bytecode.flags(), str(JUDGE_SCRIPT), str(SOURCE_ROOT)),
            *(target.judge_device, options, str(theirs.fileno())),
        )
        bounded = access.bounded_address_space
        limits = Limits(
            memory_bytes=int(JUDGE_MEMORY_SHARE * _physical_memory()) if bounded else None,
            file_bytes=JUDGE_FILE_BYTES,
            open_files=4096,
            cpus=target.cpus,
        )
        self._child: Child = sandbox.start(Program(argv, access), limits, [theirs.fileno()])
        theirs.close()
        self._hold: Callable[[bool], float] | None = None
        self._next_look = 0.0
        self.on_stage: Callable[[str], None] | None = None
        """Told which stage the judge has begun."""
        self.torch = ""

    def wait_ready(self) -> None:
        """Wait for torch to be imported."""
        try:
            message, _ = self._channel.receive(START_SECONDS)
        except (ChannelClosed, ChannelTimeout, ChannelError) as error:
            raise JudgeLost("starting", self._child.wait(ENDING_SECONDS)) from error
        self.torch = str(message.get("torch", ""))

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._child.running()

    def ending(self) -> Finished:
        """How the process ended; it is killed if it has not."""
        return self._child.wait(ENDING_SECONDS)

    def close(self) -> None:
        """End the process."""
        self._channel.close()
        self._child.kill()

    def ask(
        self,
        request: dict[str, Any],
        timeout: float,
        cancelled: Cancelled,
        *,
        descriptors: Sequence[int] = (),
        hold: Callable[[bool], float] | None = None,
    ) -> dict[str, Any]:
        """The judge's answer to a request. After any exception the judge must be closed."""
        self._hold = hold
        now = time.monotonic()
        deadline = _Deadline(now + timeout, now + timeout, "starting", timeout)
        stage = deadline.name
        try:
            self._channel.send(request, descriptors)
            while True:
                message = self._next(deadline, cancelled)
                if message.get("event") == "done":
                    return message
                self._obey(message, deadline)
                stage = deadline.name
        except (ChannelClosed, ChannelError, TypeError, ValueError, AttributeError) as error:
            raise JudgeLost(stage, self._child.wait(ENDING_SECONDS)) from error

    def _next(self, deadline: _Deadline, cancelled: Cancelled) -> dict[str, Any]:
        while True:
            if time.monotonic() >= self._next_look:
                self._look(deadline, cancelled)
            if self._channel.wait(POLL_SECONDS):
                break
        message, _ = self._channel.receive(max(deadline.total - time.monotonic(), 1.0))
        if not isinstance(message, dict):
            raise ChannelError("not an object")
        return message

    def _look(self, deadline: _Deadline, cancelled: Cancelled) -> None:
        self._next_look = time.monotonic() + POLL_SECONDS
        if cancelled():
            raise Interrupted
        if deadline.expired():
            raise JudgeTimeout(deadline.name, deadline.limit)
        if self._may_start_processes and self._child.processes() > MAX_PROCESSES:
            raise TooManyProcesses

    def _obey(self, message: dict[str, Any], deadline: _Deadline) -> None:
        if message["event"] == "stage":
            limit = float(message["limit"])
            deadline.name = str(message["name"])[:200]
            if self.on_stage is not None:
                self.on_stage(deadline.name)
            deadline.stage = time.monotonic() + limit
            deadline.limit = min(limit, max(deadline.total - time.monotonic(), 0.0))
        elif message["event"] == "hold" and self._hold is not None:
            self._channel.send({"at": self._hold(bool(message["on"]))})
        else:
            raise ChannelError(f"unknown event {message['event']!r}")


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
