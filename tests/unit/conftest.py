"""For all unit tests: no property fails because the machine is busy, and no kernel of the playbook is built twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def builds(request: pytest.FixtureRequest) -> Path:
    """Folder of built cpu kernels, by content; it outlives the run."""
    assert request.config.cache is not None
    return Path(request.config.cache.mkdir("gpu_worker")) / "builds"
