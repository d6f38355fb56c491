"""The judge process as the supervisor holds it: starts it, asks it, watches over deadlines, ends it.

The judge runs no code of users, but it reads what references and kernels send; so it is sandboxed, and its messages are
validated.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpu_worker.bytecode import Bytecode
from gpu_worker.channel import (
    MAX_MESSAGE_BYTES,
    MESSAGE_SECONDS,
    Channel,
    ChannelClosed,
    ChannelError,
    ChannelTimeout,
)
from gpu_worker.messages import judge as messages
from gpu_worker.sandbox.child import Child, Finished
from gpu_worker.sandbox.files import SOURCE_ROOT
from gpu_worker.sandbox.limits import TORCH_THREADS, Limits
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.base import HostTarget, Program

START_SECONDS = 120.0
"""Importing torch takes 2 s, 14 s without compiled bytecode; a busy machine may need more."""

ENDING_SECONDS = 10.0
"""A process that has hung up takes seconds to release its memory; one that hung up but lives on is killed."""

POLL_SECONDS = 0.05
"""Seconds between looks at cancellation, deadline and number of processes while the judge works."""

JUDGE_MEMORY_SHARE = 0.6
JUDGE_FILE_BYTES = 64 * 2**30
"""The arena is a memory file; private /tmp has a limit of its own."""

EVENT_BYTES = 4096
"""Largest event: ready, a stage, a hold. The longest stage name has 60 characters."""

FINDINGS_BYTES = 2**20
"""Largest answer to ``open`` and ``judge``. Findings have some KB; a failure's message of 16 000 characters, all of
them escaped, has 190 KB, its details and the runner's facts at most 64 KB and 256 KB."""

ANSWER_BYTES = {"prepare": MAX_MESSAGE_BYTES, "trace": MAX_MESSAGE_BYTES}
"""Largest answer by operation where it holds the traced graph; :data:`FINDINGS_BYTES` for others."""

MAX_STAGES = 200
"""Of a request. The longest has about ten, each of which becomes part of the record of what the evaluation spent."""

MAX_HOLDS = 50_000
"""Of a request. A confirmation against three baselines has six a pair of blocks, 8 000 where each takes 400 pairs."""

JUDGE_SCRIPT = Path(__file__).resolve().parent / "judge" / "main.py"

Cancelled = Callable[[], bool]
OnStage = Callable[[str], None]
"""Called with the name of each stage that the judge begins."""


class JudgingFailed(Exception):
    """Judging came to no end; says nothing about a kernel."""


class UnusableJudge(JudgingFailed):
    """The judge refused a problem that another one had prepared, or gave an answer that is not valid."""


class JudgeLost(JudgingFailed):
    """The judge process ended, or sent what is no message of a judge."""

    def __init__(self, stage: str, finished: Finished) -> None:
        super().__init__(f"the judge ended while {stage}")
        self.stage = stage
        self.finished = finished


class ReferenceEnded(JudgingFailed):
    """The reference process ended, or sent something that makes no sense."""

    def __init__(self, stage: str, why: str, finished: Finished) -> None:
        super().__init__(f"the reference process ended while {stage} ({why})")
        self.stage = stage
        self.finished = finished


class JudgeTimeout(JudgingFailed):
    """The judge did not finish a stage in time."""

    def __init__(self, stage: str, seconds: float, *, overall: bool = False) -> None:
        """Name the stage and its limit; ``overall``: the whole request's time was up before the stage's own."""
        super().__init__(f"{stage} did not finish within {seconds:.0f} s")
        self.stage = stage
        self.overall = overall


class Interrupted(Exception):
    """The caller cancelled the request."""


@dataclass
class _Deadline:
    """Time limits of the whole request and of the present stage, and how many events the judge may still send."""

    total: float
    stage: float
    name: str
    limit: float
    stages: int = 0
    """Begun so far."""
    holds: int = 0

    def count(self, event: messages.Event) -> None:
        """Count an event; raises :class:`ChannelError` where there are too many."""
        self.stages += isinstance(event, messages.StageBegun)
        self.holds += isinstance(event, messages.HoldRequest)
        if self.stages > MAX_STAGES or self.holds > MAX_HOLDS:
            raise ChannelError("too many events")

    def enter(self, event: messages.StageBegun) -> None:
        """Begin a stage, whose limit ends with the request's."""
        self.name = event.name
        self.stage = time.monotonic() + event.limit
        self.limit = min(event.limit, max(self.total - time.monotonic(), 0.0))

    def expired(self) -> bool:
        return time.monotonic() > min(self.total, self.stage)


