"""Several products of the same rows in one launch: gates, and projections whose parts are combined element by element.

Lines of all second factors lie one behind the other in a tile, so that an instruction multiplies them all, and a thread
has the sums of each for an element of the result. What products would have handed to others stays in registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod

from agents.playbook.compiler.cuda.operands import Layout, Operand
from agents.playbook.compiler.cuda.results import Results
from agents.playbook.compiler.cuda.streamed import Streamed, matrix_of
from agents.playbook.compiler.cuda.wgmma import LINES, ROW, WARPGROUPS, stages_of
from agents.playbook.compiler.groups import Group, Program, placed
from agents.playbook.compiler.parameters import Pointers
from agents.playbook.compiler.products import product_of
from agents.playbook.compiler.tensors import Given, Reduce, Tensor
from agents.playbook.compiler.terms import Term, make, rewritten, substituted
from agents.playbook.ordering import walk
from cupilot.domain.tensor_map import TensorMap

FEWEST_TILES = 96
"""Tiles from which on one launch of all products takes less than one of each."""
MOST_GROUPS = 4
"""Groups of a program up to which its launches have tensor maps of their own."""
ROWS = WARPGROUPS * LINES
"""Rows of a tile."""
WIDTHS = {2: 128, 3: 64, 4: 64}
"""Columns of a tile, by the number of products."""
BLOCKS = 132
"""Multiprocessors of an H100 or H200; on a smaller card some blocks follow others."""


@dataclass(frozen=True)
class Other:
    """A product beside the first: what it sums, and what stands for the sum."""

    argument: Term
    accumulated: Term


@dataclass(frozen=True, kw_only=True)
class Joint(Group):
    """A product whose targets take the sums of others too, of the same first factor."""

    others: tuple[Other, ...]

    @property
    def sums(self) -> tuple[Term, ...]:
        """Return the terms that stand for sums in the targets' values."""
        return (*super().sums, *(other.accumulated for other in self.others))

    def loads(self) -> list[Tensor]:
        """Return the tensors that the launch reads, each once."""
        others = [term.data for term in walk([other.argument for other in self.others]) if term.op == "load"]
        return list(dict.fromkeys([*super().loads(), *others]))

    def each(self) -> Iterator[Group]:
        """Yield each product as a group of its own."""
        known = {field.name: getattr(self, field.name) for field in fields(Group)}
        for argument in (self.argument, *(other.argument for other in self.others)):
            yield Group(**{**known, "argument": argument})


@dataclass(frozen=True, kw_only=True)
class JointBlock(Streamed):
    """Sums of several products by warpgroups below each other; a block stays for several tiles."""

    seconds: tuple[Operand, ...]
    """Each product's second factor; ``second`` is the tile of all."""

    @property
    def blocks(self) -> int:
        """Return the blocks of a launch."""
        return min(self.tiles, BLOCKS)

    @property
    def tile(self) -> tuple[int, int]:
        """Return the rows and columns of a tile of the result."""
        return self.first.width, self.seconds[0].width

    @cached_property
    def results(self) -> Results:
        """Return how sums come to the result."""
        return Results(self.group, self.product, *self.tile)

    def asked_for(self) -> list[str]:
        """Return the statements that ask for the tiles of all factors."""
        lines = self._asked(self.first, f"tile_a + buffer * {self.first.size}")
        for place, each in enumerate(self.seconds):
            lines += self._asked(each, f"tile_b + buffer * {self.second.size} + {place * each.size}")
        return lines

    def maps(self, name: str, pointers: Pointers) -> list[TensorMap]:
        """Return the tensor maps of a launch, those of the first factor and of all second ones."""
        return [self._map(operand, f"{name}_{operand.letter}", pointers) for operand in (self.first, *self.seconds)]


