"""The kinds of sandbox that tests run in."""

from __future__ import annotations

import os

import pytest

from gpu_worker.sandbox import confine
from gpu_worker.sandbox.sandbox import Sandbox, strongest

KINDS = ["bwrap+seccomp", "bwrap+seccomp without users", "landlock+seccomp"]


def of_kind(name: str) -> Sandbox:
    """A sandbox of one of :data:`KINDS`; skips the test where this machine has none."""
    kind, _, without_users = name.partition(" ")
    if kind.startswith("bwrap") and not strongest().startswith("bwrap"):
        pytest.skip("this machine has no user namespaces")
    if kind.startswith("landlock") and confine.landlock_abi() == 0:
        pytest.skip("this machine has no landlock")
    if without_users and os.geteuid() != 0:
        pytest.skip("only root gives programs users of their own")
    return Sandbox(kind, own_user=False if without_users else None)
