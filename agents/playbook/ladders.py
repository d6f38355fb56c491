"""Strategies to start from: for each family and target, what usually works, best first, the plain kernel last.

Written as text, ``technique(parameter=value)``; those that do not apply to a problem are dropped by whoever asks.
"""

from __future__ import annotations

import re

from agents.playbook.operators import Launches, Matmul, Operator, Pointwise, Rows
from cupilot.domain.problem import Target
from cupilot.domain.strategy import Strategy, TechniqueUse

_POINTWISE_CUDA = (
    "vector_loads(width=4): wide loads, and as many threads as there are packs",
    "vector_loads(width=4), thread_coarsening(items=2): more bytes in flight a thread",
    "vector_loads(width=4), thread_coarsening(items=4), streaming_access(scope=both): stream past L2",
    "vector_loads(width=4), grid_stride(blocks_per_unit=16): one wave of blocks walks over everything",
    "vector_loads(width=4), fast_exp: cheaper arithmetic behind wide loads",
    "vector_loads(width=4), thread_coarsening(items=4), fast_exp: both",
    "vector_loads(width=2), thread_coarsening(items=4): narrower, more of them",
)
_HALF_POINTWISE_CUDA = ("vector_loads(width=4), fast_exp: rounding to 16 bits hides what approximate functions lose",)
_ROWS_CUDA = (
    "team_rows(share=96), online_softmax, hoisted_division: "
    "long rows of any length, read once by teams of blocks, the next row before the team has reduced this one",
    "team_rows(share=96), online_softmax: the same without a division to hoist",
    "team_rows(share=96), one_pass_moments(method=sum_of_squares): the same with mean and variance",
    "team_rows(share=64), one_pass_moments(method=sum_of_squares): very long rows",
    "team_rows(share=128), hoisted_division: long rows with one statistic",
    "team_rows(share=128): long rows",
    "team_rows(share=64): long rows, more room for the next ones",
    "vector_loads(width=4), cluster_rows(blocks=16), shared_rows, warp_shuffle_reduction: "
    "long rows, read once, and two clusters at a time: one loads while another stores",
    "vector_loads(width=4), cluster_rows(blocks=8), shared_rows, warp_shuffle_reduction: long rows, read once",
    "vector_loads(width=4), cluster_rows(blocks=4), register_rows, warp_shuffle_reduction: long rows, read once",
    "cluster_rows(blocks=4), register_rows, warp_shuffle_reduction: long rows of odd length, read once",
    "cluster_rows(blocks=8), shared_rows, warp_shuffle_reduction: long rows of odd length, read once",
    "vector_loads(width=4), register_rows, warp_shuffle_reduction: one reading of the row, kept in registers",
    "vector_loads(width=4), warp_per_row(warps=4), register_rows: short rows, no barriers",
    "vector_loads(width=4), column_slices(slices=16), register_rows, streaming_access(scope=stores): "
    "wide columns, one reading, results past L2",
    "column_slices(slices=8), register_rows: coalesced columns, one reading",
    "column_slices(slices=4), loop_unrolling(factor=4): columns that are needed once, loads overlapped",
    "vector_loads(width=4), register_rows, warp_shuffle_reduction, streaming_access(scope=both): the same, past L2",
    "vector_loads(width=4), shared_rows, warp_shuffle_reduction: rows too long for registers",
    "vector_loads(width=4), warp_shuffle_reduction, split_rows(parts=64), online_softmax: few long rows",
    "vector_loads(width=4), warp_shuffle_reduction, split_rows(parts=64), one_pass_moments: few long rows",
    "vector_loads(width=4), warp_shuffle_reduction, split_rows(parts=1024), loop_unrolling(factor=8), "
    "streaming_access(scope=stores): one huge row",
    "vector_loads(width=4), warp_shuffle_reduction, split_rows(parts=256), loop_unrolling(factor=4): few long rows",
    "vector_loads(width=4), warp_per_row(warps=8), rows_per_warp(rows=2), register_rows: very short rows",
    "vector_loads(width=4), warp_per_row(warps=8), loop_unrolling(factor=4): a warp a row, loads overlapped",
    "vector_loads(width=4), warp_shuffle_reduction, loop_unrolling(factor=4): loads overlapped",
    "vector_loads(width=4), register_rows, warp_shuffle_reduction, fast_exp, hoisted_division: cheaper arithmetic",
    "vector_loads(width=4), column_slices(slices=8), loop_unrolling(factor=4): wide columns in slices",
    "vector_loads(width=2), column_slices(slices=16), register_rows: wide columns, one reading",
    "column_slices(slices=16), loop_unrolling(factor=8): many slices, loads overlapped",
    "column_slices(slices=4), loop_unrolling(factor=4), online_softmax: two readings in place of three",
    "vector_loads(width=4), warp_shuffle_reduction, online_softmax: two readings in place of three",
    "vector_loads(width=4), warp_shuffle_reduction, one_pass_moments: two readings in place of three",
    "warp_shuffle_reduction, register_rows: rows whose length is odd",
    "warp_per_row(warps=4), register_rows: short rows whose length is odd",
    "warp_shuffle_reduction, split_rows(parts=256): long rows whose length is odd",
)
_HALF_ROWS_CUDA = (
    "team_rows(share=128), online_softmax, one_pass_moments(method=welford), hoisted_division: "
    "long rows of any length, read once by teams of blocks while the next ones arrive",
    "team_rows(share=96), online_softmax, one_pass_moments(method=welford), hoisted_division: "
    "larger teams, and more room for the next rows",
    "vector_loads(width=4), register_rows, warp_shuffle_reduction, fast_exp, hoisted_division: "
    "rows in registers; rounding to 16 bits hides what approximate functions lose",
    "vector_loads(width=4), warp_per_row(warps=4), register_rows, fast_exp, hoisted_division: the same for short rows",
    "vector_loads(width=4), warp_shuffle_reduction, split_rows(parts=64), fast_exp: the same for few long rows",
)
_NARROW_ROWS_CUDA = (
    "team_rows(share=128), online_softmax, one_pass_moments(method=welford), hoisted_division: "
    "long rows of any length, read once by teams of blocks while the next ones arrive",
    "team_rows(share=96), online_softmax, one_pass_moments(method=welford), hoisted_division: "
    "larger teams, and more room for the next rows",
    "vector_loads(width=2), register_rows, warp_shuffle_reduction: rows of whole packs of 8 bytes, kept in registers",
    "vector_loads(width=2), warp_per_row(warps=4), register_rows: short ones, no barriers",
    "vector_loads(width=2), shared_rows, warp_shuffle_reduction: ones too long for registers",
    "vector_loads(width=2), warp_shuffle_reduction, loop_unrolling(factor=4): loads overlapped",
)
"""For rows of tensors of 16 bits that packs of eight elements do not fit, but packs of four do."""
_MATMUL_CUDA = (
    "shared_tiling(tile_m=256, tile_n=128, tile_k=32), tensor_cores(precision=tf32), warpgroup_mma, "
    "tma_loads(stages=4), cluster_multicast(blocks=2), block_swizzle(group=8): "
    "warpgroups multiply, and clusters share tiles that come far ahead",
    "shared_tiling(tile_m=128, tile_n=256, tile_k=32), tensor_cores(precision=tf32), warpgroup_mma, "
    "tma_loads(stages=4), cluster_multicast(blocks=2), block_swizzle(group=8): "
    "the same, where the second operand's depth is contiguous",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=32), tensor_cores(precision=half, warp_m=32, warp_n=64), "
    "double_buffering, bank_padding(words=8), launch_bounds(min_blocks=2), block_swizzle(group=8): "
    "half-precision tensor cores, operands rounded once on their way",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=32), tensor_cores(precision=tf32, warp_m=64, warp_n=64), "
    "async_copy(stages=2), bank_padding(words=4), block_swizzle(group=8): tensor cores fed asynchronously",
    "shared_tiling(tile_m=256, tile_n=128, tile_k=32), tensor_cores(precision=tf32), warpgroup_mma, "
    "tma_loads(stages=4): warpgroups multiply, for many products of a few tiles",
    "shared_tiling(tile_m=128, tile_n=64, tile_k=32), tensor_cores(precision=tf32), warpgroup_mma, "
    "tma_loads(stages=4), cluster_multicast(blocks=2): the same in small tiles, for small results",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=32), tensor_cores(precision=tf32), warpgroup_mma, "
    "tma_loads(stages=4), split_k(parts=32): small result, deep product",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=16), register_blocking(rows=8, cols=8), launch_bounds(min_blocks=2), "
    "block_swizzle(group=8), strassen(levels=2): 49 products of sums of sixteenths in place of 64, for large matrices",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=16), register_blocking(rows=8, cols=8), launch_bounds(min_blocks=2), "
    "block_swizzle(group=8), strassen(levels=1): seven products of sums of quarters in place of eight",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=16), register_blocking(rows=8, cols=8), double_buffering, "
    "bank_padding(words=4), vector_loads(width=4), launch_bounds(min_blocks=2), block_swizzle(group=8): "
    "the classic blocked product, two blocks at a time",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=8), register_blocking(rows=8, cols=8), async_copy(stages=4), "
    "bank_padding(words=4), launch_bounds(min_blocks=2), block_swizzle(group=8): "
    "rows on any boundary, copied past the registers",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=32), tensor_cores(precision=tf32, warp_m=64, warp_n=64), "
    "double_buffering, bank_padding(words=4), block_swizzle(group=8): operands rounded once on their way",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=16), register_blocking(rows=8, cols=8), double_buffering, "
    "bank_padding(words=4), vector_loads(width=4), launch_bounds(min_blocks=2), split_k(parts=64): "
    "small result, deep product",
    "shared_tiling(tile_m=64, tile_n=128, tile_k=16), register_blocking(rows=8, cols=8), double_buffering, "
    "bank_padding(words=4), vector_loads(width=4), launch_bounds(min_blocks=2): more, smaller blocks",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=8), register_blocking(rows=8, cols=8), double_buffering, "
    "bank_padding(words=4), launch_bounds(min_blocks=2), block_swizzle(group=8): no assumption on alignment",
    "shared_tiling(tile_m=64, tile_n=64, tile_k=16), register_blocking(rows=8, cols=4), double_buffering, "
    "bank_padding(words=4), vector_loads(width=4): smaller tiles for smaller results",
    "shared_tiling(tile_m=64, tile_n=64, tile_k=16), register_blocking(rows=4, cols=4), bank_padding(words=4), "
    "split_k(parts=16): small result, deep product",
    "shared_tiling(tile_m=64, tile_n=64, tile_k=32), tensor_cores(precision=tf32, warp_m=32, warp_n=32), "
    "async_copy(stages=4), bank_padding(words=4): smaller tensor-core tiles",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=32), tensor_cores(precision=tf32), warpgroup_mma, "
    "tma_loads(stages=4), block_swizzle(group=8): warpgroups multiply smaller tiles",
    "shared_tiling(tile_m=32, tile_n=32, tile_k=32): shared memory only",
)
_POINTWISE_CPU = (
    "threads, simd(width=16), polynomial_exp, nontemporal_stores: every core, whole vectors, stores past the cache",
    "threads, simd(width=16), polynomial_exp(degree=5), loop_unrolling(factor=2): cheaper functions, work overlaps",
    "threads, simd(width=16), nontemporal_stores, loop_unrolling(factor=4): pure streaming",
    "threads, simd(width=16), polynomial_exp, loop_unrolling(factor=2): independent work overlaps",
    "threads, simd(width=8), polynomial_exp, nontemporal_stores: narrower vectors, higher clock",
    "threads, simd(width=16), polynomial_exp(degree=5), loop_unrolling(factor=4): cheaper polynomial",
    "threads, simd(width=16), polynomial_exp: no cache tricks",
    "threads, simd(width=16), loop_unrolling(factor=4): for expressions without special functions",
    "threads: threads only",
)
_ROWS_CPU = (
    "threads, simd(width=16), polynomial_exp, multiple_accumulators(count=4), fused_passes, hoisted_division: "
    "each exponential once, each row in cache",
    "threads, simd(width=16), polynomial_exp, multiple_accumulators(count=4): vectorised exponentials",
    "threads, simd(width=16), multiple_accumulators(count=4), hoisted_division: whole vectors, independent chains",
    "threads, simd(width=16), polynomial_exp, column_tiles(columns=256), fused_passes, hoisted_division: "
    "columns in tiles, each exponential once",
    "threads, simd(width=16), column_tiles(columns=256): columns in tiles",
    "threads, simd(width=16), column_tiles(columns=64), hoisted_division, nontemporal_stores: "
    "narrow tiles that stay in cache",
    "threads, simd(width=16), multiple_accumulators(count=4), nontemporal_stores, hoisted_division: "
    "stores past the cache",
    "threads, simd(width=16), multiple_accumulators(count=4), split_rows(parts=64): few long rows",
    "threads, simd(width=16), polynomial_exp, multiple_accumulators(count=4), online_softmax, nontemporal_stores, "
    "hoisted_division: long rows read twice only",
    "threads, simd(width=16), multiple_accumulators(count=4), one_pass_moments, nontemporal_stores: "
    "long rows read twice only",
    "threads, simd(width=16), multiple_accumulators(count=8), prefetch(distance=512): streaming",
    "threads, simd(width=8), polynomial_exp, multiple_accumulators(count=4), fused_passes: narrower vectors",
    "threads, simd(width=16), polynomial_exp, multiple_accumulators(count=2), fused_passes, row_chunking(rows=16): "
    "rows dealt out in chunks",
    "threads, simd(width=16): vectors and threads only",
    "threads: threads only",
)
_MATMUL_CPU = (
    "threads, simd(width=16), cache_blocking(block_m=192, block_n=4096, block_k=512), micro_kernel(rows=6, vectors=3), "
    "packing(operands=both): the blocked product of Goto and van de Geijn",
    "threads, simd(width=8), cache_blocking(block_m=192, block_n=4096, block_k=512), micro_kernel(rows=6, vectors=2), "
    "packing(operands=both), loop_unrolling(factor=4): for machines with 16 vector registers",
    "threads, simd(width=16), cache_blocking(block_m=96, block_n=1024, block_k=256), micro_kernel(rows=12, vectors=2), "
    "packing(operands=both): taller rectangle, smaller blocks",
    "threads, simd(width=16), cache_blocking(block_m=96, block_n=1024, block_k=256), micro_kernel(rows=8, vectors=2), "
    "packing(operands=both), loop_unrolling(factor=4): unrolled depth",
    "threads, simd(width=16), cache_blocking(block_m=96, block_n=1024, block_k=256), micro_kernel(rows=8, vectors=2), "
    "packing(operands=b): only the shared operand packed",
    "threads, simd(width=16), split_k(parts=16): small result, deep product",
    "threads, simd(width=16): vectors along the columns",
    "threads: threads only",
)
_LAUNCHES_CUDA = (
    "shared_tiling(tile_m=128, tile_n=256, tile_k=64), tensor_cores(precision=bfloat16), warpgroup_mma, "
    "tma_loads(stages=4), online_softmax: attention in one launch, other products over tensor maps",
    "shared_tiling(tile_m=128, tile_n=256, tile_k=64), tensor_cores(precision=half), warpgroup_mma, "
    "tma_loads(stages=4), online_softmax: the same for float16",
    "shared_tiling(tile_m=128, tile_n=256, tile_k=64), tensor_cores(precision=bfloat16), warpgroup_mma, "
    "async_copy(stages=4), online_softmax: attention in one launch, other products by warpgroups",
    "shared_tiling(tile_m=128, tile_n=256, tile_k=64), tensor_cores(precision=half), warpgroup_mma, "
    "async_copy(stages=4), online_softmax: the same for float16",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=32), tensor_cores(precision=bfloat16, warp_m=64, warp_n=32), "
    "async_copy(stages=4), online_softmax: attention in one launch, its scores in registers",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=32), tensor_cores(precision=half, warp_m=64, warp_n=32), "
    "async_copy(stages=4), online_softmax: the same for float16, and for float32 under the policy half",
    "shared_tiling(tile_m=128, tile_n=256, tile_k=64), tensor_cores(precision=bfloat16), warpgroup_mma, "
    "tma_loads(stages=4): warpgroups multiply matrices that the copy engine brings",
    "shared_tiling(tile_m=128, tile_n=256, tile_k=64), tensor_cores(precision=half), warpgroup_mma, "
    "tma_loads(stages=4): the same for float16",
    "shared_tiling(tile_m=128, tile_n=256, tile_k=64), tensor_cores(precision=bfloat16), warpgroup_mma, "
    "async_copy(stages=4): warpgroups multiply, fed asynchronously",
    "shared_tiling(tile_m=128, tile_n=256, tile_k=64), tensor_cores(precision=half), warpgroup_mma, "
    "async_copy(stages=4): the same for float16",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=32), tensor_cores(precision=bfloat16, warp_m=64, warp_n=32), "
    "async_copy(stages=4): products on tensor cores, fed asynchronously",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=32), tensor_cores(precision=half, warp_m=64, warp_n=32), "
    "async_copy(stages=4): the same for float16, and for float32 under the policy half",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=16), tensor_cores(precision=tf32, warp_m=64, warp_n=32), "
    "async_copy(stages=4): the same with operands of tf32",
    "shared_tiling(tile_m=128, tile_n=64, tile_k=32), tensor_cores(precision=bfloat16, warp_m=32, warp_n=32), "
    "async_copy(stages=4): smaller tiles, more blocks",
    "shared_tiling(tile_m=128, tile_n=64, tile_k=32), tensor_cores(precision=half, warp_m=32, warp_n=32), "
    "async_copy(stages=4): smaller tiles, more blocks",
    "shared_tiling(tile_m=128, tile_n=64, tile_k=16), tensor_cores(precision=tf32, warp_m=32, warp_n=32), "
    "async_copy(stages=4): smaller tiles, more blocks",
    "shared_tiling(tile_m=128, tile_n=64, tile_k=16), async_copy(stages=3), online_softmax: "
    "attention in one launch on the scalar units",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=16), minimal_filtering(outputs=4, taps=3): "
    "convolutions of stride one with a third of their multiplications",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=16), minimal_filtering(outputs=4, taps=5): "
    "the same for filters of five columns",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=16), minimal_filtering(outputs=2, taps=3): "
    "more multiplications, two blocks at a time",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=16): products in tiles, eight by eight results a thread",
    "shared_tiling(tile_m=128, tile_n=128, tile_k=8): shallower tiles, little of which is empty",
    "shared_tiling(tile_m=128, tile_n=64, tile_k=16): eight by four results a thread",
    "shared_tiling(tile_m=64, tile_n=64, tile_k=16): smaller tiles, more blocks",
)
_LAUNCHES_CPU = (
    "simd(width=16), micro_kernel(rows=8, vectors=2), polynomial_exp: products in panels, vectors of functions",
    "simd(width=16), micro_kernel(rows=6, vectors=3), polynomial_exp: wider rectangle",
    "simd(width=8), micro_kernel(rows=6, vectors=2), polynomial_exp: for machines with 16 vector registers",
    "simd(width=16), micro_kernel(rows=8, vectors=2): functions of the library",
    "simd(width=16), polynomial_exp: plain loops, vectors of functions",
)
_LADDERS = {
    (Target.CUDA, "launches"): _LAUNCHES_CUDA,
    (Target.CPU, "launches"): _LAUNCHES_CPU,
    (Target.CUDA, "pointwise"): _POINTWISE_CUDA,
    (Target.CUDA, "rows"): _ROWS_CUDA,
    (Target.CUDA, "matmul"): _MATMUL_CUDA,
    (Target.CPU, "pointwise"): _POINTWISE_CPU,
    (Target.CPU, "rows"): _ROWS_CPU,
    (Target.CPU, "matmul"): _MATMUL_CPU,
}


