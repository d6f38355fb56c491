"""Fewest operations that algorithms in use need for products and convolutions: what the roofline floor may count.

The direct count is no bound where a faster algorithm is known. Two rules, both from below: additions of the transforms
of Winograd's convolution are left out, and no algorithm is counted that saves only in theory.

- A product costs Strassen's recursion in Winograd's form, 7 products of halves and 15 additions (Higham, "Accuracy and
  Stability of Numerical Algorithms", 2002, section 23.1), down to the size where one more level saves nothing.
- A convolution costs, for each pair of an input and an output channel, at least one multiplication for each position
  of its larger side that the filter reaches (the column rank: Winograd, "Arithmetic Complexity of Computations", SIAM
  1980). Without padding, stride and dilation these are the ``m + r - 1`` of minimal filtering ``F(m, r)`` in each
  dimension, in place of ``m r``; a transform that reaches it turns the sum over channels into products, as above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

_STRASSEN_PRODUCTS = 7


def operations(name: str, arguments: Mapping[str, Any], direct: float) -> float:
    """Return the fewest operations known for an ATen call, never more than ``direct``; 0 for a call not known here.

    ``arguments`` are the call's, by the names of its schema; of tensors only the shape is read.
    """
    if name in ("mm", "bmm", "addmm", "baddbmm"):
        return min(direct, _matrix_product(name, arguments))
    if name in ("mv", "addmv", "dot"):
        return direct  # each element of the matrix is used once
    if name in ("convolution", "_convolution"):
        return min(direct, _convolution(arguments))
    if name.startswith("_scaled_dot_product"):
        return min(direct, _attention(arguments))
    return 0.0


def product(rows: float, depth: float, columns: float) -> float:
    """Return operations of a matrix product by Strassen's recursion, as far as it saves any."""
    direct = 2.0 * rows * depth * columns
    additions = rows * depth + depth * columns + 1.75 * rows * columns  # 4 and 4 of quarter operands, 7 of results
    if min(rows, depth, columns) < 2 or direct / 8 <= additions:
        return direct
    return _STRASSEN_PRODUCTS * product(rows / 2, depth / 2, columns / 2) + additions


def _matrix_product(name: str, arguments: Mapping[str, Any]) -> float:
    names = ("batch1", "batch2") if name == "baddbmm" else ("mat1", "mat2") if name == "addmm" else ("self", "mat2")
    first, second = (arguments[operand].shape for operand in names)
    batch: int = prod(first[:-2])
    return batch * product(first[-2], first[-1], second[-1])


def _convolution(arguments: Mapping[str, Any]) -> float:
    batch, channels, *sizes = arguments["input"].shape
    kernel, transposed = arguments["weight"].shape, arguments["transposed"]
    groups: int = arguments["groups"]
    inputs, outputs = channels // groups, kernel[1] if transposed else kernel[0] // groups
    points = 1
    for axis, (size, taps) in enumerate(zip(sizes, kernel[2:], strict=True)):
        stride, padding, dilation, extra = (
            _along(arguments[key], axis) for key in ("stride", "padding", "dilation", "output_padding")
        )
        reach = dilation * (taps - 1) + 1
        if transposed:
            larger = (size - 1) * stride - 2 * padding + reach + extra
            points *= _reached(size, larger, taps, stride=stride, padding=padding, dilation=dilation)
        else:
            smaller = (size + 2 * padding - reach) // stride + 1
            points *= _reached(smaller, size, taps, stride=stride, padding=padding, dilation=dilation)
    return groups * product(batch * points, inputs, outputs)


def _reached(smaller: int, larger: int, taps: int, *, stride: int, padding: int, dilation: int) -> int:
    """Count positions ``stride * i + dilation * tap - padding`` of the larger side: inputs, or outputs if transposed.

    Positions in the padding are no variables and cost nothing.
    """
    positions: set[int] = set()
    for tap in range(taps):
        start = dilation * tap - padding
        positions.update(range(start, start + stride * smaller, stride))
    return sum(0 <= position < larger for position in positions)


def _along(values: Sequence[int], axis: int) -> int:
    """Return an axis's value of a list that may hold one for all."""
    return values[axis] if len(values) > axis else values[0]


def _attention(arguments: Mapping[str, Any]) -> float:
    *batch, rows, width = arguments["query"].shape
    columns, results = arguments["key"].shape[-2], arguments["value"].shape[-1]
    heads: int = prod(batch)
    both = heads * (product(rows, width, columns) + product(rows, columns, results))
    return both * causal_share(rows, columns) if arguments.get("is_causal") else both


def causal_share(rows: int, columns: int) -> float:
    """Return the share of scores that a causal attention needs: of row ``i`` the first ``i + 1`` columns."""
    return sum(min(row + 1, columns) for row in range(rows)) / (rows * columns)
