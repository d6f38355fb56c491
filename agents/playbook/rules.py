"""The Prophet's rules: finding, severity, and the techniques that answer it.

Percentages are of measured peaks. Thresholds: 95 % of the floor is where a job stops; 60 % of either
roof is the field's line below which a kernel is latency-bound rather than limited by that roof.
"""

from __future__ import annotations

from collections.abc import Iterator

from agents.interface import Attempt, Briefing
from agents.playbook.counters import Finding, counted
from cupilot.domain.evaluation import Evaluation, FailureKind
from cupilot.domain.problem import Target
from cupilot.domain.roofline import NEAR_FLOOR, Zone
from cupilot.domain.strategy import Strategy

LATENCY_BOUND = 60.0
LOW_OCCUPANCY = 25.0
SPILLED = 32
"""Bytes of registers spilled by a thread from which that is a major cause. A few lie outside of the loops: a matrix
product with 8 of them ran at 66 % of an H200's floor (``benchmarks/results/h200_fp32``)."""
SERIALISED = "Potential Performance Loss: "
"""Warning of ptxas, before its reason, that wgmma is no longer asynchronous."""
MAJOR, CRITICAL = 80.0, 40.0
"""Below these shares of the speed that the direct count allows the severity is major or critical; above them minor."""


_MEMORY = {
    Target.CUDA: (
        "vector_loads",
        "register_rows",
        "shared_rows",
        "cluster_rows",
        "team_rows",
        "warp_shuffle_reduction",
        "thread_coarsening",
        "column_slices",
        "loop_unrolling",
        "streaming_access",
        "online_softmax",
        "one_pass_moments",
        "split_rows",
        "grid_stride",
    ),
    Target.CPU: (
        "threads",
        "simd",
        "nontemporal_stores",
        "column_tiles",
        "fused_passes",
        "polynomial_exp",
        "prefetch",
        "multiple_accumulators",
        "split_rows",
        "row_chunking",
    ),
}
_COMPUTE = {
    Target.CUDA: (
        "tensor_cores",
        "warpgroup_mma",
        "tma_loads",
        "cluster_multicast",
        "shared_tiling",
        "register_blocking",
        "strassen",
        "minimal_filtering",
        "async_copy",
        "double_buffering",
        "bank_padding",
        "vector_loads",
        "split_k",
        "block_swizzle",
        "fast_exp",
        "hoisted_division",
    ),
    Target.CPU: (
        "threads",
        "simd",
        "micro_kernel",
        "cache_blocking",
        "packing",
        "polynomial_exp",
        "loop_unrolling",
        "multiple_accumulators",
        "hoisted_division",
    ),
}


def findings(briefing: Briefing, attempt: Attempt) -> list[Finding]:
    """Return what the evaluation shows, worst first; never empty."""
    evaluation = attempt.evaluation
    if evaluation is None:
        return [Finding("major", "the kernel has not been evaluated", "no evaluation", _first_choice(briefing))]
    if evaluation.failure is not None and not evaluation.verdict.counts:
        return [_failed(evaluation)]
    roofline = list(_profile(briefing, evaluation))
    if any(finding.severity == "none" for finding in roofline):
        return roofline
    # What says why goes before what says how much, unless it is a trifle.
    causes = [*_build(evaluation, attempt.strategy), *counted(briefing, attempt, _zone(briefing, evaluation))]
    grave = [cause for cause in causes if cause.severity != "minor"]
    ranked = [*grave, *roofline, *(cause for cause in causes if cause.severity == "minor")]
    return ranked or [Finding("minor", "nothing in the measurement stands out", _numbers(evaluation))]


def _first_choice(briefing: Briefing) -> tuple[str, ...]:
    compute = briefing.placement is not None and briefing.placement.zone is Zone.COMPUTE
    return (_COMPUTE if compute else _MEMORY)[briefing.target]


