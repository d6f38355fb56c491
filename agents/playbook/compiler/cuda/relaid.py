"""Factors of products stored anew, as tensor cores are fed best: neighbours in depth are neighbours in memory.

A convolution's image and weights are laid with their channels last, and its depth runs over the taps first and the
channels last: a pack of eight lies under one tap, inside the image or outside as a whole, and is copied as it is.
Tensors of float32 are rounded on the way, as they would be on the way to shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agents.playbook.compiler.cuda.operands import HELD
from agents.playbook.compiler.cuda.tiles import Tiles, arithmetic_of
from agents.playbook.compiler.cuda.wgmma import FEWEST_STAGES, Warpgroups
from agents.playbook.compiler.groups import Group, Program, Target, placed
from agents.playbook.compiler.products import Product, bare, packed, product_of
from agents.playbook.compiler.shapes_of_work import depends
from agents.playbook.compiler.tensors import Reduce, Tensor, as_stored, variables
from agents.playbook.compiler.terms import Term, compare, const, guarded, make, number, substituted, variable
from agents.playbook.ordering import walk
from cupilot.domain.kernel import MAX_WORKSPACE_BYTES

PACK = 8
"""16-bit elements that are copied at once."""
MOST_PADDING = 3
"""Times that the depth may become longer so that it is made of packs."""


def with_relaid_factors(program: Program, tiles: Tiles) -> Program:
    """Return the program with the factors of products stored anew where warpgroups can multiply them only then."""
    if not tiles.warpgroups or tiles.stages <= FEWEST_STAGES or tiles.precision not in ("half", "bfloat16"):
        return program
    groups: list[Group] = []
    stored: dict[tuple[Tensor, int, int], Tensor] = {}
    for group in program.groups:
        product = product_of(group)
        made = None if product is None else _relaid(group, product, tiles, stored)
        groups += [group] if made is None else made
    if len(groups) == len(program.groups):
        return program
    relaid = placed(_stored_where_summed(groups, set(stored.values()), program.names), program.names)
    return relaid if relaid.workspace_bytes <= MAX_WORKSPACE_BYTES else program


def _stored_where_summed(groups: list[Group], stored: set[Tensor], names: Mapping[Tensor, str]) -> list[Group]:
    """Return the groups with sums stored as products read them where they are made, if nothing else reads them."""
    found = list(groups)
    for copy in groups:
        (target, *more), loads = copy.targets, copy.loads()
        if target.tensor not in stored or more or len(loads) != 1:
            continue
        source = next((each for each in found if [item.tensor for item in each.targets] == loads), None)
        if source is None or not isinstance(source.source, Reduce) or loads[0] in names:
            continue
        readers = [each for each in found if loads[0] in each.loads()]
        if readers != [copy] or source.index != copy.index:
            continue
        (summed,) = source.targets
        (value,) = substituted([target.value], {loads[0].at(copy.index): summed.value})
        if summed.inside is None and not summed.place and all(term.data is not loads[0] for term in walk([value])):
            whole = replace(source, targets=(replace(target, value=value),))
            found = [whole if each is source else each for each in found if each is not copy]
    return found


def _relaid(
    group: Group, product: Product, tiles: Tiles, stored: dict[tuple[Tensor, int, int], Tensor]
) -> list[Group] | None:
    """Return the maps that store factors and the product of what they store; None where it is better left alone."""
    assert isinstance(group.source, Reduce)
    if isinstance(arithmetic_of(group, group.source, product, tiles), Warpgroups):
        return None
    for place, index in enumerate(group.inner):
        if index.op != "index":
            continue
        depth = _Depth(index, group.source.extents[place], HELD[tiles.precision])
        factors = [depth.stored_anew(factor) for factor in (product.first, product.second)]
        if None not in factors:
            return _rebuilt(group, place, depth, [factor for factor in factors if factor is not None], stored)
    return None


@dataclass(frozen=True)
class _Factor:
    """A load, and the axis of its tensor that is to be last in memory; none where it is to stay as it is."""

    load: Term
    axis: int | None


@dataclass(frozen=True)
class _Depth:
    """The reduced index that runs last, over neighbours in memory."""

    index: Term
    extent: int
    dtype: str

    @property
    def padded(self) -> int:
        """Return the extent in whole packs."""
        return -(-self.extent // PACK) * PACK

    def stored_anew(self, factor: Term) -> _Factor | None:
        """Return how a factor is to be stored; None where packs along the index would not lie under one guard."""
        load = bare(factor)
        if load is None or self.padded > MOST_PADDING * self.extent:
            return None
        rank = len(load.data.shape)
        moving = [axis for axis in range(rank) if depends(load.args[axis], self.index)]
        if len(moving) != 1 or any(depends(guard, self.index) for guard in load.args[rank:]):
            return None
        if load.data.dtype == self.dtype and packed(load, self.index, self.extent, PACK):
            return _Factor(load, None)
        (axis,) = moving
        alone = load.args[axis] is self.index
        if not alone and self.padded != self.extent:
            return None
        found = _Factor(load, axis)
        (other,) = substituted([_read(found, _tensor(found, self))], {self.index: self.longer})
        return found if packed(other, self.longer, self.padded, PACK) else None

    @property
    def longer(self) -> Term:
        """Return the index over whole packs."""
        return variable(self.index.data, self.padded)


def _tensor(factor: _Factor, depth: _Depth) -> Tensor:
    """Return a tensor that holds a factor's, with one axis last."""
    assert factor.axis is not None
    shape = factor.load.data.shape
    last = shape[factor.axis] if depth.padded == depth.extent else depth.padded
    return Tensor((*shape[: factor.axis], *shape[factor.axis + 1 :], last), depth.dtype)


