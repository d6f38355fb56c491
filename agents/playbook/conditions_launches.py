"""Techniques with a template for the compiler's launches, and the conditions under which each applies."""

from __future__ import annotations

from agents.playbook.compiler.cuda_tiles import LARGEST_TILE
from agents.playbook.compiler.program import refusal_of_tiles
from agents.playbook.conditions import Case, Check
from agents.playbook.operators import Launches


def _tiling(case: Case) -> str | None:
    assert isinstance(case.operator, Launches)
    if any(case.number("shared_tiling", name) > LARGEST_TILE for name in ("tile_m", "tile_n")):
        return f"tiles of more than {LARGEST_TILE} rows or columns do not fit the registers"
    return refusal_of_tiles(case.operator.facts)


CUDA: dict[str, Check] = {"shared_tiling": _tiling}

CPU: dict[str, Check] = {}
