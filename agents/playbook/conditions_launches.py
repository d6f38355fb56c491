"""Techniques with a template for the compiler's launches, and the conditions under which each applies."""

from __future__ import annotations

from agents.playbook.compiler.attention import WIDEST, Attention
from agents.playbook.compiler.cpu.polynomials import NAMES
from agents.playbook.compiler.cpu.tiling import Vectors
from agents.playbook.compiler.cuda import merged, mma, wgmma
from agents.playbook.compiler.cuda.attention import block_of
from agents.playbook.compiler.cuda.attention_block import Block
from agents.playbook.compiler.cuda.filtering import filtering_of
from agents.playbook.compiler.cuda.streamed import Streamed
from agents.playbook.compiler.cuda.tiles import LARGEST_TILE, Arithmetic, Tiles, arithmetic_of
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.products import LEAST, factor_types, products
from agents.playbook.compiler.program import (
    matrices_of,
    program_of,
    refusal_of_tiles,
    refusal_of_vectors,
    tiled_program,
)
from agents.playbook.conditions import Case, Check
from agents.playbook.operators import Launches
from agents.playbook.ordering import walk
from agents.playbook.templates.launches import tiling_of
from cupilot.domain.kernel import MAX_LAUNCHES, MAX_WORKSPACE_BYTES
from cupilot.domain.problem import NumericsPolicy

FEWEST_STAGES = 3
"""Pairs of tiles from which on copies run ahead of what is multiplied."""
WARPGROUP_STAGES = 4
_NO_PACKS = "no operand lies in packs of 16 bytes, as it is multiplied"
_TYPES = {"half": "float16", "bfloat16": "bfloat16"}


def _tiling(case: Case) -> str | None:
    assert isinstance(case.operator, Launches)
    m, n, k = (case.number("shared_tiling", name) for name in ("tile_m", "tile_n", "tile_k"))
    on_matrix_units = "tensor_cores" in case.options
    if max(m, n) > LARGEST_TILE and "warpgroup_mma" not in case.options:
        return f"tiles of more than {LARGEST_TILE} rows or columns do not fit the registers"
    refusal = refusal_of_tiles(case.operator.facts, online="online_softmax" in case.options)
    if refusal is not None or on_matrix_units:
        return refusal
    tiles, limit = _tiles(case), case.device.shared_bytes_per_block
    needed = max((each.shared_bytes for each in _arithmetic(case, tiles)), default=0) if tiles else 0
    needed += merged.SHARED_BYTES if len(_groups(case)) > MAX_LAUNCHES else 0
    return f"the tiles, {k} deep, need {needed} bytes of shared memory, a block has {limit}" if needed > limit else None


def _tensor_cores(case: Case) -> str | None:
    assert isinstance(case.operator, Launches)
    precision = case.options.text("tensor_cores", "precision")
    wide = precision == "tf32"
    if not wide and case.policy is not NumericsPolicy.HALF:
        return f"16-bit operands are not allowed under the policy {case.policy.value}"
    m, n, k = (case.number("shared_tiling", name) for name in ("tile_m", "tile_n", "tile_k"))
    if k < (8 if wide else 16):
        return "the tile is not deep enough"
    rectangle, asked = mma.rectangle(m, n), tuple(case.number("tensor_cores", f"warp_{side}") for side in "mn")
    if asked != rectangle and "warpgroup_mma" not in case.options:
        return f"a warp computes {rectangle[0]} by {rectangle[1]} of this tile"
    groups = _groups(case)
    types = factor_types(matrices_of(case.operator.facts, online="online_softmax" in case.options).groups)
    types |= {kind for group in groups if isinstance(group, Attention) for kind in group.types()}
    if wide:
        return "operands have 16 bits" if types else None
    if precision == "bfloat16" and not types:
        return "it has too few digits for operands of float32"
    return f"operands are {', '.join(sorted(types))}" if types - {_TYPES[precision]} else None


def _warpgroups(case: Case) -> str | None:
    tiles = _tiles(case)
    if tiles is None or tiles.precision not in _TYPES:
        return "it is written for operands of 16 bits"
    if case.device.arch.removesuffix("a") != "sm_90":
        return f"{case.device.arch} has no wgmma"
    if (tiles.m, tiles.k, tiles.stages) != (2 * wgmma.LINES, wgmma.ROW, WARPGROUP_STAGES):
        size = f"{2 * wgmma.LINES} rows, {wgmma.ROW} deep"
        return f"it is written for {WARPGROUP_STAGES} stages of tiles of {size}"
    made = _arithmetic(case, tiles)
    return None if any(isinstance(each, wgmma.Warpgroups) for each in made) else _NO_PACKS


