"""The whole stack: what survives, what is started again, what is left behind (nothing), and by whom."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from cupilot.client import ApiError, Client
from cupilot.domain.people import Scope
from cupilot.domain.problem import Target
from cupilot.embedded import doctor, lifecycle
from cupilot.embedded import stack as embedded
from cupilot.embedded.errors import AlreadyRunning, StartFailed
from cupilot.embedded.folder import Folder
from cupilot.embedded.report import Endpoint, PartState, Progress
from cupilot.schemas import JobRequest, ProblemInput
from cupilot.schemas.people import KeyRequest
from tests.living import runs, still_running
from tests.patience.judges import QUICK_STACK
from tests.service.operators import SHORT_JOBS

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]

WAIT_SECONDS = 120.0
SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.rand(64, 64)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "stack"
    yield folder
    embedded.down(folder)


SECRETS = {"CUPILOT_LLM_API_KEY": "a-model-key", "SOME_CLOUD_TOKEN": "a-token"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of one stack. Tests leave it whole; it need not run."""
    folder = tmp_path_factory.mktemp("shared") / "a folder with spaces"
    with pytest.MonkeyPatch.context() as environment:
        for name, value in (SECRETS | SHORT_JOBS | QUICK_STACK).items():
            environment.setenv(name, value)
        yield folder
        embedded.down(folder)


@pytest.fixture
def stack(shared: Path) -> Path:
    """The folder of a running stack."""
    _up(shared)
    return shared


def _up(data: Path) -> Endpoint:
    return embedded.up(data, foreground=False, target=Target.CPU, on_progress=_ignore)


def _ignore(progress: Progress) -> None:
    pass


def _eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _processes(data: Path) -> list[psutil.Process]:
    """The supervisor, its children and theirs."""
    supervisor = psutil.Process(embedded.status(data).supervisor)
    return [supervisor, *supervisor.children(recursive=True)]


def _alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    return [each for each in processes if runs(each)]


def _listening(process: psutil.Process) -> set[str]:
    try:
        connections = process.net_connections("tcp")
    except psutil.NoSuchProcess:  # a server's helper that has ended meanwhile
        return set()
    return {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}


def _children(data: Path, but: int | None) -> list[psutil.Process]:
    pid = embedded.supervisor_pid(Folder(data))
    return [child for child in psutil.Process(pid).children() if child.pid != but and runs(child)]


def _names(data: Path) -> dict[str, int | None]:
    return {part.name: part.pid for part in embedded.status(data).parts}


def _role_checks(data: Path) -> list[doctor.Check]:
    return [check for check in doctor.examine(data) if check.name.startswith("role ")]


def _address(data: Path) -> tuple[str, str]:
    endpoint = embedded.running(data)
    assert endpoint is not None
    return endpoint.url, endpoint.api_key


def _request() -> JobRequest:
    return JobRequest(problem=ProblemInput(source=SOURCE, name="relu"), target=Target.CPU)


def _assert_takes_jobs(endpoint: Endpoint) -> None:
    """Submit a job, and cancel it: its work would slow down the tests that follow."""
    with Client(endpoint.url, endpoint.api_key) as client:
        job = client.submit(_request())
        assert job.problem.name == "relu"
        client.cancel(job.id)


def test_nothing_is_lost_over_down_a_start_that_fails_and_up(stack: Path) -> None:
    """A part that cannot start is named with its last words, and nothing stays."""
    data, first = stack, _up(stack)
    with Client(first.url, first.api_key) as client:
        job = client.submit(_request())
    processes = _processes(data)
    assert embedded.down(data)
    assert _alive(processes) == []
    assert embedded.running(data) is None
    assert not embedded.down(data)

    version = data / "postgres/PG_VERSION"
    version.write_text("9\n")
    with pytest.raises(StartFailed, match="postgres did not start") as failure:
        _up(data)
    assert "incompatible" in (failure.value.hint or "")
    assert not embedded.status(data).running
    assert {part.pid for part in embedded.status(data).parts} == {None}
    version.write_text("18\n")

    second = _up(data)
    assert second == first
    with Client(second.url, second.api_key) as client:
        assert client.get(job.id).problem.name == "relu"
        client.cancel(job.id)


