"""Operations that an expression takes for an element, by the functions in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agents.playbook.expressions import HARDWARE, POLYNOMIAL, Expr, Level
from agents.playbook.ordering import walk

DIVISION = 8.0
FUNCTION, APPROXIMATE = 20.0, 4.0
"""Operations of a function on a card, and of its approximation by the special function unit."""
_FREE = ("const", "input", "reduce")


@dataclass(frozen=True)
class Operations:
    """Operations of one element, counted by what can make them cheaper."""

    plain: float
    """Additions, multiplications, comparisons and divisions."""
    hardware: int
    """Functions that a card can approximate."""
    polynomial: int
    """Functions that the ``cpu`` target has polynomials for."""
    functions: int
    """All functions, the above included."""


def operations(roots: Iterable[Expr]) -> Operations:
    """Return what the element-level part of some expressions takes."""
    plain, hardware, polynomial, functions = 0.0, 0, 0, 0
    for node in walk(roots):
        if node.level is not Level.ELEMENT or node.op in _FREE:
            continue
        if node.op in POLYNOMIAL or node.op in _LIBRARY:
            functions += 1
            hardware += node.op in HARDWARE
            polynomial += node.op in POLYNOMIAL
        else:
            plain += DIVISION if node.op == "div" else 1.0
    return Operations(plain, hardware, polynomial, functions)


_LIBRARY = frozenset({"sin", "cos", "tan", "pow", "log2", "log10", "exp2", "sinh", "cosh", "asin", "acos", "atan"})
"""Functions without a polynomial of ours."""
