"""Predict the time of templates' kernels on a card from geometry, bytes, passes and rates.

Constants without another source are fitted to ``benchmarks/results`` by ``python -m benchmarks.cost_model``.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from agents.playbook.cost.geometry import Geometry
from agents.playbook.cost.values import Choice, Cost
from agents.playbook.cost.work import APPROXIMATE, FUNCTION, Operations, operations
from agents.playbook.operators import Matmul, Pointwise, Rows, moments_pair, softmax_pair
from agents.playbook.templates.cuda_matmul_parts import Tiling
from agents.playbook.templates.cuda_matmul_strassen import Split, blocks, workspace
from agents.playbook.templates.cuda_packs import lanes
from agents.playbook.templates.cuda_team import team_of

ITEM = 4
"""Bytes of an element of a product."""
INDEX = 8
"""Bytes of an index."""
CACHE_SPEED = 4.0
"""Bandwidth of L2 over that of main memory."""
UNROLLED, UNROLLED_COLUMNS = 4, 2
"""Loads of a loop that compilers issue before they wait, where nothing asks for more: along rows, and down columns."""
SEGMENT = 96.0
"""Bytes that neighbouring threads read together from which on memory moves nothing in vain."""
PHASES = 0.25
"""Time that a block's barriers take beside others, where a row is first loaded and then stored."""
CLUSTER_SPEED = 0.8
"""Share of the bandwidth left where the blocks of a cluster wait for each other."""
TEAM_SPEED = 0.96
"""Share of the bandwidth that bulk copies of teams reach where no block waits for another."""
TEAM_REDUCTION, REDUCTION_PER_BLOCK = {True: 0.6e-6, False: 1.4e-6}, {True: 1.5e-9, False: 47e-9}
"""Seconds that a team waits in each reduction, and more for each of its blocks: with the next row read ahead, and
without."""
REGISTERS = 32
"""A thread's, without values that are kept."""
TREE_SECONDS = 0.6e-6
"""Additional time of a block's reduction without shuffles."""

WARPGROUP, TENSOR, SIMT, THREAD = 0.92, 0.2, 0.81, 0.1
"""Shares of the peak that products reach: on warpgroups, on single warps' tensor cores, from registers of eight by
eight, and without tiles."""
PANELS, SUMS_SPEED = 0.8, 0.77
"""Shares of the peak that products of panels reach, and of the bandwidth that sums of quarters do."""
FULL_RATIO = 2.8
"""Multiply-adds a value of shared memory from which on a multiprocessor's scalar units are fed."""


def registers_of(operator: Pointwise | Rows | Matmul, choice: Choice) -> int:
    """Return the registers that a thread probably takes."""
    if isinstance(operator, Matmul):
        if "warpgroup_mma" in choice:
            return 168
        rows, cols = _rectangle(choice)
        tiled = 255 if "tensor_cores" in choice else rows * cols + 56
        return tiled if "shared_tiling" in choice else REGISTERS
    return REGISTERS + (16 if "register_rows" in choice else 0) + 4 * choice.number("vector_loads", "width")


def pointwise(operator: Pointwise, choice: Choice, shape: Geometry) -> Cost:
    """Return the cost of a map: each byte once."""
    rates, width = choice.rates, lanes(operator, choice.options)
    items = choice.number("thread_coarsening", "items")
    moved = operator.size * _bytes(operator, operator.streamed)
    moved += sum(item.mod * operator.itemsize(item.name) for item in operator.broadcast)
    in_flight = width * items * _bytes(operator, [item.name for item in operator.full])
    speed = rates.bandwidth * shape.streaming(rates.bandwidth, in_flight)
    count = _counted(operations([operator.expression]), choice)
    work = operator.size * (count + _conversions(operator) + 6 / width) / (rates.scalar * shape.busy)
    return Cost(moved / speed, work, rates.launch * shape.launches)


def _bytes(operator: Pointwise | Rows, names: Iterable[str]) -> int:
    """Return the bytes that one element of each of these tensors takes."""
    return sum(operator.itemsize(name) for name in names)


def _conversions(operator: Pointwise | Rows) -> int:
    """Return the operations of an element that widen and round what is stored in 16 bits."""
    return sum(name in operator.halves for name in operator.streamed)


