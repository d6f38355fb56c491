"""Attention among a program's groups: scores, their softmax and its product with values as one group.

Recognised is what groups compute: a product, maps of its results, the two reductions of a softmax along the keys, and a
product whose first factor is that softmax. Scores are a term of a row and a key, whatever was fused into them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, prod

from agents.playbook.compiler.groups import Group, Program, place_tensors
from agents.playbook.compiler.products import LEAST, Product, loads_of
from agents.playbook.compiler.shapes_of_work import depends
from agents.playbook.compiler.tensors import Index, Reduce, Tensor, variables
from agents.playbook.compiler.terms import (
    BOOL,
    HALVES,
    INDEX,
    Term,
    affine,
    is_const,
    make,
    minus,
    number,
    plus,
    substituted,
    times,
)
from agents.playbook.ordering import walk

WIDEST = 128
"""Elements of a head up to which a warp's rows of the result fit its registers."""
_OPPOSITE = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}


@dataclass(frozen=True, kw_only=True)
class Attention(Group):
    """Launch that weights values by the softmax of scores; ``source`` is the product with the values."""

    query: Term
    key: Term
    value: Term
    score: Term
    """Of a row and a key."""
    scored: Term
    """Stands for the product of query and key in the score."""
    key_index: Term
    depth_index: Term
    """Index that query and key are summed over."""
    keys: int
    depth: int
    """Elements of a query."""
    safe: bool
    """True if a row without a finite score is zero; NaN otherwise."""
    product: Product
    """Rows of queries, columns of values, and a batch."""

    def loads(self) -> list[Tensor]:
        """Return the tensors that the launch reads, each once."""
        roots = [*(target.value for target in self.targets), self.query, self.key, self.value, self.score]
        return list(dict.fromkeys(term.data for term in walk(roots) if term.op == "load"))

    def types(self) -> set[str]:
        """Return the 16-bit types among the tensors that products are of."""
        factors = self.query, self.key, self.value
        return {load.data.dtype for factor in factors for load in loads_of(factor)} & set(HALVES)

    def first_masked(self) -> tuple[Term, int] | None:
        """Return the index of a row, and what is added to it for the first key behind which all are masked.

        Causal attention gives 1. None where indices alone do not tell.
        """
        found = (self._end(condition) for condition in _conditions(self.score))
        return next((end for end in found if end is not None), None)

    def _end(self, condition: Term) -> tuple[Term, int] | None:
        small, large = (_as_index(arg) for arg in condition.args)
        if condition.op in ("gt", "ge"):
            small, large = large, small
        if small is None or large is None:
            return None
        room = affine(minus(large, small))
        rows = [index for index in room.factors if index is not self.key_index]
        if len(rows) != 1 or room.factors.get(self.key_index) != -1 or room.factors[rows[0]] != 1:
            return None
        return rows[0], room.constant + (condition.op in ("le", "ge"))


def _as_index(term: Term) -> Term | None:
    """Return an index term, or the sum of integers made from one; None for anything else."""
    if term.dtype == INDEX:
        return term
    if term.op == "const" and term.dtype == "int64":
        return number(term.data)
    if term.op == "cast" and term.args[0].dtype == INDEX:
        return term.args[0]
    args = [_as_index(arg) for arg in term.args] if term.op in ("add", "sub", "mul") else []
    if len(args) != 2 or args[0] is None or args[1] is None:
        return None
    if term.op == "mul":
        return times(args[0], args[1].data) if args[1].op == "const" else None
    return (plus if term.op == "add" else minus)(args[0], args[1])


def _conditions(score: Term) -> Iterator[Term]:
    """Yield conditions without which a score is minus infinity."""
    if score.op == "add":
        for arg in score.args:
            yield from _conditions(arg)
    if score.op != "where":
        return
    condition, yes, no = score.args
    if is_const(no, -inf):
        yield from _needed(condition)
        yield from _conditions(yes)
    elif is_const(yes, -inf):
        yield from _needed(condition, opposite=True)
        yield from _conditions(no)