def joint_block(group: Joint, precision: str) -> JointBlock | None:
    """Return the tiles of products of matrices that lie as the copy engine brings them; None where they do not."""
    products = [product_of(each) for each in group.each()]
    product, source, width = products[0], group.source, WIDTHS[len(products)]
    assert product is not None
    assert isinstance(source, Reduce)
    stages = stages_of(ROWS, width * len(products), prod(source.extents))
    layout = Layout(ROW, precision, stages, swizzled=True)
    first = Operand("a", product.first, tuple(product.rows), ROWS, layout, group, source)
    seconds = tuple(
        Operand(letter, each.second, tuple(product.columns), width, layout, group, source)
        for letter, each in zip("bcde", products, strict=False)
        if each is not None
    )
    matrices = [matrix_of(operand) for operand in (first, *seconds)]
    if any(matrix is None or not isinstance(matrix.tensor, Given) for matrix in matrices):
        return None
    across = {operand.across for operand in seconds}
    if len(across) > 1 or (True in across and width % ROW):
        return None
    second = replace(seconds[0], width=width * len(products))
    made = JointBlock(group, product, first, second, seconds=seconds)
    return made if made.results.from_registers and made.tiles >= FEWEST_TILES else None


def with_joint_products(program: Program, precision: str) -> Program:
    """Return the program with products of the same rows in one launch where only it reads all but one of them."""
    if len(program.groups) > MOST_GROUPS:
        return program
    for place, group in enumerate(program.groups):
        for other in program.groups[:place]:
            joint = _joint(program, group, other)
            if joint is not None and joint_block(joint, precision) is not None:
                groups = [joint if each is group else each for each in program.groups if each is not other]
                return placed(groups, program.names)
    return program


def _joint(program: Program, group: Group, other: Group) -> Joint | None:
    """Return a group with the product that only it reads; None where that is better left alone."""
    if product_of(other) is None or len(other.targets) != 1:
        return None
    (target,), tensor = other.targets, other.targets[0].tensor
    if target.name or target.inside is not None or target.place or other.argument is None:
        return None
    if [each for each in program.groups if tensor in each.loads()] != [group]:
        return None
    roots = [each.value for each in group.targets]
    arguments = [] if group.argument is None else [group.argument]
    if any(term.data is tensor for term in walk(arguments) if term.op == "load"):
        return None
    places = list(dict.fromkeys(term.args for term in walk(roots) if term.op == "load" and term.data is tensor))
    if any(len(place) != len(tensor.shape) for place in places) or prod(group.shape) * len(places) != tensor.size:
        return None
    values, others = {}, []
    for number, place in enumerate(places):
        accumulated = make("accumulated", "float32", data=f"{id(tensor)} {number}")
        table = dict(zip(other.index, place, strict=True))
        argument, values[place] = substituted(
            [other.argument, target.value], {**table, **dict.fromkeys(other.sums, accumulated)}
        )
        others.append(Other(argument, accumulated))

    def change(term: Term, _args: tuple[Term, ...]) -> Term | None:
        return values[term.args] if term.op == "load" and term.data is tensor else None

    targets = tuple(
        replace(each, value=value) for each, value in zip(group.targets, rewritten(roots, change), strict=True)
    )
    known = {field.name: getattr(group, field.name) for field in fields(Group)}
    if group.source is None:
        begun = {"source": other.source, "inner": other.inner, "argument": others[0].argument}
        known |= {**begun, "accumulated": others[0].accumulated}
        others = others[1:]
    elif group.inner != other.inner:
        return None
    made = Joint(**{**known, "targets": targets}, others=tuple(others))
    return made if others and len(made.sums) in WIDTHS and _of_the_same_rows(made) else None


def _of_the_same_rows(group: Joint) -> bool:
    """Return whether all are products of the same factor, along the same axes."""
    found = [product_of(each) for each in group.each()]
    first = found[0]
    return first is not None and all(
        each is not None
        and each.first is first.first
        and (each.batch, each.rows, each.columns) == (first.batch, first.rows, first.columns)
        for each in found
    )
