"""Second factors of products that are few and not stored as tiles read them: computed once, with columns side by side.

From there blocks load them in packs, without conditions.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from agents.playbook.compiler.groups import Group, Target
from agents.playbook.compiler.products import seen_as_product
from agents.playbook.compiler.shapes_of_work import depends
from agents.playbook.compiler.tensors import Index, Map, Reduce, as_stored, variables
from agents.playbook.compiler.terms import Term, is_const, make, substituted

LARGEST = 2**22
"""Elements of a panel, which should stay in a card's cache."""
USES = 512
"""Rows from which on a panel is read again and again."""


def with_panel(group: Group) -> list[Group]:
    """Return the group that computes the second factor, and the product of it; the group alone where that is no use."""
    product = seen_as_product(group)
    if product is None or not isinstance(group.source, Reduce) or product.sizes(group)[1] < USES:
        return [group]
    second = product.second
    batch = [axis for axis in product.batch if depends(second, group.index[axis])]
    places = [*(group.index[axis] for axis in batch), *group.inner, *(group.index[axis] for axis in product.columns)]
    shape = (
        *(group.shape[axis] for axis in batch),
        *group.source.extents,
        *(group.shape[axis] for axis in product.columns),
    )
    if prod(shape) > LARGEST:
        return [group]
    index = variables(shape)
    table = {place: item for place, item in zip(places, index, strict=True) if place.op == "index"}
    (value,) = substituted([second], table)

    def define(at: Index) -> Term:
        return substituted([value], dict(zip(index, at, strict=True)))[0]

    panel = Map(shape, _storage(second), define, stored=True)
    copy = Group(shape, index, (Target(panel, "", as_stored(panel, value)),))
    argument = make("mul", "float32", product.first, panel.at(places))
    return [copy, replace(group, argument=argument)]


def _storage(factor: Term) -> str:
    """Return the storage type that holds a factor as it is."""
    while factor.op == "cast" or (factor.op == "where" and is_const(factor.args[2], 0)):
        factor = factor.args[0 if factor.op == "cast" else 1]
    return str(factor.data.dtype) if factor.op == "load" and factor.dtype == "float32" else "float32"
