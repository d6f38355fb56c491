"""Evidence of techniques in a kernel's source, its plan and its binary: the facts behind alignment.

A technique without an entry leaves no trace that could be checked, and is believed. Plans are asked only for what a
technique cannot do without: a plan that has it does not show the technique.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from cupilot.domain.evaluation import BuildReport
from cupilot.domain.kernel import Kernel, Launch
from cupilot.domain.problem import Target
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.domain.technique import catalogue

SOURCE: Mapping[str, str] = {
    "streaming_access": r"__stcs|__ldcs|\.cs\.",
    "read_only_cache": r"__ldg|ld\.global\.nc",
    "launch_bounds": r"__launch_bounds__\([^)]*,",
    "grid_stride": r"gridDim",
    "warp_shuffle_reduction": r"__shfl|reduce_sync",
    "warp_per_row": r"__shfl|reduce_sync",
    "shared_rows": r"__shared__",
    "shared_tiling": r"__shared__",
    "tensor_cores": r"wmma|mma\.sync|wgmma|mma_sync",
    "warpgroup_mma": r"wgmma",
    "async_copy": r"cp\.async|__pipeline_memcpy_async|memcpy_async|TMA|cp_async",
    "cluster_multicast": r"multicast::cluster",
    "tma_loads": r"cp\.async\.bulk\.tensor|cp_async_bulk_tensor",
    "bulk_ring": r"cp\.async\.bulk(?!\.tensor)|cp_async_bulk(?!_tensor)",
    "on_chip_residency": r"this_grid|atomic|cluster|__shared__",
    "shuffle_halo": r"__shfl",
    "shifted_stores": r"__shfl|__shared__",
    "fast_exp": r"__expf|__fdividef|__exp10f|ex2\.approx|__frcp|exp2f\.approx|__tanhf|tanh\.approx",
    "threads": r"#pragma\s+omp\s+parallel",
    "nontemporal_stores": r"movnt|_mm\w*_stream|__builtin_nontemporal_store",
    "prefetch": r"__builtin_prefetch|_mm_prefetch|prefetchw?\b",
    "simd": r"vector_size|_mm\d*_|omp\s+(?:parallel\s+for\s+)?simd|__m(?:128|256|512)",
}
"""A pattern that the source must contain, for each technique that leaves such a trace."""

UNTELLING = frozenset(
    {
        "grid_stride",
        "warp_per_row",
        "shared_rows",
        "shared_tiling",
        "on_chip_residency",
        "shuffle_halo",
        "shifted_stores",
    }
)
"""Techniques whose traces other code leaves, too: any reduction over a block has shared memory and shuffles. Without
its trace such a technique is not there; with it, it need not be."""

_MEETING = r"atomic|\bred\.|fence|membar|release"
"""Signs of blocks of one launch that pass results to each other."""

_BinaryCheck = Callable[[BuildReport, TechniqueUse], str | None]
_PlanCheck = Callable[[Kernel, BuildReport | None], str | None]


def missing(strategy: Strategy, kernel: Kernel | None, build: BuildReport | None) -> dict[str, str]:
    """Return the techniques that a strategy claims and that are not there, each with what was looked for."""
    reasons: dict[str, str] = {}
    for use in strategy.techniques:
        reason = _in_source(use, kernel) or _in_plan(use, kernel, build)
        if reason is None and build is not None and build.ok and build.instructions and kernel is not None:
            check = _BINARY.get((kernel.target, use.id))
            reason = check(build, use) if check else None
        if reason is not None:
            reasons[use.id] = reason
    return reasons


def visible(kernel: Kernel) -> tuple[str, ...]:
    """Return the techniques for the kernel's target that its source shows by a telling trace, in the catalogue's
    order.
    """
    code = _code(kernel.source)
    return tuple(
        technique.id
        for technique in catalogue()
        if kernel.target in technique.targets
        and technique.id in SOURCE
        and technique.id not in UNTELLING
        and re.search(SOURCE[technique.id], code)
    )


def leaves_trace(technique: str, target: Target) -> bool:
    """Return whether source or binary show this technique where it is; a plan alone never does."""
    return technique in SOURCE or (target, technique) in _BINARY


def _in_source(use: TechniqueUse, kernel: Kernel | None) -> str | None:
    pattern = SOURCE.get(use.id)
    if kernel is None or pattern is None or re.search(pattern, _code(kernel.source)):
        return None
    return "the source has no trace of it"


def _in_plan(use: TechniqueUse, kernel: Kernel | None, build: BuildReport | None) -> str | None:
    check = _PLAN.get((kernel.target, use.id)) if kernel else None
    return check(kernel, build) if check and kernel else None


def _code(source: str) -> str:
    """Return the source without comments: a claim in prose is no evidence."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.S)


def _needs(family: str, words: str) -> _BinaryCheck:
    def check(build: BuildReport, _: TechniqueUse) -> str | None:
        return None if build.instructions.get(family) else f"the binary has no {words}"

    return check


def _vector_loads(build: BuildReport, use: TechniqueUse) -> str | None:
    wide = use.parameters.get("width", 4) == 4
    seen = build.instructions.get("vector_load_128", 0) + build.instructions.get("vector_store_128", 0)
    return "the binary has no 128-bit loads or stores" if wide and not seen else None


def _register_rows(build: BuildReport, _: TechniqueUse) -> str | None:
    return "the kept values spilled to local memory" if build.instructions.get("local_memory", 0) > 0 else None


