"""Cut a graph of tensors into groups: what one launch computes, in an order in which each finds what it loads.

A map is a group of its own only where it is an output or is stored; a reduction takes the map that follows it into its
launch where that is its only use (an epilogue). Groups hand each other tensors through one workspace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agents.playbook.compiler.tensors import (
    Given,
    Index,
    Map,
    Order,
    Reduce,
    Scan,
    Scatter,
    Shape,
    Tensor,
    as_stored,
    variables,
)
from agents.playbook.compiler.terms import (
    HALVES,
    Affine,
    Term,
    affine,
    both,
    const,
    make,
    minus,
    number,
    rewritten,
    substituted,
    where,
)
from agents.playbook.ordering import walk

ALIGNMENT = 256
"""Bytes to whose multiples workspace tensors are aligned."""
ITEM_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}


@dataclass(frozen=True)
class Target:
    """A tensor that a group writes, and the value of an element."""

    tensor: Tensor
    name: str
    """Name of the problem's output; empty where the tensor lies in the workspace."""
    value: Term
    place: Index = ()
    """Index at which it is written; empty where that is the group's."""
    inside: Term | None = None
    """Condition under which the group's index lies in the tensor; None where it always does."""


@dataclass(frozen=True)
class Group:
    """Computation of one launch over one index space."""

    shape: Shape
    index: Index
    targets: tuple[Target, ...]
    source: Reduce | Scan | Order | Scatter | None = None
    """The reduction, scan, order or scatter that the launch makes; None for a map."""
    inner: Index = ()
    """Loop indices of a reduction."""
    argument: Term | None = None
    """Term that is reduced, scanned or ordered, for one element."""
    accumulated: Term | None = None
    """Stands for the result in the targets' values."""
    place: Index = ()
    """Index of the element that an item of a scatter comes to."""

    @property
    def sums(self) -> tuple[Term, ...]:
        """Return the terms that stand for what is accumulated in the targets' values."""
        return () if self.accumulated is None else (self.accumulated,)

    def loads(self) -> list[Tensor]:
        """Return the tensors that the launch reads, each once."""
        roots = [target.value for target in self.targets] + ([self.argument] if self.argument is not None else [])
        roots += self.place
        found = (term.data for term in walk(roots) if term.op == "load")
        return list(dict.fromkeys(tensor for tensor in found if tensor is not self.source))


@dataclass
class Program:
    """The groups of a problem and where tensors between them lie."""

    groups: list[Group]
    offsets: dict[Tensor, int] = field(default_factory=dict)
    """Byte offset in the workspace of each tensor that is not the caller's."""
    names: dict[Tensor, str] = field(default_factory=dict)
    """Output that a tensor lies in."""
    workspace_bytes: int = 0


def cut(outputs: Sequence[tuple[str, Tensor]]) -> Program:
    """Return the groups that compute the outputs; tensors are given with the outputs' strides.

    All outputs are stored before the first group is made: a group then loads an output wherever it needs one.
    """
    names: dict[Tensor, str] = {}
    for name, tensor in outputs:
        names[_own(tensor, names)] = name
    order: list[Tensor] = []
    groups: dict[Tensor, Group] = {}
    for tensor in names:
        _visit(tensor, groups, order, names)
    _widen(order, groups, names)
    return placed(_with_epilogues([groups[tensor] for tensor in order], names), names)


def placed(groups: list[Group], names: Mapping[Tensor, str]) -> Program:
    """Return the program of groups in this order, with a place for every tensor between them."""
    program = Program(groups, names=dict(names))
    _check_order(program)
    place_tensors(program)
    return program


def _widen(order: Sequence[Tensor], groups: dict[Tensor, Group], names: Mapping[Tensor, str]) -> None:
    """Keep 16-bit tensors between launches in float32, so that nothing is rounded before the end.

    A kernel is held to what float32 inside attains. Factors of products stay as they are: products of 16-bit tensors
    have a rounding of their factors in any case.
    """
    factors = {tensor for group in groups.values() for tensor in _factors(group)}
    elsewhere = {tensor for group in groups.values() for tensor in group.loads() if tensor not in _factors(group)}
    for tensor in order:
        if tensor.dtype in HALVES and tensor not in names and tensor not in factors - elsewhere:
            tensor.dtype = "float32"
            groups[tensor] = _group(tensor, "")


