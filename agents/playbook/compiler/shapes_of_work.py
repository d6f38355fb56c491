"""Layout of a group's work in memory: which loop indices its loads follow, and how it may be divided."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.tensors import Order, Reduce, Scan, Scatter
from agents.playbook.compiler.terms import Term, affine
from agents.playbook.ordering import walk

CHUNK = 256
"""Longest run of terms that is added in float32 before it goes to a double."""
SHORTEST_CHUNK = 32


_OPERATIONS = {"const": 0, "index": 0, "cast": 0, "round": 2, "div": 4}
"""Operations that a term counts; functions count ten, and any other term one."""


def operations(group: Group) -> int:
    """Return roughly how many operations a group takes."""
    source, elements, terms = group.source, prod(group.shape), 1
    if isinstance(source, Reduce | Scatter):
        terms = prod(source.extents)
    elif isinstance(source, Scan | Order):
        elements, terms = prod(source.shape), source.length if isinstance(source, Order) else 1
    outer = counted([target.value for target in group.targets])
    inner = 1 + counted([] if group.argument is None else [group.argument])
    return elements * (outer + (terms * inner if source is not None else 0))


def counted(roots: Sequence[Term]) -> int:
    """Return roughly how many operations an element of these terms takes."""
    return sum(10 if term.op.startswith("fn_") else _OPERATIONS.get(term.op, 1) for term in walk(roots))


def strides_along(group: Group, index: Term) -> list[int]:
    """Return, for each load of a reduction's argument, how far it moves with a loop index; -1 where nobody knows."""
    if group.argument is None or index.op == "const":
        return []
    found = []
    for term in walk([group.argument]):
        if term.op == "load":
            offset = term.data.offset(term.args[: len(term.data.shape)])
            factors = affine(offset).factors
            known = all(part is index or not depends(part, index) for part in factors)
            found.append(abs(factors.get(index, 0)) if known else -1)
    return found


def depends(term: Term, index: Term) -> bool:
    """Return whether a term changes with a loop index."""
    return any(part is index for part in walk([term]))


def is_contiguous(group: Group, index: Term) -> bool:
    """Return whether every load stays where it is or moves by one element with a loop index."""
    strides = strides_along(group, index)
    return bool(strides) and all(step in (0, 1) for step in strides)


def chunk_level(extents: Sequence[int]) -> int:
    """Return the outermost loop whose inner part makes a run of terms that is added in float32."""
    level = len(extents) - 1
    while level > 0 and prod(extents[level:]) < SHORTEST_CHUNK:
        level -= 1
    return max(level, 0)
