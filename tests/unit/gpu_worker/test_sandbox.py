"""Rights and limits of a sandboxed program, in both kinds of sandbox."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from gpu_worker.sandbox import confine, family
from gpu_worker.sandbox.child import Child, Finished
from gpu_worker.sandbox.family import descendants
from gpu_worker.sandbox.files import python_folders
from gpu_worker.sandbox.limits import Limits
from gpu_worker.sandbox.sandbox import Sandbox, strongest
from gpu_worker.sandbox.watch import Excess
from gpu_worker.targets.base import Access, Program
from tests.sandboxes import KINDS, of_kind


@pytest.fixture(params=KINDS)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return of_kind(request.param)


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


FORKS = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        held = bytearray(200 * 2**20)
        time.sleep(20)
        os._exit(0)
time.sleep(20)
"""
THREADS = """
import threading, time
threading.stack_size(64 * 1024)
event = threading.Event()
for _ in range(500): threading.Thread(target=event.wait, daemon=True).start()
time.sleep(20)
"""


def test_the_memory_of_all_processes_together_is_limited(sandbox: Sandbox) -> None:
    done = python(sandbox, FORKS, Limits(memory_bytes=2**29), subprocesses=True)
    assert done.excess is Excess.MEMORY, done
    assert not done.timed_out
    done = python(sandbox, "bytearray(200 * 2**20)", Limits(memory_bytes=2**29), subprocesses=True)
    assert (done.code, done.excess) == (0, None)


MEMORY_FILES = """
import mmap, os, time
size = 100 * 2**20
if "{kind}" == "mapped":
    file = mmap.mmap(-1, size, mmap.MAP_SHARED)
    held = [file.write(bytes(size))]
else:
    for name in "abc"[:{count}]:
        file = os.memfd_create(name)
        held = [os.write(file, bytes(2**20)) for _ in range(size >> 20)]
time.sleep({seconds})
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root looks into what other users' processes have open")
def test_memory_files_of_programs_that_may_have_them_are_limited(sandbox: Sandbox) -> None:
    limits = Limits(total_bytes=250 * 2**20)
    code = MEMORY_FILES.format(kind="open", count=3, seconds=20)
    done = python(sandbox, code, limits, bounded_address_space=False)
    assert done.excess is Excess.MEMORY, done
    code = MEMORY_FILES.format(kind="mapped", count=0, seconds=1)
    done = python(sandbox, code, Limits(total_bytes=80 * 2**20), bounded_address_space=False)
    assert done.excess is Excess.MEMORY, done
    code = MEMORY_FILES.format(kind="open", count=1, seconds=0.5)
    assert python(sandbox, code, limits, bounded_address_space=False).excess is None


def test_threads_are_limited(sandbox: Sandbox) -> None:
    done = python(sandbox, THREADS, Limits(processes=100))
    assert done.excess is Excess.THREADS or "can't start new thread" in done.stderr, done
    assert not done.timed_out
    assert python(sandbox, "import threading; threading.Thread(target=print).start()", Limits(processes=100)).code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives programs users of their own")
@pytest.mark.parametrize("kind", ["bwrap+seccomp", "landlock+seccomp"])
def test_programs_of_root_run_under_users_of_their_own(kind: str) -> None:
    sandbox = of_kind(kind)
    program = Program(("/usr/bin/sleep", "60"))
    children = [sandbox.start(program, Limits()) for _ in range(2)]
    try:
        deadline = time.monotonic() + 10
        while (users := [_users(child) for child in children]) and any({0} & found for found in users):
            assert time.monotonic() < deadline, users
            time.sleep(0.01)
        assert all(len(found) == 1 for found in users), users
        assert users[0] != users[1]
    finally:
        for child in children:
            child.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to lose")
def test_programs_have_no_capabilities(sandbox: Sandbox) -> None:
    program = Program(("/usr/bin/grep", "^Cap", "/proc/self/status"))
    capabilities = [line.split() for line in sandbox.run(program, Limits(), 10).stdout.splitlines()]
    assert len(capabilities) == 5
    assert all(int(value, 16) == 0 for _, value in capabilities), capabilities


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_written_folder_is_the_worker_s_again(sandbox: Sandbox, tmp_path: Path) -> None:
    code = f"import os; os.umask(0o077); os.makedirs({str(tmp_path / 'a')!r}); open({str(tmp_path / 'a/b')!r}, 'w')"
    assert python(sandbox, code, writable=(tmp_path,)).code == 0
    assert {path.stat().st_uid for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")} == {0}
    code = f"open({str(tmp_path / 'a/b')!r})"
    assert python(sandbox, code, writable=(tmp_path,)).code == 0, "by another user's program"


OPENS = """
import os
for folder in ("/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs"):
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                os.open(os.path.join(path, name), os.O_WRONLY)
            except OSError:
                continue
            print(path, name)
