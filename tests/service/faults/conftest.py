"""One stack a module: short leases, few attempts' patience, so that recovery takes seconds rather than minutes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.faults.stack import Stack, adopt_orphans

QUICK = {
    "CUPILOT_LEASE_SECONDS": "6",
    "CUPILOT_HEARTBEAT_SECONDS": "1",
    "CUPILOT_REDISPATCH_SECONDS": "4",
    "CUPILOT_STEP_ATTEMPTS": "12",
}


@pytest.fixture(scope="module")
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The stack under test, with the settings that its module adds in ``SETTINGS``."""
    adopt_orphans()
    data: Path = tmp_path_factory.mktemp("stack")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in (QUICK | getattr(request.module, "SETTINGS", {})).items():
            environment.setenv(name, value)
        running = Stack(data)
    try:
        yield running
    finally:
        running.down()
