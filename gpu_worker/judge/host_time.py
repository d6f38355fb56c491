"""Tell a reference whose time goes by on the host, outside of PyTorch's operators, which any kernel beats.

Such a reference sleeps, computes in Python, or works on lists. It is judged like any other, but flagged and not ranked.
"""

from __future__ import annotations

CALL_SECONDS = 20e-6
"""Of Python and PyTorch for each call of an operator, which every reference has."""

PASS_SECONDS = 200e-6
"""Of Python for a forward pass; what is below does not flag a reference."""

LOOKS = 3
"""Measurements that must all say so, each by its fastest block: on a busy machine a pass waits for a processor."""


def is_host_bound(eager_seconds: float, operator_seconds: float, calls: int) -> bool:
    """Return whether a forward pass that makes so many calls spends most of its time between its operators."""
    host = eager_seconds - operator_seconds
    return host > operator_seconds and host > PASS_SECONDS + calls * CALL_SECONDS