def _failed(evaluation: Evaluation) -> Finding:
    failure = evaluation.failure
    assert failure is not None
    wrong = failure.kind in (FailureKind.WRONG_VALUE, FailureKind.NON_DETERMINISTIC, FailureKind.UNWRITTEN_OUTPUT)
    words = "the kernel is wrong" if wrong else "the kernel does not run"
    return Finding("critical", f"{words}: {failure.kind.value}", failure.message[:500])


def _build(evaluation: Evaluation, strategy: Strategy) -> Iterator[Finding]:
    build = evaluation.build
    if build is None:
        return
    serialised = next((line for line in build.log.splitlines() if SERIALISED in line), None)
    if serialised is not None:
        yield Finding("major", "each warpgroup product waits for the one before", serialised.partition(SERIALISED)[2])
    if build.spill_bytes:
        evidence = f"spill_bytes = {build.spill_bytes}, registers = {build.registers}"
        severity = "major" if build.spill_bytes >= SPILLED else "minor"
        yield Finding(severity, "registers spill to local memory", evidence, ("shared_rows", "split_rows"))
    occupancy = evaluation.profile.metrics.get("occupancy_pct") if evaluation.profile else None
    waits = strategy.use("warpgroup_mma") is None  # a warpgroup goes on while its products are made
    if occupancy is not None and occupancy < LOW_OCCUPANCY and waits:
        evidence = (
            f"occupancy_pct = {occupancy:.0f}, registers = {build.registers}, "
            f"static_shared_bytes = {build.shared_bytes}"
        )
        techniques = ("launch_bounds", "warp_per_row", "split_rows", "split_k")
        yield Finding("major", "few warps are resident, so latency shows", evidence, techniques)


def _profile(briefing: Briefing, evaluation: Evaluation) -> Iterator[Finding]:
    if evaluation.profile is None:
        return
    metrics = evaluation.profile.metrics
    floor = metrics.get("floor_pct")
    memory, compute = metrics.get("memory_throughput_pct", 0.0), metrics.get("compute_throughput_pct", 0.0)
    evidence = _numbers(evaluation)
    if floor is not None and floor >= 100 * NEAR_FLOOR:
        yield Finding("none", "the kernel is as fast as the device allows", evidence)
        return
    severity = "minor"
    reached = metrics.get("direct_pct", floor)
    if reached is not None:
        severity = "critical" if reached < CRITICAL else "major" if reached < MAJOR else "minor"
    zone = _zone(briefing, evaluation)
    if zone is Zone.COMPUTE:
        cause = "too little of the arithmetic rate is used" if compute < LATENCY_BOUND else "arithmetic is the limit"
        yield Finding(severity, cause, evidence, _COMPUTE[briefing.target])
    elif memory < LATENCY_BOUND:
        cause = "memory is waited for: too few bytes are in flight, or they are read more than once"
        yield Finding(severity, cause, evidence, _MEMORY[briefing.target])
    else:
        yield Finding(severity, "memory bandwidth is the limit", evidence, _MEMORY[briefing.target])
    if zone is Zone.MIDDLE:
        yield Finding("minor", "arithmetic and memory take about as long", evidence, _COMPUTE[briefing.target])


def _zone(briefing: Briefing, evaluation: Evaluation) -> Zone:
    """Return the problem's zone; where it is not known, that of the busier resource."""
    placement = evaluation.placement or briefing.placement
    if placement is not None:
        return placement.zone
    metrics = evaluation.profile.metrics if evaluation.profile else {}
    memory, compute = metrics.get("memory_throughput_pct", 0.0), metrics.get("compute_throughput_pct", 0.0)
    return Zone.MEMORY if memory >= compute else Zone.COMPUTE


def _numbers(evaluation: Evaluation) -> str:
    if evaluation.profile is None:
        return "no profile"
    names = ("floor_pct", "direct_pct", "memory_throughput_pct", "compute_throughput_pct", "occupancy_pct")
    known = [f"{name} = {evaluation.profile.metrics[name]:.0f}" for name in names if name in evaluation.profile.metrics]
    return (
        f"{', '.join(known) or 'no metrics'} (calculated from counted work; profile {evaluation.profile.source.value})"
    )
