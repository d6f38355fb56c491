"""One factor of a product on the ``cuda`` target: how its tiles come to shared memory, and where elements lie there.

Neighbours in memory are read by neighbouring threads, in packs of 16 bytes where they lie on such boundaries: then they
can be copied past the registers. Anything else is computed element by element through the group's index maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from agents.playbook.compiler.emission import Emitter, statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.loops import indices
from agents.playbook.compiler.parameters import Pointers
from agents.playbook.compiler.products import bare, follows, packed
from agents.playbook.compiler.shapes_of_work import depends
from agents.playbook.compiler.tensors import Reduce
from agents.playbook.compiler.terms import (
    COMPARISONS,
    INDEX,
    Term,
    affine,
    compare,
    conjuncts,
    make,
    number,
    plus,
    times,
)
from agents.playbook.ordering import walk

THREADS = 256
"""Of a block."""
_ROW = 64
"""16-bit elements of a swizzled row."""
HELD = {"": "float32", "tf32": "float32", "half": "float16", "bfloat16": "bfloat16"}
"""Storage type of tensors whose elements come to shared memory as they are."""
ROUNDED = {"": "", "tf32": "", "half": "halved", "bfloat16": "narrowed"}
"""The prelude's function that rounds a float to the bits that shared memory holds."""


@dataclass(frozen=True)
class Layout:
    """Properties that the tiles of both operands share."""

    depth: int
    precision: str
    """As :class:`~agents.playbook.compiler.cuda.tiles.Tiles` has it."""
    stages: int
    swizzled: bool = False
    """As warpgroup instructions read them: rows of 128 bytes, whose packs are exchanged by the row's number."""

    @property
    def stored(self) -> str:
        """Return the C++ type of an element in shared memory."""
        return "float" if self.precision in ("", "tf32") else "unsigned short"

    @property
    def item_bytes(self) -> int:
        """Return the bytes of an element in shared memory."""
        return 4 if self.stored == "float" else 2


@dataclass(frozen=True)
class Steady:
    """Sums of which one part follows a tile's lines and the other its depth."""

    terms: list[Term]
    """The parts that follow lines."""
    names: list[Term]
    """Their names: items ``i`` of arrays."""
    moving: list[Term]
    """The sums, in which they stand."""


def steady(roots: Sequence[Term], lines: Sequence[Term], inner: Sequence[Term], prefix: str) -> Steady | None:
    """Return offsets and comparisons with the parts that follow lines named; None where one is no such sum."""
    found: dict[Term, Term] = {}
    moving: list[Term] = []
    if any(term.op == "load" for term in walk(roots)):  # made of lines that exist only
        return None
    for root in roots:
        compared = root.op in COMPARISONS and root.args[0].dtype == INDEX
        if not (compared or root.dtype == INDEX):
            return None
        sums = []
        for whole in root.args if compared else (root,):
            parts = affine(whole)
            kept, rest = number(0), number(parts.constant)
            for part, factor in parts.factors.items():
                by_line = any(depends(part, index) for index in lines)
                if by_line and any(depends(part, index) for index in inner):
                    return None
                if by_line:
                    kept = plus(kept, times(part, factor))
                else:
                    rest = plus(rest, times(part, factor))
            if kept.op != "const" and kept not in found:
                name = f"{prefix}{len(found)}[i]"
                found[kept] = make("index", INDEX, data=name, low=kept.low, high=kept.high)
            sums.append(plus(found.get(kept, kept), rest))
        moving.append(compare(root.op, *sums) if compared else sums[0])
    return Steady(list(found), list(found.values()), moving)


