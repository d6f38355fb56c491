"""For all tests: what the shell and the libraries leave behind in a process is put right."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

REAL = tuple(Path(__file__).parent / folder for folder in ("service", "exploits"))
"""Real servers, workers, compilers and clocks."""

# A shell that starts the run in the background makes it ignore interrupts, and so all its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

# LiteLLM asks for "the" event loop after each call. Python 3.11 then makes one that nobody closes, and whichever test
# is running when it is collected fails for its sockets. A thread that was told to have none gets none, as in 3.14.
asyncio.set_event_loop(None)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For commands in this process: no stack of this machine, an empty folder and home, and no waiting."""
    for name in ("CUPILOT_URL", "CUPILOT_API_KEY", "CUPILOT_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cupilot.client.protocol.FIRST_PAUSE_SECONDS", 0.0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of real processes against real clocks get a second try: a busy machine must not look like a defect.

    One that needed it is listed at the end of the run (R), since it may be one all the same.
    """
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in REAL):
            item.add_marker(pytest.mark.flaky(reruns=1))
