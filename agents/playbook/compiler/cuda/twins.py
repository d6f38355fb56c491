"""Two products of the same rows in one launch: gates, whose results meet element by element.

Lines of both second factors lie one behind the other in a tile, so that an instruction multiplies both, and a thread
has the sums of both for an element of the result. What one product would have handed the other stays in registers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod

from agents.playbook.compiler.cuda.operands import Layout, Operand
from agents.playbook.compiler.cuda.results import Results
from agents.playbook.compiler.cuda.streamed import fits, matrix_of
from agents.playbook.compiler.cuda.turns import SIDE, Turns
from agents.playbook.compiler.cuda.wgmma import ROW, stages_of
from agents.playbook.compiler.groups import Group, Program, placed
from agents.playbook.compiler.parameters import Pointers
from agents.playbook.compiler.products import Product, product_of
from agents.playbook.compiler.tensors import Given, Reduce, Tensor
from agents.playbook.compiler.terms import Term, rewritten
from agents.playbook.ordering import walk
from cupilot.domain.tensor_map import TensorMap

FEWEST_TILES = 2 * 132
"""Tiles from which on a launch of both products keeps a card as busy as one of each."""
MOST_GROUPS = 5
"""Groups of a program up to which its launches have tensor maps of their own."""


@dataclass(frozen=True, kw_only=True)
class Twin(Group):
    """A product whose targets take the sums of another one too, of the same first factor."""

    other: Group

    @property
    def sums(self) -> tuple[Term, ...]:
        """Return the terms that stand for sums in the targets' values."""
        return (*super().sums, *self.other.sums)

    def loads(self) -> list[Tensor]:
        """Return the tensors that the launch reads, each once."""
        argument = self.other.argument
        assert argument is not None
        others = [term.data for term in walk([argument]) if term.op == "load"]
        return list(dict.fromkeys([*super().loads(), *others]))


@dataclass(frozen=True, kw_only=True)
class Twins(Turns):
    """Sums of two products, of half as many columns each, by warpgroups that take turns."""

    third: Operand
    """The other product's second factor."""

    @property
    def tile(self) -> tuple[int, int]:
        """Return the rows and columns of a tile of the result."""
        return self.first.width, self.second.width // 2

    @cached_property
    def results(self) -> Results:
        """Return how sums come to the result."""
        return Results(self.group, self.product, *self.tile, always=True)

    def _asked(self, operand: Operand) -> list[str]:
        """Return the statements that ask for an operand's tile, or for those of both second factors."""
        if operand.letter == "a":
            return super()._asked(operand)
        both = [replace(each, width=each.width // 2) for each in (operand, self.third)]
        place = f"tile_b + buffer * {operand.size}"
        first = [
            line.replace(f"buffer * {both[0].size}", f"buffer * {operand.size}") for line in super()._asked(both[0])
        ]
        second = [
            line.replace(f"tile_c + buffer * {both[1].size}", f"{place} + {both[0].size}")
            for line in super()._asked(both[1])
        ]
        return [*first, *second]

    def maps(self, name: str, pointers: Pointers) -> list[TensorMap]:
        """Return the tensor maps of a launch, those of the first factor and of both second ones."""
        both = [replace(each, width=each.width // 2) for each in (self.second, self.third)]
        return [self._map(operand, f"{name}_{operand.letter}", pointers) for operand in (self.first, *both)]


def twins_of(group: Twin, precision: str) -> Twins | None:
    """Return the tiles of two products of matrices that lie as the copy engine brings them; None where they do not."""
    product, other = product_of(group), product_of(group.other)
    assert product is not None
    assert other is not None
    assert isinstance(group.source, Reduce)
    layout = Layout(ROW, precision, stages_of(SIDE, SIDE, prod(group.source.extents)), swizzled=True)
    first = Operand("a", product.first, tuple(product.rows), SIDE, layout, group, group.source)
    second, third = (
        Operand(letter, factor, tuple(product.columns), SIDE, layout, group, group.source)
        for letter, factor in (("b", product.second), ("c", other.second))
    )
    if not (fits(first, second) and fits(first, third)) or second.across != third.across:
        return None
    matrices = [matrix_of(operand) for operand in (first, second, third)]
    if not all(matrix is not None and isinstance(matrix.tensor, Given) for matrix in matrices):
        return None
    made = Twins(group, product, first, second, third=third)
    return made if made.results.from_registers and made.tiles >= FEWEST_TILES else None


def with_twins(program: Program, precision: str) -> Program:
    """Return the program with two products of the same rows in one launch where only one reads the other."""
    if len(program.groups) > MOST_GROUPS:
        return program
    for place, group in enumerate(program.groups):
        for other in program.groups[:place]:
            twin = _twin(program, group, other)
            if twin is not None and twins_of(twin, precision) is not None:
                groups = [twin if each is group else each for each in program.groups if each is not other]
                return placed(groups, program.names)
    return program


def _twin(program: Program, group: Group, other: Group) -> Twin | None:
    """Return both products as one group; None where they do not meet element by element, or others read the first."""
    product, first = product_of(group), product_of(other)
    if product is None or first is None or len(other.targets) != 1 or not _of_the_same_rows(product, first):
        return None
    (target,) = other.targets
    if target.name or target.inside is not None or target.place or group.shape != other.shape:
        return None
    if group.inner != other.inner or group.index != other.index:
        return None
    readers = [each for each in program.groups if target.tensor in each.loads()]
    if len(readers) != 1 or readers[0] is not group:
        return None
    roots = [each.value for each in group.targets]
    reads = {term.args for term in walk(roots) if term.op == "load" and term.data is target.tensor}
    if reads != {group.index} or group.argument is None:
        return None
    if any(term.data is target.tensor for term in walk([group.argument]) if term.op == "load"):
        return None

    def change(term: Term, _args: tuple[Term, ...]) -> Term | None:
        return target.value if term.op == "load" and term.data is target.tensor else None

    values = rewritten(roots, change)
    targets = tuple(replace(each, value=value) for each, value in zip(group.targets, values, strict=True))
    known = {field.name: getattr(group, field.name) for field in fields(Group)}
    return Twin(**{**known, "targets": targets}, other=other)


def _of_the_same_rows(one: Product, other: Product) -> bool:
    return one.first is other.first and (one.batch, one.rows, one.columns) == (other.batch, other.rows, other.columns)
