"""Reductions of the same rows among a program's groups, with what follows over the same rows, as one group.

A later reduction may use results of earlier ones, and maps may use all of them: a softmax is two reductions and a map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from agents.playbook.compiler.groups import Group, Program, Target, placed
from agents.playbook.compiler.products import product_of
from agents.playbook.compiler.tensors import Index, Map, Reduce, Shape, Tensor, dense
from agents.playbook.compiler.terms import Term, affine, linear, load, rewritten, substituted, unravel, variable
from agents.playbook.ordering import walk

COLUMN = "j"
"""Name of the index along a row."""
SHORTEST = 2
"""Terms of a row from which on threads share it."""


@dataclass(frozen=True)
class Step:
    """One reduction of each row."""

    reduction: Reduce
    argument: Term
    """Term that is reduced, over the group's index and the column."""
    result: Term
    """Stands for the result in what uses it."""


@dataclass(frozen=True, kw_only=True)
class FusedRows(Group):
    """Launch that reduces each row several times; its targets are one for each row, then those of elements."""

    column: Term
    length: int
    """Terms of a row."""
    levels: tuple[tuple[Step, ...], ...]
    """Reductions, those of a level independent of each other."""
    results: tuple[Target, ...]
    """Targets with an element for each row."""
    maps: tuple[Target, ...]
    """Targets with an element for each term."""

    @property
    def roots(self) -> list[Term]:
        """Return all terms that the launch computes."""
        arguments = [step.argument for level in self.levels for step in level]
        return [*arguments, *(target.value for target in self.targets)]

    def loads(self) -> list[Tensor]:
        """Return the tensors that the launch reads, each once."""
        return list(dict.fromkeys(term.data for term in walk(self.roots) if term.op == "load"))


def with_fused_rows(program: Program, is_worth: Callable[[FusedRows], bool]) -> Program:
    """Return the program with reductions of the same rows fused, where that is worth while."""
    groups, count = list(program.groups), 0
    while len(groups) != count:  # what a fused group writes for later ones may let these be fused
        count = len(groups)
        for group in sorted(filter(_is_reduction, groups), key=_terms, reverse=True):
            place = next((at for at, each in enumerate(groups) if each is group), None)
            if place is not None:
                groups = _fused(groups, place, program, is_worth) or groups
    return placed(groups, program.names) if len(groups) < len(program.groups) else program


def _fused(
    groups: list[Group], place: int, program: Program, is_worth: Callable[[FusedRows], bool]
) -> list[Group] | None:
    """Return groups with those of the rows of one reduction fused; None where that is not worth while."""
    for before, maps in ((True, True), (False, True), (False, False)):
        rows = _Rows(groups, place)
        rows.gather(before=before, maps=maps)
        if len(rows.members) > 1:
            sooner, fused, after = rows.made(set(program.names))
            if is_worth(fused):
                return [*sooner, fused, *after]
    return None


def _terms(group: Group) -> int:
    assert isinstance(group.source, Reduce)
    return prod(group.shape) * prod(group.source.extents)


def _is_reduction(group: Group) -> bool:
    source = group.source
    if type(group) is not Group or not isinstance(source, Reduce) or source.kind not in ("sum", "prod", "max", "min"):
        return False
    return prod(source.extents) >= SHORTEST and product_of(group) is None and _is_plain(group)


def _is_plain(group: Group) -> bool:
    return all(not target.place and target.inside is None for target in group.targets)