def _counted(work: Operations, choice: Choice) -> float:
    fast = work.hardware if "fast_exp" in choice else 0
    return work.plain + fast * APPROXIMATE + (work.functions - fast) * FUNCTION


def rows(operator: Rows, choice: Choice, shape: Geometry) -> Cost:
    """Return the cost of reductions over rows: the first reading from memory, others from where the row is kept."""
    rates, width = choice.rates, lanes(operator, choice.options)
    inputs = operator.size * _bytes(operator, operator.elements)
    written = (operator.size if operator.maps else operator.rows) * sum(
        INDEX if expr.name.startswith("Arg") else operator.itemsize(name) for name, expr in operator.outputs
    )
    if "team_rows" in choice:
        return _teams(operator, choice, shape, inputs + written)
    kept = "register_rows" in choice or "shared_rows" in choice
    readings = 1 if kept else _readings(operator, choice)
    again = 0.0
    if readings > 1:
        in_cache = min(1.0, rates.device.cache_bytes / max(_working_set(operator, choice, shape), 1))
        again = (readings - 1) * inputs * (1 - in_cache + in_cache / CACHE_SPEED)
    speed = rates.bandwidth * shape.streaming(rates.bandwidth, _in_flight(operator, choice, shape, width))
    if kept and operator.contiguous and "warp_per_row" not in choice:
        speed *= shape.resident / (shape.resident + PHASES)
    if "cluster_rows" in choice:
        speed *= CLUSTER_SPEED
    if not operator.contiguous:
        speed *= min(1.0, _segment(operator, choice, shape) / SEGMENT)
    work = _work_of_rows(operator, choice, width)
    reducing = 0.0
    if operator.contiguous and not {"warp_shuffle_reduction", "warp_per_row"} & set(choice.options.techniques):
        reducing = TREE_SECONDS * ceil(shape.waves)
    tail = 1 if shape.waves > 4 else shape.filled
    arithmetic = work / (rates.scalar * shape.busy) / tail
    memory = (inputs + written + again) / speed / tail + reducing
    return Cost(memory, arithmetic, rates.launch * shape.launches)


def _work_of_rows(operator: Rows, choice: Choice, width: int) -> float:
    roots = [expr for _, expr in operator.outputs]
    return operator.size * (_counted(operations(roots), choice) + _conversions(operator) + 8 / width)


def _teams(operator: Rows, choice: Choice, shape: Geometry, moved: float) -> Cost:
    """Return the cost of rows that teams of blocks share: each byte once, at the pace of the slowest block."""
    rates, team = choice.rates, team_of(operator, choice.options, choice.rates.device)
    rounds = ceil(operator.rows / team.teams)
    even = team.pieces / (team.own * team.blocks) * operator.rows / (rounds * team.teams)
    reductions = _readings(operator, choice) - 1
    ahead = reductions == 1 and team.reads_ahead
    waiting = reductions * rounds * (TEAM_REDUCTION[ahead] + REDUCTION_PER_BLOCK[ahead] * team.blocks)
    work = _work_of_rows(operator, choice, team.vec) / (rates.scalar * even)
    return Cost(moved / (rates.bandwidth * TEAM_SPEED * even) + waiting, work, rates.launch * shape.launches)


def _readings(operator: Rows, choice: Choice) -> int:
    joined = ("online_softmax" in choice and softmax_pair(operator) is not None) or (
        "one_pass_moments" in choice and moments_pair(operator) is not None
    )
    return max(1, operator.passes - joined)


def _working_set(operator: Rows, choice: Choice, shape: Geometry) -> float:
    """Return the bytes of all rows that are read at the same time; split rows are read again by later launches."""
    if "split_rows" in choice:
        return float(operator.size * _bytes(operator, operator.elements))
    at_once = min(shape.blocks, shape.resident * shape.units)
    together: float
    if "warp_per_row" in choice:
        together = choice.number("warp_per_row", "warps") * choice.number("rows_per_warp", "rows")
    elif operator.contiguous:
        together = 1 / choice.number("cluster_rows", "blocks")
    else:
        together = shape.threads / choice.number("column_slices", "slices") * lanes(operator, choice.options)
    return at_once * together * operator.length * _bytes(operator, operator.elements)


def _segment(operator: Rows, choice: Choice, shape: Geometry) -> float:
    """Return the bytes that neighbouring threads read next to each other."""
    columns = shape.threads / choice.number("column_slices", "slices") * lanes(operator, choice.options)
    return min(columns, operator.inner) * _bytes(operator, operator.elements) / max(len(operator.elements), 1)


