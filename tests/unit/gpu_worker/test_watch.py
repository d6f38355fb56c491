"""The memory and threads of several processes together."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from gpu_worker.sandbox import watch
from gpu_worker.sandbox.family import descendants
from gpu_worker.sandbox.watch import Excess, Watch, proportional_bytes, usage

HOLDS = """
import os, sys, threading, time
held = bytearray(64 * 2**20)
children = [os.fork() for _ in range(2)] if sys.argv[1] == "forks" else []
event = threading.Event()
for _ in range(5): threading.Thread(target=event.wait, daemon=True).start()
print("ready", flush=True)
time.sleep(30)
"""


@pytest.fixture(params=["alone", "forks"])
def program(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", HOLDS, request.param], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    for pid in [process.pid, *descendants(process.pid)]:
        subprocess.run(["/bin/kill", "-KILL", str(pid)], check=False, capture_output=True)
    process.wait()
    process.stdout.close()


def members(process: subprocess.Popen[str]) -> list[int]:
    return [process.pid, *descendants(process.pid)]


def test_pages_that_forked_processes_share_count_once(program: subprocess.Popen[str]) -> None:
    used = usage(members(program))
    assert used.threads >= 6
    assert used.memory_bytes >= 64 * 2**20
    assert 64 * 2**20 <= proportional_bytes(members(program)) < 110 * 2**20


@pytest.mark.parametrize(
    ("memory_bytes", "threads", "excess"),
    [(32 * 2**20, None, Excess.MEMORY), (2**40, 4, Excess.THREADS), (128 * 2**20, 1000, None)],
)
def test_what_exceeds_a_limit_is_ended(
    program: subprocess.Popen[str],
    monkeypatch: pytest.MonkeyPatch,
    memory_bytes: int,
    threads: int | None,
    excess: Excess | None,
) -> None:
    monkeypatch.setattr(watch, "INTERVAL_SECONDS", 0.01)
    watching = Watch(lambda: members(program), program.kill, memory_bytes=memory_bytes, threads=threads)
    watching.start()
    if excess is None:
        time.sleep(0.3)
        assert program.poll() is None
    else:
        assert program.wait(10) != 0
    watching.stop()
    assert watching.excess is excess


def test_a_watch_ends_with_what_it_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "INTERVAL_SECONDS", 0.01)
    watching = Watch(lambda: [2**22 - 1], lambda: None, memory_bytes=1, threads=1)
    watching.start()
    watching.join(10)
    assert not watching.is_alive()
    assert watching.excess is None
