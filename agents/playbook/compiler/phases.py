"""Strided transposed convolutions by phase, the rest of a result's place by the stride: without terms that are zero.

A product whose first factor knows the quotient of a result's index, and both factors its rest, is neither's rows nor
columns there. For each rest alone, the taps that fall on inputs are every so many, at constant distances. Along the
last strided axis rests are columns instead, and terms are counted by input in place of tap: the first factor does not
know them then, and neighbouring results are written together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from agents.playbook.compiler.groups import Group, Program, placed
from agents.playbook.compiler.panels import with_panel
from agents.playbook.compiler.products import condition_of, loads_of, product_of
from agents.playbook.compiler.shapes_of_work import depends
from agents.playbook.compiler.splitting import divisor, moved, split
from agents.playbook.compiler.tensors import Reduce, variables
from agents.playbook.compiler.terms import (
    Term,
    affine,
    both,
    compare,
    conjuncts,
    const,
    guarded,
    is_const,
    make,
    minus,
    modulo,
    number,
    over,
    plus,
    substituted,
    times,
    variable,
    where,
    within,
)
from agents.playbook.ordering import walk

MOST_PHASES = 8
"""Products that one is divided into, at most."""
ENOUGH_COLUMNS = 32
"""Columns from which on a product reads its first factor seldom enough."""


def with_phases(program: Program) -> Program:
    """Return the program with strided transposed convolutions divided by phase."""
    groups = [part for group in program.groups for part in phased(group)]
    return program if groups == program.groups else placed(groups, program.names)


def phased(group: Group) -> list[Group]:
    """Return the groups that compute a group's results by phase; the group alone where it has none.

    As few axes are joined as make enough columns.
    """
    axes = [axis for axis in range(len(group.shape)) if _stride(group, axis) > 1]
    best = [group]
    for count in reversed(range(len(axes))):
        parts = _divided(group, axes[:count], axes[count:])
        columns = [_columns(part) for part in parts if part.source is not None]
        if not columns or 0 in columns:
            continue
        best = [each for part in parts for each in with_panel(part)]
        if min(columns) >= ENOUGH_COLUMNS:
            break
    return best


def _columns(group: Group) -> int:
    product = product_of(group)
    return 0 if product is None else product.sizes(group)[2]


def _divided(group: Group, apart: list[int], joined: list[int]) -> list[Group]:
    """Return a group for each phase along some axes, with those along others as columns; none where that cannot be."""
    if prod(_stride(group, axis) for axis in apart) > MOST_PHASES:
        return []
    parts: list[Group | None] = [group]
    for axis in apart:
        parts = [phase for part in parts if part is not None for phase in _apart(part, axis)]
    for added, axis in enumerate(reversed(joined)):
        parts = [part and _joined(part, axis + added) for part in parts]
    found = [split(part, product_of) for part in parts if part is not None]
    return found if len(found) == len(parts) else []


def _stride(group: Group, axis: int) -> int:
    """Return the stride of a transposed convolution along an axis; 1 where it has none."""
    index, argument = group.index[axis], group.argument
    if not isinstance(group.source, Reduce) or group.source.kind != "sum" or argument is None or argument.op != "mul":
        return 1
    stride = divisor(argument, index)
    if stride == 1:
        return 1
    quotient, rest = variable("quotient", -(-group.shape[axis] // stride)), variable("rest", stride)
    first, second = substituted(argument.args, {index: plus(times(quotient, stride), rest)})
    known = depends(first, quotient) and depends(first, rest) and depends(second, rest)
    return stride if known and not depends(second, quotient) else 1


def _apart(group: Group, axis: int) -> list[Group]:
    """Return a group for each phase along an axis; those without taps only store what no terms give."""
    stride, size = _stride(group, axis), group.shape[axis]
    if stride == 1:  # as of phases without taps
        return [group]
    found = []
    for phase in range(min(stride, size)):
        count = -(-(size - phase) // stride)
        shape = (*group.shape[:axis], count, *group.shape[axis + 1 :])
        index = variables(shape)
        table = {group.index[axis]: plus(times(index[axis], stride), number(phase))}
        phase_of = _moved(group, table, None)
        found.append(_without_idle_taps(replace(phase_of, shape=shape, index=index)))
    return found


def _moved(group: Group, table: dict[Term, Term], inside: Term | None) -> Group:
    """Return a group with indices replaced, whose results are stored only under a condition where one is given."""
    assert group.argument is not None
    argument = make("mul", group.argument.dtype, *substituted(group.argument.args, table))
    return replace(
        group, targets=tuple(moved(group, target, table, inside) for target in group.targets), argument=argument
    )


def _without_idle_taps(group: Group) -> Group:
    """Return a group without terms that are zero for all results; without a reduction where all are."""
    assert isinstance(group.source, Reduce)
    assert group.argument is not None
    parts = [part for factor in group.argument.args for part in conjuncts(condition_of(factor))]
    extents, inner, table = list(group.source.extents), list(group.inner), dict[Term, Term]()
    for axis, (tap, extent) in enumerate(zip(group.inner, group.source.extents, strict=True)):
        own = [part for part in parts if _indices([part]) == {tap}]
        taps = [value for value in range(extent) if not own or _holds(own, {tap: number(value)})]
        if not taps:
            parts = [const(False, "bool")]
            break
        step = taps[1] - taps[0] if len(taps) > 1 else 1
        if len(taps) < extent and taps == list(range(taps[0], taps[-1] + 1, step)):
            extents[axis] = len(taps)
            inner[axis] = variable(f"r{axis}", len(taps))
            table[tap] = plus(times(inner[axis], step), number(taps[0]))
    if any(is_const(part, False) for part in parts):
        return _without_terms(group)
    argument = make("mul", group.argument.dtype, *substituted(group.argument.args, table))
    return replace(group, source=replace(group.source, extents=tuple(extents)), inner=tuple(inner), argument=argument)


def _without_terms(group: Group) -> Group:
    """Return the map that stores what a sum without terms gives."""
    assert group.accumulated is not None
    nothing = const(0, group.accumulated.dtype)
    values = substituted([target.value for target in group.targets], {group.accumulated: nothing})
    targets = tuple(replace(target, value=value) for target, value in zip(group.targets, values, strict=True))
    return Group(group.shape, group.index, targets)


def _holds(conditions: Sequence[Term], table: dict[Term, Term]) -> bool:
    return all(is_const(condition, True) for condition in substituted(conditions, table))


def _indices(terms: Sequence[Term]) -> set[Term]:
    return {term for term in walk(terms) if term.op == "index"}


def _joined(group: Group, axis: int) -> Group | None:
    """Return the group with the phases along an axis as columns; None where its terms cannot be counted by input.

    Phases without taps that lie between others are further targets of these.
    """
    stride, size = _stride(group, axis), group.shape[axis]
    if stride == 1:
        return group
    live = _live(group, axis, stride)
    shape = (len(live), *group.shape[:axis], -(-size // stride), *group.shape[axis + 1 :])
    index = variables(shape)
    phase, quotient = index[0], index[axis + 1]
    table = {old: new for old, new in zip(group.index, index[1:], strict=True) if old.op == "index"}
    begin = plus(times(quotient, stride), _chosen(live, phase))
    parts = []
    for step, owners in _with_idle(live, stride).items():
        place = plus(begin, number(step))
        inside = both(_is_any(phase, owners, len(live)), compare("lt", place, number(size)))
        parts.append(_moved(group, table | {group.index[axis]: place}, None if is_const(inside) else inside))
    targets = [target for part in parts[1:] for target in _without_terms(part).targets]
    whole = replace(parts[0], shape=shape, index=index, targets=(*parts[0].targets, *targets))
    return _by_input(whole, phase, quotient) if phase.op == "index" else _without_idle_taps(whole)


def _chosen(choices: list[int], index: Term) -> Term:
    """Return the choice with a number."""
    step = choices[1] - choices[0] if len(choices) > 1 else 0
    if choices == [choices[0] + step * place for place in range(len(choices))]:
        return plus(times(index, step), number(choices[0]))
    chosen = number(choices[-1])
    for place, choice in reversed(list(enumerate(choices[:-1]))):
        chosen = where(compare("eq", index, number(place)), number(choice), chosen)
    return chosen


def _with_idle(live: list[int], stride: int) -> dict[int, list[int]]:
    """Return the steps from phases with taps to those that are stored with them, and the numbers of the former.

    The first step, to themselves, is of all.
    """
    steps = {0: list(range(len(live)))}
    for phase in set(range(stride)).difference(live):
        owner = max((place for place, other in enumerate(live) if other < phase), default=0)
        steps.setdefault(phase - live[owner], []).append(owner)
    return steps


def _is_any(index: Term, values: list[int], count: int) -> Term:
    """Return the condition that an index below a count is one of some values."""
    if len(values) == count:
        return const(True, "bool")
    first, *others = (compare("eq", index, number(value)) for value in values)
    for other in others:
        first = make("or", "bool", first, other)
    return first


def _live(group: Group, axis: int, stride: int) -> list[int]:
    """Return the phases along an axis that may have taps."""
    assert group.argument is not None
    rest = variable("rest", stride)
    (second,) = substituted(group.argument.args[1:], {group.index[axis]: rest})
    own = [part for part in conjuncts(condition_of(second)) if _indices([part]) == {rest}]
    return [phase for phase in range(stride) if _holds(own, {rest: number(phase)})]


@dataclass(frozen=True)
class _Input:
    """Index of the input that a term of a product reads: by the quotient of the result's place, its phase and a tap."""

    at: Term
    step_of_quotient: int
    off: Term
    """Inputs that the phase adds."""
    axis: int
    """Reduced axis of the tap; one of one term where there is no tap."""
    tap: Term | None
    step_of_tap: int


