"""One stack a module: short leases, many attempts and short jobs, so that recovery takes seconds, not minutes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience.judges import QUICK_STACK
from tests.service.faults.stack import Stack, adopt_orphans
from tests.service.operators import SHORT_JOBS

QUICK = {
    "CUPILOT_LEASE_SECONDS": "6",
    "CUPILOT_HEARTBEAT_SECONDS": "1",
    "CUPILOT_REDISPATCH_SECONDS": "4",
    "CUPILOT_STEP_ATTEMPTS": "12",
    "CUPILOT_PREPARE_TIMEOUT_SECONDS": "30",
    **SHORT_JOBS,
    **QUICK_STACK,
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A stack with the settings above, changed by the module's own ``SETTINGS``."""
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
