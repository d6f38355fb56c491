"""Reads compute-sanitizer's findings: accesses beyond a buffer, races in shared memory, reads of memory nobody wrote,
and barriers that not all threads reach.

Only a description and a parser, as :mod:`gpu_worker.targets.cuda.counters`. Tens of times slower than the kernel, so it
is for kernels that are about to become results.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from cupilot.domain.evaluation import Failure, FailureKind
from cupilot.domain.kernel import ResolvedPlan

_MEANS = {
    "memcheck": (FailureKind.ILLEGAL_ACCESS, "it accesses memory outside of its buffers"),
    "racecheck": (FailureKind.NON_DETERMINISTIC, "its threads race for shared memory"),
    "initcheck": (FailureKind.NON_DETERMINISTIC, "it reads device memory that nothing has written"),
    "synccheck": (FailureKind.NON_DETERMINISTIC, "not all of its threads reach a barrier"),
}
"""Meaning of a finding, by tool. Where a result depends on the order of threads or on what a buffer
held before, it is not determined by the inputs, however often it came out right."""

TOOLS = tuple(_MEANS)

SYNCCHECK_LARGEST_CLUSTER = 8
"""Blocks, as many as every device has room for. In clusters of 16, synccheck (CUDA 13.0, H200) calls warps divergent at
a ``__syncthreads`` that all threads reach, once there are more blocks than the card holds, even where the cluster waits
by cooperative groups' own ``sync``; in clusters of 8 it does not (benchmarks/results/judge/h200_synccheck.json)."""

_FINDING = re.compile(
    r"^=+ (?:Error: )?((?:Invalid|Uninitialized|Potential|Race|Warning: Race|Barrier|Misaligned|Address).*)$", re.M
)
_WHERE = re.compile(r"^=+ +at .*$", re.M)
_SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+)", re.M)


_QUICK = ("--show-backtrace", "no")
"""Unwinding the host's stack for each of millions of findings takes longer than the tool may."""


@cache
def checker() -> Path | None:
    """Return ``compute-sanitizer``, where it is installed."""
    program = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    return None if program is None else Path(program)


def discount_reason(tool: str, plan: ResolvedPlan) -> str | None:
    """Return why a finding of the tool would not count for a kernel that is launched so; None where it counts."""
    largest = max((math.prod(launch.cluster) for launch in plan.launches), default=1)
    if tool == "synccheck" and largest > SYNCCHECK_LARGEST_CLUSTER:
        trusted = SYNCCHECK_LARGEST_CLUSTER
        return f"it reports false errors for barriers in clusters of more than {trusted} blocks (here {largest})"
    return None


def command(path: Path, tool: str, argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that watches ``argv`` with one tool."""
    return (str(path), "--tool", tool, "--report-api-errors", "no", "--print-limit", "3", *_QUICK, *argv)


def read(report: str) -> str | None:
    """Return the first finding of a report, in one or two lines; None where there is none, or the tool did not run.

    A tool that was stopped gives no summary: what it had said until then counts.
    """
    summary, finding = _SUMMARY.search(report), _FINDING.search(report)
    if (summary is None and finding is None) or (summary is not None and int(summary[1]) == 0):
        return None
    where = _WHERE.search(report)
    words = [
        finding[1] if finding else f"{summary[1] if summary else 0} errors",
        where[0].lstrip("= ") if where else "",
    ]
    return " ".join(word.strip() for word in words if word)[:500]


def finished(report: str) -> bool:
    """Return whether the tool watched the program to its end."""
    return _SUMMARY.search(report) is not None


def failure(tool: str, finding: str) -> Failure:
    """Return a finding of a tool as a result."""
    kind, words = _MEANS[tool]
    message = f"under compute-sanitizer, {words} ({tool}): {finding}"
    return Failure(kind=kind, message=message, details={"tool": tool, "finding": finding})