os.open("/proc/self/comm", os.O_WRONLY)
"""


def test_cuda_programs_name_their_threads_and_change_no_settings() -> None:
    """libcuda does not start where it cannot write to /proc/self."""
    if not strongest().startswith("bwrap"):
        pytest.skip("this machine cannot make namespaces")
    access = Access(read_only=python_folders(), bounded_address_space=False)
    program = Program((sys.executable, "-I", "-S", "-c", OPENS), access)
    done = Sandbox("bwrap+seccomp").run(program, Limits(), 30.0)
    assert (done.code, done.stdout) == (0, ""), done


def test_memory_files_are_for_programs_that_ask(sandbox: Sandbox) -> None:
    code = "import os; os.memfd_create('x')"
    assert python(sandbox, code).code == 1
    assert python(sandbox, code, memory_files=True).code == 0


def test_locks_of_files_are_for_programs_that_ask(sandbox: Sandbox) -> None:
    code = "import fcntl, tempfile; fcntl.lockf(tempfile.TemporaryFile(), fcntl.LOCK_EX)"
    refused = python(sandbox, code)
    assert (refused.code, "No locks available" in refused.stderr) == (1, True), refused
    assert python(sandbox, code, file_locks=True).code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="an unprivileged worker needs no other user")
def test_root_does_not_work_without_a_sandbox_that_confines_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_worker.sandbox.sandbox._works", lambda _: False)
    monkeypatch.setattr("gpu_worker.sandbox.sandbox.separates_users", lambda _: False)
    strongest.cache_clear()
    try:
        with pytest.raises(OSError, match="as an unprivileged user"):
            strongest()
    finally:
        strongest.cache_clear()
    with pytest.raises(OSError, match="another user id"):
        Sandbox("landlock+seccomp", own_user=False).start(Program(("/usr/bin/true",)), Limits())


def _users(child: Child) -> set[int]:
    """Of the program, as the system sees it: real, effective, saved and of its files."""
    lines = Path(f"/proc/{child.program_pid()}/status").read_text().splitlines()
    return {int(user) for line in lines if line.startswith("Uid:") for user in line.split()[1:]}


def test_a_program_keeps_to_its_processors(sandbox: Sandbox) -> None:
    last = max(os.sched_getaffinity(0))
    done = python(sandbox, "import os; print(os.sched_getaffinity(0))", Limits(cpus=(last,)))
    assert done.stdout == f"{{{last}}}\n"


def test_a_program_chooses_no_other_processors_than_its_own(sandbox: Sandbox) -> None:
    code = "import os; os.sched_setaffinity(0, {0})"
    assert "PermissionError" in python(sandbox, code, Limits(cpus=(0,))).stderr
    assert python(sandbox, code).code == 0


BY_DESCRIPTOR = """
import fcntl, socket
ours, theirs = socket.socketpair()
fcntl.fcntl(ours, 10, {signal}); fcntl.fcntl(ours, fcntl.F_SETOWN, os.getpid())
fcntl.fcntl(ours, fcntl.F_SETFL, fcntl.fcntl(ours, fcntl.F_GETFL) | 0x2000)
"""
BY_TIMER = """
import ctypes
event, timer = (ctypes.c_int * 16)(0, 0, {signal}, 0), ctypes.c_void_p()
assert ctypes.CDLL(None).timer_create(1, event, ctypes.byref(timer)) == 0
assert ctypes.CDLL(None).timer_settime(timer, 0, (ctypes.c_long * 4)(0, 1000000, 0, 1000000), None) == 0
"""
BY_CHILD = """
import ctypes
child = ctypes.CDLL(None).syscall(56, {signal}, 0, 0, 0, 0)
if child == 0: os._exit(0)
assert child > 0
import time; time.sleep(1)
"""
ENDINGS = {
    "kill": "os.kill(os.getpid(), signal.SIGKILL)",
    "thread": "signal.pthread_kill(threading.get_ident(), signal.SIGKILL)",
    "exit code": "os._exit(137)",
    "unknown signal": "os._exit(250)",
    "descriptor": BY_DESCRIPTOR.format(signal=9) + "theirs.send(b'x'); signal.pause()",
    "timer": BY_TIMER.format(signal=9) + "signal.pause()",
    "processor time": "import resource; resource.setrlimit(0, (1, 1))\nwhile True: pass",
}


@pytest.mark.parametrize("name", ENDINGS)
def test_an_accountable_program_cannot_end_as_if_it_had_been_killed(sandbox: Sandbox, name: str) -> None:
    done = python(sandbox, f"import os, signal, threading; {ENDINGS[name]}", accountable=True)
    assert done.code in (1, -signal.SIGSYS), done
    assert python(sandbox, "import os; os._exit(3)", accountable=True).code == 3


def test_an_accountable_program_is_not_killed_by_its_children(sandbox: Sandbox) -> None:
    """The signal of a child's end is the parent's choice."""
    code = f"import os, signal; {BY_CHILD.format(signal=9)}"
    assert python(sandbox, code, subprocesses=True).code == -signal.SIGKILL
    assert python(sandbox, code, subprocesses=True, accountable=True).code == 1
    assert python(sandbox, code.replace("9", "17"), subprocesses=True, accountable=True).code == 0


WAKERS = {
    "descriptor": BY_DESCRIPTOR.format(signal=18) + "os.set_blocking(theirs.fileno(), False); theirs.send(b'x')",
    "timer": BY_TIMER.format(signal=18),
    "thread": "signal.pthread_kill(threading.get_ident(), signal.SIGCONT)",
    "itself": "os.kill(os.getpid(), signal.SIGCONT)",
}


@pytest.mark.parametrize("name", WAKERS)
def test_an_accountable_program_sends_itself_nothing_that_would_wake_it(sandbox: Sandbox, name: str) -> None:
    code = f"import os, signal, threading; {WAKERS[name]}"
    assert python(sandbox, code).code == (name == "descriptor")  # which no sandboxed program may have signals from
    done = python(sandbox, code, accountable=True)
    assert done.code == 1, done
    assert "PermissionError" in done.stderr or "AssertionError" in done.stderr, done


def test_shared_memory_is_not_made_a_hole(sandbox: Sandbox) -> None:
    """Its zeros would be written by whoever reads it next."""
    code = "import mmap; shared = mmap.mmap(-1, 8192); shared.madvise({advice}, 0, 8192)"
    assert python(sandbox, code.format(advice="mmap.MADV_DONTNEED"), memory_files=True).code == 0
    assert "PermissionError" in python(sandbox, code.format(advice="mmap.MADV_REMOVE"), memory_files=True).stderr


def test_what_a_program_works_while_it_is_stopped_is_known(sandbox: Sandbox) -> None:
    """A signal of any origin continues it."""
    code = "import threading; threading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()\nwhile True: pass"
    child = sandbox.start(
        Program((sys.executable, "-I", "-S", "-c", code), Access(read_only=python_folders())), Limits()
    )
    try:
        _wait_for_threads(child, 2)
        child.freeze()
        time.sleep(0.1)
        child.thaw()
        assert child.awake_seconds() == 0
        child.freeze()
        os.kill(child.program_pid(), signal.SIGCONT)
        time.sleep(0.3)
        child.thaw()
        assert child.awake_seconds() > 0.01
    finally:
        child.kill()


def test_a_thread_whose_time_runs_on_for_a_moment_is_stopped_late_and_not_awake(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is seen where a hypervisor takes a processor away from a thread that is about to stand still."""
    readings = iter([0.001, 0.002, 0.003, 0.003, 0.003])
    monkeypatch.setattr(family, "_processor_seconds", lambda pids: dict.fromkeys(pids, next(readings)))
    child = sandbox.start(
        Program((sys.executable, "-I", "-S", "-c", "while True: pass"), Access(read_only=python_folders())), Limits()
    )
    try:
        _wait_for_threads(child, 1)
        sent = time.perf_counter()
        assert child.freeze() - sent > 2 * family._LOOK_SECONDS
        child.thaw()
        assert child.awake_seconds() == 0
        assert next(readings, None) is None
    finally:
        child.kill()


