"""Operators' commands say in a sentence that the database is away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
AWAY = "postgresql://cupilot:hunter2hunter2@127.0.0.1:1/cupilot"


@pytest.mark.parametrize(
    "command",
    [["migrations"], ["cupilot.storage.keys", "bootstrap", "ann"], ["workers", "drains"]],
    ids=lambda command: command[0],
)
def test_a_database_that_is_away_is_said_in_a_sentence(command: list[str]) -> None:
    environment = {"CUPILOT_DATABASE_URL": AWAY, "PATH": "/usr/bin"}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "the database does not answer" in done.stderr
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stderr
