"""Pieces of C++ text that the matrix-product templates of both targets share."""

from __future__ import annotations

from agents.playbook.expressions import literal
from agents.playbook.operators import Matmul, Operand2D


def title(operator: Matmul) -> str:
    """Return what a kernel's first line says."""
    batch = f"{operator.batches} times " if operator.batches > 1 else ""
    return f"Matrix product: {batch}({operator.m} x {operator.k}) ({operator.k} x {operator.n})"


def input_names(operator: Matmul) -> tuple[str, ...]:
    """Return the inputs that a kernel is given, each once."""
    bias = (operator.bias.name,) if operator.bias else ()
    return tuple(dict.fromkeys((operator.a.name, operator.b.name, *bias)))


def address(item: Operand2D, batch: str, row: str, col: str) -> str:
    """Return C++ text of the address of an element."""
    terms = [(batch, item.batch), (row, item.row), (col, item.col)]
    used = [f"{index} * {stride}LL" for index, stride in terms if index != "0" and stride != 0]
    return " + ".join([f"p_{item.name}", *used])


def finished(operator: Matmul, value: str, bias: str) -> str:
    """Return the result from the sum of products: scaled by alpha, and with beta times the added matrix."""
    text = value if operator.alpha == 1 else f"{literal(operator.alpha)} * ({value})"
    if operator.bias is None or operator.beta == 0:
        return text
    return f"{text} + {bias}" if operator.beta == 1 else f"{text} + {literal(operator.beta)} * {bias}"
