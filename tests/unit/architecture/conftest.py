"""The parsed source tree, once a session."""

from __future__ import annotations

import pytest

from tests.unit.architecture import source_tree


@pytest.fixture(scope="session", name="modules")
def _modules() -> list[source_tree.Module]:
    return source_tree.modules()
