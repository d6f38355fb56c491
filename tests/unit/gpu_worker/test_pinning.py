"""Threads of a program, each pinned to a core of its own, from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_worker.sandbox import pinning as module
from gpu_worker.sandbox.pinning import Pinning

CPUS = (3, 5)
TEAM = """
import hashlib, sys, threading
def work():
    while True:
        hashlib.pbkdf2_hmac("sha256", b"key", b"salt", 100_000)
threads = [threading.Thread(target=work, daemon=True) for _ in range(int(sys.argv[1]))]
for thread in threads:
    thread.start()
print("ready", flush=True)
sys.stdin.read()
"""


class Threads:
    """Threads whose time on a core is told, and the cores that they were given last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used: dict[int, int] = {}
        self.cpus: dict[int, tuple[int, ...]] = {}
        self.calls = 0
        monkeypatch.setattr(Pinning, "_nanoseconds", lambda _: dict(self.used))
        monkeypatch.setattr(module, "_set_affinity", self._set_affinity)

    def _set_affinity(self, thread: int, cpus: tuple[int, ...]) -> None:
        self.calls += 1
        self.cpus[thread] = tuple(cpus)

    def work(self, **nanoseconds: int) -> None:
        """Let threads that are named by letters work so long."""
        for name, time_used in nanoseconds.items():
            self.used[ord(name)] = self.used.get(ord(name), 0) + time_used

    def of(self, name: str) -> tuple[int, ...]:
        return self.cpus[ord(name)]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    return Threads(monkeypatch)


def test_threads_that_work_get_a_core_each_and_keep_it(threads: Threads) -> None:
    pinning = Pinning(1, CPUS)
    threads.work(a=1000, b=900, c=10)
    pinning.update()
    assert {threads.of("a"), threads.of("b")} == {(3,), (5,)}
    assert threads.of("c") == CPUS
    before = threads.calls
    threads.work(a=50)  # alone, or none: the team waits
    pinning.update()
    pinning.update()
    assert threads.calls == before


def test_one_thread_alone_may_use_all_cores(threads: Threads) -> None:
    pinning = Pinning(1, CPUS)
    threads.work(a=1000)
    pinning.update()
    assert threads.of("a") == CPUS


def test_more_threads_than_cores_may_use_all_of_them(threads: Threads) -> None:
    pinning = Pinning(1, CPUS)
    threads.work(a=1000, b=1000)
    pinning.update()
    threads.work(a=1000, b=1000, c=1000)
    pinning.update()
    assert [threads.of(name) for name in "abc"] == [CPUS] * 3


def test_a_thread_that_a_pinned_one_started_may_use_all_cores(threads: Threads) -> None:
    pinning = Pinning(1, CPUS)
    threads.work(a=1000, b=1000)
    pinning.update()
    threads.work(a=1000, b=1000, c=1)
    pinning.update()
    assert threads.of("c") == CPUS


def test_another_thread_takes_the_core_of_one_that_ended(threads: Threads) -> None:
    pinning = Pinning(1, CPUS)
    threads.work(a=1000, b=1000)
    pinning.update()
    del threads.used[ord("b")]
    threads.work(a=1000, c=1000)
    pinning.update()
    assert {threads.of("a"), threads.of("c")} == {(3,), (5,)}


@pytest.fixture
def team() -> Iterator[subprocess.Popen[str]]:
    """A program of whose threads two work."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", TEAM, "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_the_threads_of_a_real_program_are_pinned(team: subprocess.Popen[str]) -> None:
    os.sched_setaffinity(team.pid, range(os.cpu_count() or 1))  # this process may itself have one core of them
    cpus = sorted(os.sched_getaffinity(team.pid))[:2]
    pinning = Pinning(team.pid, cpus)
    pinning.update()  # what was used until now, by whichever thread
    deadline = time.monotonic() + 60
    pinned: list[set[int]] = []
    while {frozenset(cores) for cores in pinned} != {frozenset([cpu]) for cpu in cpus} and time.monotonic() < deadline:
        time.sleep(0.1)
        pinning.update()
        others = [int(task.name) for task in Path(f"/proc/{team.pid}/task").iterdir() if int(task.name) != team.pid]
        pinned = [os.sched_getaffinity(thread) for thread in others]
    assert sorted(pinned) == [{cpu} for cpu in cpus]


def test_a_program_that_has_ended_has_no_threads() -> None:
    Pinning(2**22 - 1, CPUS).update()
