"""Packages that are not pinned, harmful or of an unknown licence are seen without a network."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "deploy/dependencies.py"


@pytest.fixture(scope="module")
def dependencies() -> Any:
    spec = importlib.util.spec_from_file_location("dependencies", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(name: str, version: str, **fields: str) -> SimpleNamespace:
    metadata = Message()
    for key, value in fields.items():
        metadata[key.replace("_", "-")] = value
    return SimpleNamespace(name=name, version=version, metadata=metadata)


def test_what_is_installed_here_is_as_it_should_be(tmp_path: Path) -> None:
    bill = tmp_path / "build/sbom.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--sbom", str(bill)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(bill.read_text())
    names = {one["name"] for one in found["components"]}
    assert {"torch", "fastapi", "celery", "litellm", "pytest"} <= names
    assert all(one["licenses"][0]["license"]["name"] and one["purl"].startswith("pkg:pypi/")
               for one in found["components"] if one["name"] != "cupilot")  # fmt: skip


@pytest.mark.parametrize(
    ("pins", "found", "sentence"),
    [
        ({}, package("new", "1", License="MIT"), "new 1 is needed and not pinned"),
        ({"new": "2"}, package("new", "1", License="MIT"), "new 1 is installed, and 2 is pinned"),
        ({"new": "1"}, package("new", "1"), "new 1 names no licence"),
        ({"new": "1"}, package("new", "1", License="Commercial"), "nobody has allowed: Commercial"),
        ({"new": "1"}, package("new", "1", License_Expression="AGPL-3.0-only"), "nobody has allowed: AGPL-3.0-only"),
        ({"new": "1"}, package("new", "1", License_Expression="MIT AND GPL-3.0-only"), "nobody has allowed: MIT AND"),
        ({"litellm": "1.82.8"}, package("litellm", "1.82.8", License="MIT"), "steals credentials"),
    ],
)
def test_what_is_wrong_is_told(dependencies: Any, pins: dict[str, str], found: Any, sentence: str) -> None:
    told = list(dependencies.complaints(pins, {found.name: found}))
    assert len(told) == 1
    assert sentence in told[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"License_Expression": "Apache-2.0 AND MIT"},
        {"Classifier": "License :: OSI Approved :: GNU Library or Lesser General Public License (LGPL)"},
        {"Classifier": "License :: OSI Approved :: BSD License"},
        {"License": "NVIDIA Proprietary Software"},
    ],
)
def test_a_build_of_the_pinned_version_with_an_allowed_licence_is_fine(
    dependencies: Any, fields: dict[str, str]
) -> None:
    found = {"torch": package("torch", "2.9.1+cu130", **fields)}
    assert list(dependencies.complaints({"torch": "2.9.1"}, found)) == []


@pytest.mark.parametrize(
    "line", ["torch>=2", "torch", "torch==2.*", "torch==1\nTorch==2", "torch @ https://example.org"]
)
def test_what_is_no_exact_pin_is_refused(dependencies: Any, line: str) -> None:
    with pytest.raises(ValueError, match="no exact pin"):
        dependencies.read_pins(line)


def test_names_and_comments_are_read_as_installers_read_them(dependencies: Any) -> None:
    assert dependencies.read_pins("# why\nPy_YAML==6.0.3  # note\n\n") == {"py-yaml": "6.0.3"}
