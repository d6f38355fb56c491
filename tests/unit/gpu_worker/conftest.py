"""What tests of the GPU worker share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.gpu_worker.served import Served


@pytest.fixture(autouse=True)
def _references_are_closed() -> Iterator[None]:
    yield
    Served.close_all()