def _read(factor: _Factor, tensor: Tensor) -> Term:
    """Return the load of the same element from where it is stored anew."""
    assert factor.axis is not None
    args, axis, rank = factor.load.args, factor.axis, len(tensor.shape)
    return make("load", "float32", *args[:axis], *args[axis + 1 : rank], args[axis], *args[rank:], data=tensor)


def _rebuilt(
    group: Group, place: int, depth: _Depth, factors: list[_Factor], stored: dict[tuple[Tensor, int, int], Tensor]
) -> list[Group]:
    source = group.source
    assert isinstance(source, Reduce)
    maps, loads = list[Group](), list[Term]()
    for factor in factors:
        if factor.axis is None:
            loads.append(factor.load)
            continue
        key = factor.load.data, factor.axis, depth.padded
        if key not in stored:
            stored[key] = _tensor(factor, depth)
            maps.append(_map(factor, stored[key]))
        loads.append(_read(factor, stored[key]))
    order = [*(at for at in range(len(group.inner)) if at != place), place]
    extents = [*source.extents]
    extents[place] = depth.padded
    shape = tuple(extents[at] for at in order)
    inner = variables(shape, "r")
    table = dict(zip((group.inner[at] for at in order), inner, strict=True))
    factors_now = substituted(loads, {own: new for own, new in table.items() if own.op == "index"})
    argument = make("mul", "float32", *factors_now)
    return [*maps, replace(group, source=replace(source, extents=shape), inner=inner, argument=argument)]


def _map(factor: _Factor, tensor: Tensor) -> Group:
    """Return the map that stores a tensor with one axis last, and zeros beyond its end."""
    assert factor.axis is not None
    source, index = factor.load.data, variables(tensor.shape)
    own = (*index[: factor.axis], index[-1], *index[factor.axis : -1])
    inside = compare("lt", index[-1], number(source.shape[factor.axis]))
    value = guarded(inside, source.at(own), const(0, source.register))
    return Group(tensor.shape, index, (Target(tensor, "", as_stored(tensor, value)),))
