"""The probe tells progress from mere life."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from cupilot.health import Pulse, check


def test_a_loop_that_comes_round_is_healthy_and_one_that_does_not_is_not(tmp_path: Path) -> None:
    path = tmp_path / "health"
    assert not check(str(path), 60)[0]
    Pulse(str(path), "scheduler").beat()
    assert check(str(path), 60) == (True, check(str(path), 60)[1])
    assert "scheduler" in check(str(path), 60)[1]
    stale = {"role": "scheduler", "pid": 1, "monotonic": time.monotonic() - 61}
    path.write_text(json.dumps(stale))
    assert not check(str(path), 60)[0]


def test_a_file_of_an_earlier_boot_or_of_nonsense_is_no_sign_of_life(tmp_path: Path) -> None:
    path = tmp_path / "health"
    for text in ('{"role": "gpu", "pid": 1, "monotonic": 1e12}', "{}", "[]", "\0", ""):
        path.write_text(text)
        assert not check(str(path), 60)[0]
    assert not check(None, 60)[0]


def test_without_a_path_nothing_is_written_and_a_folder_that_is_gone_ends_nobody(tmp_path: Path) -> None:
    Pulse(None, "agent").beat()
    Pulse(str(tmp_path / "gone" / "health"), "agent").beat()
    assert not list(tmp_path.iterdir())


def test_the_command_says_it_by_its_exit_status(tmp_path: Path) -> None:
    path = tmp_path / "health"
    environment = os.environ | {"CUPILOT_HEALTH_FILE": str(path)}
    command = [sys.executable, "-m", "workers", "health"]
    assert subprocess.run(command, env=environment, check=False, capture_output=True).returncode == 1
    Pulse(str(path), "gpu").beat()
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[0]) == (0, "gpu")
