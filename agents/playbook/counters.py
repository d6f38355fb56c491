"""Findings from hardware counters that time and occupancy do not show: traffic paid twice, idle tensor cores,
conflicts, stalls.

Rules over the metrics of a *measured* profile (``gpu_worker.targets.cuda.counters``); an inferred one has none of them,
and of a measured one each zone has its own: a rule without its metrics says nothing. Thresholds are judgements, checked
against profiles of real H200 runs in ``benchmarks/results`` where those have the metric.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agents.interface import Attempt, Briefing
from cupilot.domain.problem import NumericsPolicy
from cupilot.domain.roofline import Zone


@dataclass(frozen=True)
class Finding:
    """One conclusion from a measurement."""

    severity: str
    cause: str
    evidence: str
    techniques: tuple[str, ...] = ()
    """Catalogue ids that answer it, best first."""


REDUNDANT, VERY_REDUNDANT = 1.2, 1.4
"""DRAM traffic over the compulsory bytes from which it is a minor or a major cause."""
SCATTERED = 60.0
"""Percent of the bytes of loaded sectors that are used, below which loads are scattered."""
SCATTERED_SECTORS = 17.0
"""Sectors of 32 bytes a request, above which loads are scattered where the share of used bytes is not known: the widest
load of a warp, 16 bytes by each thread, touches 16, and one more where it does not begin at a sector."""
NARROW_SECTORS = 4.5
"""Four sectors are 4 bytes by each thread of a warp; a little more, where rows do not begin at a sector."""
CONFLICTING = 0.1
"""Share of shared memory's wavefronts that only bank conflicts make, from which Nsight Compute's own rule speaks."""
CONFLICTS_A_MICROSECOND = 100.0
"""Bank conflicts a microsecond on one SM, about 6 % of its cycles."""
DIVERGENT = 80.0
"""Percent of branches whose threads all go one way, below which warps diverge."""
IDLE_TENSOR_PIPE = 10.0
IDLE_TAIL = 0.25
"""Share of the device that the last wave of blocks leaves idle, over all waves."""

_STALLS = "stall_"


@dataclass(frozen=True)
class _Stall:
    """The meaning of warps that wait mostly for one thing."""

    reasons: tuple[str, ...]
    share: float
    """Of all stalls, from which it is said."""
    zones: frozenset[Zone]
    cause: str
    techniques: tuple[str, ...]


_EVERYWHERE = frozenset(Zone)
_STALL_RULES = (
    _Stall(
        ("stall_barrier",),
        0.25,
        _EVERYWHERE,
        "warps wait for each other at block barriers",
        ("warp_per_row", "warp_shuffle_reduction", "double_buffering"),
    ),
    _Stall(
        ("stall_long_scoreboard",),
        0.4,
        frozenset({Zone.MIDDLE, Zone.COMPUTE}),
        "warps wait for data from global memory before they can compute",
        ("async_copy", "double_buffering", "shared_tiling"),
    ),
    _Stall(
        ("stall_short_scoreboard", "stall_mio_throttle"),
        0.4,
        _EVERYWHERE,
        "warps wait for shared memory, or for special functions",
        ("register_blocking", "vector_loads", "warp_shuffle_reduction", "bank_padding"),
    ),
    _Stall(
        ("stall_math_pipe_throttle",),
        0.4,
        _EVERYWHERE,
        "one arithmetic pipe is oversubscribed",
        ("tensor_cores", "strassen", "minimal_filtering", "fast_exp", "hoisted_division"),
    ),
    _Stall(
        ("stall_no_instruction",),
        0.25,
        _EVERYWHERE,
        "instructions are not there in time: the code is too long for its cache, or too few warps run",
        ("split_k", "split_rows"),
    ),
)


def counted(briefing: Briefing, attempt: Attempt, zone: Zone) -> Iterator[Finding]:
    """Yield what the counters of a measured kernel show, the dearest first."""
    evaluation = attempt.evaluation
    if evaluation is None or evaluation.profile is None:
        return
    metrics = evaluation.profile.metrics
    yield from _tensor_pipe(briefing, metrics, zone)
    if zone is not Zone.COMPUTE:
        yield from _traffic(briefing, metrics)
        yield from _sectors(metrics)
    yield from _conflicts(briefing, metrics)
    yield from _local_memory(metrics)
    yield from _divergence(metrics)
    yield from _tail(metrics)
    yield from _stalls(metrics, zone)


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
        "team_rows",
        "online_softmax",
        "one_pass_moments",
        "shared_tiling",
        "register_blocking",
        "block_swizzle",
    )
    yield Finding("major" if times >= VERY_REDUNDANT else "minor", cause, evidence, techniques)


def _sectors(metrics: Mapping[str, float]) -> Iterator[Finding]:
    used, sectors = metrics.get("load_efficiency_pct"), metrics.get("load_sectors_per_request")
    known = (("load_efficiency_pct", used), ("load_sectors_per_request", sectors))
    evidence = ", ".join(f"{name} = {value:.0f}" for name, value in known if value is not None)
    if used < SCATTERED if used else sectors is not None and sectors > SCATTERED_SECTORS:
        cause = "loads are scattered: most of each fetched sector is thrown away"
        techniques = ("vector_loads", "column_slices", "shared_tiling", "shared_rows")
        yield Finding("major", cause, evidence, techniques)
    elif sectors is not None and sectors <= NARROW_SECTORS and _share(metrics, "stall_lg_throttle") >= 0.2:
        cause = "many narrow loads fill the queue to memory: each thread asks for four bytes at a time"
        evidence += f", stall_lg_throttle = {metrics['stall_lg_throttle']:.2f}"
        yield Finding("minor", cause, evidence, ("vector_loads", "thread_coarsening"))


def _tensor_pipe(briefing: Briefing, metrics: Mapping[str, float], zone: Zone) -> Iterator[Finding]:
    name = "tensor_active_pct" if "tensor_active_pct" in metrics else "tensor_pipe_pct"
    busy = metrics.get(name)
    may = briefing.facts.matmul_flops > 0 and briefing.facts.policy is not NumericsPolicy.FP32
    if busy is None or not may or zone is Zone.MEMORY or busy >= IDLE_TENSOR_PIPE:
        return
    cause = "matrix products run on CUDA cores although the numerics policy allows tensor cores"
    evidence = f"{name} = {busy:.0f}, policy {briefing.facts.policy.value}"
    yield Finding("critical", cause, evidence, ("tensor_cores", "warpgroup_mma", "async_copy"))


def _conflicts(briefing: Briefing, metrics: Mapping[str, float]) -> Iterator[Finding]:
    loads, stores = metrics.get("shared_load_conflicts"), metrics.get("shared_store_conflicts")
    wavefronts = metrics.get("shared_wavefronts")
    if loads is not None and stores is not None and wavefronts is not None:
        share = (loads + stores) / max(wavefronts, 1.0)
        grave = share >= CONFLICTING
        evidence = f"shared_load_conflicts + shared_store_conflicts = {100 * share:.0f} % of shared_wavefronts"
    else:
        conflicts, time = metrics.get("shared_bank_conflicts"), metrics.get("kernel_time_us")
        if conflicts is None or not time:
            return
        rate = conflicts / time / max(briefing.device.units, 1)
        grave = rate >= CONFLICTS_A_MICROSECOND
        evidence = f"shared_bank_conflicts = {conflicts:.3g}, {rate:.0f} a microsecond on each SM"
    if grave:
        cause = "shared-memory accesses of a warp collide in their banks"
        yield Finding("minor", cause, evidence, ("bank_padding", "vector_loads", "register_blocking"))


def _local_memory(metrics: Mapping[str, float]) -> Iterator[Finding]:
    loads, stores = metrics.get("local_load_instructions", 0.0), metrics.get("local_store_instructions", 0.0)
    if loads + stores > 0:
        evidence = f"local_load_instructions = {loads:.3g}, local_store_instructions = {stores:.3g}"
        cause = "threads keep data in local memory: registers spill, or an array is indexed at run time"
        yield Finding("minor", cause, evidence, ("loop_unrolling", "shared_rows", "split_rows"))


def _divergence(metrics: Mapping[str, float]) -> Iterator[Finding]:
    uniform = metrics.get("branch_efficiency_pct")
    if uniform is not None and uniform < DIVERGENT:
        cause = "threads of a warp take different branches, one after the other"
        yield Finding("minor", cause, f"branch_efficiency_pct = {uniform:.0f}", ("warp_per_row", "column_slices"))


def _tail(metrics: Mapping[str, float]) -> Iterator[Finding]:
    waves = metrics.get("waves_per_unit")
    if waves is None or waves <= 1.0:  # one wave or less: blocks that stay, or a problem as small as that
        return
    idle = 1.0 - waves / math.ceil(waves)
    if idle >= IDLE_TAIL:
        cause = f"the last wave of blocks leaves {100 * idle:.0f} % of the device's time unused"
        yield Finding("minor", cause, f"waves_per_unit = {waves:.2f}", ("grid_stride", "split_k", "split_rows"))


def _stalls(metrics: Mapping[str, float], zone: Zone) -> Iterator[Finding]:
    """Yield what warps wait for, where one thing stands out."""
    for rule in _STALL_RULES:
        if zone in rule.zones and _share(metrics, *rule.reasons) >= rule.share:
            values = ", ".join(f"{name} = {metrics.get(name, 0.0):.2f}" for name in rule.reasons)
            evidence = f"{values} of {_all_stalls(metrics):.2f} stall cycles an instruction"
            yield Finding("minor", rule.cause, evidence, rule.techniques)


def _share(metrics: Mapping[str, float], *reasons: str) -> float:
    """Return the part of all stalls that these reasons are."""
    total = _all_stalls(metrics)
    return sum(metrics.get(name, 0.0) for name in reasons) / total if total else 0.0


def _all_stalls(metrics: Mapping[str, float]) -> float:
    return sum(value for name, value in metrics.items() if name.startswith(_STALLS))
