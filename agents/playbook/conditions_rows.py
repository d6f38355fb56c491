"""Techniques with a template for row operators, and the conditions under which each applies."""

from __future__ import annotations

from agents.playbook.conditions import Case, Check, always, fast_unit, launch_bounds, polynomial
from agents.playbook.operators import Rows, kept_value, moments_pair, softmax_pair
from agents.playbook.templates.cuda_packs import lanes
from agents.playbook.templates.cuda_rows import BLOCKS, MAX_ITEMS, items, share
from agents.playbook.templates.cuda_team import AHEAD, row_bytes, team_of
from agents.playbook.templates.passes import hoist_division
from cupilot.domain.problem import Target

MOST_PARTS = 2**17
"""Parts of all rows together; launches of more blocks took longer than whole rows did (measured on H200)."""
LEAST_ROW, AT_WORK = 128 * 1024, 0.9
"""Bytes of a row that is shared by a team, and the share of the multiprocessors that have a block."""
STATIC_SHARED = 16 * 1024
"""Shared memory left to the reductions beside staged rows."""


def _rows(case: Case) -> Rows:
    assert isinstance(case.operator, Rows)
    return case.operator


def _contiguous(case: Case) -> str | None:
    return None if _rows(case).contiguous else "rows are not contiguous"


def _strided(case: Case) -> str | None:
    return "rows are contiguous" if _rows(case).contiguous else None


def _row_vectors(case: Case) -> str | None:
    operator, width = _rows(case), lanes(_rows(case), case.options)
    if "team_rows" in case.options and case.number("vector_loads", "width") != 4:
        return "teams move packs of 16 bytes"
    size = operator.length if operator.contiguous else operator.inner
    return f"{size} is not a multiple of {width}" if size % width else None


def _streaming_rows(case: Case) -> str | None:
    stored = "register_rows" in case.options or "shared_rows" in case.options
    if case.options.text("streaming_access", "scope") == "both" and _rows(case).passes > 1 and not stored:
        return "each pass reads the input again, so it must not be evicted first"
    return None


def _unrolled(case: Case) -> str | None:
    return "values are kept in registers" if "register_rows" in case.options else None


def _warp_per_row(case: Case) -> str | None:
    operator = _rows(case)
    if not operator.contiguous or operator.length > 8192:
        return "rows are not contiguous or longer than 8192"
    warps = case.number("warp_per_row", "warps")
    return f"fewer than {warps} rows" if operator.rows < warps else None


def _rows_per_warp(case: Case) -> str | None:
    operator, many = _rows(case), case.number("rows_per_warp", "rows")
    if operator.length > 1024:
        return "rows are longer than 1024"
    return f"the number of rows is not a multiple of {many}" if operator.rows % many else None


def _rows_per_block(case: Case) -> str | None:
    operator, many = _rows(case), case.number("rows_per_block", "rows")
    if not operator.contiguous:
        return "rows are not contiguous"
    enough = operator.rows >= 2 * many * max(case.device.units, 1)
    return None if enough else "there are too few rows to give each block several"


def _several_passes(case: Case) -> str | None:
    operator = _rows(case)
    return None if operator.maps and operator.passes > 1 else "the row is needed once only"


def _register_rows(case: Case) -> str | None:
    operator = _rows(case)
    if reason := _several_passes(case):
        return reason
    blocks = [case.number("warp_per_row", "warps") * 32] if "warp_per_row" in case.options else list(BLOCKS)
    if min(items(operator, case.options, block) for block in blocks) > MAX_ITEMS:
        return f"a row takes more than {MAX_ITEMS} registers a thread"
    return None


def _shared_rows(case: Case) -> str | None:
    operator = _rows(case)
    if reason := _contiguous(case) or _several_passes(case):
        return reason
    needed = share(operator, case.options) * len(operator.elements) * 4 + STATIC_SHARED
    limit = case.device.shared_bytes_per_block
    return f"a row needs {needed} bytes of shared memory, a block has {limit}" if needed > limit else None


def _needs_arch(case: Case, least: int, what: str) -> str | None:
    digits = case.device.arch.removeprefix("sm_").rstrip("af")
    return None if digits.isdigit() and int(digits) >= least else f"{case.device.arch} has no {what}"


def _cluster_rows(case: Case) -> str | None:
    operator, blocks = _rows(case), case.number("cluster_rows", "blocks")
    if reason := _contiguous(case) or _several_passes(case) or _needs_arch(case, 90, "block clusters"):
        return reason
    if "register_rows" not in case.options and "shared_rows" not in case.options:
        return "the blocks of a cluster keep their parts of the row in registers or shared memory"
    short = operator.length < 8192 * blocks
    return f"parts would have fewer than 8192 elements of {operator.length}" if short else None


