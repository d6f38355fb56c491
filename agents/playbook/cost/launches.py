"""Predict the time of the compiler's launches: what each group reads, writes and computes, on either target."""

from __future__ import annotations

from math import ceil, prod

from agents.playbook.compiler.attention import Attention
from agents.playbook.compiler.cpu import tiling
from agents.playbook.compiler.cpu.tiling import Rectangle, Vectors
from agents.playbook.compiler.cuda.attention import block_of
from agents.playbook.compiler.cuda.filtering import FINISHED, Filtering, filtering_of
from agents.playbook.compiler.cuda.operands import THREADS
from agents.playbook.compiler.cuda.orders import is_few
from agents.playbook.compiler.cuda.scalar import Scalar
from agents.playbook.compiler.cuda.streamed import Streamed
from agents.playbook.compiler.cuda.tiles import Tiles, arithmetic_of
from agents.playbook.compiler.cuda.wgmma import Warpgroups
from agents.playbook.compiler.cuda.windows import window_of
from agents.playbook.compiler.fused import FusedRows
from agents.playbook.compiler.groups import ITEM_BYTES, Group
from agents.playbook.compiler.products import Product, product_of
from agents.playbook.compiler.program import Tiling, launched_program
from agents.playbook.compiler.tensors import Order, Reduce, Tensor
from agents.playbook.compiler.terms import Term
from agents.playbook.cost.cpu import CHAIN, LIBRARY, MICRO, POLYNOMIAL, WIDEST
from agents.playbook.cost.rates import Rates
from agents.playbook.cost.values import Choice, Cost
from agents.playbook.cost.work import FUNCTION
from agents.playbook.operators import Launches
from agents.playbook.ordering import walk
from agents.playbook.templates.launches import tiling_of
from cupilot.domain.problem import Target

TILED, DIRECT = 0.94, 0.06
"""Shares of a card's scalar peak that reductions of products reach: in tiles of shared memory, where threads do nothing
but multiply, and from caches."""
READ, GATHERED = 0.75, 6.0
"""Multiplications that take as long as a float on its way from shared memory, and as an element on its way there."""
FILTERED = 0.49
"""Share of the scalar peak that minimal filtering reaches."""
BEGUN = 14
"""Terms that take as long as a block's beginning and end."""
ATTENTION = 0.35
"""Share of the scalar peak that attention reaches."""
ROWS, WINDOWS = 0.35, 0.35
"""Shares that several reductions of rows reach in one launch, and reductions over windows."""
TENSOR, WARPGROUPS, STREAMED = 0.2, 0.5, 0.7
"""Shares of its matrix units' peak that products reach: by warps, by warpgroups, and by these over tensor maps."""
VECTORS = 0.1
"""Share of a CPU's peak that its nests reach."""
PACKING = 64.0
"""Operations of a CPU's peak that take as long as one element's way into a panel: about two cycles."""
STREAMING = 0.8
"""Share of the bandwidth that a thread an element reaches."""


def launches(operator: Launches, choice: Choice) -> Cost:
    """Return the cost of all groups, one after the other."""
    tiles, target = tiling_of(choice.options), choice.rates.device.target
    program = launched_program(operator.facts, target, tiles)
    costs = [_group(group, choice.rates, tiles) for group in program.groups]
    spent = sum(max(memory, arithmetic) for memory, arithmetic in costs)
    memory = sum(memory for memory, _ in costs)
    calls = len(costs) if target is Target.CUDA else 1
    if isinstance(tiles, Tiles):
        calls += sum(filtering_of(group, tiles) is not None for group in program.groups)
    return Cost(memory, max(spent, memory), choice.rates.launch * calls)


