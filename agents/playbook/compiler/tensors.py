"""Tensors that are defined by terms: maps, reductions, scans, orders and scatters over an index space.

A definition is a function from the index on each axis to a term. A map is inlined where it is used unless it is
``stored``; every other tensor is the work of a launch and is loaded where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from agents.playbook.compiler.terms import Term, linear, load, number, register, rounded, variable
from agents.playbook.ordering import walk

Shape = tuple[int, ...]
Index = tuple[Term, ...]
MAX_INLINED = 400
"""Terms in a map's definition beyond which it is stored rather than inlined."""


@dataclass(eq=False)
class Tensor:
    """A tensor with a shape and a storage type."""

    shape: Shape
    dtype: str
    layout: Shape | None = field(default=None, init=False)
    """Strides in memory, in elements; None for C order."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def register(self) -> str:
        """Type that its elements are computed in."""
        return register(self.dtype)

    def strides(self) -> tuple[int, ...]:
        """Return the strides in memory, in elements."""
        return dense(self.shape) if self.layout is None else self.layout

    def at(self, index: Sequence[Term]) -> Term:
        """Return the element at an index, as a load."""
        return load(self, self.register, index)

    def offset(self, index: Sequence[Term]) -> Term:
        """Return the place of an element in memory."""
        return linear(index, self.strides())


@dataclass(eq=False)
class Given(Tensor):
    """A tensor that the kernel is given."""

    name: str


@dataclass(eq=False)
class Map(Tensor):
    """Every element by itself."""

    define: Callable[[Index], Term]
    stored: bool = False
    terms: dict[Index, Term] = field(default_factory=dict)

    def at(self, index: Sequence[Term]) -> Term:
        """Return the element's term, or a load where the tensor is stored."""
        return load(self, self.register, index) if self.stored else self.term(tuple(index))

    def term(self, index: Index) -> Term:
        """Return the element's definition."""
        if index not in self.terms:
            self.terms[index] = self.define(index)
        return self.terms[index]


def dense(shape: Shape) -> Shape:
    """Return the strides of a tensor in C order, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


KINDS = ("sum", "prod", "max", "min", "argmax", "argmin")


@dataclass(eq=False)
class Reduce(Tensor):
    """A reduction, for every element, of a term over further axes.

    ``argmax`` and ``argmin`` give the position in the row-major order of those axes, of the first where several are
    equal; NaN counts as the extreme.
    """

    kind: str
    extents: Shape
    value: str
    """Register type of what is reduced."""
    define: Callable[[Index, Index], Term]


@dataclass(eq=False)
class Scan(Tensor):
    """The reductions of all beginnings along one axis."""

    kind: str
    """As of a reduction that keeps no place, or ``logsum``: the logarithm of the sum of exponentials."""
    axis: int
    define: Callable[[Index], Term]


@dataclass(eq=False)
class Order(Tensor):
    """Positions, along the last axis, of the largest (or smallest) elements in order, equal ones by position."""

    largest: bool
    length: int
    """Elements on that axis of the source; the tensor may have fewer."""
    define: Callable[[Index], Term]


@dataclass(eq=False)
class Scatter(Tensor):
    """Whole numbers that items bring to elements: the same in whatever order they come.

    Its storage type is int64.
    """

    kind: str
    """``sum``, ``max`` or ``min``."""
    extents: Shape
    """Of the items' index space."""
    first: int
    """Value of an element that no item comes to."""
    place: Callable[[Index], Index]
    """Index of the element that an item comes to."""
    define: Callable[[Index], Term]
    """Value that it brings, an int64."""


def variables(shape: Sequence[int], prefix: str = "i") -> Index:
    """Return one loop index an axis."""
    return tuple(variable(f"{prefix}{axis}", size) for axis, size in enumerate(shape))


def mapped(shape: Sequence[int], dtype: str, define: Callable[[Index], Term]) -> Map:
    """Return a map; stored where inlining it would make terms too large."""
    result = Map(tuple(shape), dtype, define)
    if len(walk([result.term(variables(result.shape))])) > MAX_INLINED:
        result.stored = True
    return result


def cost(tensor: Tensor) -> int:
    """Return how much work an element is beyond loading it: functions count ten, other arithmetic one."""
    if not isinstance(tensor, Map) or tensor.stored:
        return 0
    points = 0
    for term in walk([tensor.term(variables(tensor.shape))]):
        if term.dtype == "index" or term.op in ("load", "const", "cast", "round"):
            continue
        points += 10 if term.op.startswith("fn_") else 3 if term.op == "div" else 1
    return points


def loads(tensor: Tensor) -> int:
    """Return how many loads an element takes."""
    if not isinstance(tensor, Map) or tensor.stored:
        return 1
    return sum(term.op == "load" for term in walk([tensor.term(variables(tensor.shape))]))


def kept(tensor: Tensor, uses: int) -> Tensor:
    """Return the tensor, stored where it is work to compute each element again for so many uses."""
    if isinstance(tensor, Map) and uses > 1 and (cost(tensor) * (uses - 1) > 24 or (loads(tensor) > 2 and uses > 4)):
        tensor.stored = True
    return tensor


def as_stored(tensor: Tensor, term: Term) -> Term:
    """Return a value as the tensor's storage holds it."""
    return rounded(term, tensor.dtype)


def zeros(rank: int) -> Index:
    """Return the first index."""
    return (number(0),) * rank