def _factors(group: Group) -> set[Tensor]:
    """Return the tensors that a sum of products reads as one of its factors alone."""
    argument, source = group.argument, group.source
    if argument is None or argument.op != "mul" or not isinstance(source, Reduce) or source.kind != "sum":
        return set()
    bare = [arg.args[0] if arg.op == "cast" else arg for arg in argument.args]
    return {term.data for term in bare if term.op == "load"}


def _own(tensor: Tensor, names: dict[Tensor, str]) -> Tensor:
    """Return the tensor to write an output to: a copy where the value is the caller's or another output's."""
    if isinstance(tensor, Given) or tensor in names:
        return Map(tensor.shape, tensor.dtype, tensor.at, stored=True)
    if isinstance(tensor, Map):
        tensor.stored = True
    return tensor


def _visit(tensor: Tensor, groups: dict[Tensor, Group], order: list[Tensor], names: dict[Tensor, str]) -> None:
    """Add the groups that a tensor needs, and its own, in order."""
    stack: list[tuple[Tensor, bool]] = [(tensor, False)]
    done = set(order)
    while stack:
        current, expanded = stack.pop()
        if current in done or isinstance(current, Given):
            continue
        if expanded:
            order.append(current)
            done.add(current)
            continue
        if current not in groups:
            groups[current] = _group(current, names.get(current, ""))
        stack.append((current, True))
        stack.extend((item, False) for item in groups[current].loads())


def _group(tensor: Tensor, name: str) -> Group:
    index = variables(tensor.shape)
    if isinstance(tensor, Map):
        return _map_group(tensor, name)
    if isinstance(tensor, Reduce):
        inner = variables(tensor.extents, "r")
        argument = tensor.define(index, inner)
        kind = "int64" if tensor.kind.startswith("arg") else tensor.register
        result = make("accumulated", kind, data=f"{id(tensor)}")
        target = Target(tensor, name, as_stored(tensor, result))
        return Group(tensor.shape, index, (target,), tensor, inner, argument, result)
    if isinstance(tensor, Scatter):
        item = variables(tensor.extents)
        target = Target(tensor, name, tensor.define(item))
        return Group(tensor.extents, item, (target,), tensor, place=tensor.place(item))
    assert isinstance(tensor, Scan | Order)
    kind = "int64" if isinstance(tensor, Order) else tensor.register
    result = make("accumulated", kind, data=f"{id(tensor)}")
    target = Target(tensor, name, as_stored(tensor, result))
    if isinstance(tensor, Order):
        index = variables((*tensor.shape[:-1], tensor.length))
        return Group((*tensor.shape[:-1], tensor.length), index, (target,), tensor, (), tensor.define(index), result)
    return Group(tensor.shape, index, (target,), tensor, (), tensor.define(index), result)


def _map_group(tensor: Tensor, name: str) -> Group:
    assert isinstance(tensor, Map)
    index = variables(tensor.shape)
    value = tensor.term(index)
    return Group(tensor.shape, index, (Target(tensor, name, as_stored(tensor, value)),))


def _with_epilogues(groups: list[Group], names: dict[Tensor, str]) -> list[Group]:
    """Return the groups with maps that only continue a reduction made part of its launch."""
    readers: dict[Tensor, list[Group]] = {}
    for group in groups:
        for tensor in group.loads():
            readers.setdefault(tensor, []).append(group)
    merged: dict[int, Group] = {}
    gone: set[int] = set()
    for place, group in enumerate(groups):
        if group.source is not None or len(group.targets) != 1:
            continue
        for tensor in group.loads():
            if readers[tensor] != [group] or tensor in names:
                continue
            whole = None
            if isinstance(tensor, Reduce):
                whole = _continued(group, tensor)
            elif isinstance(tensor, Scan):
                whole = _continued_scan(group, tensor)
            if whole is not None:
                merged[place] = whole
                gone.add(next(at for at, item in enumerate(groups) if item.targets[0].tensor is tensor))
                break
    return [merged.get(place, group) for place, group in enumerate(groups) if place not in gone]


