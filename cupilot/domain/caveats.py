"""Warnings about a problem on which a speedup says less than it seems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

FEWEST_LAWS = 3
"""Input laws below which a problem tells too little about a kernel for a rank."""
UNCOUNTED_LAW = "zeros"
"""Law that nearly every reference has an answer under, whatever else it lacks: it does not count among the fewest."""


def problem_warnings(
    laws: Sequence[str], *, host_bound: bool, workloads: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> tuple[str, ...]:
    """Return why a speedup on a problem says less than it seems, in words for a reader of it.

    ``workloads`` has the laws of each workload, by its name, where the problem has any.
    """
    warnings = []
    workload, fewest = min(workloads.items(), key=lambda item: _counted(item[1]), default=(None, laws))
    if _counted(fewest) < FEWEST_LAWS:
        where = f" at the workload {workload!r}" if workload is not None else ""
        warnings.append(
            f"kernels are checked{where} under {len(fewest)} of the input laws only ({', '.join(fewest)}): the "
            "reference has no useful answer under the others, so that a wrong kernel may pass, and no leaderboard "
            "lists it"
        )
    if host_bound:
        warnings.append(
            "most of PyTorch's time goes by on the host, outside of its operators, and any kernel saves that: the "
            "speedup is neither ranked nor learned from"
        )
    return tuple(warnings)


def _counted(laws: Sequence[str]) -> int:
    return sum(not law.startswith(UNCOUNTED_LAW) for law in laws)
