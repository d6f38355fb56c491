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
    "CUPILOT_PREPARE_TIMEOUT_SECONDS": "30",
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    adopt_orphans()
    data: Path = tmp_path_factory.mktemp("stack")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in QUICK.items():
            environment.setenv(name, value)
        running = Stack(data)
    try:
        yield running
    finally:
        running.down()
