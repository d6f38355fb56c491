"""The live view: on a pseudo terminal, in a pipe, through a server's restart."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cupilot.cli import top
from cupilot.cli.app import app
from cupilot.schemas import ClusterView, JobSummary
from tests.unit.cli.test_commands import JOB
from tests.unit.client.scripted import Answer, Script, serve

pytestmark = pytest.mark.usefixtures("alone")

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CARD = {
    "target": "cuda", "uid": "GPU-1", "name": "NVIDIA H200", "arch": "sm_90", "units": 132, "memory_bytes": 1,
    "cache_bytes": 1,
}  # fmt: skip
WORKER = {
    "name": "gpu-1@box", "kind": "gpu", "alive": True, "healthy": True, "queues": ["gpu.sm_90"], "slots": 1, "busy": 1,
    "device": CARD, "version": "1", "started_at": NOW.isoformat(), "heartbeat_at": NOW.isoformat(),
}  # fmt: skip
CLUSTER: dict[str, Any] = {
    "scheduler_alive": True, "workers": [WORKER], "targets": ["cuda"],
    "queues": [{"name": "gpu.sm_90", "queued": 7, "running": 1}],
}  # fmt: skip
SUMMARY: dict[str, Any] = {
    "id": JOB, "state": "evolving", "final": False, "target": "cuda", "agents": "playbook", "priority": "normal",
    "problem": {"id": JOB, "name": "soft\u001b[2Jmax", "policy": "fp32", "hash": "h"}, "labels": {}, "generation": 1,
    "generations": 4, "candidates": 9, "best_verdict": "audited", "best_speedup": 1.84, "cost_usd": 0,
    "created_at": NOW.isoformat(),
}  # fmt: skip
BUSY = Answer(503, b'{"error": {"code": "unavailable", "message": "restarting", "request_id": "r"}}')


def _answers() -> list[Answer]:
    return [Answer(body=json.dumps(CLUSTER).encode()), Answer(body=json.dumps({"items": [SUMMARY]}).encode())]


def _picture(jobs: int = 1, workers: int = 1) -> top.Snapshot:
    cluster = ClusterView.model_validate({**CLUSTER, "workers": [WORKER] * workers})
    return top.Snapshot(NOW, cluster, [JobSummary.model_validate(SUMMARY)] * jobs)


def _drawn(width: int, height: int, **more: Any) -> list[str]:
    console = Console(width=width, height=height, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    with console.capture() as caught:
        console.print(top.screen(_picture(**more), None, height))
    console.file.close()
    return caught.get().splitlines()


def test_once_is_one_picture_as_text_and_as_json() -> None:
    with serve(*_answers()) as script:
        shown = CliRunner().invoke(app, ["top", "--once", "--server", script.url])
    assert shown.exit_code == 0, shown.output
    for part in ("scheduler up", "1/1 devices busy", "gpu.sm_90", "NVIDIA H200", "softmax"[:4], "1.84x audited", "2/4"):
        assert part in shown.stdout
    assert "\x1b" not in shown.stdout
    with serve(*_answers()) as script:
        found = CliRunner().invoke(app, ["top", "--once", "--json", "--server", script.url])
    data = json.loads(found.stdout)
    assert data["cluster"]["queues"][0]["queued"] == 7
    assert data["jobs"][0]["id"] == JOB


def test_once_without_a_server_is_exit_code_3() -> None:
    assert CliRunner().invoke(app, ["top", "--once", "--server", "http://127.0.0.1:1"]).exit_code == 3


@pytest.mark.parametrize(("width", "height"), [(40, 10), (80, 24), (200, 50)])
def test_it_fits_every_size_of_terminal(width: int, height: int) -> None:
    for lines in (_drawn(width, height), _drawn(width, height, jobs=300, workers=90)):
        assert len(lines) <= height
        assert all(len(line) <= width for line in lines)
    assert any("more" in line for line in _drawn(width, height, jobs=300, workers=90))


def test_it_survives_a_restart_and_quits_on_q() -> None:
    with serve(*_answers(), BUSY, Answer(drop=True), *_answers() * 500) as script:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        command = [sys.executable, "-m", "cupilot.cli", "top", "--interval", "0.2", "--server", script.url]
        process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm"}
        )
        os.close(slave)
        seen = _until(master, script, 7)
        os.write(master, b"q")
        _drain(master, process)
        assert process.wait(timeout=60) == 0
        os.close(master)
    assert "1.84x" in seen
    assert "no answer since" in seen


def _until(master: int, script: Script, asked: int) -> str:
    """Return what the terminal shows until the server was asked so often and the jobs were seen."""
    seen = b""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (len(script.asked) >= asked and b"no answer since" in seen):
        ready, _, _ = select.select([master], [], [], 0.2)
        if ready:
            seen += os.read(master, 65536)
    return seen.decode(errors="replace")


def _drain(master: int, process: subprocess.Popen[bytes]) -> None:
    """Read on, so that the last redraw does not block on a full terminal."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        ready, _, _ = select.select([master], [], [], 0.1)
        if ready:
            try:
                os.read(master, 65536)
            except OSError:
                return
