"""Techniques with a template for matrix products, and the conditions under which each applies."""

from __future__ import annotations

from agents.playbook.conditions import Case, Check, always
from agents.playbook.operators import Matmul
from agents.playbook.templates import cuda_matmul_strassen, cuda_matmul_tensor, cuda_matmul_tiled, cuda_matmul_warpgroup
from agents.playbook.templates.cuda_matmul_copies import packs_aligned
from agents.playbook.templates.cuda_matmul_parts import Tiling
from cupilot.domain.problem import NumericsPolicy, Target

LONGEST_CHAIN = 16384
"""Products in one float32 sum: beyond it errors grew to 15 times those of cuBLAS, which splits such sums (measured)."""

WARPGROUP_LINES = {64, 128, 256}
"""Of the shared operand's tile: an instruction takes up to 256."""


def _matmul(case: Case) -> Matmul:
    assert isinstance(case.operator, Matmul)
    return case.operator


def _aligned(operator: Matmul) -> tuple[bool, bool]:
    """Return whether packs of four lie on 16-byte boundaries, of the first operand and of the second."""
    return (
        packs_aligned(operator.a, operator.m, operator.k, depth_is_row=False),
        packs_aligned(operator.b, operator.n, operator.k, depth_is_row=True),
    )


def _micro_kernel(case: Case) -> str | None:
    if "cache_blocking" not in case.options:
        return "it needs cache_blocking"
    width = case.number("simd", "width", 16)
    rows, vectors = case.number("micro_kernel", "rows"), case.number("micro_kernel", "vectors")
    wide = width == 16 and "avx512" in case.device.arch
    registers = (rows * vectors + vectors) * (1 if wide or width <= 8 else 2)
    limit = 32 if "avx512" in case.device.arch else 16
    return f"{registers} vectors do not fit {limit} registers" if registers > limit else None


def _split_k(case: Case) -> str | None:
    operator, parts = _matmul(case), case.number("split_k", "parts")
    if case.device.target is Target.CPU and ("micro_kernel" in case.options or "threads" not in case.options):
        return "parts are for threads, and not written for the blocked product"
    if operator.k < 128 * parts:
        return f"parts would be less than 128 deep, of {operator.k}"
    size = operator.batches * operator.m * operator.n * parts * 4
    return "the parts would take more than 2 GB" if size > 2**31 else None


def _tile(case: Case) -> str | None:
    """Check threads and shared memory of a block, from all techniques that shape its tile."""
    operator, options = _matmul(case), case.options
    tiling = Tiling.of(operator, options)
    if tiling.m % tiling.rows or tiling.n % tiling.cols:
        return "the tile is not a multiple of what a thread or warp computes"
    if not 32 <= tiling.threads <= 1024:
        return f"the tile would take {tiling.threads} threads"
    if "warpgroup_mma" in options:
        needed = cuda_matmul_warpgroup.shared_bytes(tiling)
    elif "strassen" in options:
        needed = cuda_matmul_strassen.shared_bytes(operator, options, tiling)
    elif "tensor_cores" in options:
        needed = cuda_matmul_tensor.shared_bytes(operator, options, tiling)
    else:
        needed = cuda_matmul_tiled.shared_bytes(tiling)
    limit = case.device.shared_bytes_per_block
    if needed > limit:
        return f"the tiles need {needed} bytes of shared memory, a block has {limit}"
    if tiling.part(operator) > LONGEST_CHAIN and "strassen" not in options:
        return f"sums of {tiling.part(operator)} products in float32 lose precision: split_k is needed"
    return "there are too many blocks" if tiling.blocks(operator) > 2**31 - 1 else None


def _padding(case: Case) -> str | None:
    if "warpgroup_mma" in case.options:
        return "tiles of tensor maps are swizzled"
    half = "tensor_cores" in case.options and cuda_matmul_tensor.element_bytes(case.options) == 2
    narrow = half and case.number("bank_padding", "words") % 8
    return "rows of 16-bit elements must stay on 16-byte boundaries" if narrow else None


def _async_copy(case: Case) -> str | None:
    if "tensor_cores" in case.options and cuda_matmul_tensor.element_bytes(case.options) == 2:
        return "16-bit operands are converted on their way"
    digits = case.device.arch.removeprefix("sm_").rstrip("af")
    return None if digits.isdigit() and int(digits) >= 80 else f"{case.device.arch} has no asynchronous copies"


def _tensor_cores(case: Case) -> str | None:
    half = cuda_matmul_tensor.element_bytes(case.options) == 2
    if half and case.policy is not NumericsPolicy.HALF:
        return f"16-bit operands are not allowed under the policy {case.policy.value}"
    depth = 16 if half else 8
    return "the tile is not deep enough" if case.number("shared_tiling", "tile_k", 16) < depth else None


def _tma_loads(case: Case) -> str | None:
    operator = _matmul(case)
    if "warpgroup_mma" not in case.options:
        return "of matrix products, only those by warpgroups are written with tensor maps"
    return None if all(_aligned(operator)) else "rows must lie on 16-byte boundaries"


