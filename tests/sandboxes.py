"""The kinds of sandbox that tests run in."""

from __future__ import annotations

import pytest

from gpu_worker.sandbox import confine
from gpu_worker.sandbox.sandbox import Sandbox, strongest

KINDS = ["bwrap+seccomp", "landlock+seccomp"]


def of_kind(name: str) -> Sandbox:
    """A sandbox of one of :data:`KINDS`; skips the test where this machine has none."""
    if name.startswith("bwrap") and not strongest().startswith("bwrap"):
        pytest.skip("this machine cannot make namespaces")
    if name.startswith("landlock") and confine.landlock_abi() == 0:
        pytest.skip("this machine has no landlock")
    return Sandbox(name)