def _simd(build: BuildReport, use: TechniqueUse) -> str | None:
    width = use.parameters.get("width", 16)
    families = {16: ("simd_512", "simd_256"), 8: ("simd_256", "simd_512")}.get(int(width), ("simd_128", "simd_256"))
    seen = any(build.instructions.get(family) for family in families)
    return None if seen else f"the binary has no vector instructions for {width} floats"


def _tiles(build: BuildReport, _: TechniqueUse) -> str | None:
    """Check for tiles in shared memory.

    Tensor cores may read what the copy engine filled, without any load or store of a thread.
    """
    filled = build.instructions.get("shared_memory") or build.instructions.get("async_copy")
    return None if filled else "the binary has no shared-memory accesses"


def _cluster(kernel: Kernel, _: BuildReport | None) -> str | None:
    return None if _has_cluster(kernel) else "no launch of the plan has a cluster"


def _second_stage(kernel: Kernel, _: BuildReport | None) -> str | None:
    """Check that parts of different blocks meet.

    In another launch, in scratch memory, in a cluster, or by atomics and fences.
    """
    plan = kernel.plan
    several = len(plan.launches) > 1 or plan.workspace or any(launch.cooperative for launch in plan.launches)
    meets = several or _has_cluster(kernel) or re.search(_MEETING, _code(kernel.source))
    return None if meets else "one launch without scratch memory or atomics cannot combine parts of different blocks"


def _tensor_map(kernel: Kernel, _: BuildReport | None) -> str | None:
    arguments = {name for launch in kernel.plan.launches for name in launch.args}
    used = any(tensor_map.name in arguments for tensor_map in kernel.plan.tensor_maps)
    return None if used else "no launch of the plan is given a tensor map"


def _shared_memory(kernel: Kernel, build: BuildReport | None) -> str | None:
    """Check for shared memory; static shared memory is known from the build only."""
    static = build.shared_bytes if build is not None and build.ok else None
    dynamic = any(launch.shared_bytes.strip() != "0" for launch in kernel.plan.launches)
    return "no kernel has shared memory" if static == 0 and not dynamic else None


def _approximate_units(_: Kernel, build: BuildReport | None) -> str | None:
    """Check that approximate units are used at all.

    Accurate functions use them too, so their presence shows nothing.
    """
    if build is None or not build.ok or not build.instructions or build.instructions.get("special_function"):
        return None
    return "the binary has no approximate units' instructions"


def _has_cluster(kernel: Kernel) -> bool:
    launches = any(_several_blocks(launch) for launch in kernel.plan.launches)
    return launches or "__cluster_dims__" in _code(kernel.source)


def _several_blocks(launch: Launch) -> bool:
    return any(size.strip() != "1" for size in launch.cluster)


_PLAN: Mapping[tuple[Target, str], _PlanCheck] = {
    (Target.CUDA, "cluster_rows"): _cluster,
    (Target.CUDA, "cluster_multicast"): _cluster,
    (Target.CUDA, "split_rows"): _second_stage,
    (Target.CUDA, "team_rows"): _second_stage,
    (Target.CUDA, "split_k"): _second_stage,
    (Target.CUDA, "strassen"): _second_stage,
    (Target.CUDA, "minimal_filtering"): _shared_memory,
    (Target.CUDA, "shared_rows"): _shared_memory,
    (Target.CUDA, "shared_tiling"): _shared_memory,
    (Target.CUDA, "bank_padding"): _shared_memory,
    (Target.CUDA, "double_buffering"): _shared_memory,
    (Target.CUDA, "async_copy"): _shared_memory,
    (Target.CUDA, "tma_loads"): _tensor_map,
    (Target.CUDA, "fast_exp"): _approximate_units,
}
"""Checks of what launches and build allow."""

_BINARY: Mapping[tuple[Target, str], _BinaryCheck] = {
    (Target.CUDA, "vector_loads"): _vector_loads,
    (Target.CUDA, "tensor_cores"): _needs("tensor_core", "tensor-core instructions"),
    (Target.CUDA, "warpgroup_mma"): _needs("tensor_core", "tensor-core instructions"),
    (Target.CUDA, "async_copy"): _needs("async_copy", "asynchronous copies"),
    (Target.CUDA, "tma_loads"): _needs("tma_load", "loads by a tensor map"),
    (Target.CUDA, "warp_shuffle_reduction"): _needs("shuffle", "shuffles"),
    (Target.CUDA, "warp_per_row"): _needs("shuffle", "shuffles"),
    (Target.CUDA, "shared_rows"): _needs("shared_memory", "shared-memory accesses"),
    (Target.CUDA, "shared_tiling"): _tiles,
    (Target.CUDA, "register_rows"): _register_rows,
    (Target.CUDA, "cluster_rows"): _needs("cluster_barrier", "barrier of a cluster"),
    (Target.CUDA, "cluster_multicast"): _needs("cluster_barrier", "barrier of a cluster"),
    (Target.CUDA, "streaming_access"): _needs("streaming", "accesses that are to be evicted first"),
    (Target.CUDA, "read_only_cache"): _needs("read_only_load", "loads by the read-only path"),
    (Target.CPU, "simd"): _simd,
    (Target.CPU, "threads"): _needs("omp_parallel", "OpenMP region"),
    (Target.CPU, "nontemporal_stores"): _needs("nontemporal_store", "non-temporal stores"),
    (Target.CPU, "prefetch"): _needs("prefetch", "prefetches"),
}
