"""Let judges that are started meanwhile have a device of :mod:`tests.patience.judge_device`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.patience.devices import use_patient_judges

QUICK_STACK = {"PYTHONPATH": f"{Path(__file__).parent / 'startup'}:{Path(__file__).parents[2]}"}
"""Environment of stacks and programs with quick judges: for tests of what becomes of a stack and its jobs."""


@contextmanager
def patient_judges(*, quick: bool = False) -> Iterator[None]:
    """Make judges that no busy machine keeps from an answer; ``quick`` where no time has to be right."""
    with pytest.MonkeyPatch.context() as patch:
        use_patient_judges(patch.setattr, quick=quick)
        yield