def ladder(operator: Operator, target: Target) -> list[Strategy]:
    """Return the family's strategies, best first; the plain kernel last."""
    plain = Strategy(techniques=(), rationale="the plain kernel: correct, simple, something to compare with")
    family = "pointwise" if isinstance(operator, Pointwise) else "matmul" if isinstance(operator, Matmul) else "rows"
    family = "launches" if isinstance(operator, Launches) else family
    first = _for_halves(operator) if target is Target.CUDA else ()
    return [*(parse(text) for text in (*first, *_LADDERS[target, family])), plain]


def _for_halves(operator: Operator) -> tuple[str, ...]:
    """Return what comes first for tensors of 16 bits."""
    if not isinstance(operator, Pointwise | Rows) or not operator.halves:
        return ()
    if isinstance(operator, Pointwise):
        return _HALF_POINTWISE_CUDA
    return (*(_NARROW_ROWS_CUDA if _fits_narrow_packs_only(operator) else ()), *_HALF_ROWS_CUDA)


def _fits_narrow_packs_only(operator: Rows) -> bool:
    if not operator.contiguous:
        return False
    wide = 16 // min(operator.itemsize(name) for name in operator.streamed)
    return operator.length % wide == wide // 2


def parse(text: str) -> Strategy:
    """Return a strategy from its text form, ``technique(parameter=value), technique: rationale``."""
    techniques, _, rationale = text.partition(": ")
    uses = []
    for name, inside in re.findall(r"(\w+)(?:\(([^)]*)\))?(?:, |$)", techniques):
        pairs = (item.split("=") for item in inside.split(", ") if item)
        uses.append(
            TechniqueUse(id=name, parameters={key: int(value) if value.isdigit() else value for key, value in pairs})
        )
    return Strategy(techniques=tuple(uses), rationale=rationale)
