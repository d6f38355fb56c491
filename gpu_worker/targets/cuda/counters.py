"""Hardware counters of a kernel through Nsight Compute: which to ask for, how to start it, how to read its table.

Only a description and a parser: the supervisor runs the program in a sandbox. Where a machine has no ``ncu``, or its
driver keeps counters for administrators, there is no table, and the profile stays inferred. Which metrics are asked for
depends on the problem's zone: some thirty each, since every few of them cost another replay of the kernel.
"""

from __future__ import annotations

import csv
import io
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from cupilot.domain.roofline import Zone
from gpu_worker.targets.base import Counters

_DURATION = "gpu__time_duration.sum"
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_PIPE = "sm__inst_executed_pipe_{}.avg.pct_of_peak_sustained_active"
_SECTORS = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_{}.ratio"
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu{}.sum"

COMMON: dict[str, str] = {
    "dram_throughput_pct": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm_throughput_pct": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "achieved_occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "issue_active_pct": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "l1_hit_pct": "l1tex__t_sector_hit_rate.pct",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
    "load_efficiency_pct": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "store_efficiency_pct": "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
    "tensor_pipe_pct": _PIPE.format("tensor"),
    "fma_pipe_pct": _PIPE.format("fma"),
    "shared_bank_conflicts": _CONFLICTS.format(""),
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "local_load_instructions": "smsp__sass_inst_executed_op_local_ld.sum",
    "local_store_instructions": "smsp__sass_inst_executed_op_local_st.sum",
    "branch_efficiency_pct": "smsp__sass_average_branch_targets_threads_uniform.pct",
    "waves_per_unit": "launch__waves_per_multiprocessor",
    "stall_long_scoreboard": _STALL.format("long_scoreboard"),
    "stall_short_scoreboard": _STALL.format("short_scoreboard"),
    "stall_barrier": _STALL.format("barrier"),
    "stall_mio_throttle": _STALL.format("mio_throttle"),
    "stall_lg_throttle": _STALL.format("lg_throttle"),
    "stall_math_pipe_throttle": _STALL.format("math_pipe_throttle"),
    "stall_no_instruction": _STALL.format("no_instruction"),
    "stall_wait": _STALL.format("wait"),
}
"""Metrics of every zone: our name of a metric, and Nsight Compute's. Stalls are warps that wait, for each
instruction issued. ``shared_bank_conflicts`` are those of every access that goes the way of shared memory, global ones
too; ``local_*`` instructions are spills, or arrays that a thread indexes at run time."""

_MEMORY_PATH = {
    "load_sectors_per_request": _SECTORS.format("ld"),
    "l2_throughput_pct": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
}
_SHARED_MEMORY = {
    "shared_load_conflicts": _CONFLICTS.format("_mem_shared_op_ld"),
    "shared_store_conflicts": _CONFLICTS.format("_mem_shared_op_st"),
    "shared_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
}
_TENSOR_ACTIVE = {"tensor_active_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"}
"""Cycles in which the tensor pipe works. One instruction of a warp group keeps it busy for many, so that the share of
instructions, ``tensor_pipe_pct``, stays at a few percent in the best of such kernels."""

BY_ZONE: dict[Zone, dict[str, str]] = {
    Zone.MEMORY: {
        **_MEMORY_PATH,
        "store_sectors_per_request": _SECTORS.format("st"),
        "l1_throughput_pct": "l1tex__throughput.avg.pct_of_peak_sustained_active",
        "l2_read_hit_pct": "lts__t_sector_op_read_hit_rate.pct",
        "lsu_pipe_pct": _PIPE.format("lsu"),
        "tma_load_bytes": "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum",
    },
    Zone.MIDDLE: {**_MEMORY_PATH, **_SHARED_MEMORY, **_TENSOR_ACTIVE, "xu_pipe_pct": _PIPE.format("xu")},
    Zone.COMPUTE: {
        **_SHARED_MEMORY,
        **_TENSOR_ACTIVE,
        "alu_pipe_pct": _PIPE.format("alu"),
        "xu_pipe_pct": _PIPE.format("xu"),
        "stall_gmma": _STALL.format("gmma"),
    },
}
"""Metrics of one zone beside :data:`COMMON`: how memory is reached where it is the limit, what keeps the
arithmetic from its data where that is, some of both between. ``stall_gmma`` is known to compute capability 9.0 only."""

