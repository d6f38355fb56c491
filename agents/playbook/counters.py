"""What hardware counters show that time and occupancy do not: traffic paid twice, idle tensor cores, conflicts, stalls.

Rules over the metrics of a *measured* profile (``gpu_worker.targets.cuda.counters``); an inferred one has none of them.
Thresholds are judgements, checked against profiles of real H200 runs in ``benchmarks/results``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agents.interface import Attempt, Briefing
from cupilot.problem import NumericsPolicy
from cupilot.roofline import Zone


@dataclass(frozen=True)
class Finding:
    """One thing that a measurement shows."""

    severity: str
    cause: str
    evidence: str
    techniques: tuple[str, ...] = ()
    """Catalogue ids that answer it, best first."""


REDUNDANT, VERY_REDUNDANT = 1.2, 1.4
"""DRAM traffic over the compulsory bytes from which it is a minor or a major cause."""
SCATTERED = 60.0
"""Percent of the bytes of loaded sectors that are used, below which loads are scattered."""
CONFLICTS_A_MICROSECOND = 100.0
"""Bank conflicts a microsecond on one SM, about 6 % of its cycles."""
BARRIER_SHARE = 0.25
"""Share of all stalls that is spent at barriers."""
IDLE_TENSOR_PIPE = 10.0

_STALLS = "stall_"


def counted(briefing: Briefing, attempt: Attempt, zone: Zone) -> Iterator[Finding]:
    """What the counters of a measured kernel show, the dearest first."""
    evaluation = attempt.evaluation
    if evaluation is None or evaluation.profile is None:
        return
    metrics = evaluation.profile.metrics
    yield from _tensor_pipe(briefing, metrics, zone)
    if zone is not Zone.COMPUTE:
        yield from _traffic(briefing, metrics)
        yield from _sectors(metrics)
    yield from _conflicts(briefing, metrics)
    yield from _barriers(metrics)


def _traffic(briefing: Briefing, metrics: Mapping[str, float]) -> Iterator[Finding]:
    read, written = metrics.get("dram_read_bytes"), metrics.get("dram_write_bytes")
    if read is None or written is None:
        return
    least = briefing.facts.compulsory_bytes
    times = (read + written) / max(least, 1)
    # A tensor that fits the cache may stay there: traffic then says little.
    if times < REDUNDANT or least < briefing.device.cache_bytes:
        return
    evidence = f"dram_read_bytes + dram_write_bytes = {(read + written) / 1e9:.3g} GB, compulsory {least / 1e9:.3g} GB"
    cause = f"memory traffic is {times:.2f} times the least possible: data is read, or written, more than once"
    techniques = (
        "register_rows",
        "shared_rows",
        "cluster_rows",
        "online_softmax",
        "one_pass_moments",
        "shared_tiling",
        "register_blocking",
        "block_swizzle",
    )
    yield Finding("major" if times >= VERY_REDUNDANT else "minor", cause, evidence, techniques)


def _sectors(metrics: Mapping[str, float]) -> Iterator[Finding]:
    used = metrics.get("load_efficiency_pct")
    if used is not None and 0 < used < SCATTERED:
        cause = "loads are scattered: most of each fetched sector is thrown away"
        techniques = ("vector_loads", "column_slices", "shared_tiling", "shared_rows")
        yield Finding("major", cause, f"load_efficiency_pct = {used:.0f}", techniques)


def _tensor_pipe(briefing: Briefing, metrics: Mapping[str, float], zone: Zone) -> Iterator[Finding]:
    busy = metrics.get("tensor_pipe_pct")
    may = briefing.facts.matmul_flops > 0 and briefing.facts.policy is not NumericsPolicy.FP32
    if busy is None or not may or zone is Zone.MEMORY or busy >= IDLE_TENSOR_PIPE:
        return
    cause = "matrix products run on CUDA cores although the numerics policy allows tensor cores"
    evidence = f"tensor_pipe_pct = {busy:.0f}, policy {briefing.facts.policy.value}"
    yield Finding("critical", cause, evidence, ("tensor_cores", "async_copy", "double_buffering"))


def _conflicts(briefing: Briefing, metrics: Mapping[str, float]) -> Iterator[Finding]:
    conflicts, time = metrics.get("shared_bank_conflicts"), metrics.get("kernel_time_us")
    if conflicts is None or not time:
        return
    rate = conflicts / time / max(briefing.device.units, 1)
    if rate >= CONFLICTS_A_MICROSECOND:
        evidence = f"shared_bank_conflicts = {conflicts:.3g}, {rate:.0f} a microsecond on each SM"
        cause = "shared-memory accesses of a warp collide in their banks"
        yield Finding("minor", cause, evidence, ("bank_padding", "vector_loads", "register_blocking"))


def _barriers(metrics: Mapping[str, float]) -> Iterator[Finding]:
    stalls = {name: value for name, value in metrics.items() if name.startswith(_STALLS)}
    total = sum(stalls.values())
    share = stalls.get("stall_barrier", 0.0) / total if total else 0.0
    if share >= BARRIER_SHARE:
        evidence = f"stall_barrier = {stalls['stall_barrier']:.2f} of {total:.2f} stall cycles an instruction"
        cause = "warps wait for each other at block barriers"
        yield Finding("minor", cause, evidence, ("warp_per_row", "warp_shuffle_reduction", "double_buffering"))
