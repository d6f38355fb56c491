"""Predict the time of templates' kernels on a CPU from bytes, passes, vectors and cores.

Constants without another source are fitted to ``benchmarks/results`` by ``python -m benchmarks.cost_model``.
"""

from __future__ import annotations

from agents.playbook.cost.rates import Rates
from agents.playbook.cost.values import Choice, Cost
from agents.playbook.cost.work import Operations, operations
from agents.playbook.operators import Matmul, Pointwise, Rows, kept_value, moments_pair, softmax_pair

ITEM = 4
WIDEST = 16
"""Elements of a vector of 512 bits, which measured peaks are for."""
CHAIN = 8
"""Additions in flight that hide an addition's latency: two units, four cycles."""
ONE_CORE = 0.7
"""Exponent by which one core gets more than its share of the bandwidth."""
REACHED = 0.7
"""Share of the measured bandwidth that kernels reach."""
CORE_CACHE = 2**20
"""Bytes of a core's own cache."""
CACHED = 0.25
"""Time of a reading from a core's cache over one from memory."""
LIBRARY = 40.0
"""Operations of one core's scalar unit that a call of the C library takes."""
POLYNOMIAL, A_DEGREE = 12.0, 2.0
"""Operations of a vector for a function as polynomial, and for each of its degrees."""
DIVIDED = 4.0
OWNERSHIP = 2.0
"""Bytes that move for each byte stored, where the line is read first."""
MICRO, SHORT, PLAIN = 0.55, 0.12, 0.02
"""Shares of the peak that products reach: from registers, from vectors along columns, and element by element."""


def _cores(choice: Choice) -> int:
    return choice.rates.units if "threads" in choice else 1


def _bandwidth(choice: Choice) -> float:
    share: float = (_cores(choice) / choice.rates.units) ** ONE_CORE
    return choice.rates.bandwidth * REACHED * share


def _lanes(choice: Choice) -> int:
    return choice.number("simd", "width", 1)


def _peak(rates: Rates, cores: int, lanes: int) -> float:
    """Return operations a second of so many cores at so many elements a vector."""
    return rates.scalar * cores / rates.units * min(lanes, WIDEST) / WIDEST


def _seconds(work: Operations, count: float, choice: Choice) -> float:
    """Return the time of so many elements' arithmetic."""
    polynomials = work.polynomial if "polynomial_exp" in choice else 0
    each = POLYNOMIAL + A_DEGREE * choice.number("polynomial_exp", "degree", 6)
    vector = work.plain + polynomials * each
    overlap = 1.0 if choice.number("loop_unrolling", "factor") > 1 else 1.25
    peak = _peak(choice.rates, _cores(choice), 1)
    calls = (work.functions - polynomials) * LIBRARY / peak
    return count * (vector * overlap / _peak(choice.rates, _cores(choice), _lanes(choice)) + calls)


def _stored(choice: Choice, size: int) -> float:
    """Return the bytes that storing so many elements moves."""
    resident = size * ITEM < choice.rates.device.cache_bytes
    return size * ITEM * (1.0 if "nontemporal_stores" in choice or resident else OWNERSHIP)


def pointwise(operator: Pointwise, choice: Choice) -> Cost:
    """Return the cost of a map."""
    moved = operator.size * ITEM * len(operator.full) + _stored(choice, operator.size)
    work = operations([operator.expression])
    return Cost(moved / _bandwidth(choice), _seconds(work, operator.size, choice), choice.rates.launch)


def rows(operator: Rows, choice: Choice) -> Cost:
    """Return the cost of reductions over rows."""
    inputs = max(1, len(operator.elements)) * operator.size * ITEM
    readings = max(1, operator.passes - _joined(operator, choice))
    row = operator.length * ITEM * max(1, len(operator.elements))
    if not operator.contiguous:
        row *= choice.number("column_tiles", "columns", operator.inner)
    again = (readings - 1) * inputs * (CACHED if row <= CORE_CACHE else 1.0)
    results = operator.size if operator.maps else operator.rows
    moved = inputs + again + _stored(choice, results)
    work = operations([expr for _, expr in operator.outputs])
    if "hoisted_division" not in choice and operator.outputs[0][1].op == "div":
        work = Operations(work.plain + DIVIDED, work.hardware, work.polynomial, work.functions)
    repeats = 1 if "fused_passes" in choice and kept_value(operator) is not None else _evaluations(operator)
    arithmetic = _seconds(work, operator.size * repeats, choice)
    at_once = operator.rows if operator.contiguous else operator.outer
    split = choice.number("split_rows", "parts") * at_once
    alone = min(1.0, split / _cores(choice))
    chains = choice.number("multiple_accumulators", "count") * (_lanes(choice) if operator.contiguous else WIDEST)
    peak = _peak(choice.rates, _cores(choice), 1)
    summing = operator.size * (readings - operator.maps) * CHAIN / 2 / max(chains / 2, 1) / peak
    return Cost(moved / _bandwidth(choice), (arithmetic + summing) / alone, choice.rates.launch)


def _joined(operator: Rows, choice: Choice) -> bool:
    softmax = "online_softmax" in choice and softmax_pair(operator) is not None
    return softmax or ("one_pass_moments" in choice and moments_pair(operator) is not None)


def _evaluations(operator: Rows) -> int:
    """Return how often a function of an element is evaluated: in the reduction of it, and for the result."""
    return 2 if kept_value(operator) is not None else 1


def matmul(operator: Matmul, choice: Choice) -> Cost:
    """Return the cost of a product."""
    cores, lanes = _cores(choice), _lanes(choice)
    m, n, k, batches = operator.m, operator.n, operator.k, operator.batches
    moved = ITEM * batches * (m * k + k * n + m * n * OWNERSHIP)
    if "micro_kernel" in choice:
        made, vectors = choice.number("micro_kernel", "rows"), choice.number("micro_kernel", "vectors")
        chains = min(1.0, made * vectors / CHAIN)
        wasted = -(-m // made) * made * -(-n // (vectors * lanes)) * vectors * lanes / (m * n)
        packed = {"both": 1.0, "b": 0.9}.get(choice.options.text("packing", "operands"), 0.7)
        rate = _peak(choice.rates, cores, lanes) * MICRO * chains * packed / wasted
    elif lanes > 1:
        rate = _peak(choice.rates, cores, lanes) * SHORT
    else:
        rate = choice.rates.scalar * cores / choice.rates.units * PLAIN
    alone = min(1.0, batches * m * choice.number("split_k", "parts") / cores)
    return Cost(moved / _bandwidth(choice), operator.flops / (rate * alone), choice.rates.launch)