_ABSENT_AT_ZERO = frozenset(
    {
        "load_efficiency_pct", "store_efficiency_pct", "load_sectors_per_request", "store_sectors_per_request",
        "branch_efficiency_pct",
    }
)  # fmt: skip
"""Shares and ratios that are 0 where no such instruction was executed, as loads are not with copies by tensor maps."""

_SUMMED = frozenset(
    {
        "shared_bank_conflicts", "shared_load_conflicts", "shared_store_conflicts", "shared_wavefronts",
        "dram_read_bytes", "dram_write_bytes", "tma_load_bytes", "local_load_instructions", "local_store_instructions",
    }
)  # fmt: skip


def of_zone(zone: Zone) -> dict[str, str]:
    """Return all that is asked of a kernel whose problem lies in this zone."""
    return COMMON | BY_ZONE[zone]


@cache
def profiler() -> Path | None:
    """Return ``ncu``, where it is installed."""
    program = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    return None if program is None else Path(program)


def command(
    ncu: Path, kernels: Sequence[str], sequence: int, skipped: int, argv: Sequence[str], *, asked: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the command that counts one sequence of ``sequence`` launches of ``argv`` after ``skipped`` sequences.

    Clocks are left alone, because a card's settings are its owner's; caches are flushed before each pass.
    """
    names = "|".join(re.escape(name) for name in sorted(set(kernels)))
    return (
        *(str(ncu), "--csv", "--page", "raw", "--print-units", "base"),
        *("--clock-control", "none", "--cache-control", "all"),
        *("--kernel-name-base", "function", "--kernel-name", f"regex:^({names})$"),
        *("--launch-skip", str(skipped * sequence), "--launch-count", str(sequence)),
        *("--metrics", ",".join([_DURATION, *asked.values()])),
        *argv,
    )


def forbidden(said: str) -> bool:
    """Return whether the driver keeps counters for administrators, as far as ``ncu`` has said so."""
    return "ERR_NVGPUCTRPERM" in said


def read(table: str, asked: Mapping[str, str]) -> Counters:
    """Return metrics of a launch sequence from ``ncu``'s table: sums, or means weighted by duration; empty without one.

    What the table has no column for, or ``n/a`` in all rows of it, is missing: this ``ncu`` or device does not know it.
    A value that is no number (a ratio of nothing to nothing) is known, and left out.
    """
    lines = [line for line in table.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))[1:]  # the first row holds units
    durations = [_number(row.get(_DURATION)) or 0.0 for row in rows]
    total = sum(durations)
    if not total:
        return Counters()
    metrics: dict[str, float] = {"kernel_time_us": total * 1e-3}
    missing: list[str] = []
    for name, counter in asked.items():
        values = [_number(row.get(counter)) for row in rows]
        if all(value is None for value in values):
            missing.append(name)
            continue
        known = [
            (value, time)
            for value, time in zip(values, durations, strict=True)
            if value is not None and math.isfinite(value) and (value or name not in _ABSENT_AT_ZERO)
        ]
        if not known:
            continue
        if name in _SUMMED:
            metrics[name] = sum(value for value, _ in known)
        else:
            metrics[name] = sum(value * time for value, time in known) / (sum(time for _, time in known) or 1.0)
    return Counters(metrics, tuple(missing))


def _number(text: str | None) -> float | None:
    """Return a cell's number, which may be NaN; None where there is none."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None
