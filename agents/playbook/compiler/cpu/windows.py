"""Factors of products that are read again and again, as windows of convolutions are, copied once before the product.

The copy holds the factor for all values that its coordinates take, with the padding in place: from it, neighbouring
results load neighbouring elements whichever term it is, so that nothing has to be packed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from agents.playbook.compiler.groups import ALIGNMENT, Group, Program, Target
from agents.playbook.compiler.products import Product, condition_of
from agents.playbook.compiler.tensors import Index, Map, Reduce, variables
from agents.playbook.compiler.terms import (
    Term,
    affine,
    conjuncts,
    const,
    is_const,
    make,
    minus,
    number,
    plus,
    substituted,
)
from agents.playbook.ordering import walk

USES = 4
"""Times that an element of a copy is read for one row, at least."""
GROWTH = 4
"""Times that a copy is larger than what it is copied from, at most."""
MOST_TERMS = 16384
"""Terms of which a list may be kept, of those that are not passed over."""
SLACK = 1024
"""Elements beyond a copy's end that vectors may reach, and whose values do not matter."""


@dataclass(eq=False)
class Window(Map):
    """A copy of a factor, over its coordinates."""


def with_windows(program: Program, product_of: Callable[[Group], Product | None]) -> Program:
    """Return the program with the second factors of its products copied where that saves packing."""
    base = -(-program.workspace_bytes // ALIGNMENT) * ALIGNMENT
    groups: list[Group] = []
    offsets, size = dict(program.offsets), program.workspace_bytes
    for group in program.groups:
        product = product_of(group)
        copied = _copied(group, product) if product is not None else None
        if copied is None:
            groups.append(group)
            continue
        groups += copied
        window = copied[0].targets[0].tensor
        offsets[window] = base
        size = max(size, base + 4 * (window.size + SLACK))
    return Program(groups, offsets, program.names, size)


def _copied(group: Group, product: Product) -> tuple[Group, Group] | None:
    """Return the group that copies the second factor, and the product of the copy; None where that does not pay."""
    assert isinstance(group.source, Reduce)
    factor = _unconditional(group, product)
    loads = [term for term in walk([factor]) if term.op == "load"]
    places = _in_rows(group, product, [arg for load in loads for arg in load.args[: len(load.data.shape)]])
    shape = tuple(place.high - place.low + 1 for place in places)
    results = prod(group.shape) // product.sizes(group)[1]
    largest = max((load.data.size for load in loads), default=0)
    if not places or prod(shape) > min(GROWTH * largest, results * prod(group.source.extents) // USES):
        return None

    def define(index: Index) -> Term:
        table = {place: plus(item, number(place.low)) for place, item in zip(places, index, strict=True)}
        return substituted([factor], table)[0]

    if {*group.index, *group.inner}.intersection(_indices(define(variables(shape, "j")))):
        return None
    window = Window(shape, "float32", define, stored=True)
    index = variables(shape)
    copy = Group(shape, index, (Target(window, "", define(index)),))
    loaded = window.at([minus(place, number(place.low)) for place in places])
    assert group.argument is not None
    factors = [loaded if arg is product.second else arg for arg in group.argument.args]
    return copy, replace(group, argument=make("mul", group.argument.dtype, *factors))


def _in_rows(group: Group, product: Product, places: list[Term]) -> list[Term]:
    """Return the places with the one last that neighbouring results differ in, by one; none where it is not so."""
    lanes = {group.index[axis] for axis in product.columns}
    fastest = group.index[product.columns[-1]]
    along, others = list[Term](), list[Term]()
    for place in dict.fromkeys(place for place in places if not is_const(place)):
        factors = affine(place).factors
        if any(base not in lanes and lanes & _indices(base) for base in factors):
            return []
        (along if fastest in factors else others).append(place)
    return [*others, *along] if len(along) == 1 and affine(along[0]).factors[fastest] == 1 else []


def _indices(term: Term) -> set[Term]:
    return {item for item in walk([term]) if item.op == "index"}


def _unconditional(group: Group, product: Product) -> Term:
    """Return the second factor without conditions beyond which its values do not matter.

    Those under which nothing is stored, and those of terms that are passed over.
    """
    known = [part for target in group.targets if target.inside is not None for part in conjuncts(target.inside)]
    table = {part: const(True, "bool") for part in (*known, *passed_over(group, product))}
    return substituted([product.second], table)[0]


def passed_over(group: Group, product: Product) -> list[Term]:
    """Return conditions of the first factor without which a term is zero for all rows and columns."""
    outside = {group.index[axis] for axis in (*product.rows, *product.columns)}
    parts = [part for part in conjuncts(condition_of(product.first)) if not is_const(part)]
    assert isinstance(group.source, Reduce)
    return [] if prod(group.source.extents) > MOST_TERMS else [part for part in parts if not outside & _indices(part)]
