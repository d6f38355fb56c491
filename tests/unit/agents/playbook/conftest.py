"""One thread for torch: the references are tiny, and threads only wait for each other on a busy machine."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> None:
    torch.set_num_threads(1)
