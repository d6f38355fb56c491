"""One factor of a product on scalar units: elements found by what their line and their depth add to an address.

A line's part is a pointer that stays the same for the whole block. A depth's part is a constant step, or lies in a
table in shared memory, with one bit for each tap (value of a reduced axis) that lines may lack, as at the borders of an
image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from agents.playbook.compiler.cuda.operands import THREADS, Operand, inner_indices
from agents.playbook.compiler.emission import TYPES, Emitter, statements
from agents.playbook.compiler.loops import indices
from agents.playbook.compiler.parameters import Pointers
from agents.playbook.compiler.products import bare
from agents.playbook.compiler.terms import Affine, Term, affine, conjuncts, number, plus, times
from agents.playbook.ordering import walk

MOST_TAPS = 28
"""Bits for taps in a word; two more tell lines and depths that do not exist."""
MOST_ENTRIES = 4096
"""Depth up to which a table takes little shared memory."""
FARTHEST = 2**31
"""Elements that an offset in the table spans."""
_QUAD = 4
AS_IT_IS = """
template <class T> __device__ __forceinline__ const T* as_it_is(const T* start) {
    asm("" : "+l"(start));  // else compilers add what moves to offsets first, and the start each time
    __builtin_assume(__isGlobal(start));
    return start;
}
"""


@dataclass(frozen=True)
class Parts:
    """An element's offset as the sum of two parts, and the conditions under which the element exists."""

    line: Term
    depth: Term
    of_line: tuple[Term, ...]
    of_depth: tuple[Term, ...]
    taps: tuple[tuple[Term, tuple[Term, ...]], ...]
    """Of each reduced axis whose taps lines may lack: its index, and the conditions on both."""


def parts_of(load: Term, inner: Sequence[Term]) -> Parts | None:
    """Return the parts of a load's offset; None where some term follows line and depth at once, or depth is loaded."""
    rank = len(load.data.shape)
    place = affine(load.data.offset(load.args[:rank]))
    line, depth = number(place.constant), number(0)
    for term, factor in place.factors.items():
        own, others = _followed(term, inner)
        if own and others:
            return None
        if own:
            depth = plus(depth, times(term, factor))
        else:
            line = plus(line, times(term, factor))
    of_line, of_depth, taps = list[Term](), list[Term](), dict[Term, list[Term]]()
    for condition in [part for guard in load.args[rank:] for part in conjuncts(guard)]:
        own, others = _followed(condition, inner)
        if own and others and len(own) > 1:
            return None
        if own and others:
            taps.setdefault(own[0], []).append(condition)
        else:
            (of_depth if own else of_line).append(condition)
    if sum(index.high + 1 for index in taps) > MOST_TAPS:
        return None
    found = tuple((index, tuple(conditions)) for index, conditions in taps.items())
    moving = [depth, *of_depth, *(condition for _, conditions in found for condition in conditions)]
    if any(term.op == "load" for term in walk(moving)) or not -FARTHEST < depth.low <= depth.high < FARTHEST:
        return None
    return Parts(line, depth, tuple(of_line), tuple(of_depth), found)


def _followed(term: Term, inner: Sequence[Term]) -> tuple[list[Term], list[Term]]:
    """Return the reduced axes' indices that a term follows, and the others."""
    leaves = [part for part in walk([term]) if part.op == "index"]
    return [leaf for leaf in leaves if leaf in inner], [leaf for leaf in leaves if leaf not in inner]


def even_step(place: Affine, axes: Sequence[tuple[Term, int]]) -> int | None:
    """Return how far an offset moves with each step along axes taken as one; None where it moves unevenly."""
    step, size = None, 1
    for index, extent in reversed(axes):
        if extent == 1:
            continue
        factor = place.factors.get(index, 0)
        if factor != (factor if step is None else step * size):
            return None
        step, size = factor if step is None else step, size * extent
    wanted = {index for index, extent in axes if extent > 1}
    bent = any(term not in wanted and wanted & set(walk([term])) for term in place.factors)
    return None if bent else step or 0


