"""Movement of terms over a pack: neighbouring values of one loop index that a thread takes at once.

A pack begins at a multiple of its width. An offset that moves by one with the index, and is a multiple of the width at
the first of them, is one wide load; a term that does not move is computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import gcd

from agents.playbook.compiler.groups import ITEM_BYTES
from agents.playbook.compiler.tensors import Tensor
from agents.playbook.compiler.terms import (
    COMPARISONS,
    INDEX,
    Term,
    affine,
    const,
    make,
    number,
    plus,
    rewritten,
    times,
    where,
)
from agents.playbook.ordering import walk

WIDEST = 16
"""Bytes of the widest load of a thread."""


@dataclass(frozen=True)
class Motion:
    """Steps of a value from one element of a pack to the next, and what is known of the first."""

    step: int | None
    """None where it is not the same from each to the next."""
    rest: int = 0
    modulus: int = 1
    """The first is ``rest`` plus some multiple of this; 0 where it is ``rest`` itself."""

    def plus(self, other: Motion) -> Motion:
        """Return the motion of a sum."""
        if self.step is None or other.step is None:
            return UNKNOWN
        return _motion(self.step + other.step, self.rest + other.rest, gcd(self.modulus, other.modulus))

    def times(self, factor: int) -> Motion:
        """Return the motion of a product with a constant."""
        return UNKNOWN if self.step is None else _motion(self.step * factor, self.rest * factor, self.modulus * factor)


UNKNOWN = Motion(None)
STILL = Motion(0)


def _motion(step: int, rest: int, modulus: int) -> Motion:
    return Motion(step, rest % modulus if modulus else rest, abs(modulus))


@dataclass
class Packs:
    """Packs of so many values of an index, which begin at multiples of the width; over a pack of one, all stays."""

    index: Term
    width: int
    known: dict[Term, Motion] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known[self.index] = Motion(1, 0, self.width) if self.width > 1 else STILL

    def motion(self, root: Term) -> Motion:
        """Return the motion of a term; that of one that is no index is that it stays, or unknown."""
        for term in walk([root], self.known):
            self.known[term] = self._of(term)
        return self.known[root]

    def stays(self, term: Term) -> bool:
        """Return whether a term is the same for all elements of a pack."""
        return self.motion(term).step == 0

    def place(self, offset: Term) -> Motion:
        """Return the motion of an offset, quotients and remainders of the same value rejoined."""
        parts = affine(offset)
        total = Motion(0, parts.constant, 0)
        for part, factor in parts.factors.items():
            total = total.plus(self.motion(part).times(factor))
        return total

    def is_wide(self, offset: Term) -> bool:
        """Return whether a pack's elements lie side by side from an offset on that wide loads may have."""
        place = self.place(offset)
        return place.step == 1 and place.rest % self.width == 0 and place.modulus % self.width == 0

    def is_wide_load(self, term: Term) -> bool:
        """Return whether a load is one wide load of the pack's elements."""
        rank = len(term.data.shape)
        return self.is_wide(offset_of(term)) and all(self.stays(guard) for guard in term.args[rank:])

    def unguarded(self, roots: Iterable[Term]) -> list[Term]:
        """Return terms in which loads within bounds are made for the whole pack where their guards differ."""

        def change(term: Term, args: tuple[Term, ...]) -> Term | None:
            if term.op != "load" or len(args) == len(term.data.shape):
                return None
            *index, guard = args
            inside = all(at.low >= 0 and at.high < size for at, size in zip(index, term.data.shape, strict=True))
            if not inside or self.stays(guard):
                return None
            return where(guard, make("load", term.dtype, *index, data=term.data), const(0, term.dtype))

        return rewritten(roots, change)

    def _of(self, term: Term) -> Motion:
        if term.op == "const" and term.dtype == INDEX:
            return Motion(0, term.data, 0)
        args = [self.known[arg] for arg in term.args]
        if term.op == "load":
            rank = len(term.data.shape)
            still = self.place(offset_of(term)).step == 0 and all(guard.step == 0 for guard in args[rank:])
            return STILL if still else UNKNOWN
        if term.op in COMPARISONS and term.args[0].dtype == INDEX:
            return STILL if self._is_decided(term.op, args[0].plus(args[1].times(-1))) else UNKNOWN
        if term.dtype == INDEX:
            if term.op == "add":
                return args[0].plus(args[1])
            if term.op == "mul":
                return args[0].times(term.args[1].data)
            if term.op in ("div", "mod"):
                return self._divided(term, args[0], term.args[1].data)
            if term.op == "where" and args[0].step == 0 and args[1].step is not None and args[1].step == args[2].step:
                modulus = gcd(args[1].modulus, args[2].modulus, args[1].rest - args[2].rest)
                return _motion(args[1].step, args[1].rest, modulus)
        return STILL if all(arg.step == 0 for arg in args) else UNKNOWN

    def _divided(self, term: Term, value: Motion, divisor: int) -> Motion:
        """Return the motion of a quotient or remainder; C++ rounds those of negative values the other way."""
        step, rest, modulus = value.step, value.rest, value.modulus
        if step is None or term.args[0].low < 0:
            return STILL if step == 0 else UNKNOWN
        common = gcd(modulus, divisor)
        if term.op == "mod":
            if step % divisor == 0:
                return _motion(0, rest, common)
            return _motion(step, rest, common) if self._holds(step, rest, common) else UNKNOWN
        if step % divisor and not self._holds(step, rest, common):
            return UNKNOWN
        known = (rest // divisor, modulus // divisor) if modulus % divisor == 0 else (0, 1)
        return _motion(step // divisor if step % divisor == 0 else 0, *known)

    def _holds(self, step: int, rest: int, modulus: int) -> bool:
        """Return whether a pack's values lie between two neighbouring multiples of a modulus."""
        return step >= 0 and rest % modulus + step * (self.width - 1) < modulus

    def _is_decided(self, op: str, difference: Motion) -> bool:
        """Return whether a comparison with zero has one result for the whole pack."""
        step, rest, modulus = difference.step, difference.rest, difference.modulus
        if step is None or step == 0 or op in ("eq", "ne"):
            return step == 0
        rest -= op in ("le", "gt")
        if step < 0:
            step, rest = -step, -rest - 1
        if modulus == 0:
            return not rest < 0 <= rest + step * (self.width - 1)
        return self._holds(step, rest, modulus)


def offset_of(load: Term) -> Term:
    """Return the place in memory of a load."""
    tensor: Tensor = load.data
    return tensor.offset(load.args[: len(tensor.shape)])


def joined(offset: Term) -> Term:
    """Return an offset with quotients and remainders of the same value rejoined."""
    parts = affine(offset)
    total = number(0)
    for part, factor in parts.factors.items():
        total = plus(total, times(part, factor))
    return plus(total, number(parts.constant))


def item_bytes(tensor: Tensor) -> int:
    """Return the size of a tensor's element in memory."""
    return ITEM_BYTES.get(tensor.dtype, 1)


def loads_in(roots: Iterable[Term]) -> list[Term]:
    """Return the loads that terms are made of, each once."""
    return [term for term in walk(roots) if term.op == "load"]


def width_of(index: Term, count: int, roots: Sequence[Term], stored: Sequence[tuple[Term, Tensor]]) -> int:
    """Return how many values of an index to take at once; 1 where wide loads would do no good.

    ``stored`` are the offsets of what is written for each value. The width is one with the fewest loads that are not
    wide, and the largest of these of which no load or store is wider than 16 bytes.
    """
    best, fewest = 1, 0
    for width in (16, 8, 4, 2):
        packs = Packs(index, width)
        if count % width or not all(packs.is_wide(offset) for offset, _ in stored):
            continue
        moving = [load for load in loads_in(packs.unguarded(roots)) if not packs.stays(load)]
        wide = [load for load in moving if packs.is_wide_load(load)]
        sizes = [item_bytes(tensor) for _, tensor in stored] + [item_bytes(load.data) for load in wide]
        single = len(moving) - len(wide)
        if not sizes or max(sizes) * width > WIDEST or single > len(wide) or (best > 1 and single >= fewest):
            continue
        best, fewest = width, single
    return best