def _needed(condition: Term, *, opposite: bool = False) -> Iterator[Term]:
    """Yield conditions that hold where one does, or where it does not."""
    if condition.op == "not":
        yield from _needed(condition.args[0], opposite=not opposite)
    elif condition.op == ("or" if opposite else "and"):
        for arg in condition.args:
            yield from _needed(arg, opposite=opposite)
    elif condition.op == "where" and is_const(condition.args[1], True) and is_const(condition.args[2], False):
        yield from _needed(condition.args[0], opposite=opposite)
    elif condition.op in _OPPOSITE:
        yield make(_OPPOSITE[condition.op], BOOL, *condition.args) if opposite else condition


def with_attention(program: Program) -> Program:
    """Return the program with the groups of each attention as one group, and its tensors placed anew."""
    parts = _Parts(program)
    found: dict[int, Attention] = {}
    gone: set[Tensor] = set()
    for place, group in enumerate(program.groups):
        made = parts.attention(group)
        if made is not None:
            found[place] = made[0]
            gone |= made[1]
    groups = [found.get(place, group) for place, group in enumerate(program.groups)]
    groups = [group for group in groups if group.targets[0].tensor not in gone]
    fused = Program(groups, names=dict(program.names))
    place_tensors(fused)
    return fused


class _Parts:
    """Groups of a program by the tensors that they write, and who reads these."""

    def __init__(self, program: Program) -> None:
        self.names = program.names
        self.made: dict[Tensor, Group] = {}
        self.readers: dict[Tensor, set[Tensor]] = {}
        for group in program.groups:
            for target in group.targets:
                self.made[target.tensor] = group
            for tensor in group.loads():
                self.readers.setdefault(tensor, set()).add(group.targets[0].tensor)

    def attention(self, last: Group) -> tuple[Attention, set[Tensor]] | None:
        """Return the attention that a group ends, and the tensors that need not be stored then."""
        source, argument = last.source, last.argument
        if not _sums_products(last) or not isinstance(source, Reduce) or argument is None:
            return None
        (key_index,) = variables(source.extents, "c")
        if key_index.op != "index":
            return None
        weight, value = substituted(argument.args, {last.inner[0]: key_index})
        found = self._softmax(weight, key_index)
        if found is None:
            return None
        score, safe, gone = found
        while (load := self._map_of_product(score, key_index)) is not None:
            (score,) = substituted([score], {load: self._inlined(load)})
            gone.add(load.data)
        product = next((load for load in _loads(score, key_index) if self._is_product(load)), None)
        if product is None:
            return None
        first = self.made[product.data]
        gone.add(product.data)
        (score,) = substituted([score], {product: self._inlined(product)})
        whole = last, first, product
        made = _of(whole, (score, value), key_index, safe=safe)
        if made is None or not self._only_here(gone, last) or gone & set(made.loads()):
            return None
        return made, gone

    def _softmax(self, weight: Term, key_index: Term) -> tuple[Term, bool, set[Tensor]] | None:
        """Return the score whose softmax a weight is, whether that is safe, and the tensors between them."""
        gone: set[Tensor] = set()
        weight = _bare(weight)
        if weight.op == "load" and self._is_map(weight):
            gone.add(weight.data)
            weight = _bare(self._inlined(weight))
        safe, top = False, None
        if weight.op == "where" and weight.args[0].op == "eq" and is_const(weight.args[1], 0):
            top, least = weight.args[0].args
            if not is_const(least, -inf):
                return None
            safe, weight = True, _bare(weight.args[2])
        if weight.op != "div" or weight.args[0].op != "fn_exp" or weight.args[0].args[0].op != "sub":
            return None
        power, below = weight.args
        score, largest = power.args[0].args
        reductions = (below, "sum", power), (largest, "max", score)
        right = all(self._reduces(load, kind, term, key_index) for load, kind, term in reductions)
        if not right or (top is not None and top is not largest):
            return None
        return score, safe, gone | {below.data, largest.data}

    def _reduces(self, load: Term, kind: str, term: Term, key_index: Term) -> bool:
        """Return whether a load gives the reduction of a term along the keys."""
        group = self.made.get(load.data) if load.op == "load" else None
        if group is None or not isinstance(group.source, Reduce) or group.source.kind != kind or group.argument is None:
            return False
        if group.targets[0].value is not group.accumulated or group.source.extents != (key_index.high + 1,):
            return False
        places = _places(group.index, load.args) | {group.inner[0]: key_index}
        return substituted([group.argument], places)[0] is term

    def _inlined(self, load: Term) -> Term:
        """Return what a load gives, as its group computes it."""
        group = self.made[load.data]
        return substituted([group.targets[0].value], _places(group.index, load.args))[0]

    def _is_map(self, load: Term) -> bool:
        group = self.made.get(load.data)
        return group is not None and group.source is None and len(load.args) == len(group.index)

    def _map_of_product(self, score: Term, key_index: Term) -> Term | None:
        """Return a load of a stored map over the product of query and key."""
        for load in _loads(score, key_index):
            if self._is_map(load) and any(map(self._is_product, _loads(self._inlined(load), key_index))):
                return load
        return None

    def _is_product(self, load: Term) -> bool:
        group = self.made.get(load.data)
        return group is not None and _sums_products(group) and len(load.args) == len(group.index)

    def _only_here(self, tensors: set[Tensor], last: Group) -> bool:
        """Return whether nobody else needs some tensors."""
        inside = tensors | {last.targets[0].tensor}
        return all(tensor not in self.names and self.readers[tensor] <= inside for tensor in tensors)