@dataclass(frozen=True)
class Operand:
    """A factor, the axes that its lines follow, and its tile."""

    letter: str
    """``a`` for the first factor, whose lines are rows; ``b`` for the second, whose lines are columns."""
    factor: Term
    axes: tuple[int, ...]
    width: int
    """Lines of a tile."""
    layout: Layout
    group: Group
    reduction: Reduce

    @property
    def line(self) -> str:
        """Return the name of a line's number."""
        return "m" if self.letter == "a" else "n"

    @property
    def lines(self) -> int:
        """Return the lines of the whole operand."""
        return prod(self.group.shape[axis] for axis in self.axes)

    @cached_property
    def across(self) -> bool:
        """Return whether neighbouring lines are neighbours in memory; else neighbours in depth are."""
        return follows(self.factor, self._next_line[0]) or not follows(self.factor, self._next_in_depth[0])

    @cached_property
    def pack(self) -> int:
        """Return the elements that are read at once."""
        load = bare(self.factor)
        if load is None or load.data.dtype != HELD[self.layout.precision]:
            return 1
        index, extent = self._next_line if self.across else self._next_in_depth
        most = 16 // self.layout.item_bytes
        return most if packed(load, index, extent, most) else 1

    @property
    def is_copied(self) -> bool:
        """Return whether packs are copied past the registers."""
        return self.layout.precision != "" and self.layout.stages > 2 and self.pack > 1

    @property
    def by_line(self) -> bool:
        """Return whether a row of the tile in shared memory holds neighbouring lines; else neighbours in depth."""
        return self.across or not self.layout.precision

    @property
    def pitch(self) -> int:
        """Return the elements from one row of the tile to the next, such that fragments meet no bank twice."""
        if not self.layout.precision:
            return self.width + 4
        if self.by_line:
            return self.width + 8
        return self.layout.depth + (8 if self.layout.item_bytes == 2 else 4)

    @property
    def size(self) -> int:
        """Return the elements of a tile in shared memory, with its padding."""
        if self.layout.swizzled:
            return self.width * self.layout.depth
        return self.pitch * (self.layout.depth if self.by_line else self.width)

    def before(self, _pointers: Pointers) -> list[str]:
        """Return what stays the same for the whole block: the thread's place in a tile, and its line where it does."""
        name, pack = self.letter, f" * {self.pack}" if self.pack > 1 else ""
        lines = [f"const int side_{name} = threadIdx.x % {self._in_row}{pack};"]
        lines.append(f"const int row_{name} = threadIdx.x / {self._in_row};")
        if self.across:
            lines.append(f"const int {self.line} = {self.line}0 + side_{name};")
            lines += indices(self.group, self.line, list(self.axes))
        if self._steady is not None:
            terms, names = self._steady.terms, self._steady.names
            emitter = Emitter({}, str, f"{name}s")
            texts = emitter.emit(*terms)
            kept = [*self._own_line(), *emitter.lines]
            kept += [f"{of.data} = {text};" for of, text in zip(names, texts, strict=True)]
            lines += [f"idx {str(of.data).replace('[i]', f'[{self._rounds}]')};" for of in names]
            lines += self._rows(kept)
        return lines

    def registers(self) -> list[str]:
        """Return the declaration of what a thread holds of the next tile."""
        return [] if self.is_copied else [f"{self._kind} next_{self.letter}[{self._rounds}];"]

    def started(self, pointers: Pointers) -> list[str]:
        """Return the statements that start the copies of the tile from depth ``k0`` on, into ``buffer``."""
        base, lines, offset, guard = self._address(pointers)
        to = f"tile_{self.letter} + buffer * {self.size} + {self._place()}"
        copy = f"copy_pack({to}, inside ? {base} + {offset} : {base}, inside);"
        return self._found([*lines, f"const bool inside = {self._inside}{guard};", copy])

    def fetched(self, pointers: Pointers) -> list[str]:
        """Return the statements that read the tile from depth ``k0`` on into registers."""
        held = f"next_{self.letter}[i]"
        if self.pack > 1:
            base, lines, offset, guard = self._address(pointers)
            read = f"*reinterpret_cast<const {self._kind}*>({base} + {offset})"
            taken = f"if ({guard.removeprefix(' && ')}) {held} = {read};" if guard else f"{held} = {read};"
            return self._found(
                [f"{held} = {self._kind}{{}};", f"if ({self._inside}) {{", *statements([*lines, taken], 1), "}"]
            )
        lines, value = self._element(pointers)
        return self._found(
            [f"{held} = 0;", f"if ({self._inside}) {{", *statements([*lines, f"{held} = {value};"], 1), "}"]
        )

    def put(self) -> list[str]:
        """Return the statements that store what was read in ``buffer``."""
        held, tile = f"next_{self.letter}[i]", f"tile_{self.letter}[buffer * {self.size} + "
        if self.pack == 1:
            return self._rows([f"{tile}{self._place()}] = {held};"])
        if self.across == self.by_line:
            return self._rows([f"*reinterpret_cast<{self._kind}*>(&{tile}{self._place()}]) = {held};"])
        words = enumerate(("x", "y", "z", "w"))
        return self._rows([f"{tile}{self._place(f' + {v}')}] = {held}.{word};" for v, word in words])

    @property
    def _next_line(self) -> tuple[Term, int]:
        """Return the index that moves from one line to the next, and its extent."""
        return _last([(self.group.index[axis], self.group.shape[axis]) for axis in self.axes])

    @property
    def _next_in_depth(self) -> tuple[Term, int]:
        return _last(list(zip(self.group.inner, self.reduction.extents, strict=True)))

    @property
    def _in_row(self) -> int:
        """Return the packs that lie side by side in memory."""
        return (self.width if self.across else self.layout.depth) // self.pack

    @property
    def _packs(self) -> int:
        return self.width * self.layout.depth // self.pack

    @property
    def _rounds(self) -> int:
        return -(-self._packs // THREADS)

    @property
    def _kind(self) -> str:
        """Return the C++ type of a pack."""
        if self.pack == 1:
            return self.layout.stored
        return "float4" if self.layout.stored == "float" else "uint4"

    @property
    def _inside(self) -> str:
        """Return the condition that the pack at line ``m`` or ``n`` and depth ``r`` exists."""
        depth = prod(self.reduction.extents)
        parts = [f"{self.line} < {self.lines}"] if self.lines % self.width else []
        parts += [f"r < {depth}"] if depth % self.layout.depth else []
        return " && ".join(parts) or "true"

    def _element(self, pointers: Pointers) -> tuple[list[str], str]:
        """Return statements and text of one element, as shared memory holds it."""
        emitter = Emitter({}, pointers.of, f"{self.letter}t")
        load, stored = bare(self.factor), self.layout.stored
        if load is not None and stored != "float" and load.data.dtype == HELD[self.layout.precision]:
            rank = len(load.data.shape)
            offset, *guard = emitter.emit(load.data.offset(load.args[:rank]), *load.args[rank:])
            value = f"{pointers.of(load.data)}[{offset}].bits"
            return emitter.lines, f"{guard[0]} ? {value} : ({stored})0" if guard else value
        (value,) = emitter.emit(self.factor)
        return emitter.lines, f"{ROUNDED[self.layout.precision]}({value})"

    def _address(self, pointers: Pointers) -> tuple[str, list[str], str, str]:
        """Return pointer, statements, offset, and what more than its line and depth decides whether a pack exists."""
        load = bare(self.factor)
        assert load is not None
        emitter = Emitter({}, pointers.of, f"{self.letter}t")
        roots = _roots(load) if self._steady is None else self._steady.moving
        offset, *guards = emitter.emit(*roots)
        return pointers.of(load.data), emitter.lines, offset, "".join(f" && {guard}" for guard in guards)

    @cached_property
    def _steady(self) -> Steady | None:
        """Return the parts of a pack's place that its line decides, which stay the same from tile to tile."""
        load = bare(self.factor)
        if self.across or self.pack == 1 or load is None:
            return None
        lines = [self.group.index[axis] for axis in self.axes]
        return steady(_roots(load), lines, list(self.group.inner), f"line_{self.letter}")

    def _place(self, step: str = "") -> str:
        """Return the place of a thread's pack in its tile; ``step`` is added within the pack."""
        side = f"side_{self.letter}{step}"
        if self.layout.swizzled:
            row = f"{side} / {_ROW} * {self.layout.depth} + other" if self.across else "other"
            return f"({row}) * {_ROW} + ({side} % {_ROW} / 8 ^ other % 8) * 8"
        along, under = (side, "other") if self.across else ("other", side)
        return f"({under}) * {self.pitch} + {along}" if self.by_line else f"({along}) * {self.pitch} + {under}"

    def _rows(self, body: list[str]) -> list[str]:
        """Return the loop over a thread's packs of a tile; ``other`` is the row that each lies in."""
        lines = [f"const int other = row_{self.letter} + i * {THREADS // self._in_row};", *body]
        if self._packs < THREADS:
            lines = [f"if (threadIdx.x < {self._packs}) {{", *statements(lines, 1), "}"]
        return ["#pragma unroll", f"for (int i = 0; i < {self._rounds}; ++i) {{", *statements(lines, 1), "}"]

    def _found(self, body: list[str]) -> list[str]:
        """Return the loop over a thread's packs with the indices of each."""
        inner = inner_indices(self.group, self.reduction)
        if self.across:
            return self._rows(["const int r = k0 + other;", *inner, *body])
        own = self._own_line()
        if self._steady is not None:
            own = own[:1] if self.lines % self.width else []
        lines = [f"const int r = k0 + side_{self.letter};", *inner, *self._rows([*own, *body])]
        return ["{", *statements(lines, 1), "}"]

    def _own_line(self) -> list[str]:
        """Return the statements that find the line of the row ``other``, and its indices."""
        return [f"const int {self.line} = {self.line}0 + other;", *indices(self.group, self.line, list(self.axes))]


def _roots(load: Term) -> list[Term]:
    """Return a load's offset and the conditions under which it is made."""
    rank = len(load.data.shape)
    return [load.data.offset(load.args[:rank]), *(part for guard in load.args[rank:] for part in conjuncts(guard))]


def _last(axes: list[tuple[Term, int]]) -> tuple[Term, int]:
    """Return the last axis with more than one element."""
    return next((item for item in reversed(axes) if item[1] > 1), axes[-1])


def inner_indices(group: Group, reduction: Reduce) -> list[str]:
    """Return the statements that find the indices on the reduced axes from ``r``, their common offset."""
    lines = []
    step = prod(reduction.extents)
    for axis, extent in enumerate(reduction.extents):
        step //= extent
        if group.inner[axis].op != "const":
            quotient = "r" if step == 1 else f"r / {step}"
            lines.append(f"const idx r{axis} = (idx)({quotient if axis == 0 else f'({quotient}) % {extent}'});")
    return lines
