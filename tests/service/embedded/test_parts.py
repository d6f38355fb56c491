"""One part of a stack: how it ends."""

from __future__ import annotations

import asyncio
import os
import sys
import time
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
    parts = [Part(Stubborn(tmp_path / name), tmp_path / "log", guard, lambda *_: None) for name in ("role", "server")]
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