def _wait_for_threads(child: Child, count: int) -> None:
    deadline = time.monotonic() + 20.0
    while len(list(Path(f"/proc/{child.program_pid()}/task").iterdir())) < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("name", sorted(ENDINGS.keys() - {"descriptor"}))
def test_whatever_code_a_program_ends_with_is_told(sandbox: Sandbox, name: str) -> None:
    done = python(sandbox, f"import os, signal, threading; {ENDINGS[name]}")
    assert done.code in (-signal.SIGKILL, 137, 250), done


LEAVES = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {deed}
        os.close(1), os.close(2)
        time.sleep(47.11)
    os._exit(0)
time.sleep({seconds})
"""


def test_processes_that_leave_their_group_end_with_the_program(sandbox: Sandbox) -> None:
    assert python(sandbox, LEAVES.format(deed="", seconds=0.2), subprocesses=True).code == 0
    deadline = time.monotonic() + 5
    while _running("47.11") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _running("47.11")


@pytest.mark.slow
def test_the_memory_of_processes_that_leave_their_group_counts(sandbox: Sandbox) -> None:
    deed = "held = bytearray(400 * 2**20)"
    done = python(sandbox, LEAVES.format(deed=deed, seconds=10), Limits(memory_bytes=2**28), subprocesses=True)
    assert done.excess is Excess.MEMORY or "MemoryError" in done.stderr, done


def _running(text: str) -> list[str]:
    """Command lines with this text, of Python."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
            if entry.name.isdecimal() and text in line and "pytest" not in line:
                found.append(line)
    return found


