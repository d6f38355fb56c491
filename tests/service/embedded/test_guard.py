"""The guard: nothing of a killed supervisor's groups stays, whatever it ignores."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
import pytest

from cupilot.embedded.guard import Guard
from tests.living import still_running

pytestmark = pytest.mark.service

STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(600)
"""


def _stubborn() -> tuple[subprocess.Popen[str], psutil.Process]:
    """A process and its child, in a group of their own, that ignore being asked to stop."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    with process.stdout:
        return process, psutil.Process(int(process.stdout.readline()))


def test_groups_are_killed_when_the_supervisor_is_gone() -> None:
    guarded, guarded_child = _stubborn()
    let_go, let_go_child = _stubborn()
    guard = Guard()
    guard.add(guarded.pid)
    guard.add(let_go.pid)
    guard.remove(let_go.pid)
    guard.close()
    assert guarded.wait(30) == -signal.SIGKILL
    assert still_running([guarded_child]) == []
    assert let_go.poll() is None
    assert let_go_child.is_running()
    let_go_child.kill()
    let_go.kill()
    let_go.wait()


def test_a_killed_guard_is_replaced_by_one_that_knows_all_groups() -> None:
    process, child = _stubborn()
    guard = Guard()
    guard.add(process.pid)
    guard._process.kill()
    guard._process.wait()
    guard.keep()
    guard.close()
    assert process.wait(30) == -signal.SIGKILL
    assert still_running([child]) == []
