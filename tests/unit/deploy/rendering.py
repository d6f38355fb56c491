"""Objects of the Helm chart as `make test` and `make check-deploy` render them, where Helm's library can be had."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "build/helm"


def _read() -> dict[str, list[dict[str, Any]]]:
    """Objects by set of values; none where the chart was not rendered, or has changed since."""
    stamp = FOLDER / "DIGEST"
    digest = runpy.run_path(str(ROOT / "deploy/helm/digest.py"))["digest"]()
    if not stamp.exists() or stamp.read_text().strip() != digest:
        return {}
    return {path.stem: list(yaml.safe_load_all(path.read_text())) for path in sorted(FOLDER.glob("*.yaml"))}


RENDERED = _read()


def rendered(name: str) -> list[dict[str, Any]]:
    """Return the objects of one set of values; skip the test where they were not rendered."""
    if not RENDERED:
        pytest.skip("the chart is not rendered: sh deploy/helm/render.sh")
    return RENDERED[name]


def of_kind(name: str, kind: str) -> dict[str, dict[str, Any]]:
    """Return the objects of one kind by their names."""
    return {found["metadata"]["name"]: found for found in rendered(name) if found["kind"] == kind}
