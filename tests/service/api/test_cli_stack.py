"""The command line and the embedded stack: up and down, and an evolution that needs nothing but a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cupilot.domain.webhooks import verify
from cupilot.embedded import stack as embedded
from cupilot.schemas import Report
from tests.service.operators import RELU
from tests.service.processes import wait_until
from tests.service.receiver import Receiver

pytestmark = pytest.mark.service


class Home:
    """A folder of a user who has no server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("CUPILOT_")}
        self.environment |= {"HOME": str(folder), "CUPILOT_DATA": str(self.data)}
        self.environment |= {"CUPILOT_WEBHOOK_NETWORKS": "127.0.0.0/8"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The command, running."""
        return subprocess.Popen(
            [sys.executable, "-m", "cupilot.cli", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        with self.start(*arguments) as process:
            out, err = process.communicate()
            return process.returncode, out, err


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    embedded.down(home.data)


def test_up_detached_is_found_without_an_address_delivers_webhooks_and_down_ends_it(
    home: Home, receiver: Receiver
) -> None:
    code, out, err = home.run("up", "--detach", "--target", "cpu", "--json")
    assert code == 0, err
    url = json.loads(out)["url"]
    code, out, _ = home.run("version", "--json")
    assert (code, json.loads(out)["url"]) == (0, url)
    code, out, err = home.run("up", "--detach", "--json")
    assert (code, json.loads(out)["url"]) == (0, url), err
    code, out, err = home.run("webhooks", "add", receiver.url, "--event", "job.*", "--json")
    assert code == 0, err
    secret = json.loads(out)["secret"]
    code, job, err = home.run("submit", "softmax", "--label", "kept=yes")
    assert code == 0, err
    wait_until(lambda: receiver.got, "the job's first event arrives")
    headers, body = receiver.got[0]
    verify(secret, headers, body)
    assert json.loads(body)["data"]["job"] == job.strip()
    assert home.run("cancel", "last")[0] == 0
    code, out, _ = home.run("down", "--json")
    assert (code, json.loads(out)["stopped"]) == (0, True)
    code, _, err = home.run("list")
    assert code == 3
    assert "cupilot up" in err
    assert embedded.running(home.data) is None

    home.run("up", "--detach", "--target", "cpu")
    code, out, _ = home.run("list", "--label", "kept=yes")
    assert code == 0
    assert job.strip() in out


def test_up_in_the_foreground_runs_until_it_is_interrupted(home: Home) -> None:
    with home.start("up", "--target", "cpu") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready at http://127.0.0.1:")
        assert home.run("problems")[0] == 0
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 0
    assert embedded.running(home.data) is None


@pytest.mark.timeout(900)
def test_evolve_needs_nothing_but_a_file_and_leaves_nothing_running(home: Home) -> None:
    (home.folder / "my_op.py").write_text(RELU)
    options = ["--target", "cpu", "--population", "2", "--generations", "1"]
    code, out, err = home.run("evolve", "my_op.py", *options, "--json")
    assert code == 0, err
    report = Report.model_validate_json(out)
    assert report.candidate.verdict is not None
    assert report.candidate.verdict.counts
    assert (home.folder / "cupilot-results" / str(report.job.id) / "kernel.cpp").exists()
    assert "stopping the embedded stack" in err
    assert embedded.running(home.data) is None


def test_an_interrupted_evolve_stops_the_stack_that_it_started(home: Home) -> None:
    (home.folder / "my_op.py").write_text(RELU)
    with home.start("evolve", "my_op.py", "--target", "cpu") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert "interrupted; the job is kept" in err
    assert "Traceback" not in err
    assert embedded.running(home.data) is None
