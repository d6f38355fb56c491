"""The order in which shared values are computed: arguments before what uses them. Knows nothing of the values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, Self, TypeVar


class _Node(Protocol):
    """A value made from others, compared by identity."""

    @property
    def args(self) -> Sequence[Self]: ...


Node = TypeVar("Node", bound=_Node)


def walk(roots: Iterable[Node], known: Iterable[Node] = ()) -> list[Node]:
    """Return every value reachable from the roots but what is known, each once, arguments before what uses them."""
    order: list[Node] = []
    seen: set[Node] = set(known)
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(node.args))
    return order
