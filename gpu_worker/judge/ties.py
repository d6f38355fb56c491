"""Finds input distributions whose right answer turns on the order of equal elements, which PyTorch leaves open.

``sort`` without ``stable`` and ``topk`` may give equal elements in any order. Where the indices are an output, any
index of an equal value is right (:class:`gpu_worker.judge.deviation.Selection`). Where more is made of the order (a sum
over what was sorted, other values gathered by it), the reference is also run with the first of equal elements first,
and with the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from cupilot.domain.problem import Graph
from gpu_worker.judge.cases import Case
from gpu_worker.judge.counting import base_name
from gpu_worker.judge.deviation import Expected, largest, wrong_mask
from gpu_worker.judge.reference_link import ReferenceLink
from gpu_worker.messages.reference import Ties

CHOOSING = frozenset({"argmax", "argmin", "argsort", "kthvalue", "max", "median", "min", "sort", "topk"})

ORDERS: tuple[Ties, ...] = ("first", "last")

REASON = "its answer turns on the order of equal elements, which sort and topk leave open"


def chooses(graph: Graph) -> bool:
    """Return whether the graph may choose between equal elements."""
    return any(base_name(node) in CHOOSING for node in graph.nodes)


def answers(reference: ReferenceLink, case: Case) -> Iterator[list[torch.Tensor]]:
    """Yield the exact outputs for either order of equal elements; none where nothing is chosen."""
    for order in ORDERS if chooses(reference.graph) else ():
        outputs = reference.run_exact(case.given, rounded=True, ties=order)
        if [tensor.shape for tensor in outputs] == case.shapes:
            yield [tensor.contiguous() for tensor in outputs]


def moved_by_ties(reference: ReferenceLink, case: Case) -> float:
    """Return how far another order of equal elements moves the outputs, in their units."""
    return max((largest(case.expected, outputs) for outputs in answers(reference, case)), default=0.0)


def explained(
    expected: Sequence[Expected],
    others: Iterable[Sequence[torch.Tensor]],
    got: Sequence[torch.Tensor],
    tolerance: float,
) -> list[bool]:
    """Return, for each output, whether each of its elements is right with some order of equal elements."""
    wrong = [wrong_mask(item, mine, tolerance) for item, mine in zip(expected, got, strict=True)]
    for other in others:
        for mask, item, values, mine in zip(wrong, expected, other, got, strict=True):
            mask.logical_and_(wrong_mask(replace(item, values=values), mine, tolerance))
    return [not bool(mask.any()) for mask in wrong]