class JudgeProcess:
    """A warm judge. Not thread safe; one request at a time."""

    def __init__(self, target: HostTarget, sandbox: Sandbox, bytecode: Bytecode) -> None:
        self._channel, theirs = Channel.pair()
        access = target.judge_access()
        access = replace(access, memory_files=True, read_only=(*access.read_only, bytecode.folder))
        options = json.dumps(target.judge_options())
        argv = (
            *(sys.executable, "-I", *bytecode.flags(), str(JUDGE_SCRIPT), str(SOURCE_ROOT)),
            *(target.judge_device, options, str(theirs.fileno())),
        )
        bounded = access.bounded_address_space
        limits = Limits(
            memory_bytes=int(JUDGE_MEMORY_SHARE * _physical_memory()) if bounded else None,
            total_bytes=int(JUDGE_MEMORY_SHARE * _physical_memory()),
            processes=TORCH_THREADS,
            file_bytes=JUDGE_FILE_BYTES,
            open_files=4096,
            cpus=target.cpus,
        )
        self._child: Child = sandbox.start(Program(argv, access), limits, [theirs.fileno()])
        theirs.close()
        self._hold: Callable[[bool], messages.Held] | None = None
        self._on_stage: OnStage | None = None
        self._next_look = 0.0
        self.torch = ""
        self.stage = "starting"
        """The stage that the judge has begun last."""

    def wait_ready(self) -> None:
        """Wait for torch to be imported."""
        try:
            data, _ = self._channel.receive(START_SECONDS, limit=EVENT_BYTES)
            self.torch = messages.Ready.model_validate(data).torch
        except (ChannelClosed, ChannelTimeout, ChannelError, ValidationError) as error:
            raise JudgeLost("starting", self._child.wait(ENDING_SECONDS)) from error

    def alive(self) -> bool:
        """Return whether the process still runs."""
        return self._child.running()

    def ending(self) -> Finished:
        """Return how the process ended; it is killed if it has not."""
        return self._child.wait(ENDING_SECONDS)

    def close(self) -> None:
        """End the process."""
        self._channel.close()
        self._child.kill()

    def ask(
        self,
        request: messages.Request,
        timeout: float,
        cancelled: Cancelled,
        *,
        descriptors: Sequence[int] = (),
        hold: Callable[[bool], messages.Held] | None = None,
        on_stage: OnStage | None = None,
    ) -> messages.Answer:
        """Return the judge's answer to a request. After any exception the judge must be closed."""
        self._hold, self._on_stage = hold, on_stage
        now = time.monotonic()
        deadline = _Deadline(now + timeout, now + timeout, "starting", timeout)
        stage = deadline.name
        try:
            self._channel.send(request.as_json(), descriptors, timeout=MESSAGE_SECONDS)
            limit = ANSWER_BYTES.get(request.op, FINDINGS_BYTES)
            while (data := self._next(deadline, cancelled, limit)).get("event") != "done":
                self._handle_event(messages.EVENTS.validate_python(data), deadline)
                stage = deadline.name
        except (ChannelClosed, ChannelTimeout, ChannelError, ValidationError) as error:
            raise JudgeLost(stage, self._child.wait(ENDING_SECONDS)) from error
        try:
            return messages.Done.model_validate(data).answer
        except ValidationError as error:
            raise UnusableJudge(f"its answer makes no sense: {str(error)[:500]}") from error

    def _next(self, deadline: _Deadline, cancelled: Cancelled, limit: int) -> dict[str, Any]:
        """Return the next message; only an answer may have more than :data:`EVENT_BYTES`."""
        before = self._channel.received_bytes
        while True:
            if time.monotonic() >= self._next_look:
                self._check_deadline(deadline, cancelled)
            with suppress(ChannelTimeout):  # the next call goes on with what has come of the message
                data, _ = self._channel.receive(POLL_SECONDS, limit=limit)
                break
        if not isinstance(data, dict):
            raise ChannelError("not an object")
        size = self._channel.received_bytes - before
        if data.get("event") != "done" and size > EVENT_BYTES:
            raise ChannelError(f"event of {size} bytes")
        return data

    def _check_deadline(self, deadline: _Deadline, cancelled: Cancelled) -> None:
        self._next_look = time.monotonic() + POLL_SECONDS
        if cancelled():
            raise Interrupted
        if deadline.expired():
            raise JudgeTimeout(deadline.name, deadline.limit, overall=deadline.total < deadline.stage)

    def _handle_event(self, event: messages.Event, deadline: _Deadline) -> None:
        deadline.count(event)
        if isinstance(event, messages.StageBegun):
            self.stage = event.name
            deadline.enter(event)
            if self._on_stage is not None:
                self._on_stage(event.name)
        elif self._hold is not None:
            self._channel.send(self._hold(event.on).as_json(), timeout=MESSAGE_SECONDS)
        else:
            raise ChannelError("the judge asked to hold a runner that there is none of")


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