def _warpgroup(case: Case) -> str | None:
    operator = _matmul(case)
    tiling = Tiling.of(operator, case.options)
    if case.device.arch.removesuffix("a") != "sm_90":
        return f"{case.device.arch} has no wgmma"
    if case.options.text("tensor_cores", "precision", "tf32") != "tf32":
        return "it is written for tf32"
    if "tma_loads" not in case.options:
        return "its tiles are loaded by tensor maps: tma_loads is needed"
    if not cuda_matmul_warpgroup.applies(operator):
        return "the depth of one operand must be contiguous"
    lines = cuda_matmul_warpgroup.shared_lines(operator, tiling)
    if lines not in WARPGROUP_LINES or tiling.k != cuda_matmul_warpgroup.DEPTH:
        return "a tile has 64, 128 or 256 lines of the operand whose depth is contiguous, and is 32 deep"
    if not 256 <= tiling.threads <= 384:
        return "a tile has 64 or 128 lines of the other operand"
    if tiling.stages < 2:
        return "it keeps two tiles: one is multiplied while another one comes"
    least = cuda_matmul_warpgroup.sums(operator, tiling) + cuda_matmul_warpgroup.SPARE_REGISTERS
    enough = cuda_matmul_warpgroup.registers(operator, tiling) >= least
    return None if enough else "the sums of the tile do not fit the registers"


def _strassen(case: Case) -> str | None:
    operator, tiling = _matmul(case), Tiling.of(_matmul(case), case.options)
    digits = case.device.arch.removeprefix("sm_").rstrip("af")
    if not digits.isdigit() or int(digits) < 90:
        return f"{case.device.arch} has no bulk copies"
    size = 1 / (1 / operator.m + 1 / operator.n + 1 / operator.k)
    if size < cuda_matmul_strassen.LEAST:
        return f"sums of quarters would take longer than what they save: the size {size:.0f} is too small"
    if not cuda_matmul_strassen.fits(tiling):
        return "a warp has four by eight rectangles of whole packs"
    split = cuda_matmul_strassen.Split.of(operator, case.options)
    if sum(cuda_matmul_strassen.workspace(operator, split, tiling).values()) > cuda_matmul_strassen.MOST_BYTES:
        return "sums and products would take more workspace than 4 GiB"
    return None


def _matmul_vectors(case: Case) -> str | None:
    operator = _matmul(case)
    if "shared_tiling" not in case.options or "tensor_cores" in case.options:
        return "only tiles for the scalar units choose the width of their loads"
    if case.number("vector_loads", "width") != 4:
        return "tiles are loaded by four floats or by one"
    return None if any(_aligned(operator)) else "no operand has rows on 16-byte boundaries"


def _swizzle(case: Case) -> str | None:
    operator = _matmul(case)
    if "shared_tiling" not in case.options:
        return "there are no tiles to order"
    small = operator.m <= case.number("shared_tiling", "tile_m", 128) * 2
    return "there are too few tile rows" if small else None


def _matmul_bounds(case: Case) -> str | None:
    resident = case.number("launch_bounds", "min_blocks")
    tiled = "shared_tiling" in case.options
    operator = _matmul(case)
    tiling = Tiling.of(operator, case.options)
    threads = tiling.threads if tiled else 64
    limit = case.device.threads_per_unit or 1024
    if resident * threads > limit:
        return f"{resident} blocks of {threads} threads do not fit a multiprocessor"
    registers = case.device.registers_per_unit // max(resident * threads, 1)
    if "warpgroup_mma" in case.options and resident > 1:
        # Threads that are to be handed registers which another block has wait for ever.
        least = cuda_matmul_warpgroup.sums(operator, tiling) + cuda_matmul_warpgroup.SPARE_REGISTERS
        return "the sums of the tiles do not fit the registers" if registers < least else None
    rectangle = case.number("register_blocking", "rows") * case.number("register_blocking", "cols")
    return "the rectangles would not fit the registers left" if tiled and registers < rectangle + 32 else None


CUDA: dict[str, Check] = {
    "shared_tiling": _tile,
    "register_blocking": always,
    "bank_padding": _padding,
    "double_buffering": always,
    "async_copy": _async_copy,
    "tma_loads": _tma_loads,
    "cluster_multicast": _tma_loads,
    "tensor_cores": _tensor_cores,
    "warpgroup_mma": _warpgroup,
    "vector_loads": _matmul_vectors,
    "split_k": _split_k,
    "strassen": _strassen,
    "block_swizzle": _swizzle,
    "launch_bounds": _matmul_bounds,
    "loop_unrolling": lambda case: "tensor-core loops are unrolled anyway" if "tensor_cores" in case.options else None,
}

CPU: dict[str, Check] = {
    "threads": always,
    "simd": always,
    "loop_unrolling": always,
    "cache_blocking": lambda case: None if "micro_kernel" in case.options else "it needs a micro_kernel",
    "micro_kernel": _micro_kernel,
    "packing": always,
    "split_k": _split_k,
}
