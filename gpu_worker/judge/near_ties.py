"""Takes off an answer what may honestly differ in it: values that were rounded to a whole number from next to a tie.

A kernel in float32 and the reference in float64 calculate the value before it is rounded with errors, and so may round
it to either neighbour where it lies within the error of a boundary between two (:mod:`gpu_worker.reference.near_ties`).
Any other difference counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from cupilot.domain.problem import Graph, GraphNode
from gpu_worker.judge.cases import Case
from gpu_worker.judge.counting import base_name
from gpu_worker.judge.deviation import stretches
from gpu_worker.judge.reference_link import ReferenceLink
from gpu_worker.judge.refusal import UnusableReference, out_of_memory
from gpu_worker.messages.reference import Side

ROUNDING = frozenset({"ceil", "floor", "round", "trunc"})

_PLACES = ("bincount", "embedding", "gather", "index", "put", "scatter", "take")
"""Parts of the names of calls that look places up."""

SIDES: tuple[Side, ...] = ("up", "down")

MOST_NEAR = 0.01
"""Share of an output's elements up to which they may differ: where more turn on near ties, none may."""


@dataclass(frozen=True)
class Neighbours:
    """Elements of an output that come out as others when near ties are rounded to one side."""

    places: torch.Tensor
    """In the flattened output."""
    exact: torch.Tensor
    other: torch.Tensor


NearTies: TypeAlias = Sequence[Sequence[Neighbours]]
"""Of each output."""


def rounds(graph: Graph) -> bool:
    """Return whether the graph may round to whole numbers that are no places in tensors: one further may not exist."""
    names = {base_name(node) for node in graph.nodes}
    found = not names.isdisjoint(ROUNDING) or any(map(_casts_to_integers, graph.nodes))
    return found and not any(part in name for name in names for part in _PLACES)


def _casts_to_integers(node: GraphNode) -> bool:
    return base_name(node) == "_to_copy" and any(dtype.startswith(("int", "uint")) for dtype in node.dtypes)


def neighbours(reference: ReferenceLink, case: Case) -> NearTies:
    """Return what may differ, for each output; nothing where no value is rounded."""
    found: list[list[Neighbours]] = [[] for _ in case.expected]
    for side in SIDES if rounds(reference.graph) else ():
        try:
            outputs = reference.run_exact(case.given, rounded=True, near_ties=side)
        except UnusableReference as error:
            if out_of_memory(error):
                raise
            return [[] for _ in case.expected]
        if [tensor.shape for tensor in outputs] != case.shapes:
            return [[] for _ in case.expected]
        for place, (item, other) in enumerate(zip(case.expected, outputs, strict=True)):
            found[place] += _changed(item.values, other)
    return found


def _changed(exact: torch.Tensor, other: torch.Tensor) -> list[Neighbours]:
    found, start = [], 0
    for mine, its in zip(stretches(exact), stretches(other), strict=True):
        found.append(start + ((mine != its) & ~(mine.isnan() & its.isnan())).nonzero().reshape(-1))
        start += mine.numel()
    places = torch.cat(found)
    if not 0 < places.numel() <= max(MOST_NEAR * exact.numel(), 1):
        return []
    return [Neighbours(places, _wide(exact.reshape(-1)[places]), _wide(other.reshape(-1)[places]))]


def settled(answers: Sequence[torch.Tensor], near: NearTies) -> list[torch.Tensor]:
    """Return the answers with what is nearer to another right value than to the exact one moved to the exact one."""
    return [_settled(answer, item) if item else answer for answer, item in zip(answers, near, strict=True)]


def _settled(answer: torch.Tensor, near: Sequence[Neighbours]) -> torch.Tensor:
    moved = answer.contiguous().clone()
    flat = moved.view(-1)
    for item in near:
        mine = _wide(flat[item.places])
        rest = mine - item.other
        flat[item.places] = torch.where(rest.abs() < (mine - item.exact).abs(), item.exact + rest, mine).to(flat.dtype)
    return moved


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.float64 if values.is_floating_point() else torch.int64)