def test_a_running_stack_is_found_and_left_as_it_is(stack: Path) -> None:
    data, first = stack, embedded.running(stack)
    assert first is not None
    _eventually(lambda: all(part.state is PartState.READY for part in embedded.status(data).parts))
    parts = _names(data)
    assert list(parts) == ["postgres", "valkey", "chroma", "api", "scheduler", "agent", "gpu-cpu", "webhooks"]
    assert _up(data) == first
    assert _names(data) == parts
    status = embedded.status(data)
    assert (status.running, status.ready, status.url, status.target) == (True, True, first.url, "cpu")
    assert {part.state for part in status.parts} == {PartState.READY}
    for secret in ("api_key", "identity.json", "state.json"):
        assert stat.S_IMODE((data / secret).stat().st_mode) == 0o600
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    _eventually(lambda: {check.level for check in _role_checks(data)} == {doctor.Level.OK})  # each has been heard of
    roles = [check.found.split()[0] for check in _role_checks(data)]
    assert roles == ["api", "scheduler", "webhooks", "agent", "gpu-cpu"]
    assert {address for process in _processes(data) for address in _listening(process)} == {"127.0.0.1"}


def test_a_stack_of_another_release_is_not_taken_for_this_one(stack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _up(stack)
    monkeypatch.setattr(lifecycle, "__version__", "another")
    with pytest.raises(AlreadyRunning, match="this is release another") as refused:
        _up(stack)
    assert "cupilot down" in (refused.value.hint or "")


def test_a_killed_supervisor_leaves_no_orphan_and_the_next_one_starts(stack: Path) -> None:
    data, first = stack, _up(stack)
    with Client(first.url, first.api_key) as client:
        job = client.submit(_request())
    supervisor, *children = _processes(data)
    supervisor.kill()
    assert still_running([supervisor], WAIT_SECONDS) == []
    second = _up(data)
    assert second.api_key == first.api_key
    assert still_running(children, WAIT_SECONDS) == []
    assert _alive(children) == []
    with Client(second.url, second.api_key) as client:
        assert client.get(job.id).problem.name == "relu"
        client.cancel(job.id)


@pytest.mark.parametrize("name", ["postgres", "valkey", "chroma", "api", "scheduler", "agent", "gpu-cpu", "webhooks"])
def test_a_killed_part_is_started_again(stack: Path, name: str) -> None:
    data, endpoint = stack, embedded.running(stack)
    assert endpoint is not None
    _eventually(lambda: all(part.state is PartState.READY for part in embedded.status(data).parts))
    [restarts] = [part.restarts for part in embedded.status(data).parts if part.name == name]
    before = _names(data)
    os.kill(before[name] or 0, signal.SIGKILL)

    def is_back() -> bool:
        [part] = [part for part in embedded.status(data).parts if part.name == name]
        return part.restarts > restarts and part.state is PartState.READY

    _eventually(is_back)
    after = _names(data)
    assert after.pop(name) != before.pop(name)
    assert embedded.running(data) == endpoint
    _assert_takes_jobs(endpoint)


def test_supervision_outlives_a_folder_that_cannot_be_written(stack: Path) -> None:
    """A part that ends meanwhile is started again; the state file says so as soon as it can be written."""
    _eventually(lambda: all(part.state is PartState.READY for part in embedded.status(stack).parts))
    before, written = _names(stack), (stack / "state.json").read_text()
    (stack / "state.json").unlink()
    blocker = stack / f".state.json.{embedded.supervisor_pid(Folder(stack))}"
    blocker.mkdir()  # whoever is root writes everywhere else
    try:
        os.kill(before["scheduler"] or 0, signal.SIGKILL)
        _eventually(lambda: any("scheduler" in child.cmdline() for child in _children(stack, before["scheduler"])))
        assert not (stack / "state.json").exists()
        assert embedded.status(stack).running
        assert not embedded.status(stack).ready
        (stack / "state.json").write_text(written)  # as a full disk would leave it
        told = embedded.status(stack)
        assert not told.ready, "the old file says that it is"
        assert [part.name for part in told.parts if part.state is PartState.RESTARTING] == ["scheduler"]
    finally:
        blocker.rmdir()
    _eventually(lambda: embedded.status(stack).ready and _names(stack)["scheduler"] != before["scheduler"])


def test_a_stack_outlives_the_loss_of_its_files(stack: Path) -> None:
    """Those that it writes again while it runs; and all of them while it does not, Postgres' password among them."""
    files = [stack / name for name in ("state.json", "identity.json", "url")]
    before = [file.read_text() for file in files[1:]]
    for file in files:
        file.unlink()
    _eventually(lambda: all(file.exists() for file in files))
    assert [file.read_text() for file in files[1:]] == before
    with Client(*_address(stack)) as client:
        kept = client.submit(_request())
        client.cancel(kept.id)
    embedded.down(stack)
    files[0].write_text("{}")
    files[1].write_text('{"ports": {"postgr')
    endpoint = _up(stack)
    with Client(endpoint.url, endpoint.api_key) as client:
        assert client.get(kept.id).final
    _assert_takes_jobs(endpoint)


def test_a_part_that_is_gone_is_named_with_its_reason(stack: Path) -> None:
    """`state` is not ready meanwhile, `doctor` says why; and all is well again once the cause is mended."""
    _eventually(lambda: all(part.state is PartState.READY for part in embedded.status(stack).parts))
    pid, version = _names(stack)["postgres"], stack / "postgres/PG_VERSION"
    said = version.read_text()
    version.write_text("9\n")
    try:
        os.kill(pid or 0, signal.SIGKILL)

        def why() -> str:
            return next(part.note for part in embedded.status(stack).parts if part.name == "postgres")

        _eventually(lambda: "did not start" in why())
        assert not embedded.status(stack).ready
        assert "postgres" in next(check.found for check in doctor.examine(stack) if check.name == "stack")
    finally:
        version.write_text(said)
    _eventually(lambda: embedded.status(stack).ready)
    endpoint = embedded.running(stack)
    assert endpoint is not None
    _assert_takes_jobs(endpoint)


def test_a_key_that_was_revoked_or_lost_is_mended(stack: Path) -> None:
    first = _up(stack)
    with Client(first.url, first.api_key) as client:
        with pytest.raises(ApiError, match="last key"):
            client.revoke_key(first.api_key[:12])
        other = client.make_key(KeyRequest(name="another", scope=Scope.ADMIN)).secret
    with Client(first.url, other) as client:
        client.revoke_key(first.api_key[:12])
    embedded.down(stack)
    second = _up(stack)
    assert second.api_key == first.api_key
    _assert_takes_jobs(second)
    (stack / "api_key").unlink()
    _eventually((stack / "api_key").exists)
    third = _up(stack)
    assert third.api_key != first.api_key
    _assert_takes_jobs(third)


def test_a_stack_in_the_foreground_ends_with_sigterm_and_another_is_not_disturbed(data: Path, stack: Path) -> None:
    """With Ctrl-C it is the command line that is tested: ``tests/service/api/test_cli_stack.py``."""
    two = _up(stack)
    code = """
import sys
from pathlib import Path
from cupilot.embedded import stack as embedded
from cupilot.domain.problem import Target
say = lambda progress: print(progress.part, progress.state, flush=True)
embedded.up(Path(sys.argv[1]), foreground=True, target=Target.CPU, on_progress=say)
"""
    running = subprocess.Popen([sys.executable, "-c", code, str(data)], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    with running.stdout:
        for line in running.stdout:
            if line == "stack ready\n":
                break
        one = embedded.running(data)
        assert one is not None
        assert one.url != two.url
        with Client(one.url, one.api_key) as client:
            job = client.submit(_request())
            assert [listed.id for listed in client.list().items] == [job.id]
        with Client(two.url, two.api_key) as client:
            assert job.id not in {listed.id for listed in client.list().items}
        processes = _processes(data)
        running.terminate()
        said = running.stdout.read().splitlines()
    assert running.wait(WAIT_SECONDS) == 0
    assert _alive(processes[1:]) == []
    order = [line.split()[0] for line in said if line.endswith(" stopped")]
    assert {"api", "scheduler", "agent", "gpu-cpu"} <= set(order[:-3]), "webhooks, too, if it had been started"
    assert set(order[-3:-1]) == {"valkey", "chroma"}
    assert order[-1] == "postgres"
    assert embedded.running(stack) == two
    _eventually(lambda: {part.state for part in embedded.status(stack).parts} == {PartState.READY})


def test_a_lost_database_gets_the_same_key_again(stack: Path) -> None:
    data, first = stack, _up(stack)
    embedded.down(data)
    shutil.rmtree(data / "postgres")
    second = _up(data)
    assert second.api_key == first.api_key
    with Client(second.url, second.api_key) as client:
        assert client.list().items == []


def test_processes_see_only_the_secrets_they_need(stack: Path) -> None:
    _eventually(lambda: all(part.pid for part in embedded.status(stack).parts))
    seen = {part.name: psutil.Process(part.pid).environ() for part in embedded.status(stack).parts}
    assert {name for name, environment in seen.items() if "a-model-key" in environment.values()} == {"agent"}
    assert {name for name, environment in seen.items() if "a-token" in environment.values()} == {"agent"}