class _Rows:
    """Groups over the rows of a first reduction."""

    def __init__(self, groups: Sequence[Group], first: int) -> None:
        group = groups[first]
        assert isinstance(group.source, Reduce)
        self.groups, self.first, self.shape = groups, first, group.shape
        self.index = tuple(variable(f"i{axis}", size) for axis, size in enumerate(group.shape))
        self.row = linear(self.index, dense(group.shape))
        self.rows, self.length = prod(group.shape), prod(group.source.extents)
        self.column = variable(COLUMN, self.length)
        self.members: list[int] = []
        self.values: dict[Tensor, Term] = {}
        self.places: dict[Tensor, Index] = {}
        self.steps: list[tuple[int, Step]] = []
        self.made_by = {target.tensor: at for at, each in enumerate(groups) for target in each.targets}

    def gather(self, *, before: bool, maps: bool) -> None:
        """Add all groups that may be part, those that the first one loads among them, and maps."""
        sooner = sorted({self.made_by[item] for item in self.groups[self.first].loads() if item in self.made_by})
        for at in sooner if before else []:
            if self.groups[at].source is None:
                self._add(at)
        for at in range(self.first, len(self.groups)):
            if self.groups[at].source is not None or maps:
                self._add(at)

    def made(self, names: set[Tensor]) -> tuple[list[Group], FusedRows, list[Group]]:
        """Return the groups that come sooner, those of these rows as one, and the others."""
        end, later = max(self.members), self._later(self.members)
        rest = [at for at in range(len(self.groups)) if at not in self.members]
        sooner = [self.groups[at] for at in rest if at <= end and at not in later]
        after = [self.groups[at] for at in rest if at > end or at in later]
        unknown = {target.tensor for group in after for target in group.targets}
        outlined = [self._outlined(group, unknown) for group in after]
        after = [group for group, _ in outlined]
        read = {tensor for group in [*sooner, *after] for tensor in group.loads()}
        stored = [item for item in self.values if item in names or item in read]
        targets = [self._target(item, names) for item in stored]
        targets += [target for _, target in outlined if target is not None]
        results = tuple(target for target in targets if target.tensor.size == self.rows)
        maps = tuple(target for target in targets if target.tensor.size != self.rows)
        deepest = max((level for level, _ in self.steps), default=-1)
        levels = [tuple(step for at, step in self.steps if at == level) for level in range(deepest + 1)]
        fused = FusedRows(
            self.shape,
            self.index,
            (*results, *maps),
            column=self.column,
            length=self.length,
            levels=tuple(levels),
            results=results,
            maps=maps,
        )
        return sooner, fused, after

    def _target(self, tensor: Tensor, names: set[Tensor]) -> Target:
        group = self.groups[self.made_by[tensor]]
        name = next(target.name for target in group.targets if target.tensor is tensor) if tensor in names else ""
        return Target(tensor, name, self.values[tensor], self.places[tensor])

    def _add(self, at: int) -> None:
        group = self.groups[at]
        if at in self.members or type(group) is not Group or not _is_plain(group):
            return
        if not self._is_in_order(at):
            return
        for index, inner in self._places(group):
            found = zip((*group.index, *group.inner), (*index, *inner), strict=True)
            table = {old: new for old, new in found if old.op == "index"}
            roots = [target.value for target in group.targets] + ([] if group.argument is None else [group.argument])
            moved = substituted(roots, table)
            terms = self._replaced(moved)
            if terms is not None and (group.source is not None or at < self.first or terms != moved):
                self._keep(at, index, terms)
                return

    def _keep(self, at: int, index: Index, terms: list[Term]) -> None:
        """Make a group part of the rows; its terms are the targets' values, and of a reduction its argument."""
        group = self.groups[at]
        self.members.append(at)
        if isinstance(group.source, Reduce):
            assert group.accumulated is not None
            step = Step(group.source, terms.pop(), group.accumulated)
            used = set(walk([step.argument]))
            level = 1 + max((level for level, known in self.steps if known.result in used), default=-1)
            self.steps.append((level, step))
        for target, value in zip(group.targets, terms, strict=True):
            self.values[target.tensor] = value
            self.places[target.tensor] = index

    def _places(self, group: Group) -> list[tuple[Index, Index]]:
        """Return what a group's index and inner index may be over these rows."""
        if isinstance(group.source, Reduce):
            size = (prod(group.shape), prod(group.source.extents))
            if not _is_reduction(group) or size != (self.rows, self.length):
                return []
            return [(unravel(self.row, group.shape), unravel(self.column, group.source.extents))]
        if group.source is not None or (not self.members and prod(group.shape) == self.rows):
            return []
        if prod(group.shape) == self.rows:
            return [(unravel(self.row, group.shape), ())]
        if prod(group.shape) != self.rows * self.length:
            return []
        return [(index, ()) for index in (self._of_element(group.shape), self._by_reads(group)) if index is not None]

    def _by_reads(self, group: Group) -> Index | None:
        """Return the index of an element of a row in a map that reads a result of each row; None where it does not."""
        reads = (term for term in walk([target.value for target in group.targets]) if term.op == "load")
        read = next((term for term in reads if term.data in self.places and term.data.size == self.rows), None)
        if read is None or len(read.args) != len(self.places[read.data]):
            return None
        table = {at: own for at, own in zip(read.args, self.places[read.data], strict=True) if at.op == "index"}
        rest = [index for index in group.index if index.op == "index" and index not in table]
        sizes = [index.high + 1 for index in rest]
        own = {index for index in self.index if index.op == "index"}
        if set(table.values()) != own or prod(sizes) != self.length or any(a.high != b.high for a, b in table.items()):
            return None
        table |= dict(zip(rest, unravel(self.column, sizes), strict=True))
        return tuple(table.get(index, index) for index in group.index)

    def _of_element(self, shape: Shape) -> Index | None:
        """Return the index of an element of a row in a tensor whose rows follow each other; None where they do not."""
        axis, inner = len(shape), 1
        while inner < self.length:
            axis -= 1
            inner *= shape[axis]
        if inner == self.length:
            return (*unravel(self.row, shape[:axis]), *unravel(self.column, shape[axis:]))
        parts = inner // self.length
        if inner % self.length or shape[axis] % parts:
            return None
        each = shape[axis] // parts
        *outer, part = unravel(self.row, (*shape[:axis], parts))
        own, *rest = unravel(self.column, (each, *shape[axis + 1 :]))
        return (*outer, linear((part, own), (each, 1)), *rest)

    def _replaced(self, roots: list[Term]) -> list[Term] | None:
        """Return terms with the values of these rows in place of loads; None where they lie elsewhere."""
        reads = [term for term in walk(roots) if term.op == "load" and term.data in self.values]
        if not all(self._is_own(term) for term in reads):
            return None

        def change(term: Term, args: tuple[Term, ...]) -> Term | None:
            own = term.op == "load" and args == term.args and term.data in self.values
            return self.values[term.data] if own else None

        return rewritten(roots, change)

    def _is_own(self, term: Term) -> bool:
        """Return whether a load is of the element of a row that its value is for."""
        tensor: Tensor = term.data
        if len(term.args) != len(tensor.shape):
            return False
        own, read = (affine(tensor.offset(index)) for index in (self.places[tensor], term.args))
        return own.constant == read.constant and own.factors == read.factors

    def _is_in_order(self, at: int) -> bool:
        """Return whether a group more leaves no other one that needs some of these and is needed by some."""
        later = self._later([*self.members, at])
        needed = {self.made_by[item] for each in (*self.members, at) for item in self._loads(each)}
        return not needed & later

    def _loads(self, at: int) -> Iterable[Tensor]:
        return (item for item in self.groups[at].loads() if item in self.made_by)

    def _later(self, members: Iterable[int]) -> set[int]:
        """Return the places of groups that need some of these, directly or not."""
        inside, later = set(members), set[int]()
        for at in range(len(self.groups)):
            if at not in inside and any(self.made_by[item] in inside | later for item in self._loads(at)):
                later.add(at)
        return later

    def _outlined(self, group: Group, unknown: set[Tensor]) -> tuple[Group, Target | None]:
        """Return a reduction over all rows that reads one value of each, and the target that this value is.

        The group stays as it is where that value needs an ``unknown`` tensor, which is computed after these rows.
        """
        source, argument = group.source, group.argument
        if type(group) is not Group or not isinstance(source, Reduce) or argument is None or prod(group.shape) != 1:
            return group, None
        if prod(source.extents) != self.rows or source.value != "float32" or source.kind.startswith("arg"):
            return group, None
        found = zip(group.inner, unravel(self.row, source.extents), strict=True)
        (moved,) = substituted([argument], {old: new for old, new in found if old.op == "index"})
        terms = self._replaced([moved])
        if terms is None or terms[0] is moved:
            return group, None
        if any(term.op == "load" and term.data in unknown for term in walk(terms)):
            return group, None
        tensor = Map(self.shape, "float32", lambda _: terms[0], stored=True)
        flat = linear(group.inner, dense(source.extents))
        own = load(tensor, "float32", unravel(flat, self.shape))
        return replace(group, argument=own), Target(tensor, "", terms[0], self.index)
