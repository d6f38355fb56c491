"""The steps that a worker's child processes have in hand, by Celery's own book of its requests."""

from __future__ import annotations

import subprocess
import sys
import uuid
from types import SimpleNamespace

import pytest
from celery.worker import state

from workers.app import BUNDLE_TASK, STEP_TASK
from workers.tasks import steps_at_work

FIRST, SECOND, THIRD = (uuid.uuid4() for _ in range(3))


def test_a_child_that_was_killed_has_nothing_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    living = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        requests = [
            SimpleNamespace(name=STEP_TASK, args=[str(FIRST), 1], worker_pid=killed.pid),
            SimpleNamespace(name=BUNDLE_TASK, args=[{str(SECOND): 1}], worker_pid=living.pid),
            SimpleNamespace(name=STEP_TASK, args=[str(THIRD), 1], worker_pid=None),
        ]
        monkeypatch.setattr(state, "active_requests", requests)
        assert steps_at_work() == {FIRST, SECOND, THIRD}
        killed.kill()
        subprocess.run(["sleep", "0.2"], check=True)  # not reaped yet
        assert steps_at_work() == {SECOND, THIRD}
        killed.wait()
        assert steps_at_work() == {SECOND, THIRD}
    finally:
        for child in (killed, living):
            child.kill()
            child.wait()
            assert child.stdin is not None
            child.stdin.close()
