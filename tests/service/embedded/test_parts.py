"""One part of a stack: how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from cupilot.embedded.guard import Guard
from cupilot.embedded.parts import Part
from cupilot.embedded.process import Command
from cupilot.embedded.report import PartState

pytestmark = pytest.mark.service

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('up', 'w').close(); time.sleep(600)"
)


class Stubborn:
    """A service that does not stop when it is asked to."""

    name = "stubborn"
    ready_seconds = 60.0
    recovers = False
    stop_seconds = 60.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        self.folder.mkdir()

    def recovery_seconds(self) -> float:
        return 0.0

    def command(self) -> Command:
        return Command([sys.executable, "-c", STUBBORN], dict(os.environ), self.folder)

    def is_ready(self) -> bool:
        return (self.folder / "up").exists()


def test_a_kill_ends_a_stop_that_waits_and_one_that_has_not_begun(tmp_path: Path) -> None:
    """A second Ctrl-C, while the roles are being stopped and the servers, which are stopped after them, are not."""
    guard = Guard()
    parts = [
        Part(
            Stubborn(tmp_path / name),
            tmp_path / "log",
            guard,
            lambda *_: None,
            pulse=tmp_path / "pulse",
            hangs_after=60.0,
        )
        for name in ("role", "server")
    ]
    waiting, later = parts

    async def stop_twice() -> float:
        for part in parts:
            await part.start()
            await part.become_ready()
        stopping = asyncio.create_task(waiting.stop())
        await asyncio.sleep(0.3)
        assert waiting.state is PartState.STOPPING
        since = time.monotonic()
        for part in parts:
            part.kill()
        await stopping
        await later.stop()
        return time.monotonic() - since

    assert asyncio.run(stop_twice()) < 30
    assert [(part.state, part.status.pid, part.note) for part in parts] == [(PartState.STOPPED, None, "")] * 2
    guard.close()


class Beating(Stubborn):
    """A service that leaves signs of progress, the first one of each start at once."""

    name = "beating"

    def prepare(self) -> None:
        self.folder.mkdir(exist_ok=True)

    def command(self) -> Command:
        code = "import cupilot.health as health, os, time; pulse = health.Pulse(os.environ['CUPILOT_HEALTH_FILE'], 'x')"
        loop = "\nwhile True: pulse.beat(); open('up', 'w').close(); time.sleep(0.05)"
        environment = dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[3])}
        return Command([sys.executable, "-c", code + loop], environment, self.folder)


@pytest.mark.parametrize("writable", [True, False])
def test_what_hangs_is_started_again_unless_nobody_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writable: bool
) -> None:
    """On a full disk no process can leave a sign of progress."""
    monkeypatch.setattr("cupilot.embedded.parts.LOOK_SECONDS", 0.1)
    guard, notes, service = Guard(), list[str](), Beating(tmp_path / "beating")

    async def hang() -> None:
        again = asyncio.Event()

        def changed(part: Part, note: str) -> None:
            notes.append(note)
            if part.restarts and part.state is PartState.READY:
                again.set()

        part = Part(service, tmp_path / "log", guard, changed, pulse=tmp_path / "pulse", hangs_after=4.0)
        await part.start()
        await part.become_ready()
        watching = asyncio.create_task(part.watch())
        await asyncio.sleep(0.5)
        assert notes == [""], "it leaves signs"
        if not writable:
            (tmp_path / "pulse.probe").mkdir()
        assert part.status.pid is not None
        os.kill(part.status.pid, signal.SIGSTOP)
        with suppress(TimeoutError):
            await asyncio.wait_for(again.wait(), 60 if writable else 6)
        watching.cancel()
        part.kill()
        await part.stop()

    asyncio.run(hang())
    assert any("no progress" in note for note in notes) is writable
    guard.close()
