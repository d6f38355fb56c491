"""Groups whose axes are split so that they become products: channels by group, strided outputs by residue class.

An index that one factor knows by its quotient and the other by its remainder belongs to neither's rows alone; its
quotient and its remainder, as axes of their own, do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from agents.playbook.compiler.groups import Group, Program, Target
from agents.playbook.compiler.parameters import target_index
from agents.playbook.compiler.products import Product
from agents.playbook.compiler.shapes_of_work import depends
from agents.playbook.compiler.tensors import Reduce, variables
from agents.playbook.compiler.terms import (
    Term,
    both,
    compare,
    is_const,
    make,
    number,
    plus,
    restricted,
    substituted,
    times,
)
from agents.playbook.ordering import walk

ProductOf = Callable[[Group], Product | None]


def with_split_axes(program: Program, product_of: ProductOf) -> Program:
    """Return the program with the axes of its products split, where that makes their matrices larger."""
    return replace(program, groups=[split(group, product_of) for group in program.groups])


def split(group: Group, product_of: ProductOf) -> Group:
    """Return a group with split axes where its matrices are larger so, else the group itself."""
    argument = group.argument
    if not isinstance(group.source, Reduce) or argument is None or argument.op != "mul":
        return group
    parts = [divisor(argument, index) for index in group.index]
    if all(part == 1 for part in parts):
        return group
    whole = _split(group, parts)
    return whole if _area(whole, product_of) > _area(group, product_of) else group


def _area(group: Group, product_of: ProductOf) -> int:
    product = product_of(group)
    return prod(product.sizes(group)[1:]) if product is not None else 0


def divisor(argument: Term, index: Term) -> int:
    """Return the one number that an index is divided by; 1 where there is none, or are several."""
    found = {
        term.args[1].data
        for term in walk([argument])
        if term.op in ("div", "mod") and term.dtype == "index" and term.args[0] is index and is_const(term.args[1])
    }
    return found.pop() if len(found) == 1 else 1


def _split(group: Group, parts: list[int]) -> Group:
    shape: list[int] = []
    for size, part in zip(group.shape, parts, strict=True):
        shape += [size] if part == 1 else [-(-size // part), part]
    index = variables(shape)
    rest = iter(index)
    table: dict[Term, Term] = {}
    ends: list[tuple[Term, Term, Term]] = []
    for own, size, part in zip(group.index, group.shape, parts, strict=True):
        place = next(rest)
        if part > 1:
            quotient, remainder = place, next(rest)
            place = plus(times(quotient, part), remainder)
            if size % part:
                ends.append((quotient, remainder, compare("lt", place, number(size))))
        if own.op == "index":
            table[own] = place
    assert group.argument is not None
    factors = [_within(factor, ends) for factor in substituted(group.argument.args, table)]
    argument = make("mul", group.argument.dtype, *factors)
    inside = both(*(condition for _, _, condition in ends)) if ends else None
    targets = tuple(moved(group, target, table, inside) for target in group.targets)
    return replace(group, shape=tuple(shape), index=index, targets=targets, argument=argument)


def moved(group: Group, target: Target, table: dict[Term, Term], inside: Term | None) -> Target:
    """Return a group's target with indices replaced, stored only under a further condition where one is given."""
    value, *place = substituted([target.value, *target_index(group, target)], table)
    conditions = [] if inside is None else [inside]
    conditions += [] if target.inside is None else substituted([target.inside], table)
    value = value if inside is None else restricted(inside, value)
    return Target(target.tensor, target.name, value, tuple(place), both(*conditions) if conditions else None)


def _within(factor: Term, ends: list[tuple[Term, Term, Term]]) -> Term:
    """Return a factor that loads nothing for indices beyond the end; with one part of an index alone, none is."""
    for quotient, remainder, condition in ends:
        if depends(factor, quotient) and depends(factor, remainder):
            factor = restricted(condition, factor)
    return factor
