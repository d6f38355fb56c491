"""Hardware counters of a kernel through Nsight Compute: which to ask for, how to start it, how to read its table.

Only a description and a parser: the supervisor runs the program in a sandbox. Where a machine has no ``ncu``, or its
driver keeps counters for administrators, there is no table, and the profile stays inferred.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_DURATION = "gpu__time_duration.sum"
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"

MEASURED: dict[str, str] = {
    "dram_throughput_pct": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm_throughput_pct": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "achieved_occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "issue_active_pct": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "l1_hit_pct": "l1tex__t_sector_hit_rate.pct",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
    "load_efficiency_pct": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "store_efficiency_pct": "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
    "tensor_pipe_pct": "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "fma_pipe_pct": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "shared_bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "stall_long_scoreboard": _STALL.format("long_scoreboard"),
    "stall_short_scoreboard": _STALL.format("short_scoreboard"),
    "stall_barrier": _STALL.format("barrier"),
    "stall_mio_throttle": _STALL.format("mio_throttle"),
    "stall_math_pipe_throttle": _STALL.format("math_pipe_throttle"),
    "stall_wait": _STALL.format("wait"),
}
"""Our name of a metric, and Nsight Compute's. Stalls are warps that wait, for each instruction issued."""

_ABSENT_AT_ZERO = frozenset({"load_efficiency_pct", "store_efficiency_pct"})
"""Shares of what was fetched that was used: 0 where no such instruction was executed, as with copies by tensor maps."""

_SUMMED = frozenset({"shared_bank_conflicts", "dram_read_bytes", "dram_write_bytes"})


@cache
def profiler() -> Path | None:
    """``ncu``, where it is installed."""
    found = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    return None if found is None else Path(found)


def command(ncu: Path, kernels: Sequence[str], sequence: int, skipped: int, argv: Sequence[str]) -> tuple[str, ...]:
    """The command line that counts one sequence of ``sequence`` launches of ``argv`` after ``skipped`` sequences.

    Clocks are left alone, because a card's settings are its owner's; caches are flushed before each pass.
    """
    names = "|".join(re.escape(name) for name in sorted(set(kernels)))
    return (
        *(str(ncu), "--csv", "--page", "raw", "--print-units", "base"),
        *("--clock-control", "none", "--cache-control", "all"),
        *("--kernel-name-base", "function", "--kernel-name", f"regex:^({names})$"),
        *("--launch-skip", str(skipped * sequence), "--launch-count", str(sequence)),
        *("--metrics", ",".join([_DURATION, *MEASURED.values()])),
        *argv,
    )


def read(table: str) -> dict[str, float]:
    """Metrics of a launch sequence from ``ncu``'s table: sums, or means weighted by duration; empty without one."""
    lines = [line for line in table.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))[1:]  # the first row holds units
    durations = [_number(row.get(_DURATION)) or 0.0 for row in rows]
    total = sum(durations)
    if not total:
        return {}
    metrics: dict[str, float] = {"kernel_time_us": total * 1e-3}
    for name, counter in MEASURED.items():
        values = [_number(row.get(counter)) for row in rows]
        known = [
            (value, time)
            for value, time in zip(values, durations, strict=True)
            if value or (value is not None and name not in _ABSENT_AT_ZERO)
        ]
        if not known:
            continue
        if name in _SUMMED:
            metrics[name] = sum(value for value, _ in known)
        else:
            metrics[name] = sum(value * time for value, time in known) / (sum(time for _, time in known) or 1.0)
    return metrics


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None