def _in_flight(operator: Rows, choice: Choice, shape: Geometry, width: int) -> float:
    """Return the bytes that a thread asks for before it waits."""
    loads = max(choice.number("loop_unrolling", "factor"), UNROLLED if operator.contiguous else UNROLLED_COLUMNS)
    if "register_rows" in choice:
        threads = 32 if "warp_per_row" in choice else shape.threads
        share = operator.length / choice.number("cluster_rows", "blocks")
        loads = max(1, min(32, round(share / (threads * width)))) if operator.contiguous else loads
    return width * loads * _bytes(operator, operator.elements)


def matmul(operator: Matmul, choice: Choice, shape: Geometry) -> Cost:
    """Return the cost of a product: its rate by the units it runs on, its tiles' edges, and what tiles read again."""
    if "strassen" in choice:
        return _strassen(operator, choice, shape)
    rates, tiling = choice.rates, Tiling.of(operator, choice.options)
    m, n, k, batches = operator.m, operator.n, operator.k, operator.batches
    moved = float(ITEM * batches * (m * k + k * n + m * n))
    parts = choice.number("split_k", "parts")
    moved += 0 if parts == 1 else 2 * ITEM * batches * m * n * parts
    if "shared_tiling" not in choice:
        filled = min(1.0, shape.threads_in_flight / (shape.units * (rates.device.threads_per_unit or 2048)))
        arithmetic = operator.flops / (rates.scalar * THREAD * filled * shape.filled)
        return Cost(moved / rates.bandwidth, arithmetic, rates.launch * shape.launches)
    edges = ceil(m / tiling.m) * tiling.m * ceil(n / tiling.n) * tiling.n / (m * n)
    tiles = batches * ceil(m / tiling.m) * ceil(n / tiling.n) * parts
    waves = tiles / (shape.resident * shape.units)
    busy = min(1.0, tiles / shape.units) * (waves / ceil(waves) if waves > 1 else 1.0)
    again = ITEM * batches * m * n * k * (1 / tiling.m + 1 / tiling.n)
    again /= 1 + 0.5 * ("cluster_multicast" in choice)
    memory = max(moved / rates.bandwidth, again / (rates.bandwidth * CACHE_SPEED))
    arithmetic = operator.flops * edges / (_rate(choice) * busy)
    return Cost(memory, arithmetic, rates.launch * shape.launches)


def _strassen(operator: Matmul, choice: Choice, shape: Geometry) -> Cost:
    """Return the cost of sums of quarters, of the products of these, and of their combination, one after the other."""
    rates, tiling, split = choice.rates, Tiling.of(operator, choice.options), Split.of(operator, choice.options)
    m, n, k, batches = operator.m, operator.n, operator.k, operator.batches
    written = sum(workspace(operator, split, tiling).values())
    sums = (ITEM * batches * (m * k + k * n + m * n) + written) / (rates.bandwidth * SUMS_SPEED)
    tiles = blocks(operator, split, tiling)
    rounds = ceil(tiles / rates.units)
    products = 2.0 * rounds * rates.units * tiling.m * tiling.n * split.k / _rate(choice)
    return Cost(sums, sums + products, rates.launch * shape.launches)


def _rate(choice: Choice) -> float:
    """Return operations a second of a card whose multiprocessors all have tiles."""
    if "tensor_cores" in choice:
        return choice.rates.matrix * (WARPGROUP if "warpgroup_mma" in choice else TENSOR)
    rows_, cols = _rectangle(choice)
    fed = min(1.0, rows_ * cols / (rows_ + cols) / FULL_RATIO)
    rate = choice.rates.scalar * SIMT * fed
    if "strassen" in choice:
        return choice.rates.scalar * PANELS * fed
    copied = "async_copy" in choice
    for present, without in (
        (copied or "double_buffering" in choice, 0.92),
        (copied or "vector_loads" in choice, 0.82),
        ("bank_padding" in choice, 0.95),
    ):
        rate *= 1 if present else without
    return rate


def _rectangle(choice: Choice) -> tuple[int, int]:
    """Return rows and columns of the results that one thread makes."""
    return choice.number("register_blocking", "rows"), choice.number("register_blocking", "cols")