def test_no_socket_of_the_machine_is_reached(sandbox: Sandbox) -> None:
    folder = Path(tempfile.mkdtemp(prefix="cupilot-test-"))
    folder.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        server.listen()
        code = f"import socket; socket.socket(socket.AF_UNIX).connect({str(folder / 'socket')!r})"
        assert python(sandbox, code).code == 1
    shutil.rmtree(folder)


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
    """Bubblewrap reads nothing where its starter was killed before it had written."""
    if not strongest().startswith("bwrap"):
        pytest.skip("this machine has no user namespaces")
    monkeypatch.setattr("gpu_worker.sandbox.bubblewrap._mounts", lambda _: [])
    done = Sandbox("bwrap+seccomp").run(Program(("/usr/bin/true",)), Limits(), 30.0)
    assert done.code == 1
    assert "execvp" in done.stderr


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
from gpu_worker.sandbox.limits import Limits
from gpu_worker.sandbox.sandbox import Sandbox
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


@pytest.mark.slow
def test_a_sandbox_that_is_killed_as_it_starts_leaves_nothing(sandbox: Sandbox) -> None:
    """Bubblewrap starts the name space's init, which waits for its word, and then asks to die with it."""
    for round_number in range(30):
        child = sandbox.start(Program(("/usr/bin/sleep", f"47.{12 + round_number}")), Limits())
        leader = child._process.pid
        deadline = time.monotonic() + 0.1
        while not descendants(leader) and time.monotonic() < deadline:
            pass
        time.sleep(round_number * 1e-4)
        os.kill(leader, signal.SIGKILL)
        assert child.wait(10.0).code == -signal.SIGKILL
        deadline = time.monotonic() + 5
        while _running(f"47.{12 + round_number}") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert _running(f"47.{12 + round_number}") == []


def _stat(child: Child) -> list[str]:
    return Path(f"/proc/{child.program_pid()}/stat").read_text().rpartition(")")[2].split()


def _ticks(child: Child) -> int:
    time.sleep(0.05)  # a stop signal takes effect when the thread is next on its way to user space
    return int(_stat(child)[11])


def _state(child: Child) -> str:
    time.sleep(0.05)
    return _stat(child)[0]
