"""Exports on disk, as a user would have them."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cupilot.exports import ExportFormat, Winner, files


def write(winner: Winner, form: ExportFormat, folder: Path) -> Path:
    """Write an export's files; the folder."""
    for path, text in files(winner, form).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode())
    return folder


@contextmanager
def imported(folder: Path, name: str) -> Iterator[ModuleType]:
    """A module of the folder, forgotten again afterwards."""
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        for known in [module for module in sys.modules if module.partition(".")[0] == name]:
            del sys.modules[known]


def run(folder: Path, *command: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """A program in the folder, which is not to find this repository."""
    settings = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment = {**os.environ, **settings}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout,
        check=False,
    )  # fmt: skip


def launches_of(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tensors of each launch from now on."""
    made: list[int] = []
    original = type(package.launcher).__call__

    def counted(self: Any, given: Any) -> Any:
        made.append(len(given))
        return original(self, given)

    monkeypatch.setattr(type(package.launcher), "__call__", counted)
    return made
