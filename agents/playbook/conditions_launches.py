"""Techniques with a template for the compiler's launches, and the conditions under which each applies."""

from __future__ import annotations

from agents.playbook.compiler.program import has_products
from agents.playbook.conditions import Case, Check
from agents.playbook.operators import Launches

LARGEST_TILE = 128


def _tiling(case: Case) -> str | None:
    assert isinstance(case.operator, Launches)
    if any(case.number("shared_tiling", name) > LARGEST_TILE for name in ("tile_m", "tile_n")):
        return f"tiles of more than {LARGEST_TILE} rows or columns do not fit the registers"
    if not has_products(case.operator.facts):
        return "no launch is a product with at least 16 rows, columns and terms"
    return None


CUDA: dict[str, Check] = {"shared_tiling": _tiling}

CPU: dict[str, Check] = {}
