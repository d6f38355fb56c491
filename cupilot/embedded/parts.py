"""A part of a running stack: spawned, waited for, watched, started again after a crash, stopped.

Knows one part only; the order of the parts is the supervisor's business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Protocol

import psutil

from cupilot.embedded.errors import StartFailed
from cupilot.embedded.guard import Guard
from cupilot.embedded.process import Command, Process, group_exists
from cupilot.embedded.pulse import hangs
from cupilot.embedded.report import PartState, PartStatus

BACKOFF_SECONDS = (0.2, 1.0, 3.0, 10.0, 30.0)
"""Pauses before a part that ended is started again."""
STEADY_SECONDS = 60.0
"""After this long a part counts as healthy and its pauses begin anew."""
POLL_SECONDS = 0.03
WATCH_SECONDS = 0.25
LOOK_SECONDS = 5.0
"""Between two looks at a part's heartbeat."""
RETRY_SECONDS = 0.25
LONGEST_NOTE = 300


class Service(Protocol):
    """The server or role that a part runs."""

    name: str
    ready_seconds: float
    """Not ready by then: failed."""
    recovers: bool
    """True if :meth:`is_ready` last heard that it recovers from a crash: the time begins anew."""
    stop_seconds: float
    """Not stopped by then: killed."""

    def prepare(self) -> None:
        """Do what must be done before each start; may block."""

    def recovery_seconds(self) -> float:
        """Return the seconds for which an exit right after the start is tried again before it counts as a failure."""

    def command(self) -> Command:
        """Return the command that starts it."""

    def is_ready(self) -> bool:
        """Return whether it is ready; may block for a moment."""


