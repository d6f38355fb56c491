"""Reductions seen as matrix products: rows, columns, a batch, and the two factors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, prod

from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.parameters import target_index
from agents.playbook.compiler.shapes_of_work import depends
from agents.playbook.compiler.tensors import Reduce
from agents.playbook.compiler.terms import HALVES, Term, affine, const, is_const
from agents.playbook.ordering import walk

LEAST = 16
"""Rows, columns and depth below which tiles are mostly empty."""


@dataclass(frozen=True)
class Product:
    """A reduction seen as a matrix product."""

    first: Term
    second: Term
    batch: list[int]
    rows: list[int]
    columns: list[int]

    @property
    def turned(self) -> Product:
        """Return the transposed product, of the factors in the other order."""
        return Product(self.second, self.first, self.batch, self.columns, self.rows)

    def sizes(self, group: Group) -> tuple[int, int, int]:
        """Return batches, rows and columns."""
        batches, rows, columns = (
            prod(group.shape[axis] for axis in axes) for axes in (self.batch, self.rows, self.columns)
        )
        return batches, rows, columns


def product_of(group: Group) -> Product | None:
    """Return how a group is a matrix product of some size; None where it is none."""
    product = seen_as_product(group)
    if product is None or not isinstance(group.source, Reduce) or prod(group.source.extents) < LEAST:
        return None
    _, rows, columns = product.sizes(group)
    return product if rows >= LEAST and columns >= LEAST else None


def seen_as_product(group: Group) -> Product | None:
    """Return how a group is a matrix product of any size; None where it is none."""
    source, argument = group.source, group.argument
    if not isinstance(source, Reduce) or source.kind != "sum" or source.value != "float32" or argument is None:
        return None
    if argument.op != "mul":
        return None
    first, second = argument.args
    axes: dict[tuple[bool, bool], list[int]] = {(a, b): [] for a in (False, True) for b in (False, True)}
    for axis, index in enumerate(group.index):
        key = (depends(first, index), depends(second, index)) if index.op == "index" else (True, True)
        axes[key].append(axis)
    batch = sorted([*axes[True, True], *axes[False, False]])
    return Product(first, second, batch, axes[True, False], axes[False, True])


def products(groups: Iterable[Group]) -> list[tuple[Group, Reduce, Product]]:
    """Return the groups that are matrix products of some size."""
    found = [(group, group.source, product_of(group)) for group in groups]
    return [
        (group, source, product)
        for group, source, product in found
        if isinstance(source, Reduce) and product is not None
    ]


def factor_types(groups: Iterable[Group]) -> set[str]:
    """Return the 16-bit types among the tensors that products are of."""
    factors = [factor for _, _, product in products(groups) for factor in (product.first, product.second)]
    return {term.data.dtype for factor in factors for term in loads_of(factor)} & set(HALVES)


def by_row(group: Group, product: Product) -> bool:
    """Return whether neighbouring columns of the result are closer in memory than neighbouring rows."""
    target = group.targets[0]
    factors = affine(target.tensor.offset(target_index(group, target))).factors

    def apart(axes: Sequence[int]) -> float:
        last = next((axis for axis in reversed(axes) if group.shape[axis] > 1), None)
        return inf if last is None else abs(factors.get(group.index[last], inf))

    return apart(product.columns) <= apart(product.rows)


def condition_of_use(group: Group) -> Term | None:
    """Return the condition on an element's index under which its sum is used at all; None where it always is."""
    found = set[Term]()
    for target in group.targets:
        value = target.value.args[0] if target.value.op == "round" else target.value
        if value.op != "where":
            return None
        condition, _, other = value.args
        fixed = all(term.op not in ("load", "accumulated") for term in walk([condition]))
        if not fixed or any(term is group.accumulated for term in walk([other])):
            return None
        found.add(condition)
    return found.pop() if len(found) == 1 else None


def bare(factor: Term) -> Term | None:
    """Return the load that a factor is, without casts between float types; None where it is more than that."""
    while factor.op == "cast" and factor.dtype == "float32" and factor.args[0].dtype == "float32":
        factor = factor.args[0]
    return factor if factor.op == "load" else None


def condition_of(factor: Term) -> Term:
    """Return the condition without which a factor is zero."""
    while factor.op in ("cast", "round"):
        factor = factor.args[0]
    if factor.op == "where" and is_const(factor.args[2], 0):
        return factor.args[0]
    guarded = factor.op == "load" and len(factor.args) > len(factor.data.shape)
    return factor.args[-1] if guarded else const(True, "bool")


def loads_of(factor: Term) -> list[Term]:
    """Return the loads within a factor."""
    return [term for term in walk([factor]) if term.op == "load"]


def follows(factor: Term, index: Term) -> bool:
    """Return whether some load of a factor moves by one element with an index."""
    if index.op != "index":
        return False
    return any(affine(_offset(term)).factors.get(index) == 1 for term in loads_of(factor))


def packed(load: Term, index: Term, extent: int, pack: int) -> bool:
    """Return whether neighbours along an index always lie in aligned packs in memory, wholly inside or outside."""
    if any(depends(guard, index) for guard in load.args[len(load.data.shape) :]) or index.op != "index":
        return False
    if extent % pack:
        return False
    place = affine(_offset(load))
    others = [(term, factor) for term, factor in place.factors.items() if term is not index]
    steady = all(factor % pack == 0 and not depends(term, index) for term, factor in others)
    return place.factors.get(index) == 1 and steady and place.constant % pack == 0


def _offset(load: Term) -> Term:
    offset: Term = load.data.offset(load.args[: len(load.data.shape)])
    return offset
