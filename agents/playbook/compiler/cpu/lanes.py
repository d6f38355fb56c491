"""Terms for a vector of neighbouring indices at once, on ``cpu``: what follows these is found once and kept in arrays.

A term is taken apart into what follows the lanes' indices, what follows the loops around them, and what needs both:
sums of indices are regrouped for that. Vectors whose elements lie evenly in memory are loaded without their offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from agents.playbook.compiler.emission import TYPES, Emitter, statements
from agents.playbook.compiler.tensors import Tensor
from agents.playbook.compiler.terms import (
    COMPARISONS,
    INDEX,
    Term,
    affine,
    is_const,
    make,
    number,
    plus,
    rewritten,
    times,
)
from agents.playbook.ordering import walk

Body = Callable[[list[str]], list[str]]
"""Statements of one lane from the texts of its values."""


class Flat(Tensor):
    """A tensor's memory, whose index is the offset."""

    def __init__(self, origin: Tensor) -> None:
        reach = sum((size - 1) * step for size, step in zip(origin.shape, origin.strides(), strict=True)) + 1
        super().__init__((reach,), origin.dtype)
        self.origin = origin


@dataclass
class Lanes:
    """Code of some terms for vectors of ``width`` lanes; see :meth:`arrays` and :meth:`vector`."""

    indices: frozenset[Term]
    """Indices that lanes follow."""
    fastest: Term
    """The one that neighbouring lanes differ in."""
    roots: list[Term]
    width: int
    pointer: Callable[[object], str]
    prefix: str
    names: dict[Term, str] = field(default_factory=dict)
    """Terms that have a name in the code around."""

    def __post_init__(self) -> None:
        self._flat: dict[Tensor, Flat] = {}
        self._mixed: dict[Term, bool | None] = {}
        roots = rewritten(self.roots, self._regrouped)
        self.roots = [self._sum(root) if root.dtype == INDEX else root for root in roots]
        self._kept: dict[Term, str] = {}
        self._outer: dict[Term, None] = {}
        self._collect(self.roots)
        self.steps = self._even()

    def _follows(self, term: Term) -> bool | None:
        """Return whether a term follows lanes alone; None where it follows other indices too."""
        if term not in self._mixed:
            known: bool | None
            if term.op in ("index", "accumulated"):
                known = term in self.indices if term.op == "index" else None
            else:
                parts = [arg for arg in term.args if arg.op != "const"]
                kinds = {self._follows(arg) for arg in parts}
                known = None if len(kinds) > 1 else kinds.pop() if kinds else False
            self._mixed[term] = known
        return self._mixed[term]

    def _regrouped(self, term: Term, args: tuple[Term, ...]) -> Term | None:
        if term.op == "load":
            rank = len(term.data.shape)
            flat = self._flat.setdefault(term.data, Flat(term.data))
            guard = [arg for arg in args[rank:] if not is_const(arg)]
            return make("load", term.dtype, self._sum(term.data.offset(args[:rank])), *guard, data=flat)
        if term.op in COMPARISONS and args[0].dtype == INDEX:
            return make(term.op, term.dtype, *(self._sum(arg) for arg in args))
        return None

    def _sum(self, index: Term) -> Term:
        """Return a sum of indices as what follows lanes, plus what does not, plus what does both."""
        form = affine(index)
        parts: dict[bool | None, Term] = {True: number(0), False: number(form.constant), None: number(0)}
        for base, factor in form.factors.items():
            kind = self._follows(base)
            parts[kind] = plus(parts[kind], times(base, factor))
        total = parts[True]
        for other in (parts[False], parts[None]):
            if not is_const(other, 0):
                low, high = total.low + other.low, total.high + other.high
                total = other if is_const(total, 0) else make("add", INDEX, total, other, low=low, high=high)
        return total

    def _collect(self, roots: Iterable[Term]) -> None:
        """Find the largest terms that follow lanes alone, and those that follow the loops around alone."""
        for term in roots:
            if term.op == "const" or term in self.names:
                continue
            kind = self._follows(term)
            if kind:
                self._kept.setdefault(term, f"{self.prefix}{len(self._kept)}")
            elif kind is False:
                self._outer[term] = None
            else:
                self._collect(term.args)

    def _even(self) -> dict[str, int]:
        """Return the names of kept offsets that may lie evenly, each with its step.

        None that an offset holds in another way: it says nothing about how far lanes beyond the end reach.
        """
        offsets = [term.args[0] for term in walk(self.roots) if term.op == "load"]
        others = set(walk(offset for offset in offsets if self._lane_part(offset) is None))
        parts = [part for offset in offsets if (part := self._lane_part(offset)) is not None and part not in others]
        return {self._kept[part]: step for part in parts if (step := self._slope(part)) > 0}

    def _lane_part(self, offset: Term) -> Term | None:
        """Return what follows lanes of an offset that is nothing but that and what the loops around say."""
        parts = (offset,) if offset in self._kept else offset.args if offset.op == "add" else ()
        kept = [part for part in parts if part in self._kept]
        around = all(part.op == "const" or self._follows(part) is False for part in parts if part not in self._kept)
        return kept[0] if len(kept) == 1 and around else None

    def _slope(self, part: Term) -> int:
        return affine(part).factors.get(self.fastest, 0)

    def even_roots(self, roots: Iterable[int]) -> None:
        """Count roots, by their place, as offsets that may lie evenly too."""
        for part in (self._lane_part(self.roots[place]) for place in roots):
            if part is not None and self._slope(part) > 0:
                self.steps[self._kept[part]] = self._slope(part)

    def arrays(self, count: int) -> list[str]:
        """Return the declarations of what is kept for ``count`` lanes."""
        return [f"{TYPES[term.dtype]} {name}[{count}];" for term, name in self._kept.items()]

    def filled(self, lane: str) -> list[str]:
        """Return the statements that keep what one lane needs; its indices are declared."""
        emitter = Emitter({}, self._pointer, f"{self.prefix}k")
        texts = emitter.emit(*self._kept)
        assigned = [f"{name}[{lane}] = {text};" for name, text in zip(self._kept.values(), texts, strict=True)]
        return [*emitter.lines, *assigned]

    def flags(self, count: int) -> list[str]:
        """Return the declaration of whether each vector of ``count`` lanes lies evenly."""
        return [f"bool {self.prefix}_even[{count // self.width}];"] if self.steps else []

    def compared(self, vector: str, count: str) -> list[str]:
        """Return the statements that find whether the first ``count`` offsets of a vector lie evenly."""
        if not self.steps:
            return []
        return [
            f"{self.prefix}_even[{vector}] = true;",
            f"for (int l = {vector} * {self.width} + 1; l < {vector} * {self.width} + {count}; ++l)",
            f"    {self.prefix}_even[{vector}] = {self.prefix}_even[{vector}] && {self.continues('l')};",
        ]

    def continues(self, lane: str) -> str:
        """Return the condition that a lane's offsets follow evenly from those of the lane before."""
        parts = [f"{name}[{lane}] == {name}[{lane} - 1] + {step}" for name, step in self.steps.items()]
        return " && ".join(parts) or "true"

    def around(self) -> list[str]:
        """Return the statements that find what follows the loops around, and name it."""
        emitter = Emitter(self.names, self._pointer, f"{self.prefix}s")
        for term, text in zip(self._outer, emitter.emit(*self._outer), strict=True):
            self.names[term] = text
        return emitter.lines

    def vector(self, vector: str, body: Body) -> list[str]:
        """Return the loops over one vector's lanes, ``l``; ``body`` makes its statements from the roots' texts.

        Lanes beyond the end of their row are computed too, and what they load is not used.
        """
        at = f"{vector} * {self.width}"
        slow = self._loop(at, str(self.width), body, even=False, whole=True)
        if not self.steps:
            return slow
        lines, conditions = self._bounds()
        fast = self._loop(at, str(self.width), body, even=True, whole=True)
        even = " && ".join([f"{self.prefix}_even[{vector}]", *conditions])
        heads = [*self._heads(at), *lines]
        return [*heads, f"if ({even}) {{", *statements(fast, 1), "} else {", *statements(slow, 1), "}"]

    def run(self, at: str, count: str, body: Body) -> list[str]:
        """Return the loop over ``count`` lanes that lie evenly, ``l`` beyond the lane ``at``."""
        return [*self._heads(at), *self._loop(at, count, body, even=True, whole=False)]

    def _heads(self, at: str) -> list[str]:
        return [f"const idx {name}_0 = {name}[{at}];" for name in self.steps]

    def _bounds(self) -> tuple[list[str], list[str]]:
        """Return the conditions that whole vectors lie within the tensors that they are loaded from."""
        names = {**self.names, **{part: f"{name}_0" for part, name in self._kept.items()}}
        emitter = Emitter(names, self._pointer, f"{self.prefix}e")
        found: dict[str, None] = {}
        for term in walk(self.roots):
            step = self._step(term) if term.op == "load" else 0
            if step:
                (first,) = emitter.emit(term.args[0])
                found[f"{first} >= 0"] = None
                found[f"{first} < {term.data.size - step * (self.width - 1)}"] = None
        return emitter.lines, list(found)

    def _step(self, load: Term) -> int:
        """Return how far lanes of a load lie apart; 0 where they may lie anywhere."""
        part = self._lane_part(load.args[0])
        return 0 if part is None else self.steps.get(self._kept[part], 0)

    def _loop(self, at: str, end: str, body: Body, *, even: bool, whole: bool) -> list[str]:
        names = dict(self.names)
        for term, name in self._kept.items():
            step = self.steps.get(name, 0) if even else 0
            lane = "l" if step == 1 else f"{step} * l"
            names[term] = f"({name}_0 + {lane})" if step else f"{name}[{at} + l]"
        loads = {term for term in walk(self.roots) if term.op == "load"} if even and whole else set()
        within = {term for term in loads if self._step(term)}
        emitter = _Masking(names, self._pointer, f"{self.prefix}v", within=within)
        texts = emitter.emit(*self.roots)
        inside = [*emitter.lines, *body(texts)]
        return ["#pragma omp simd", f"for (int l = 0; l < {end}; ++l) {{", *statements(inside, 1), "}"]

    def _pointer(self, tensor: object) -> str:
        return self.pointer(tensor.origin if isinstance(tensor, Flat) else tensor)


@dataclass
class _Masking(Emitter):
    """Loads under a condition without a branch: from the tensor's first element where it does not hold.

    Compilers do not make vectors of loads that may not be made.
    """

    within: set[Term] = field(default_factory=set)
    """Loads that may be made whether their condition holds or not."""

    def _text(self, term: Term, texts: dict[Term, str]) -> str:  # type: ignore[override]
        if term.op != "load" or len(term.args) == 1:
            return super()._text(term, texts)
        offset, guard = (self._of(arg, texts) for arg in term.args)
        mask = f"{self.prefix}m{len(self.names)}"
        self.names[make("mask", INDEX, term)] = mask
        self.lines.append(f"const idx {mask} = -(idx){guard};")
        place = offset if term in self.within else f"({offset}) & {mask}"
        return f"masked(ld({self.pointer(term.data)}, {place}), {mask})"
