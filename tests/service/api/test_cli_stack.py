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
from typer.testing import CliRunner

from cupilot.cli.app import app
from cupilot.domain.webhooks import verify
from cupilot.embedded import stack as embedded
from cupilot.schemas import Report
from tests.patience.judges import QUICK_STACK
from tests.service.operators import RELU, SHORT_JOBS
from tests.service.processes import wait_until
from tests.service.receiver import Receiver

pytestmark = pytest.mark.service


class Home:
    """A folder of a user who has no server."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder = folder
        self.data = data
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("CUPILOT_")}
        self.environment |= {"HOME": str(folder), "CUPILOT_DATA": str(self.data)}
        self.environment |= {"CUPILOT_WEBHOOK_NETWORKS": "127.0.0.0/8", **SHORT_JOBS, **QUICK_STACK}

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
        """Run the command as a process; exit code, standard output, standard error."""
        with self.start(*arguments) as process:
            out, err = process.communicate()
            return process.returncode, out, err

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Run the command in this process; exit code, standard output, standard error."""
        done = CliRunner().invoke(app, list(arguments), env=self.environment)
        return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for one stack after the other, so that its database is made once."""
    return tmp_path_factory.mktemp("stack") / "data"


@pytest.fixture
def home(tmp_path: Path, data: Path, alone: None) -> Iterator[Home]:  # noqa: ARG001 - an empty folder and home
    home = Home(tmp_path, data)
    yield home
    embedded.down(home.data)


def test_up_detached_is_found_without_an_address_delivers_webhooks_and_down_ends_it(
    home: Home, receiver: Receiver
) -> None:
    """After it the stack runs in the foreground, until it is interrupted."""
    code, out, err = home.run("up", "--detach", "--target", "cpu", "--json")
    assert code == 0, err
    url = json.loads(out)["url"]
    code, out, _ = home("version", "--json")
    assert (code, json.loads(out)["url"]) == (0, url)
    code, out, err = home("up", "--detach", "--json")
    assert (code, json.loads(out)["url"]) == (0, url), err
    code, out, err = home("webhooks", "add", receiver.url, "--event", "job.*", "--json")
    assert code == 0, err
    secret = json.loads(out)["secret"]
    code, job, err = home("submit", "softmax", "--label", "kept=yes")
    assert code == 0, err
    wait_until(lambda: receiver.got, "the job's first event arrives")
    headers, body = receiver.got[0]
    verify(secret, headers, body)
    assert json.loads(body)["data"]["job"] == job.strip()
    assert home("cancel", "last")[0] == 0
    code, out, _ = home.run("down", "--json")
    assert (code, json.loads(out)["stopped"]) == (0, True)
    code, _, err = home("list")
    assert code == 3
    assert "cupilot up" in err
    assert embedded.running(home.data) is None

    with home.start("up", "--target", "cpu") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready at http://127.0.0.1:")
        assert home("problems")[0] == 0
        code, out, _ = home("list", "--label", "kept=yes")
        assert code == 0
        assert job.strip() in out
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 0
    assert embedded.running(home.data) is None


@pytest.mark.timeout(900)
def test_evolve_needs_nothing_but_a_file_and_leaves_nothing_running(home: Home) -> None:
    (home.folder / "my_op.py").write_text(RELU)
    options = ["--target", "cpu", "--population", "2", "--generations", "1", "--attribute", "0"]
    code, out, err = home.run("evolve", "my_op.py", *options, "--json")
    assert code == 0, err
    report = Report.model_validate_json(out)
    assert report.candidate.verdict is not None
    assert report.candidate.verdict.counts
    assert "not compared with torch.compile" in report.headline, "CUPILOT_COMPILE_BASELINE is false here"
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
