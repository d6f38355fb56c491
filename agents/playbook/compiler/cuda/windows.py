"""Windows on the ``cuda`` target: reductions whose neighbouring results read mostly the same elements.

Found from the index maps alone: a result's index and a tap's index enter what is reduced only together, as the place
``stride * result + dilation * tap``. Weights, which depend on taps and not on the results that a thread has, are a
factor beside it. Which threads take which results is for :mod:`agents.playbook.compiler.cuda.strips`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd, prod

from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.shapes_of_work import CHUNK, depends
from agents.playbook.compiler.tensors import Reduce
from agents.playbook.compiler.terms import INDEX, Term, affine, is_const, make, number, plus, substituted, times
from agents.playbook.ordering import walk

FEW_TAPS = 16
"""Taps up to which a window that shares nothing with others is read in packs of several."""
MOST_WEIGHTS = 128
"""Weights that registers hold."""


@dataclass(frozen=True)
class Axis:
    """One axis of a window: results along it, and the taps of each."""

    index: Term
    """Index of a result."""
    tap: Term | None
    """Index of a tap; None where there is one tap."""
    stride: int
    dilation: int

    @property
    def results(self) -> int:
        """Return the number of results."""
        return self.index.high + 1

    @property
    def taps(self) -> int:
        """Return the number of taps."""
        return 1 if self.tap is None else self.tap.high + 1

    @property
    def step(self) -> int:
        """Return the distance of which all places are multiples."""
        return self.stride if self.tap is None else gcd(self.stride, self.dilation)

    @property
    def shares(self) -> bool:
        """Return whether two results have a place in common."""
        return self.stride // self.step < self.taps and self.dilation // self.step < self.results

    def places(self, results: int) -> int:
        """Return the places from the first tap of a result to the last tap of the last of so many results."""
        return (results - 1) * self.stride + (self.taps - 1) * self.dilation + 1

    @property
    def place(self) -> Term:
        """Return the place as an index term."""
        return make("index", INDEX, data=f"{self.index.data}_place", low=0, high=self.places(self.results) - 1)


@dataclass(frozen=True)
class Window:
    """A reduction over a window."""

    group: Group
    reduction: Reduce
    columns: Axis
    """Along which results lie side by side in memory; it may have one tap."""
    others: tuple[Axis, ...]
    """Further axes of more than one tap, the outermost first."""
    value: Term
    """An element, by the places of all axes."""
    weight: Term | None
    """Factor of an element, by the taps; None where elements are reduced as they are."""


def window_of(group: Group) -> Window | None:
    """Return the window that a group reduces over; None where it does not, or where results share no elements."""
    reduction, argument = group.source, group.argument
    if not isinstance(reduction, Reduce) or argument is None or reduction.kind not in ("sum", "max", "min"):
        return None
    columns = _columns(group)
    if columns is None or prod(reduction.extents) > CHUNK:
        return None
    found = _axes(group, argument, columns)
    if found is None or not _is_worth_while(found):
        return None
    moving, weight = _factors(argument, found, weighted=reduction.kind == "sum")
    value = _by_places(moving, found)
    if value is None or (weight is not None and prod(reduction.extents) > MOST_WEIGHTS):
        return None
    along = next(axis for axis in found if axis.index is columns)
    others = tuple(axis for axis in found if axis is not along)
    return Window(group, reduction, along, others, value, weight)


def _is_worth_while(axes: list[Axis]) -> bool:
    """Return whether results share elements, or have a few of several rows, which packs hold for more than one."""
    taps, apart = prod(axis.taps for axis in axes), prod(axis.stride // axis.step for axis in axes)
    few = taps == apart <= FEW_TAPS and sum(axis.tap is not None for axis in axes) > 1
    return few or any(axis.shares for axis in axes)


def _columns(group: Group) -> Term | None:
    """Return the index along which all results lie side by side in memory."""
    if any(target.place or target.inside is not None for target in group.targets):
        return None
    for axis, index in enumerate(group.index):
        if not is_const(index) and all(target.tensor.strides()[axis] == 1 for target in group.targets):
            return index
    return None


def _axes(group: Group, argument: Term, columns: Term) -> list[Axis] | None:
    """Return the axes of a window and the columns, in the order of the results' axes; None where taps move alone."""
    taps = [tap for tap in group.inner if not is_const(tap)]
    indices = [index for index in group.index if not is_const(index)]
    pairs: dict[Term, Axis] = {}
    for term in _index_terms([argument]):
        factors = affine(term).factors
        for tap in taps:
            partners = [index for index in indices if index in factors] if tap in factors else []
            for index in partners:
                axis = Axis(index, tap, abs(factors[index]), abs(factors[tap]))
                if pairs.setdefault(index, axis) != axis or factors[index] * factors[tap] < 0:
                    return None
    if sorted(axis.tap.data for axis in pairs.values() if axis.tap) != sorted(tap.data for tap in taps) or not taps:
        return None
    pairs.setdefault(columns, Axis(columns, None, 1, 1))
    return [pairs[index] for index in indices if index in pairs]


def _index_terms(roots: Iterable[Term]) -> list[Term]:
    """Return the index terms that values, loads and comparisons are made of, each as a whole."""
    found = (arg for term in walk(roots) if term.dtype != INDEX for arg in term.args if arg.dtype == INDEX)
    return list(dict.fromkeys(found))


def _factors(argument: Term, axes: list[Axis], *, weighted: bool) -> tuple[Term, Term | None]:
    """Return the factor that moves with the results, and the one that does not."""
    if not weighted or argument.op != "mul":
        return argument, None
    still = [arg for arg in argument.args if not any(depends(arg, axis.index) for axis in axes)]
    if len(still) != 1:
        return argument, None
    (moving,) = [arg for arg in argument.args if arg is not still[0]]
    return moving, still[0]


def _by_places(value: Term, axes: list[Axis]) -> Term | None:
    """Return a value by the places of axes in place of results and taps; None where it is not one."""
    moved = {axis.index: axis for axis in axes}
    taps = {axis.tap for axis in axes if axis.tap is not None}
    table: dict[Term, Term] = {}
    for term in _index_terms([value]):
        parts = affine(term)
        total, left = number(parts.constant), set(taps)
        for base, factor in parts.factors.items():
            axis = moved.get(base)
            if axis is not None:
                if factor % axis.stride:
                    return None
                total = plus(total, times(axis.place, factor // axis.stride))
                if axis.tap is not None:
                    if parts.factors.get(axis.tap, 0) * axis.stride != factor * axis.dilation:
                        return None
                    left.discard(axis.tap)
            elif base not in taps:
                if any(depends(base, index) for index in (*moved, *taps)):
                    return None
                total = plus(total, times(base, factor))
        if any(tap in parts.factors for tap in left):
            return None
        table[term] = total
    return substituted([value], table)[0]
