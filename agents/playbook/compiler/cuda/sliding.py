"""Statements of a thread that has a strip of a window: it reads once what its results share.

The thread walks over the places of the outermost axis. At each it loads elements in packs, reduces them along the
columns, and takes the outcome into every result in whose window the place lies. A result is written when its last place
is in: as a pack, or through shared memory where results do not lie as packs do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from agents.playbook.compiler.accumulators import Accumulator
from agents.playbook.compiler.cuda.maps import values_and_places
from agents.playbook.compiler.cuda.packs import each_item, each_pack, fetched, from_first
from agents.playbook.compiler.cuda.strips import EACH, FIRST, WARP, Strip
from agents.playbook.compiler.cuda.tiles import Tiled
from agents.playbook.compiler.cuda.windows import Axis
from agents.playbook.compiler.emission import TYPES, Emitter, statements
from agents.playbook.compiler.packs import joined, loads_in, offset_of
from agents.playbook.compiler.parameters import Pointers, store, stores
from agents.playbook.compiler.terms import Term

_EXTREMES = """\
template <class T> FN T most(T a, T b) { return fn_max(a, b); }
template <class T> FN T least(T a, T b) { return fn_min(a, b); }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
FN float most(float a, float b) { float m; asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b)); return m; }
FN float least(float a, float b) { float m; asm("min.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b)); return m; }
#endif"""
"""Larger and smaller of two values, NaN where one is: one instruction for float32."""


@dataclass(frozen=True)
class Sliding:
    """The work of a launch with a thread a strip."""

    strip: Strip
    pointers: Pointers
    block: int

    @property
    def accumulator(self) -> Accumulator:
        """Return the state of the reduction, whose total has the type of a term: there are few of them."""
        reduction = self.strip.window.reduction
        return Accumulator(reduction.kind, reduction.value)

    def tiled(self) -> Tiled:
        """Return the statements of a block, and how many blocks there are."""
        strip, sizes = self.strip, self._sizes()
        count = prod(size for _, size in sizes)
        lines = [
            f"const long long o = (long long)blockIdx.x * {self.block} + threadIdx.x;",
            f"if (o >= {count}LL) return;",
            *_indices(sizes, count),
            *(self._top(strip.down) if strip.down is not None else []),
            *self._weights(),
            *(self._shared() if strip.staged else []),
            f"{self.accumulator.term} totals[{strip.rows}][{strip.columns}];",
            *(self._down(strip.down) if strip.down is not None else self._chunks()),
        ]
        functions = [_EXTREMES] if self.accumulator.kind in ("max", "min") else []
        return Tiled(lines, -(-count // self.block), 0, functions, strip.resident)

    def _sizes(self) -> list[tuple[str, int]]:
        """Return the indices of a strip and their extents, the columns' last."""
        strip, window = self.strip, self.strip.window
        sizes = list[tuple[str, int]]()
        for index in window.group.index:
            if strip.down is not None and index is strip.down.index:
                sizes.append(("strip", -(-strip.down.results // strip.rows)))
            elif index.op == "index" and index is not window.columns.index:
                sizes.append((str(index.data), index.high + 1))
        return [*sizes, ("chunk" if strip.times == 1 else "first_chunk", strip.chunks // strip.times)]

    def _top(self, down: Axis) -> list[str]:
        """Return the statement that finds a strip's first result; the last strip begins sooner, so that it is whole."""
        first, last = f"strip * {self.strip.rows}", down.results - self.strip.rows
        if down.results % self.strip.rows == 0:
            return [f"const idx top = {first};"]
        return [f"const idx top = {first} < {last} ? {first} : {last};"]

    def _weights(self) -> list[str]:
        """Return the statements that load the weights."""
        weight, axes = self.strip.window.weight, self._tapped()
        if weight is None:
            return []
        emitter = Emitter({}, self.pointers.of, "w")
        (text,) = emitter.emit(weight)
        lines = [*emitter.lines, f"taps{_brackets(tap for tap, _ in axes)} = {text};"]
        for tap, axis in reversed(axes):
            lines = _unrolled(tap, axis.taps, lines)
        return [f"{TYPES[weight.dtype]} taps{_brackets(axis.taps for _, axis in axes)};", *lines]

    def _tapped(self) -> list[tuple[str, Axis]]:
        """Return the axes of several taps, and the names of these, the columns' last."""
        axes = (*self.strip.window.others, self.strip.window.columns)
        return [(str(axis.tap.data), axis) for axis in axes if axis.tap is not None]

    def _shared(self) -> list[str]:
        kept = f"pack<{self.accumulator.term}, {self.strip.columns}> kept"
        return [
            f"__shared__ {kept}[{self.block // WARP}][2][{WARP}];",
            f"const int warp = (int)threadIdx.x / {WARP}, lane = (int)threadIdx.x % {WARP};",
        ]

    def _chunks(self) -> list[str]:
        """Return the statements for each chunk of one row."""
        times, each = self.strip.times, self.strip.chunks // self.strip.times
        if times == 1:
            return [*self._taken(), *self._written("0", "0")]
        lines = [f"const idx chunk = first_chunk + c * {each};", *self._taken(), *self._written("0", "c")]
        return _unrolled("c", times, lines)

    def _down(self, down: Axis) -> list[str]:
        """Return the statements for each place of the outermost axis."""
        reach = (down.taps - 1) * down.dilation
        lines = [
            f"const idx {down.place.data} = top * {down.stride} + p * {down.step};",
            *self._taken(),
            f"const int past = p * {down.step} - {reach};",
            f"if (past >= 0 && past % {down.stride} == 0) {{",
            f"    const int i = past / {down.stride};",
            f"    const idx {down.index.data} = top + i;",
            *statements(self._written("i", "i"), 1),
            "}",
        ]
        return _unrolled("p", (down.places(self.strip.rows) - 1) // down.step + 1, lines)

    def _taken(self) -> list[str]:
        """Return the statements that take in what lies at one place of the outermost axis."""
        strip, window = self.strip, self.strip.window
        lines = [f"{TYPES[window.value.dtype]} row[{strip.packs * strip.width}];"]
        for pack in range(strip.packs):
            lines += ["{", *statements(self._loaded(pack), 1), "}"]
        lines += self._reduced() if window.weight is None else self._weighted()
        for axis in reversed(window.others[1:]):
            assert axis.tap is not None
            place = f"{axis.index.data} * {axis.stride} + {axis.tap.data} * {axis.dilation}"
            lines = _unrolled(str(axis.tap.data), axis.taps, [f"const idx {axis.place.data} = {place};", *lines])
        if window.weight is not None:
            return lines
        each = self._step("totals[i][j]", "across[j]", ["t"])
        return [
            f"{self.accumulator.term} across[{strip.columns}];",
            *lines,
            *self._of_results(_unrolled("j", strip.columns, each)),
        ]

    def _loaded(self, pack: int) -> list[str]:
        """Return the statements that load a pack.

        Loads under a condition are made in any case, from elsewhere where it does not hold: so none waits for another.
        """
        strip, pointer = self.strip, self.pointers.of
        index, last = strip.elements(pack)
        packs, value = strip.value(index)
        loads = _outermost(value)
        guards = list(dict.fromkeys(load.args[-1] for load in loads if len(load.args) > len(load.data.shape)))
        emitter = Emitter({index: FIRST}, pointer, "s")
        texts = emitter.emit(*guards, *(joined(offset_of(load)) for load in loads))
        lines = [*emitter.lines, *(f"const bool g{n} = {text};" for n, text in enumerate(texts[: len(guards)]))]
        names = {index: EACH} | {guard: f"g{n}" for n, guard in enumerate(guards)}
        for n, (load, text) in enumerate(zip(loads, texts[len(guards) :], strict=True)):
            guard = names[load.args[-1]] if len(load.args) > len(load.data.shape) else ""
            width = 1 if packs.stays(load) else strip.width
            place = f"({guard} ? {text} : 0)" if guard else text
            kind = f"const pack<{TYPES[load.data.dtype]}, {width}>"
            lines.append(f"{kind} a{n} = fetch<{width}>({pointer(load.data)} + {place});")
            item = f"ld(a{n}.items, {'k' if width > 1 else '0'})"
            names[load] = f"({guard} ? {item} : ({TYPES[load.dtype]})0)" if guard else item
        each = Emitter(names, pointer)
        (text,) = each.emit(value)
        first = f"chunk * {strip.columns * strip.window.columns.stride} + {strip.first(pack)}"
        first = first if last is None else f"{first} < {last} ? {first} : {last}"
        row = f"row[{pack * strip.width} + k] = {text};"
        return from_first(f"const idx {FIRST} = {first};", [*lines, *each_item(strip.width, [*each.lines, row])])

    def _reduced(self) -> list[str]:
        """Return the statements that reduce elements along the columns, and along inner axes."""
        strip, inner = self.strip, [str(axis.tap.data) for axis in self.strip.window.others[1:] if axis.tap is not None]
        lines = self._step("across[j]", f"row[{strip.element('j', '0')}]", inner)
        if strip.window.columns.taps > 1:
            more = [self._more("across[j]", f"row[{strip.element('j', 'x')}]")]
            lines += _unrolled("x", strip.window.columns.taps, more, first=1)
        return _unrolled("j", strip.columns, lines)

    def _weighted(self) -> list[str]:
        """Return the statements that add elements, times weights, to all results in whose windows they lie."""
        strip, window = self.strip, self.strip.window
        known = {id(window.columns): "x"} | ({id(strip.down): "t"} if strip.down is not None else {})
        names = [known.get(id(axis), tap) for tap, axis in self._tapped()]
        value = f"taps{_brackets(names)} * row[{strip.element('j', 'x')}]"
        each = self._step("totals[i][j]", value, names)
        if window.columns.taps > 1:
            each = _unrolled("x", window.columns.taps, each)
        else:
            each = [line.replace(strip.element("j", "x"), strip.element("j", "0")) for line in each]
        return self._of_results(_unrolled("j", strip.columns, each))

    def _of_results(self, lines: list[str]) -> list[str]:
        """Return statements for each result ``i`` of which the place ``p`` is the tap ``t``."""
        down = self.strip.down
        if down is None:
            return [line.replace("totals[i]", "totals[0]") for line in lines]
        inside = [
            f"const int past = p * {down.step} - t * {down.dilation}, i = past / {down.stride};",
            f"if (past >= 0 && past % {down.stride} == 0 && i < {self.strip.rows}) {{",
            *statements(lines, 1),
            "}",
        ]
        return _unrolled("t", down.taps, inside)

    def _step(self, into: str, value: str, taps: Sequence[str]) -> list[str]:
        """Return the statements that take a value in, as the first where all of these taps are."""
        taps = [tap for tap in taps if tap != "t" or self.strip.down is not None]
        if not taps:
            return [f"{into} = {value};"]
        first = " && ".join(f"{tap} == 0" for tap in taps)
        return [f"if ({first}) {into} = {value};", f"else {self._more(into, value)}"]

    def _more(self, into: str, value: str) -> str:
        if self.accumulator.kind == "sum":
            return f"{into} += {value};"
        name = "most" if self.accumulator.kind == "max" else "least"
        return f"{into} = {name}({into}, ({self.accumulator.term}){value});"

    def _written(self, row: str, side: str) -> list[str]:
        """Return the statements that write a thread's neighbouring results of a row."""
        strip, group = self.strip, self.strip.window.group
        if strip.staged:
            return self._staged(row, side)
        if strip.columns > 1:
            return self._packed(row)
        found = f"const idx {strip.window.columns.index.data} = chunk;"
        return [found, f"{self._result} = totals[{row}][0];", *stores(group, self.pointers.of, "result")]

    @property
    def _result(self) -> str:
        return f"const {self.accumulator.term} result"

    def _packed(self, row: str) -> list[str]:
        """Return the statements that write results as packs."""
        strip, group, pointer = self.strip, self.strip.window.group, self.pointers.of
        packs, (values, places) = strip.packs_of_results, values_and_places(group)
        inputs = fetched(packs, values, 1, pointer)
        assert group.accumulated is not None
        emitter = Emitter({**inputs.names, packs.index: EACH, group.accumulated: "result"}, pointer, "v")
        texts, begin = emitter.emit(*values), Emitter({packs.index: FIRST}, pointer, "q")
        offsets = begin.emit(*(joined(place) for place in places))
        declared, kept, put = list[str](), list[str](), list[str]()
        for count, (text, offset, target) in enumerate(zip(texts, offsets, group.targets, strict=True)):
            declared.append(f"pack<{TYPES[target.tensor.dtype]}, {strip.columns}> o{count};")
            kept.append(store(f"o{count}.items", target.tensor, "k", text))
            put.append(f"put({pointer(target.tensor)} + {offset}, o{count});")
        each = each_item(strip.columns, [f"{self._result} = totals[{row}][k];", *emitter.lines, *kept])
        found = f"const idx {FIRST} = chunk * {strip.columns};"
        return [
            *inputs.declared,
            *(each_pack(1, found, "", inputs.lines) if inputs.lines else []),
            *each_pack(1, found, "", [*declared, *each, *begin.lines, *put]),
        ]

    def _staged(self, row: str, side: str) -> list[str]:
        """Return the statements that write results through one of two sides of a warp's shared memory."""
        strip, columns = self.strip, self.strip.window.columns
        count, name = strip.columns, columns.index.data
        written = stores(strip.window.group, self.pointers.of, "result")
        if strip.chunks * count > columns.results:
            written = [f"if ({name} < {columns.results}) {{", *statements(written, 1), "}"]
        each = [
            f"const int item = lane + k * {WARP};",
            f"const idx {name} = (chunk - lane) * {count} + item;",
            f"{self._result} = side[item / {count}].items[item % {count}];",
            *written,
        ]
        return [
            f"pack<{self.accumulator.term}, {count}>* side = kept[warp][{side} % 2];",
            *_unrolled("j", count, [f"side[lane].items[j] = totals[{row}][j];"]),
            "__syncwarp();",
            *_unrolled("k", count, each),
        ]


def _outermost(value: Term) -> list[Term]:
    """Return the loads that a value is made of, without those that these need for their places."""
    inside = {part for load in loads_in([value]) for part in loads_in(load.args)}
    return [load for load in loads_in([value]) if load not in inside]


def _indices(sizes: Sequence[tuple[str, int]], count: int) -> list[str]:
    """Return the statements that find indices from a thread's place ``o``."""
    lines, step, offset = list[str](), count, "o" if count >= 2**31 else "(int)o"
    for place, (name, size) in enumerate(sizes):
        step //= size
        quotient = f"({offset}) / {step}" if step > 1 else offset
        lines.append(f"const idx {name} = (idx)({quotient if place == 0 else f'({quotient}) % {size}'});")
    return lines


def _brackets(items: Iterable[object]) -> str:
    return "".join(f"[{item}]" for item in items)


def _unrolled(name: str, count: int, lines: Sequence[str], *, first: int = 0) -> list[str]:
    loop = f"for (int {name} = {first}; {name} < {count}; ++{name}) {{"
    return ["#pragma unroll", loop, *statements(lines, 1), "}"]
