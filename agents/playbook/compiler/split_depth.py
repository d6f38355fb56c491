"""Products whose depth is divided among blocks: where their tiles alone would leave most of a card idle.

The parts of each result are a product with one more batch axis, and a sum over that axis follows, which takes the
epilogue. Their order is always the same.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from agents.playbook.compiler.cuda.tiles import ENOUGH_BLOCKS, Tiles, arithmetic_of
from agents.playbook.compiler.groups import Group, Program, Target, placed
from agents.playbook.compiler.products import Product, product_of
from agents.playbook.compiler.tensors import Reduce, dense, variables
from agents.playbook.compiler.terms import make, plus, substituted, times, variable

SHALLOWEST = 256
"""Terms of a part below which dividing costs more than it brings."""
MOST_PARTS = 32
FEW_BLOCKS = ENOUGH_BLOCKS * 3 // 4
"""Blocks from which on a product is left whole."""


def divided(program: Program, tiles: Tiles) -> Program:
    """Return the program with the depth of products divided where they have few tiles; the same one where none has."""
    groups: list[Group] = []
    for group in program.groups:
        product = product_of(group)
        parts = 1 if product is None else _parts(group, product, tiles)
        groups += [group] if parts == 1 else _in_parts(group, parts)
    return program if len(groups) == len(program.groups) else placed(groups, program.names)


def _parts(group: Group, product: Product, tiles: Tiles) -> int:
    assert isinstance(group.source, Reduce)
    arithmetic = arithmetic_of(group, group.source, product, tiles)
    batches, rows, columns = arithmetic.product.sizes(group)
    blocks = batches * -(-rows // arithmetic.first.width) * -(-columns // arithmetic.second.width)
    outer, depth = group.source.extents[0], prod(group.source.extents)
    parts = 1
    while blocks * parts < FEW_BLOCKS and outer % (2 * parts * 8) == 0 and depth // (2 * parts) >= SHALLOWEST:
        parts *= 2
    return min(parts, MOST_PARTS)


def _in_parts(group: Group, parts: int) -> list[Group]:
    """Return the product of each part, and the sum over them with the group's own targets."""
    reduction, argument = group.source, group.argument
    assert isinstance(reduction, Reduce)
    assert argument is not None
    extents = (reduction.extents[0] // parts, *reduction.extents[1:])
    part, inner = variable(f"i{len(group.shape)}", parts), variables(extents, "r")
    (own,) = substituted([argument], {group.inner[0]: plus(times(part, extents[0]), inner[0])})
    partial = Reduce((*group.shape, parts), "float32", "sum", extents, "float32", reduction.define)
    partial.layout = (*dense(group.shape), prod(group.shape))
    result = make("accumulated", "float32", data=f"{id(partial)}")
    first = Group(partial.shape, (*group.index, part), (Target(partial, "", result),), partial, inner, own, result)
    (over,) = variables((parts,), "r")
    source = replace(reduction, extents=(parts,))
    return [first, replace(group, source=source, inner=(over,), argument=partial.at((*group.index, over)))]