def _team_rows(case: Case) -> str | None:
    operator = _rows(case)
    if reason := _contiguous(case) or _several_passes(case) or _needs_arch(case, 90, "bulk copies"):
        return reason
    if len({operator.halves.get(name) for name in operator.streamed}) > 1:
        return "inputs and result are of different types"
    if row_bytes(operator) < LEAST_ROW:
        return f"rows of less than {LEAST_ROW} bytes fit a block's registers"
    team = team_of(operator, case.options, case.device)
    if team.blocks > case.device.units:
        return f"{case.device.units} multiprocessors hold no team of {team.blocks}"
    if operator.rows < 2 * (case.device.units // team.blocks):
        return f"{operator.rows} rows do not keep teams of {team.blocks} blocks at work"
    if team.blocks * team.teams < AT_WORK * case.device.units:
        return f"teams of {team.blocks} leave some of {case.device.units} multiprocessors idle"
    return None if team.slots >= team.own + AHEAD else "a block's part of a row leaves no room for the next one"


def _outside_of_teams(check: Check) -> Check:
    """Return a check for what a team's bulk copies leave no room for."""
    return lambda case: "teams read and write by bulk copies" if "team_rows" in case.options else check(case)


def _split_rows(case: Case) -> str | None:
    operator, parts = _rows(case), case.number("split_rows", "parts")
    if reason := _contiguous(case):
        return reason
    if case.device.target is Target.CPU and "threads" not in case.options:
        return "parts need threads to work on them"
    if case.device.target is Target.CPU and {"online_softmax", "one_pass_moments"} & case.options.techniques.keys():
        return "the one-pass statistics are not written for split rows"
    if operator.length < 256 * parts:
        return f"parts would have fewer than 256 elements of {operator.length}"
    return "the rows alone fill the machine" if operator.rows * parts > MOST_PARTS else None


def _column_slices(case: Case) -> str | None:
    operator, slices = _rows(case), case.number("column_slices", "slices")
    if reason := _strided(case):
        return reason
    return f"the reduced axis is shorter than {slices}" if operator.length < slices else None


def _online(case: Case) -> str | None:
    operator = _rows(case)
    if softmax_pair(operator) is None:
        return "the operator is no softmax"
    if case.device.target is Target.CPU and not operator.contiguous:
        return "rows are not contiguous"
    return None


def _two_pass(case: Case) -> str | None:
    operator = _rows(case)
    two = softmax_pair(operator) or moments_pair(operator)
    return None if two else "the operator does not need two statistics in sequence"


def _moments(case: Case) -> str | None:
    operator = _rows(case)
    if moments_pair(operator) is None:
        return "the operator does not need mean and variance"
    sums = case.options.text("one_pass_moments", "method") == "sum_of_squares"
    if sums and case.device.target is Target.CPU and not operator.contiguous:
        return "sums of squares are written for contiguous rows"
    return None


def _hoisted(case: Case) -> str | None:
    return None if hoist_division(_rows(case)) else "the last step does not divide by a row's value"


def _fused_passes(case: Case) -> str | None:
    return None if kept_value(_rows(case)) else "no value of the statistics can take the input's place"


def _nontemporal_rows(case: Case) -> str | None:
    operator, width = _rows(case), case.number("simd", "width", 16)
    size = operator.length if operator.contiguous else operator.inner
    if not operator.maps or size % width:
        return f"the result has one value a row, or {size} is not a multiple of {width}"
    return "the output fits the cache" if operator.size * 4 <= case.device.cache_bytes else None


def _needs_simd_rows(case: Case) -> str | None:
    return _contiguous(case) or (None if "simd" in case.options else "it needs simd")


def _row_chunking(case: Case) -> str | None:
    operator, many = _rows(case), case.number("row_chunking", "rows")
    items_of_work = operator.rows if operator.contiguous else operator.outer
    enough = items_of_work >= 2 * many * max(case.device.units, 1)
    return None if enough else "there are too few rows for chunks"


def _column_tiles(case: Case) -> str | None:
    operator, columns = _rows(case), case.number("column_tiles", "columns")
    if reason := _strided(case):
        return reason
    return f"there are fewer than {columns} columns" if operator.inner < columns else None


CUDA: dict[str, Check] = {
    "vector_loads": _row_vectors,
    "grid_stride": always,
    "streaming_access": _outside_of_teams(_streaming_rows),
    "read_only_cache": _outside_of_teams(always),
    "loop_unrolling": _outside_of_teams(_unrolled),
    "launch_bounds": _outside_of_teams(launch_bounds),
    "warp_per_row": _warp_per_row,
    "rows_per_warp": _rows_per_warp,
    "rows_per_block": _rows_per_block,
    "warp_shuffle_reduction": _contiguous,
    "register_rows": _register_rows,
    "shared_rows": _shared_rows,
    "cluster_rows": _cluster_rows,
    "team_rows": _team_rows,
    "split_rows": _split_rows,
    "column_slices": _column_slices,
    "online_softmax": _online,
    "two_pass": _two_pass,
    "one_pass_moments": _moments,
    "fast_exp": fast_unit,
    "hoisted_division": _hoisted,
}

CPU: dict[str, Check] = {
    "threads": always,
    "simd": always,
    "polynomial_exp": polynomial,
    "multiple_accumulators": _needs_simd_rows,
    "loop_unrolling": always,
    "fused_passes": _fused_passes,
    "nontemporal_stores": _nontemporal_rows,
    "prefetch": always,
    "row_chunking": _row_chunking,
    "column_tiles": _column_tiles,
    "split_rows": _split_rows,
    "online_softmax": _online,
    "two_pass": _two_pass,
    "one_pass_moments": _moments,
    "hoisted_division": _hoisted,
}
