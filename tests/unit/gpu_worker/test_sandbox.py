"""What a sandboxed program can and cannot do, in both kinds of sandbox."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_worker import confine
from gpu_worker import sandbox as sandboxes
from gpu_worker.sandbox import Child, Finished, Limits, Sandbox, python_folders, strongest
from gpu_worker.targets.base import Access, Program

KINDS = ["bwrap+seccomp", "landlock+seccomp"]


@pytest.fixture(params=KINDS)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    kind: str = request.param
    if kind.startswith("bwrap") and not strongest().startswith("bwrap"):
        pytest.skip("this machine has no user namespaces")
    if kind.startswith("landlock") and confine.landlock_abi() == 0:
        pytest.skip("this machine has no landlock")
    return Sandbox(kind)


def python(
    sandbox: Sandbox, code: str, limits: Limits | None = None, timeout: float = 30, **access: object
) -> Finished:
    allowed = Access(read_only=python_folders(), **access)  # type: ignore[arg-type]
    program = Program((sys.executable, "-I", "-S", "-u", "-c", code), allowed)
    return sandbox.run(program, limits or Limits(), timeout)


def test_the_environment_is_empty(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPILOT_SECRET", "x")
    done = python(sandbox, "import os; print(sorted(os.environ))", environment={"OMP_NUM_THREADS": "2"})
    assert "SECRET" not in done.stdout
    assert "OMP_NUM_THREADS" in done.stdout


@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/passwd')",
        "import os; os.listdir(os.path.expanduser('~root'))",
        "open('/usr/bin/planted', 'w')",
        "import socket; socket.create_connection(('127.0.0.1', 22), 1)",
        "import os; os.fork()",
        "import os; os.unshare(os.CLONE_NEWUSER) if hasattr(os, 'unshare') else open('/nonexistent')",
        "import ctypes; l = ctypes.CDLL(None, use_errno=True); assert l.ptrace(16, 1, 0, 0) == 0",
    ],
    ids=["system file", "home", "write to system", "network", "fork", "new namespace", "ptrace"],
)
def test_what_is_not_allowed_fails(sandbox: Sandbox, code: str) -> None:
    assert python(sandbox, code).code == 1


def test_only_its_own_folders_can_be_written(sandbox: Sandbox, tmp_path: Path) -> None:
    folder, other = tmp_path / "mine", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    done = python(sandbox, f"open({str(folder / 'a')!r}, 'w').write('x')", writable=(folder,))
    assert done.code == 0, done.stderr
    assert (folder / "a").read_text() == "x"
    assert python(sandbox, f"open({str(other / 'a')!r}, 'w')", writable=(folder,)).code == 1


def test_subprocesses_where_they_are_needed(sandbox: Sandbox) -> None:
    code = "import subprocess; print(subprocess.run(['/bin/echo', 'hello'], capture_output=True).stdout)"
    assert "hello" in python(sandbox, code, subprocesses=True).stdout
    assert python(sandbox, code).code == 1


def test_limits_hold(sandbox: Sandbox, tmp_path: Path) -> None:
    assert "MemoryError" in python(sandbox, "bytearray(2**30)", Limits(memory_bytes=2**28)).stderr
    done = python(sandbox, "while True: pass", Limits(cpu_seconds=1))
    assert done.code == -signal.SIGXCPU, "and not SIGKILL, which would be the machine's"
    code = f"open({str(tmp_path / 'big')!r}, 'wb').write(bytes(10**6))"
    assert python(sandbox, code, Limits(file_bytes=1000), writable=(tmp_path,)).code != 0


def test_a_program_keeps_to_its_processors(sandbox: Sandbox) -> None:
    last = max(os.sched_getaffinity(0))
    done = python(sandbox, "import os; print(os.sched_getaffinity(0))", Limits(cpus=(last,)))
    assert done.stdout == f"{{{last}}}\n"


def test_no_program_starts_before_its_limits_are_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bubblewrap runs already when they are set: it has to wait, and to start nothing where that fails."""
    if not strongest().startswith("bwrap"):
        pytest.skip("this machine has no user namespaces")

    def refused(*_: object) -> None:
        time.sleep(0.2)
        raise PermissionError

    program = Program(("/usr/bin/touch", f"{tmp_path}/started"), Access(writable=(tmp_path,)))
    assert Sandbox("bwrap+seccomp").run(program, Limits(), 30.0).code == 0
    (tmp_path / "started").unlink()
    monkeypatch.setattr(confine, "apply_limits", refused)
    with pytest.raises(PermissionError):
        Sandbox("bwrap+seccomp").run(program, Limits(), 30.0)
    time.sleep(0.2)
    assert not (tmp_path / "started").exists()


def test_a_program_starts_only_once_its_mounts_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What bubblewrap reads where its starter was killed before it had written."""
    if not strongest().startswith("bwrap"):
        pytest.skip("this machine has no user namespaces")
    monkeypatch.setattr(sandboxes, "_mounts", lambda _: [])
    done = Sandbox("bwrap+seccomp").run(Program(("/usr/bin/true",)), Limits(), 30.0)
    assert done.code == 1
    assert "execvp /usr/bin/true" in done.stderr


def test_a_program_that_does_not_end_is_killed(sandbox: Sandbox) -> None:
    done = python(sandbox, "import time; time.sleep(100)", timeout=0.5)
    assert done.timed_out
    assert done.code == -signal.SIGKILL


def test_signals_are_told_from_exit_codes(sandbox: Sandbox) -> None:
    assert python(sandbox, "import os; os.abort()").code == -signal.SIGABRT
    assert python(sandbox, "raise SystemExit(7)").code == 7


def test_a_frozen_program_stands_still(sandbox: Sandbox) -> None:
    program = Program((sys.executable, "-I", "-S", "-c", "while True: pass"), Access(read_only=python_folders()))
    child = sandbox.start(program, Limits())
    try:
        child.freeze()
        before = _ticks(child)
        time.sleep(0.2)
        assert _ticks(child) == before
        assert _state(child) in "Tt"
        child.thaw()
        assert _state(child) not in "Tt"
    finally:
        child.kill()
    assert not child.running()


def test_the_sandbox_dies_with_its_starter() -> None:
    """A worker that is killed leaves no orphan."""
    code = f"""
import sys
sys.path.insert(0, {str(Path.cwd())!r})
from gpu_worker.sandbox import Sandbox, Limits
from gpu_worker.targets.base import Program
child = Sandbox().start(Program(("sleep", "1234")), Limits())
print(child.program_pid(), flush=True)
import time; time.sleep(100)
"""
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    pid = int(worker.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()


def _stat(child: Child) -> list[str]:
    return Path(f"/proc/{child.program_pid()}/stat").read_text().rpartition(")")[2].split()


def _ticks(child: Child) -> int:
    time.sleep(0.05)  # a stop signal takes effect when the thread is next on its way to user space
    return int(_stat(child)[11])


def _state(child: Child) -> str:
    time.sleep(0.05)
    return _stat(child)[0]