def _input_of(group: Group, phase: Term, quotient: Term) -> _Input | None:
    """Return the index that the first factor knows the phase by; None where it is not one such, or has more taps."""
    assert isinstance(group.source, Reduce)
    assert group.argument is not None
    loads = loads_of(group.argument.args[0])
    known = {arg for load in loads for arg in load.args[: len(load.data.shape)] if depends(arg, phase)}
    if len(known) != 1:
        return None
    (at,) = known
    factors = affine(at).factors
    shift = [(term, factor) for term, factor in factors.items() if _indices([term]) == {phase}]
    taps = [term for term in factors if term in group.inner]
    if len(shift) + len(taps) + 1 != len(factors) or quotient not in factors or len(taps) > 1:
        return None
    axes = [group.inner.index(tap) for tap in taps]
    axes += [axis for axis, extent in enumerate(group.source.extents) if extent == 1]
    if not axes:
        return None
    off = number(0)
    for term, factor in shift:
        off = plus(off, times(term, factor))
    tap = taps[0] if taps else None
    return _Input(at, factors[quotient], off, axes[0], tap, factors[tap] if tap else 0)


def _reached(source: _Input, phase: Term, extent: int, conditions: Sequence[Term]) -> list[int]:
    """Return the inputs that phases and taps reach under conditions on both, counted from that of the quotient."""
    tap = source.tap or number(0)
    own = [part for part in conditions if _indices([part]) <= {phase, tap}]
    tables = [{phase: number(rest), tap: number(value)} for rest in range(phase.high + 1) for value in range(extent)]
    return [
        substituted([source.off], table)[0].data + source.step_of_tap * table[tap].data
        for table in tables
        if _holds(own, table)
    ]


