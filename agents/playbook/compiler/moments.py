"""Sums and sums of squared deviations of the same terms among a program's groups, as one group.

A variance is a sum, and a sum of squares that needs the first one's mean: two passes. Both follow from the sums and
squared deviations of short runs, which one pass finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from agents.playbook.compiler.groups import Group, Program, placed
from agents.playbook.compiler.products import product_of
from agents.playbook.compiler.tensors import Reduce
from agents.playbook.compiler.terms import Term, is_const
from agents.playbook.ordering import walk

FEWEST = 2**20
"""Terms from which on a second pass costs more than finding both at once."""


@dataclass(frozen=True, kw_only=True)
class Moments(Group):
    """Launch that finds the sum of its terms, and that of their squared deviations from their mean.

    The source is the sum.
    """

    squares: Term
    """Stands for the sum of squared deviations in the targets' values."""


def with_moments(program: Program, is_worth: Callable[[Group, Reduce], bool]) -> Program:
    """Return the program with sums and the squared deviations from their means as one group each."""
    groups = list(program.groups)
    for first in program.groups:
        second = next((each for each in groups if _deviates(each, first)), None)
        if second is not None and isinstance(first.source, Reduce) and is_worth(first, first.source):
            groups = [_both(first, second) if each is first else each for each in groups if each is not second]
    return placed(groups, program.names) if len(groups) < len(program.groups) else program


def _is_sum(group: Group) -> bool:
    source = group.source
    plain = type(group) is Group and isinstance(source, Reduce) and (source.kind, source.value) == ("sum", "float32")
    return plain and all(not target.place and target.inside is None for target in group.targets)


def _deviates(second: Group, first: Group) -> bool:
    """Return whether a group sums the squared deviations of a first one's terms from their mean."""
    square, source = second.argument, first.source
    if not (_is_sum(first) and _is_sum(second)) or square is None or not isinstance(source, Reduce):
        return False
    terms = prod(source.extents)
    same = _moving(first) == _moving(second) and first.inner == second.inner
    if not same or prod(first.shape) * terms < FEWEST:
        return False
    if square.op != "mul" or square.args[0] is not square.args[1] or square.args[0].op != "sub":
        return False
    value, mean = square.args[0].args
    if value is not first.argument or mean.op != "div" or mean.args[0] is not _own(first):
        return False
    elsewhere = [term for term in walk([second.targets[0].value]) if term.op == "load"]
    bare = first.targets[0].value is first.accumulated and not elsewhere
    return bare and is_const(mean.args[1], terms) and product_of(first) is None


def _moving(group: Group) -> list[Term]:
    """Return a group's indices but those of axes of one element."""
    return [index for index in group.index if index.op == "index"]


def _own(group: Group) -> Term:
    """Return the load of a group's result."""
    return group.targets[0].tensor.at(group.index)


def _both(first: Group, second: Group) -> Moments:
    assert second.accumulated is not None
    return Moments(
        first.shape,
        first.index,
        (*first.targets, *(replace(target, place=second.index) for target in second.targets)),
        first.source,
        first.inner,
        first.argument,
        first.accumulated,
        squares=second.accumulated,
    )