def _continued(group: Group, reduction: Reduce) -> Group | None:
    """Return the reduction with the map as its epilogue; None where the map reads it at other places."""
    if group.targets[0].tensor.size != reduction.size:
        return None
    reads = [term for term in walk([group.targets[0].value]) if term.op == "load" and term.data is reduction]
    rank = len(reduction.shape)
    indices = {term.args[:rank] for term in reads}
    if len(indices) != 1:
        return None
    (index,) = indices
    if not _same(affine(reduction.offset(index)), affine(_dense(group).offset(group.index))):
        return None
    inner = variables(reduction.extents, "r")
    kind = "int64" if reduction.kind.startswith("arg") else reduction.register
    result = make("accumulated", kind, data=f"{id(reduction)}")
    value = as_stored(reduction, result)

    def change(term: Term, args: tuple[Term, ...]) -> Term | None:
        if term.op != "load" or term.data is not reduction:
            return None
        return where(both(*args[rank:]), value, const(0, value.dtype))

    (whole,) = rewritten([group.targets[0].value], change)
    target = Target(group.targets[0].tensor, group.targets[0].name, whole)
    return Group(group.shape, group.index, (target,), reduction, inner, reduction.define(index, inner), result)


def _continued_scan(group: Group, scan: Scan) -> Group | None:
    """Return the scan with the map as its epilogue; None where the map reads it in another order."""
    (target,) = group.targets
    reads = {term.args for term in walk([target.value]) if term.op == "load" and term.data is scan}
    if len(reads) != 1 or group.shape != scan.shape:
        return None
    (index,) = reads
    own, end = group.index[scan.axis], number(scan.shape[scan.axis] - 1)
    turned = tuple(minus(end, own) if at == scan.axis else each for at, each in enumerate(group.index))
    if index not in (group.index, turned):
        return None
    made = _group(scan, "")
    assert made.accumulated is not None
    (value,) = substituted([target.value], {own: minus(end, own)} if index == turned else {})
    (whole,) = substituted([value], {scan.at(group.index): as_stored(scan, made.accumulated)})
    place = turned if index == turned else ()
    return replace(made, targets=(Target(target.tensor, target.name, whole, place),))


def _dense(group: Group) -> Tensor:
    return Tensor(group.shape, "float32")


def _same(a: Affine, b: Affine) -> bool:
    return a.constant == b.constant and a.factors == b.factors


def _check_order(program: Program) -> None:
    """Assert that launches read only what the caller gives and what earlier launches write."""
    written: set[Tensor] = set()
    for group in program.groups:
        assert all(isinstance(tensor, Given) or tensor in written for tensor in group.loads())
        written.update(target.tensor for target in group.targets)


def place_tensors(program: Program) -> None:
    """Give every tensor between groups a place in the workspace, free again after its last reader."""
    last: dict[Tensor, int] = {}
    for place, group in enumerate(program.groups):
        for tensor in group.loads():
            last[tensor] = place
    free: list[tuple[int, int]] = []
    top = 0
    for place, group in enumerate(program.groups):
        for target in group.targets:
            if target.name:
                program.names[target.tensor] = target.name
            if target.name or target.tensor in program.offsets:
                continue
            size = -(-target.tensor.size * ITEM_BYTES.get(target.tensor.dtype, 1) // ALIGNMENT) * ALIGNMENT
            fit = min((item for item in free if item[1] >= size), key=lambda item: item[1], default=None)
            if fit is not None:
                free.remove(fit)
                if fit[1] > size:
                    free.append((fit[0] + size, fit[1] - size))
                program.offsets[target.tensor] = fit[0]
            else:
                program.offsets[target.tensor] = top
                top += size
        for tensor, offset in list(program.offsets.items()):
            if last.get(tensor) == place:
                free.append((offset, -(-tensor.size * ITEM_BYTES.get(tensor.dtype, 1) // ALIGNMENT) * ALIGNMENT))
                free.sort()
    program.workspace_bytes = top
