"""Warnings about a problem on which a speedup says less than it seems."""

from __future__ import annotations

from collections.abc import Sequence

FEWEST_LAWS = 3
"""Input laws below which a problem tells too little about a kernel for a rank."""


def problem_warnings(laws: Sequence[str], *, host_bound: bool) -> tuple[str, ...]:
    """Return why a speedup on a problem says less than it seems, in words for a reader of it."""
    warnings = []
    if len(laws) < FEWEST_LAWS:
        warnings.append(
            f"kernels are checked under {len(laws)} of the input laws only ({', '.join(laws)}): the reference has "
            "no useful answer under the others, so that a wrong kernel may pass, and no leaderboard lists it"
        )
    if host_bound:
        warnings.append(
            "most of PyTorch's time goes by on the host, outside of its operators, and any kernel saves that: the "
            "speedup is neither ranked nor learned from"
        )
    return tuple(warnings)