class Part:
    """One service of a stack and the process that runs it now."""

    def __init__(
        self,
        service: Service,
        log: Path,
        guard: Guard,
        on_change: Callable[[Part, str], None],
        *,
        pulse: Path,
        hangs_after: float,
    ) -> None:
        """Run a service that writes into ``log``.

        One that records its progress in ``pulse`` hangs where it has not for ``hangs_after`` seconds.
        """
        self.service = service
        self.log = log
        self.state = PartState.STARTING
        self.restarts = 0
        self.note = ""
        self._pulse = pulse
        self._hangs_after = hangs_after
        self._guard = guard
        self._on_change = on_change
        self._process: Process | None = None
        self._started = 0.0
        self._created: float | None = None

    @property
    def name(self) -> str:
        """The service's name."""
        return self.service.name

    @property
    def status(self) -> PartStatus:
        """For the state file."""
        pid = self._process.pid if self._process else None
        return PartStatus(self.name, self.state, pid, self._created, self.restarts, self.note)

    async def start(self, *, gated: bool = False) -> None:
        """Prepare and spawn; a gated process waits for :meth:`open_gate`."""
        await asyncio.to_thread(self.service.prepare)
        self._spawn(gated=gated)

    def open_gate(self) -> None:
        """Open the gate of a process that waits at it."""
        if self._process and self._process.popen.stdin:
            self._process.popen.stdin.close()

    async def become_ready(self) -> None:
        """Wait until it does its work; raises :class:`StartFailed` with the end of its log."""
        started = heard = time.monotonic()
        while not await asyncio.to_thread(self.service.is_ready):
            now = time.monotonic()
            heard = now if self.service.recovers else heard
            if self._exit_code() is not None and now - started < self.service.recovery_seconds():
                await asyncio.sleep(RETRY_SECONDS)
                self._spawn(gated=False)
            elif self._exit_code() is not None or now - heard > self.service.ready_seconds:
                raise self._failure(f"{self.name} did not start")
            await asyncio.sleep(POLL_SECONDS)
        self._change(PartState.READY)

    async def finish(self) -> None:
        """Wait until a one-shot process ends well; raises :class:`StartFailed` otherwise."""
        if await self._exit(within=self.service.ready_seconds) != 0:
            raise self._failure(f"{self.name} failed")
        self._forget()
        self._change(PartState.DONE)

    async def watch(self) -> None:
        """Start it again, with growing pauses, whenever it ends or hangs. Ends by cancellation only."""
        failures = 0
        while True:
            ready_at = time.monotonic()
            ending = await self._ending()
            if time.monotonic() - ready_at > STEADY_SECONDS:
                failures = 0
            failures = await self._revive(f"{ending}{self._last_line()}", failures)

    async def _ending(self) -> str:
        """Wait until it ends or hangs, and tell which."""
        while (code := await self._exit(within=LOOK_SECONDS, every=WATCH_SECONDS)) is None:
            if await asyncio.to_thread(hangs, self._pulse, self._started, self._hangs_after):
                return f"made no progress for {self._hangs_after:.0f} s"
        return f"ended with code {code}"

    async def start_and_watch(self) -> None:
        """Start and watch a part that nobody waits for: a start that fails is tried again like any later one."""
        try:
            await self.start()
            await self.become_ready()
        except Exception as error:
            await self._revive(str(error), 0)
        await self.watch()

    async def _revive(self, note: str, failures: int) -> int:
        """Start it until it is ready; how many times in a row it has been tried now."""
        while True:
            with suppress(Exception):  # tried again before the start
                self._forget()
            self._change(PartState.RESTARTING, note)
            await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
            failures += 1
            self.restarts += 1
            try:
                await self.start()
                await self.become_ready()
                return failures
            except Exception as error:
                # Whatever it is (a full disk, a broken file), it may pass; the state file says it meanwhile.
                note = str(error)

    async def stop(self) -> None:
        """Ask it to stop, wait, then kill whatever of its group is left."""
        if self._process is None:
            if self.state in (PartState.STARTING, PartState.RESTARTING):
                self.state = PartState.STOPPED
            return
        self._change(PartState.STOPPING)
        self._process.ask_to_stop()
        forced = await self._exit(within=self.service.stop_seconds) is None
        self._forget()
        self._change(PartState.STOPPED, f"killed after {self.service.stop_seconds:.0f} s" if forced else "")

    def kill(self) -> None:
        """End it at once; :meth:`stop`, whether it waits for the end already or comes after it, finds it ended."""
        if self._process:
            self._process.kill()

    def _spawn(self, *, gated: bool) -> None:
        self._forget()
        command = self.service.command()
        command = replace(command, environment={**command.environment, "CUPILOT_HEALTH_FILE": str(self._pulse)})
        self._started = time.monotonic()
        self._process = Process(command, self.log, gated=gated)
        self._guard.add(self._process.pid)
        with suppress(psutil.NoSuchProcess):
            self._created = psutil.Process(self._process.pid).create_time()

    async def _exit(self, *, within: float = inf, every: float = POLL_SECONDS) -> int | None:
        """Wait for the exit code; None when the process still runs after ``within`` seconds."""
        deadline = time.monotonic() + within
        while self._exit_code() is None:
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(every)
        return self._exit_code()

    def _exit_code(self) -> int | None:
        return self._process.exit_code if self._process else None

    def _forget(self) -> None:
        """End what is left of the process and its group."""
        if self._process is None:
            return
        self._process.kill()
        if not group_exists(self._process.pid):
            self._guard.remove(self._process.pid)
        self._process = self._created = None

    def _last_line(self) -> str:
        """Return the end of its log, which most often says why it ended."""
        with suppress(OSError):
            lines = self._process.tail(1) if self._process else ""
            return f": {lines[-LONGEST_NOTE:]}" if lines else ""
        return ""

    def _failure(self, message: str) -> StartFailed:
        tail = self._process.tail() if self._process else ""
        self._forget()
        self._change(PartState.FAILED, message)
        return StartFailed(f"{message} (log: {self.log})", hint=tail)

    def _change(self, state: PartState, note: str = "") -> None:
        self.state, self.note = state, note
        self._on_change(self, note)