def _by_input(group: Group, phase: Term, quotient: Term) -> Group | None:
    """Return a group whose first factor does not know the phase, as its terms are counted by the inputs under them."""
    source = _input_of(group, phase, quotient)
    if source is None:
        return None
    assert isinstance(group.source, Reduce)
    assert group.argument is not None
    first, second = group.argument.args
    axis, extent = source.axis, group.source.extents[source.axis]
    conditions = [part for part in conjuncts(condition_of(second)) if not is_const(part)]
    reached = _reached(source, phase, extent, conditions)
    low, count = min(reached), max(reached) - min(reached) + 1
    inner = variable("input", count)
    place = plus(times(quotient, source.step_of_quotient), plus(inner, number(low + affine(source.at).constant)))
    (first,) = substituted([first], {source.at: place} | dict.fromkeys(conditions, const(True, "bool")))
    taps = [] if source.tap is None else [source.tap]
    if any(depends(first, index) for index in (phase, *taps)):
        return None
    ahead = minus(plus(inner, number(low)), source.off)
    if source.step_of_tap <= 0:
        ahead = minus(source.off, plus(inner, number(low)))
    value, hit = _quotient(ahead, abs(source.step_of_tap), extent)
    (second,) = substituted([second], dict.fromkeys(taps, value))
    second = guarded(hit, second, const(0, second.dtype))
    own_index = variable(f"r{axis}", count)
    argument = make("mul", group.argument.dtype, *substituted([first, second], {inner: own_index}))
    extents = (*group.source.extents[:axis], count, *group.source.extents[axis + 1 :])
    indices = (*group.inner[:axis], own_index, *group.inner[axis + 1 :])
    return replace(group, source=replace(group.source, extents=extents), inner=indices, argument=argument)


def _quotient(value: Term, divisor: int, extent: int) -> tuple[Term, Term]:
    """Return the whole quotient of an index term, and the condition that it is one, and within an extent.

    By zero, zero is the only quotient.
    """
    if divisor == 0:
        return number(0), compare("eq", value, number(0))
    ahead = max(0, -(value.low // divisor))
    moved = plus(value, number(ahead * divisor))
    quotient = plus(over(moved, divisor), number(-ahead))
    return quotient, both(compare("eq", modulo(moved, divisor), number(0)), within(quotient, 0, extent))