def _group(group: Group, rates: Rates, tiles: Tiling) -> tuple[float, float]:
    """Return seconds of memory and of arithmetic of one group."""
    moved = sum(_bytes(tensor) for tensor in [*group.loads(), *(target.tensor for target in group.targets)])
    results = prod(group.shape)
    terms = prod(group.source.extents) if isinstance(group.source, Reduce) else 1
    if isinstance(group.source, Order):
        found_by_keys = rates.device.target is Target.CUDA and is_few(group, group.source)
        terms = 1 if found_by_keys else group.source.length
    memory = moved / (rates.bandwidth * STREAMING)
    if rates.device.target is Target.CPU:
        return memory, _on_cpu(group, results, terms, tiles if isinstance(tiles, Vectors) else Vectors()) / rates.scalar
    if isinstance(group, Attention) and isinstance(tiles, Tiles):
        return memory, _attention(group, rates, tiles)
    if isinstance(group, FusedRows):
        return memory, results * group.length * _operations(group.roots, FUNCTION) / (rates.scalar * ROWS)
    each, inner = _of_element(group, FUNCTION)
    if window_of(group) is not None:
        return memory, (results * each / DIRECT + 2 * results * terms / WINDOWS) / rates.scalar
    filtering = filtering_of(group, tiles) if isinstance(tiles, Tiles) else None
    if filtering is not None:
        return memory, results * each / (rates.scalar * DIRECT) + _filtered(filtering, rates)
    product = product_of(group) if isinstance(tiles, Tiles) else None
    if product is None or not isinstance(tiles, Tiles):
        return memory, (results * each + results * terms * inner) / (rates.scalar * DIRECT)
    assert isinstance(group.source, Reduce)
    arithmetic = arithmetic_of(group, group.source, product, tiles)
    batches, rows, columns = arithmetic.product.sizes(group)
    m, n = arithmetic.first.width, arithmetic.second.width
    ratio, terms = m * n / (m + n) / 16, terms * len(group.sums)
    n //= len(group.sums)
    down, across = ceil(rows / m), ceil(columns / n)
    blocks = batches * down * across
    edges = down * m * across * n / (rows * columns)
    busy = blocks / rates.units / ceil(blocks / rates.units)
    if isinstance(arithmetic, Scalar):
        rate = rates.scalar * _on_scalar_units(arithmetic, terms) * busy
    else:
        by_groups = STREAMED if isinstance(arithmetic, Streamed) else WARPGROUPS
        units = rates.matrix * (by_groups if isinstance(arithmetic, Warpgroups) else TENSOR)
        rate = units * min(1.0, ratio / 4) * busy
    return memory, results * each / (rates.scalar * DIRECT) + 2 * results * terms * edges / rate


def _filtered(made: Filtering, rates: Rates) -> float:
    """Return seconds of a convolution by minimal filtering: all pieces of work take the same time."""
    at_once = rates.units * made.resident
    products = ceil(made.units / at_once) * at_once * made.products * (1 + FINISHED / made.steps)
    return 2 * products / (rates.scalar * FILTERED)


def _on_scalar_units(arithmetic: Scalar, terms: int) -> float:
    """Return the share of the scalar peak that a product's tiles reach."""
    rows, columns = arithmetic.counts
    gathered = (arithmetic.first.width + arithmetic.second.width) / THREADS
    each = rows * columns
    depth = arithmetic.first.layout.depth
    share = each / (each + READ * (rows + columns) + GATHERED * gathered)
    return TILED * share * terms / (ceil(terms / depth) * depth + BEGUN)


def _of_element(group: Group, function: float) -> tuple[float, float]:
    """Return the operations of a result, and of a term of a reduction."""
    each = _operations([target.value for target in group.targets], function)
    return each, 0.0 if group.argument is None else _operations([group.argument], function) + 1


def _on_cpu(group: Group, results: int, terms: int, vectors: Vectors) -> float:
    """Return the operations at a CPU's peak that take as long as a group."""
    each, inner = _of_element(group, POLYNOMIAL if vectors.degree else LIBRARY)
    product = tiling.product_of(group) if vectors.rectangle is not None else None
    if product is None or vectors.rectangle is None:
        return (results * each + results * terms * inner) / VECTORS
    return results * each / VECTORS + _panels(group, product, vectors.rectangle, terms)


def _panels(group: Group, product: Product, rectangle: Rectangle, terms: int) -> float:
    """Return the operations at a CPU's peak that take as long as a product in packed panels."""
    batches, rows, columns = product.sizes(group)
    across = rectangle.vectors * rectangle.width
    made = batches * ceil(rows / rectangle.rows) * rectangle.rows * ceil(columns / across) * across
    chains = min(1.0, rectangle.rows * rectangle.vectors / CHAIN) * min(rectangle.width, WIDEST) / WIDEST
    packed = batches * columns * ceil(rows / tiling.TILE_ROWS)
    return terms * (2 * made / (MICRO * chains) + PACKING * packed)


def _attention(group: Attention, rates: Rates, tiles: Tiles) -> float:
    """Return seconds of arithmetic: both products, and the scores on the scalar units."""
    made = block_of(group, tiles.precision)
    batches, rows, width = group.product.sizes(group)
    lines = ceil(rows / made.rows) * made.rows
    share = 1.0 if group.first_masked() is None else (1 + made.rows / lines) / 2
    scores = batches * lines * group.keys * share
    blocks = made.blocks
    busy = blocks / rates.units / ceil(blocks / rates.units)
    units = rates.matrix * TENSOR if made.precision else rates.scalar * ATTENTION
    each = FUNCTION + _operations([group.score], FUNCTION)
    return (2 * scores * (group.depth + width) / units + scores * each / (rates.scalar * ATTENTION)) / busy


def _bytes(tensor: Tensor) -> int:
    return tensor.size * ITEM_BYTES.get(tensor.dtype, 1)


def _operations(roots: list[Term], function: float) -> float:
    """Return the operations of one element; index arithmetic and loads from caches count one each."""
    points = 0.0
    for term in walk(roots):
        if term.op in ("const", "index", "accumulated"):
            continue
        points += function if term.op.startswith("fn_") else 1.0
    return points