def _tiles(case: Case) -> Tiles | None:
    tiling = tiling_of(case.options)
    return tiling if isinstance(tiling, Tiles) else None


def _groups(case: Case) -> list[Group]:
    assert isinstance(case.operator, Launches)
    return program_of(case.operator.facts, online="online_softmax" in case.options).groups


def _arithmetic(case: Case, tiles: Tiles) -> list[Arithmetic]:
    assert isinstance(case.operator, Launches)
    found = products(tiled_program(case.operator.facts, tiles).groups)
    return [arithmetic_of(group, reduction, product, tiles) for group, reduction, product in found]


def _attention(case: Case, precision: str) -> list[Block]:
    return [block_of(group, precision) for group in _groups(case) if isinstance(group, Attention)]


def _async_copy(case: Case) -> str | None:
    tiles = _tiles(case)
    attention = [] if tiles is None else _attention(case, tiles.precision)
    if tiles is None or not (tiles.precision or attention):
        return "it is written for tensor cores"
    if tiles.stages < FEWEST_STAGES:
        return f"fewer than {FEWEST_STAGES} stages do not run ahead"
    made = _arithmetic(case, tiles)
    copied = [operand.is_copied for each in made for operand in (each.first, each.second)]
    if not any([*copied, *(each.is_copied for each in attention)]):
        return _NO_PACKS
    needed = max(each.shared_bytes for each in [*made, *attention])
    limit = case.device.shared_bytes_per_block
    return f"the tiles need {needed} bytes of shared memory, a block has {limit}" if needed > limit else None


def _tensor_maps(case: Case) -> str | None:
    tiles = _tiles(case)
    if tiles is None or not tiles.warpgroups:
        return "of products, only those by warpgroups are written with tensor maps"
    made = [each for each in _arithmetic(case, tiles) if isinstance(each, Streamed)]
    if not made:
        return "no product is of two matrices with rows on 16-byte boundaries, and used as a whole"
    needed, limit = max(each.shared_bytes for each in made), case.device.shared_bytes_per_block
    return f"the tiles need {needed} bytes of shared memory, a block has {limit}" if needed > limit else None


def _filtering(case: Case) -> str | None:
    assert isinstance(case.operator, Launches)
    tiles = _tiles(case)
    if tiles is None or tiles.precision:
        return "it is written for tiles on the scalar units"
    program = tiled_program(case.operator.facts, tiles)
    found = [made for group in program.groups if (made := filtering_of(group, tiles)) is not None]
    if not found:
        return "no launch is a float32 convolution of stride one that makes many more multiplications without it"
    if len(program.groups) + len(found) > MAX_LAUNCHES:
        return f"it needs launches of its own, and {MAX_LAUNCHES} are allowed"
    size = program.workspace_bytes + max(made.panel_bytes for made in found)
    if size > MAX_WORKSPACE_BYTES:
        return f"its filters need a workspace of {size / 2**30:.1f} GiB"
    needed, limit = max(made.shared_bytes for made in found), case.device.shared_bytes_per_block
    return f"the tiles need {needed} bytes of shared memory, a block has {limit}" if needed > limit else None


def _online(case: Case) -> str | None:
    tiles = _tiles(case)
    if tiles is None:
        return "attention is written for tiles in shared memory"
    if tiles.precision == "tf32":
        return "attention is not written for operands of tf32"
    if not _attention(case, tiles.precision):
        return f"no launches are attention with heads of {LEAST} to {WIDEST} elements"
    return None


CUDA: dict[str, Check] = {
    "shared_tiling": _tiling,
    "tensor_cores": _tensor_cores,
    "async_copy": _async_copy,
    "tma_loads": _tensor_maps,
    "online_softmax": _online,
    "minimal_filtering": _filtering,
    "warpgroup_mma": _warpgroups,
}


def _micro_kernel(case: Case) -> str | None:
    assert isinstance(case.operator, Launches)
    vectors = tiling_of(case.options)
    return refusal_of_vectors(case.operator.facts, vectors) if isinstance(vectors, Vectors) else "it needs simd"


def _polynomial(case: Case) -> str | None:
    assert isinstance(case.operator, Launches)
    groups = program_of(case.operator.facts).groups
    roots = [root for group in groups for root in (group.argument, *(each.value for each in group.targets)) if root]
    known = any(term.op.removeprefix("fn_") in NAMES and term.dtype == "float32" for term in walk(roots))
    return None if known else "no value has an exponential or similar function"


def _simd(case: Case) -> str | None:
    needed = any(name in case.options for name in ("micro_kernel", "polynomial_exp"))
    return None if needed else "compilers make vectors of plain loops without it"


CPU: dict[str, Check] = {"simd": _simd, "micro_kernel": _micro_kernel, "polynomial_exp": _polynomial}
