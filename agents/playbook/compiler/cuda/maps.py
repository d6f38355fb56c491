"""Maps on the ``cuda`` target: packs of neighbouring elements with wide loads, in the order of the result's memory."""

from __future__ import annotations

from math import prod

from agents.playbook.compiler.cuda.packs import EACH, FIRST, each_item, each_pack, fetched
from agents.playbook.compiler.emission import TYPES, Emitter
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.packs import Packs, item_bytes, joined, loads_in, width_of
from agents.playbook.compiler.parameters import Pointers, store, target_index, unrounded
from agents.playbook.compiler.shapes_of_work import operations
from agents.playbook.compiler.tensors import Tensor
from agents.playbook.compiler.terms import Term, substituted, unravel, variable

MANY_BLOCKS = 1024
"""Blocks from which on a thread may have two packs in flight and the card is still full."""
LARGEST_BODY = 600
"""Operations of an unrolled loop that compilers take in little time and that fit an instruction cache."""
FETCHED_BYTES = 192
"""Bytes in flight that leave a thread enough registers for the rest."""


def memory_order(group: Group) -> list[int]:
    """Return a map's axes from the one along which its first target lies farthest apart to the nearest."""
    strides = group.targets[0].tensor.strides()
    return sorted(range(len(group.shape)), key=lambda axis: -strides[axis])


def values_and_places(group: Group) -> tuple[list[Term], list[Term]]:
    """Return the values that a group stores and their offsets."""
    values = [unrounded(target.value, target.tensor) for target in group.targets]
    return values, [target.tensor.offset(target_index(group, target)) for target in group.targets]


def in_packs(group: Group, pointers: Pointers, block: int) -> tuple[list[str], int] | None:
    """Return the statements of a block and how many blocks there are; None where wide loads would do no good."""
    count = prod(group.shape)
    index = variable(EACH, count)
    if count == 1:
        return None
    values, places = _flat(group, index)
    stored = [(place, target.tensor) for place, target in zip(places, group.targets, strict=True)]
    width, work = width_of(index, count, values, stored), max(1, operations(group) // count)
    while width > 1 and width * work > LARGEST_BODY:
        width //= 2
    if width == 1:
        return None
    packs = Packs(index, width)
    values = packs.unguarded(values)
    each = width * sum(item_bytes(load.data) for load in loads_in(values) if not packs.stays(load))
    many = count >= 2 * width * block * MANY_BLOCKS
    flight = 2 if many and 2 * width * work <= LARGEST_BODY and 2 * each <= FETCHED_BYTES else 1
    inputs = fetched(packs, values, flight, pointers.of)
    inside = computed(packs, inputs.names, values, stored, pointers)
    size = width * block * flight
    limit = str(count) if count % size else ""
    found = f"const idx {FIRST} = ((idx)blockIdx.x * {block * flight} + u * {block} + (idx)threadIdx.x) * {width};"
    phases = [*each_pack(flight, found, limit, inputs.lines)] if inputs.lines else []
    return [
        *inputs.declared,
        *phases,
        *each_pack(flight, found, limit, inside),
    ], -(-count // size)


def _flat(group: Group, index: Term) -> tuple[list[Term], list[Term]]:
    """Return the targets' values and offsets for one index over all elements, in the order of the result's memory."""
    order = memory_order(group)
    found = dict(zip(order, unravel(index, [group.shape[axis] for axis in order]), strict=True))
    table = {group.index[axis]: term for axis, term in found.items() if group.index[axis].op == "index"}
    values, offsets = values_and_places(group)
    terms = substituted([*values, *offsets], table)
    return terms[: len(offsets)], terms[len(offsets) :]


def computed(
    packs: Packs, names: dict[Term, str], values: list[Term], stored: list[tuple[Term, Tensor]], pointers: Pointers
) -> list[str]:
    """Return the statements that compute and store a pack; ``names`` stand for what was fetched before."""
    inner = Emitter({**names, packs.index: EACH}, pointers.of, "v")
    texts = inner.emit(*values)
    places = Emitter({packs.index: FIRST}, pointers.of, "q")
    offsets = places.emit(*(joined(offset) for offset, _ in stored))
    declared, kept, put = list[str](), list[str](), list[str]()
    for number, (text, offset, (_, tensor)) in enumerate(zip(texts, offsets, stored, strict=True)):
        kind = TYPES[tensor.dtype]
        declared.append(f"pack<{kind}, {packs.width}> o{number};")
        kept.append(store(f"o{number}.items", tensor, "k", text))
        put.append(f"::put({pointers.of(tensor)} + {offset}, o{number});")
    return [
        *declared,
        *each_item(packs.width, [*inner.lines, *kept]),
        *places.lines,
        *put,
    ]
