"""Predict the time of the compiler's launches: what each group reads, writes and computes, on either target."""

from __future__ import annotations

from math import ceil, prod

from agents.playbook.compiler.cuda_tiles import Tiles, arithmetic_of
from agents.playbook.compiler.cuda_wgmma import Warpgroups
from agents.playbook.compiler.groups import ITEM_BYTES, Group
from agents.playbook.compiler.products import product_of
from agents.playbook.compiler.program import program_of
from agents.playbook.compiler.split_depth import divided
from agents.playbook.compiler.tensors import Order, Reduce, Tensor
from agents.playbook.compiler.terms import Term
from agents.playbook.cost.rates import Rates
from agents.playbook.cost.values import Choice, Cost
from agents.playbook.cost.work import FUNCTION
from agents.playbook.operators import Launches
from agents.playbook.ordering import walk
from agents.playbook.templates.launches import tiles_of
from cupilot.domain.problem import Target

TILED, DIRECT = 0.35, 0.06
"""Shares of a card's scalar peak that reductions of products reach: in tiles of shared memory, and from caches."""
TENSOR, WARPGROUPS = 0.2, 0.5
"""Shares of its matrix units' peak that products reach: by warps, and by warpgroups."""
VECTORS = 0.1
"""Share of a CPU's peak that its nests reach."""
STREAMING = 0.8
"""Share of the bandwidth that a thread an element reaches."""


def launches(operator: Launches, choice: Choice) -> Cost:
    """Return the cost of all groups, one after the other."""
    program = program_of(operator.facts)
    tiles = tiles_of(choice.options)
    if tiles is not None:
        program = divided(program, tiles)
    costs = [_group(group, choice.rates, tiles) for group in program.groups]
    spent = sum(max(memory, arithmetic) for memory, arithmetic in costs)
    memory = sum(memory for memory, _ in costs)
    calls = len(costs) if choice.rates.device.target is Target.CUDA else 1
    return Cost(memory, max(spent, memory), choice.rates.launch * calls)


def _group(group: Group, rates: Rates, tiles: Tiles | None) -> tuple[float, float]:
    """Return seconds of memory and of arithmetic of one group."""
    moved = sum(_bytes(tensor) for tensor in [*group.loads(), *(target.tensor for target in group.targets)])
    results = prod(group.shape)
    terms = prod(group.source.extents) if isinstance(group.source, Reduce) else 1
    if isinstance(group.source, Order):
        terms = group.source.length
    each = _operations([target.value for target in group.targets])
    inner = 0.0 if group.argument is None else _operations([group.argument]) + 1
    memory = moved / (rates.bandwidth * STREAMING)
    if rates.device.target is Target.CPU:
        return memory, (results * each + results * terms * inner) / (rates.scalar * VECTORS)
    product = product_of(group) if tiles is not None else None
    if product is None or tiles is None:
        return memory, (results * each + results * terms * inner) / (rates.scalar * DIRECT)
    batches, rows, columns = product.sizes(group)
    assert isinstance(group.source, Reduce)
    arithmetic = arithmetic_of(group, group.source, product, tiles)
    m, n = arithmetic.first.width, arithmetic.second.width
    down, across = ceil(rows / m), ceil(columns / n)
    blocks = batches * down * across
    edges = down * m * across * n / (rows * columns)
    ratio = m * n / (m + n) / 16
    busy = blocks / rates.units / ceil(blocks / rates.units)
    units = rates.scalar * TILED
    if tiles.precision:
        units = rates.matrix * (WARPGROUPS if isinstance(arithmetic, Warpgroups) else TENSOR)
    rate = units * min(1.0, ratio / 4) * busy
    return memory, results * each / (rates.scalar * DIRECT) + 2 * results * terms * edges / rate


def _bytes(tensor: Tensor) -> int:
    return tensor.size * ITEM_BYTES.get(tensor.dtype, 1)


def _operations(roots: list[Term]) -> float:
    """Return the operations of one element; index arithmetic and loads from caches count one each."""
    points = 0.0
    for term in walk(roots):
        if term.op in ("const", "index", "accumulated"):
            continue
        points += FUNCTION if term.op.startswith("fn_") else 1.0
    return points