@dataclass(frozen=True)
class Gathered(Operand):
    """A factor in tiles of float32 whose rows hold neighbouring lines, of any width where its offsets have parts."""

    @cached_property
    def parts(self) -> Parts | None:
        """Return the parts of an element's offset; None where elements are computed one by one."""
        load = bare(self.factor)
        if load is None or load.dtype != "float32":
            return None
        parts = parts_of(load, [index for index in self.group.inner if index.op == "index"])
        return None if parts is None or (self._needs_table(parts) and self._depth > MOST_ENTRIES) else parts

    @property
    def is_free(self) -> bool:
        """Return whether a tile may have any width."""
        return self.parts is not None

    @cached_property
    def across(self) -> bool:
        """Return whether neighbouring threads read neighbouring lines; else lines lie evenly, and depths neighbour."""
        return super().across or (self.parts is not None and self._line_step is None)

    @cached_property
    def pack(self) -> int:
        """Return the elements that are read at once."""
        load, parts = bare(self.factor), self.parts
        if parts is None or load is None or self.across:
            return super().pack
        whole = self._depth % _QUAD == 0 and self._depth_step == 1 and load.data.dtype == "float32"
        steady = all(factor % _QUAD == 0 for factor in affine(parts.line).factors.values())
        return _QUAD if whole and steady and affine(parts.line).constant % _QUAD == 0 else 1

    @property
    def table_words(self) -> int:
        """Return the words of shared memory that the table takes."""
        return 0 if self.parts is None or not self._is_tabled else self._entries * self._entry

    def before(self, pointers: Pointers) -> list[str]:
        """Return what stays the same for the whole block: places, pointers to lines, and the table."""
        parts = self.parts
        if parts is None:
            return super().before(pointers)
        name, pack = self.letter, f" * {self.pack}" if self.pack > 1 else ""
        return [
            f"const int side_{name} = threadIdx.x % {self._lanes}{pack}, row_{name} = threadIdx.x / {self._lanes};",
            *(self._table(parts) if self._is_tabled else []),
            *self._own_lines(parts, pointers),
        ]

    def _own_lines(self, parts: Parts, pointers: Pointers) -> list[str]:
        """Return the declarations of a thread's lines: where each begins, and what it lacks.

        Threads beyond the last line read that one, as their results are not written.
        """
        load, name, count = bare(self.factor), self.letter, self._sets
        assert load is not None
        kind = TYPES[load.data.dtype]
        place = f"{self.line}0 + " + (f"side_{name} + s * {self._lanes * self.pack}" if self.across else f"row_{name}")
        if self.across and self.lines % self.width:
            last = self.lines - self.pack
            place = f"{place} < {last} ? {place} : {last}"
        emitter = Emitter({}, pointers.of, f"{name}t")
        (line,) = emitter.emit(parts.line)
        body = [
            f"const int {self.line} = {place};",
            *indices(self.group, self.line, list(self.axes)),
            *emitter.lines,
            f"from_{name}[s] = as_it_is({pointers.of(load.data)} + ({line}));",
            *self._lacks(parts, pointers),
        ]
        return [
            f"const {kind}* from_{name}[{count}];",
            *([f"unsigned outside_{name}[{count}];"] if self._is_checked else []),
            "#pragma unroll",
            f"for (int s = 0; s < {count}; ++s) {{",
            *statements(body, 1),
            "}",
        ]

    def registers(self) -> list[str]:
        """Return the declaration of what a thread holds of the next tile."""
        return super().registers() if self.parts is None else [f"{self._kind} next_{self.letter}[{self._held}];"]

    def fetched(self, pointers: Pointers) -> list[str]:
        """Return the statements that read the tile from depth ``k0`` on into registers."""
        if self.parts is None:
            return super().fetched(pointers)
        return self._fetched_across() if self.across else self._fetched_along()

    def put(self) -> list[str]:
        """Return the statements that store what was read in ``buffer``."""
        if self.parts is None:
            return super().put()
        name, pitch, row, side = self.letter, self.pitch, f"row_{self.letter}", f"side_{self.letter}"
        start = f"{row} * {self._rounds * pitch} + {side}" if self.across else f"{side} * {pitch} + {row}"
        lines = [f"float* const to_{name} = tile_{name} + buffer * {self.size} + {start};"]
        if self.across:
            place = f"to_{name} + i * {pitch} + s * {self._lanes * self.pack}"
            store = f"*reinterpret_cast<{self._kind}*>({place}) = next_{name}[s * {self._rounds} + i];"
            return self._active([*lines, *self._for_each_depth([store])])
        held = f"next_{name}[i]"
        values = [held] if self.pack == 1 else [f"{held}.{word}" for word in "xyzw"]
        body = [f"to_{name}[{v * pitch} + i * {self._at_once}] = {value};" for v, value in enumerate(values)]
        if self.width % self._at_once:
            body = [f"if ({row} + i * {self._at_once} < {self.width}) {{", *statements(body, 1), "}"]
        return [*lines, *self._for_each_line(body)]

    @property
    def _depth(self) -> int:
        return prod(self.reduction.extents)

    @property
    def _entries(self) -> int:
        """Return the entries of the table: whole tiles."""
        return -(-self._depth // self.layout.depth) * self.layout.depth

    @cached_property
    def _line_step(self) -> int | None:
        """Return the elements from a line to the next; None where lines lie unevenly or may lack elements."""
        parts = self.parts
        if parts is None or parts.taps or parts.of_line:
            return None
        return even_step(affine(parts.line), [(self.group.index[axis], self.group.shape[axis]) for axis in self.axes])

    @cached_property
    def _depth_step(self) -> int | None:
        """Return the elements from a depth to the next; None where they lie unevenly."""
        return None if self.parts is None else self._step_of(self.parts)

    def _step_of(self, parts: Parts) -> int | None:
        axes = list(zip(self.group.inner, self.reduction.extents, strict=True))
        return even_step(affine(parts.depth), axes)

    def _needs_table(self, parts: Parts) -> bool:
        return bool(self._step_of(parts) is None or parts.taps or parts.of_depth)

    @property
    def _is_tabled(self) -> bool:
        return self.parts is not None and self._needs_table(self.parts)

    @property
    def _is_checked(self) -> bool:
        """Return whether a thread's own lines may lack elements."""
        parts = self.parts
        return self.across and parts is not None and bool(parts.taps or parts.of_line)

    @property
    def _entry(self) -> int:
        """Return the words of an entry: an offset, and bits where there is something to check."""
        parts = self.parts
        partial = self._depth % self.layout.depth or (parts is not None and parts.of_depth)
        return 2 if self._is_checked or partial else 1

    @property
    def _lanes(self) -> int:
        """Return the threads side by side along memory."""
        return min(THREADS, (self.width if self.across else self.layout.depth) // self.pack)

    @property
    def _sets(self) -> int:
        """Return the packs of lines that a thread reads, where it reads its own."""
        return self.width // self.pack // self._lanes if self.across else 1

    @property
    def _at_once(self) -> int:
        """Return the rows that all threads read at once: depths that divide a tile's, or lines."""
        most = THREADS // self._lanes
        if not self.across:
            return most
        return max(count for count in range(1, most + 1) if self.layout.depth % count == 0)

    @property
    def _rounds(self) -> int:
        """Return the depths of a thread's lines, or its lines."""
        return -(-(self.layout.depth if self.across else self.width) // self._at_once)

    @property
    def _held(self) -> int:
        return self._rounds * self._sets

    def _active(self, body: list[str]) -> list[str]:
        """Return statements for the threads that have work."""
        if self._at_once * self._lanes == THREADS:
            return body
        return [f"if (row_{self.letter} < {self._at_once}) {{", *statements(body, 1), "}"]

    def _for_each_depth(self, body: list[str]) -> list[str]:
        inner = ["#pragma unroll", f"for (int i = 0; i < {self._rounds}; ++i) {{", *statements(body, 1), "}"]
        return ["#pragma unroll", f"for (int s = 0; s < {self._sets}; ++s) {{", *statements(inner, 1), "}"]

    def _for_each_line(self, body: list[str]) -> list[str]:
        return ["#pragma unroll", f"for (int i = 0; i < {self._rounds}; ++i) {{", *statements(body, 1), "}"]

    def _table(self, parts: Parts) -> list[str]:
        """Return the statements that fill the table: offsets, and the bits of taps."""
        name = self.letter
        emitter = Emitter({}, str, f"{name}t")
        offset, *conditions = emitter.emit(parts.depth, *parts.of_depth)
        exists = " && ".join([f"r < {self._depth}"] * (self._depth != self._entries) + conditions)
        bits = " | ".join(["1u << 30", *(f"1u << ({low} + {index.data})" for index, low in _bits(parts))])
        words = [f"table_{name}[r * {self._entry}] = (unsigned)({offset});"]
        if self._entry == 2:
            words.append(f"table_{name}[r * 2 + 1] = {f'{exists} ? {bits} : ~0u' if exists else bits};")
        body = [*inner_indices(self.group, self.reduction), *emitter.lines, *words]
        return [
            f"for (int r = threadIdx.x; r < {self._entries}; r += {THREADS}) {{",
            *statements(body, 1),
            "}",
        ]

    def _lacks(self, parts: Parts, pointers: Pointers) -> list[str]:
        """Return the statements that find which taps a line lacks, as bits; all of them where it is left out."""
        if not self._is_checked:
            return []
        name = self.letter
        emitter = Emitter({}, pointers.of, f"{name}u")
        conditions = emitter.emit(*parts.of_line)
        exists = " && ".join(conditions)
        lines = [*emitter.lines, f"outside_{name}[s] = {f'{exists} ? 1u << 31 : ~0u' if exists else '1u << 31'};"]
        for (index, low), (_, tests) in zip(_bits(parts), parts.taps, strict=True):
            own = Emitter({}, pointers.of, f"{name}w")
            found = own.emit(*tests)
            lines += [
                f"for (idx {index.data} = 0; {index.data} <= {index.high}; ++{index.data}) {{",
                *statements(own.lines, 1),
                f"    if (!({' && '.join(found)})) outside_{name}[s] |= 1u << ({low} + {index.data});",
                "}",
            ]
        return lines

    def _fetched_across(self) -> list[str]:
        name, entry, rounds = self.letter, self._entry, self._rounds
        held = f"next_{name}[s * {rounds} + i]"
        if self._is_tabled:
            offset = f"(int)spot_{name}[i * {entry}]"
            tests = [f"spot_{name}[i * 2 + 1] & {f'outside_{name}[s]' if self._is_checked else '1u << 31'}"] * (
                entry == 2
            )
            lines = self._entries_read(rounds * entry, f"(k0 + row_{name} * {rounds}) * {entry}")
        else:
            offset = f"(idx)(k0 + row_{name} * {rounds} + i) * {self._depth_step}"
            tests = [f"outside_{name}[s] == ~0u"] * self._is_checked
            tests += [f"k0 + row_{name} * {rounds} + i >= {self._depth}"] * (self._depth != self._entries)
            lines = []
        return self._active([*lines, *self._for_each_depth([self._one(held, f"from_{name}[s]", offset, tests)])])

    def _fetched_along(self) -> list[str]:
        name, entry = self.letter, self._entry
        tests = [f"{self.line}0 + row_{name} + i * {self._at_once} >= {self.lines}"] * (self.lines % self.width > 0)
        tests += [f"row_{name} + i * {self._at_once} >= {self.width}"] * (self.width % self._at_once > 0)
        if self._is_tabled:
            lines = self._entries_read(entry, f"(k0 + side_{name}) * {entry}")
            offset, tests = f"(int)spot_{name}[0]", tests + [f"spot_{name}[1] & 1u << 31"] * (entry == 2)
        else:
            lines = []
            offset = f"(idx)(k0 + side_{name}) * {self._depth_step}"
            tests += [f"k0 + side_{name} >= {self._depth}"] * (self._depth != self._entries)
        place = f"{offset} + i * {self._at_once * (self._line_step or 0)}"
        return [*lines, *self._for_each_line([self._one(f"next_{name}[i]", f"from_{name}[0]", place, tests)])]

    def _entries_read(self, words: int, place: str) -> list[str]:
        """Return the statements that read a thread's entries of the table, four words at a time where they fit."""
        name = self.letter
        if words % _QUAD:
            return [
                f"unsigned spot_{name}[{words}];",
                "#pragma unroll",
                f"for (int q = 0; q < {words}; ++q) spot_{name}[q] = table_{name}[{place} + q];",
            ]
        return [
            f"__align__(16) unsigned spot_{name}[{words}];",
            "#pragma unroll",
            f"for (int q = 0; q < {words // _QUAD}; ++q)",
            f"    reinterpret_cast<uint4*>(spot_{name})[q] =",
            f"        reinterpret_cast<const uint4*>(table_{name} + {place})[q];",
        ]

    def _one(self, held: str, start: str, offset: str, tests: list[str]) -> str:
        """Return the statement that reads a pack, zeros where a test holds."""
        text = f"ld({start}, {offset})"
        if self.pack > 1:
            text = f"*reinterpret_cast<const {self._kind}*>({start} + {offset})"
        return (
            f"{held} = {' || '.join(f'({test})' for test in tests)} ? {self._kind}{{}} : {text};"
            if tests
            else f"{held} = {text};"
        )


def _bits(parts: Parts) -> list[tuple[Term, int]]:
    """Return the indices of taps with the place of their first bit."""
    found, low = list[tuple[Term, int]](), 0
    for index, _ in parts.taps:
        found.append((index, low))
        low += index.high + 1
    return found
