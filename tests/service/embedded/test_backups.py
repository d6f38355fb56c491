"""Backup and restore of a stack that does not run: nothing cuts them off."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from cupilot.embedded import backups, doctor
from cupilot.embedded import stack as embedded
from cupilot.embedded.errors import AlreadyRunning
from cupilot.embedded.servers import start_postgres

pytestmark = pytest.mark.service

SLOW = """
import sys
from pathlib import Path
from cupilot.embedded import backups

def work(*_):
    print("at work", flush=True)
    sys.stdin.read()
    return "0"

backups._run = work
getattr(backups, sys.argv[1])(*map(Path, sys.argv[2:]))
"""


@pytest.mark.parametrize("purpose", ["backup", "restore"])
def test_a_command_that_holds_the_folder_is_named_and_left_alone(tmp_path: Path, purpose: str) -> None:
    data, dump = tmp_path / "data", tmp_path / "a.dump"
    start_postgres(data).stop()
    if purpose == "restore":
        dump.touch()
    argv = [sys.executable, "-c", SLOW, purpose, str(data), str(dump)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "at work\n"
        with pytest.raises(AlreadyRunning, match=f"a {purpose} runs in this folder") as refusal:
            embedded.down(data)
        assert f"process {command.pid}" in (refusal.value.hint or "")
        before = time.monotonic()
        with pytest.raises(AlreadyRunning, match=f"a {purpose} runs"):
            embedded.up(data, foreground=True, on_progress=lambda _: None)
        assert time.monotonic() - before < 10
        with pytest.raises(AlreadyRunning, match=f"a {purpose} runs"):
            backups.backup(data, tmp_path / "another.dump")
        assert not embedded.status(data).running
        assert "not running" in next(check.found for check in doctor.examine(data) if check.name == "stack")
        command.communicate()
    assert command.returncode == 0
    assert not embedded.down(data)