def _sums_products(group: Group) -> bool:
    source, argument = group.source, group.argument
    summed = isinstance(source, Reduce) and source.kind == "sum" and source.value == "float32"
    long = isinstance(source, Reduce) and len(source.extents) == 1 and prod(source.extents) >= LEAST
    return summed and long and len(group.targets) == 1 and argument is not None and argument.op == "mul"


def _places(index: Index, args: tuple[Term, ...]) -> dict[Term, Term]:
    return {old: new for old, new in zip(index, args, strict=True) if old.op == "index"}


def _loads(term: Term, key_index: Term) -> list[Term]:
    return [part for part in walk([term]) if part.op == "load" and depends(part, key_index)]


def _bare(term: Term) -> Term:
    """Return a value without what rounds it between two calls."""
    while term.op in ("cast", "round") and term.args[0].dtype == "float32":
        term = term.args[0]
    return term


def _of(whole: tuple[Group, Group, Term], terms: tuple[Term, Term], key_index: Term, *, safe: bool) -> Attention | None:
    """Return the attention of the last and first product, the load of the latter, and score and value."""
    (last, first, load), (score, value) = whole, terms
    source, argument, scored = first.source, first.argument, first.accumulated
    assert isinstance(source, Reduce)
    assert isinstance(last.source, Reduce)
    assert argument is not None
    assert scored is not None
    (depth_index,) = variables(source.extents, "d")
    query, key = substituted(argument.args, _places(first.index, load.args) | {first.inner[0]: depth_index})
    if depends(query, key_index):
        query, key = key, query
    batch, rows, columns = list[int](), list[int](), list[int]()
    for axis, index in enumerate(last.index):
        moves = [index.op == "index" and depends(term, index) for term in (value, key, query, score)]
        if moves == [True, False, False, False]:
            columns.append(axis)
        elif moves[:3] == [False, False, True]:
            rows.append(axis)
        else:
            batch.append(axis)
    width = prod(last.shape[axis] for axis in columns)
    if depends(query, key_index) or not depends(key, key_index) or max(width, source.extents[0]) > WIDEST:
        return None
    if not columns or width < LEAST:
        return None
    return Attention(
        last.shape,
        last.index,
        last.targets,
        last.source,
        accumulated=last.accumulated,
        query=query,
        key=key,
        value=value,
        score=score,
        scored=scored,
        key_index=key_index,
        depth_index=depth_index,
        keys=last.source.extents[0],
        depth=source.extents[0],
        safe=safe,
        product=Product(score, value, batch, rows, columns),
    )
