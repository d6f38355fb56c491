"""Convolutions by minimal filtering, after Winograd: fewer multiplications, of sums of inputs with sums of taps.

Taps are cut into parts of three rows and three or five columns, each a convolution of its own with more channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, prod
from string import Template

from agents.playbook.compiler.convolutions import Convolution, convolution_of
from agents.playbook.compiler.cuda.filtering_text import COPIES, FILTERING, PACKED_COPIES, PANELS
from agents.playbook.compiler.cuda.filters import Filter
from agents.playbook.compiler.cuda.tiles import Tiled, Tiles
from agents.playbook.compiler.emission import Emitter, statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.parameters import Pointers, target_index, values
from agents.playbook.compiler.terms import affine
from agents.playbook.templates.cuda_matmul_copies import ASYNC

NARROWEST = 3
"""Taps across of the parts that round least; wider ones are taken where these have fewer points in all."""
TILES, FILTERS, DEPTH = 32, 64, 8
"""Tiles and filters of a block, and the channels of a step."""
BANKS = 32
FINISHED = 3
"""Steps that take as long as transforming and storing a block's results."""
LEAST_GAIN = 1.4
"""Ratio of direct to filtered work (``gain``) below which direct sums are as fast: they are fed better."""
PERSISTENT = 132
"""Multiprocessors of an H200: of each as many blocks as fit stay."""
BLOCK = 256
"""Threads of a block that transforms filters."""


_ACROSS = (8, 4, 6, 5, 10, 16, 3, 7, 12, 14, 2)
"""Tiles side by side of a block's: where several waste as little, the first."""


@dataclass(frozen=True)
class Filtering:
    """A convolution with stride one as minimal filtering."""

    of: Convolution
    filter: Filter
    tiles_across: int = 8

    @property
    def parts(self) -> tuple[int, int]:
        """Return the parts of taps down and across."""
        return ceil(self.of.rows.taps / 3), ceil(self.of.columns.taps / self.filter.taps)

    @property
    def chunks(self) -> int:
        """Return the steps through all channels."""
        return ceil(self.of.channels / DEPTH)

    @property
    def steps(self) -> int:
        """Return the steps of a block: twice through all channels of all parts."""
        return 2 * prod(self.parts) * self.chunks

    @property
    def tile(self) -> tuple[int, int]:
        """Return rows and columns of results of a block."""
        return TILES // self.tiles_across * 2, self.tiles_across * self.filter.outputs

    @property
    def _used(self) -> int:
        return TILES // self.tiles_across * self.tiles_across

    @property
    def units(self) -> int:
        """Return the blocks' pieces of work."""
        down, across = self.blocks
        return int(self.of.group.shape[self.of.batch] * down * across * self.filter_blocks)

    @property
    def blocks(self) -> tuple[int, int]:
        """Return the pieces of an image down and across."""
        rows, columns = self.tile
        return ceil(self.of.rows.outputs / rows), ceil(self.of.columns.outputs / columns)

    @property
    def filter_blocks(self) -> int:
        """Return the pieces of all filters."""
        return ceil(self.of.group.shape[self.of.filters] / FILTERS)

    @property
    def products(self) -> int:
        """Return the multiplications of a piece of work."""
        return self.steps * DEPTH * 2 * self.filter.points * TILES * FILTERS

    @property
    def gain(self) -> float:
        """Return a direct sum's multiplications over those of filtering, with the time of results counted as such."""
        direct = prod(self.of.group.shape) * self.of.channels * self.of.rows.taps * self.of.columns.taps
        return direct / (self.units * self.products) / (1 + FINISHED / self.steps)

    @property
    def warps(self) -> int:
        """Return the warps of a block: two for each point of the columns."""
        return 2 * self.filter.points

    @property
    def resident(self) -> int:
        """Return the blocks of a multiprocessor."""
        return 2 if self.warps <= 8 else 1

    @property
    def panel_bytes(self) -> int:
        """Return the bytes of workspace that the transformed filters take."""
        return self.filter_blocks * self.steps * self._filter_words * 4

    @property
    def shared_bytes(self) -> int:
        """Return the shared memory of a block."""
        sums = self.filter.points * 2 * 32 * 36
        return 4 * (2 * (self._image_words + self._input_words + self._filter_words) + sums)

    @property
    def _filter_words(self) -> int:
        return self.filter.points * 2 * DEPTH * FILTERS

    @property
    def _input_words(self) -> int:
        return self.filter.points * 2 * DEPTH * TILES

    @property
    def _image_rows(self) -> int:
        return self.tile[0] + 2

    @property
    def _image_words(self) -> int:
        return DEPTH * self._image_rows * self._pitch

    @property
    def _plane(self) -> int:
        """Return the packs of one channel of an image's copy."""
        return self._image_rows * self._pitch // 4

    @cached_property
    def _packed(self) -> bool:
        """Return whether four neighbours of an image lie on 16 bytes, all inside or all outside."""
        *others, last = self.of.image.data.strides()
        return last == 1 and all(step % 4 == 0 for step in (*others, self.of.columns.size))

    def _shift(self, part: int) -> int:
        """Return the columns between an image's copy and the first that a part needs."""
        return (self.of.columns.first + part * self.filter.taps) % 4 if self._packed else 0

    @property
    def _pitch(self) -> int:
        """Return the floats of a row of an image's copy: no two tiles that are read at once share a bank."""
        needed = max(self._window(part)[0] + self._window(part)[1] for part in range(self.parts[1]))
        across = self.tiles_across * self.filter.outputs
        pitch = -(-(across - self.filter.outputs + needed) // 4) * 4
        while across % BANKS and across % 8 == 0 and (2 * pitch - across) % BANKS:
            pitch += 4
        return pitch

    def _window(self, part: int) -> tuple[int, int]:
        """Return where a thread begins to read a row, in packs, and how many columns it reads."""
        pack, shift = self.filter.outputs, self._shift(part)
        begin = shift // pack * pack
        return begin, -(-(shift - begin + self.filter.points) // pack) * pack

    def _table(self, pointers: Pointers, base: int) -> dict[str, object]:
        filters, (down, across) = self.filter, self.blocks
        steps = self.of.image.data.strides()
        at_once = min(DEPTH, self.warps * 32 // self._plane)
        rounds = ceil(DEPTH / at_once)
        in_round = [f"c < {at_once}", *([f"c + i * {at_once} < {DEPTH}"] if DEPTH % at_once else [])]
        return {
            "BASE": f"{base}LL",
            "BLOCK": BLOCK,
            "FILTERS": self.filter_blocks * FILTERS,
            "FILTERS_USED": self.of.group.shape[self.of.filters],
            "CHANNELS": self.chunks * DEPTH,
            "CHANNELS_USED": self.of.channels,
            "PARTS": prod(self.parts),
            "ACROSS": self.parts[1],
            "TAPS": filters.taps,
            "OUTPUTS": filters.outputs,
            "POINTS": filters.points,
            "KERNEL_ROWS": self.of.rows.taps,
            "KERNEL_COLUMNS": self.of.columns.taps,
            "STEPS": self.steps,
            "CHUNKS": self.chunks,
            "DEPTH": DEPTH,
            "FILTER_WORDS": self._filter_words,
            "INPUT_WORDS": self._input_words,
            "IMAGE_WORDS": self._image_words,
            "IMAGE_ROWS": self._image_rows,
            "PITCH": self._pitch,
            "WARPS": self.warps,
            "THREADS": self.warps * 32,
            "BANK": 16,
            "PLANE": self._plane,
            "AT_ONCE": at_once,
            "ROUNDS": rounds,
            "IN_ROUND": " && ".join(in_round),
            "IN_DEPTH": f" && c0 + c + i * {at_once} < {self.of.channels}" if self.of.channels % DEPTH else "",
            "ITEM_ROUNDS": ceil(2 * DEPTH / self.warps),
            "LAST_ITEM": f"if (item >= {2 * DEPTH}) break;" if 2 * DEPTH % self.warps else "",
            "OWN": "lane" if self._used == TILES else f"lane < {self._used} ? lane : 0",
            "TILES_ACROSS": self.tiles_across,
            "ROWS": self.tile[0],
            "COLUMNS": self.tile[1],
            "FIRST_ROW": f"({self.of.rows.first})",
            "FIRST_COLUMN": f"({self.of.columns.first})",
            "BLOCKS_DOWN": down,
            "BLOCKS_ACROSS": across,
            "FILTER_BLOCKS": self.filter_blocks,
            "UNITS": self.units,
            "BLOCKS": self.launched,
            "IMAGE": pointers.of(self.of.image.data),
            "HEIGHT": self.of.rows.size,
            "WIDTH": self.of.columns.size,
            "CHANNEL_STEP": steps[1],
            "ROW_STEP": steps[2],
            "COLUMN_STEP": steps[3],
        }

    @property
    def launched(self) -> int:
        """Return the blocks that are launched."""
        return min(self.units, PERSISTENT * self.resident)

    def panels(self, pointers: Pointers, base: int) -> Tiled:
        """Return the launch that transforms filters."""
        table = self._table(pointers, base)
        emitter = Emitter({}, pointers.of, "w")
        places = [
            f"{axis.taps - 1} - {place}" if axis.flipped else place
            for axis, place in ((self.of.rows, "down"), (self.of.columns, "across"))
        ]
        index = [f"const idx i{self.of.filters} = column;"]
        for name, inner, place in zip(("r0", "r1", "r2"), self.of.group.inner, ("depth", *places), strict=True):
            index += [f"const idx {name} = {place};"] if inner.op == "index" else []
        (weight,) = emitter.emit(self.of.weight)
        table["WEIGHT"] = _lines([*index, *emitter.lines, f"const float weight = {weight};"], 3)
        table["TRANSFORMED"] = _lines(
            [
                f"own[{point * 2 * DEPTH * FILTERS}] = (float)({_dot(row)});"
                for point, row in enumerate(self.filter.filter_rows())
            ],
            1,
        )
        count = prod(self.parts) * self.chunks * DEPTH * self.filter_blocks * FILTERS
        return Tiled(_filled(PANELS, table), ceil(count / BLOCK), 0, [])

    def filtered(self, pointers: Pointers, base: int) -> Tiled:
        """Return the main launch."""
        table = self._table(pointers, base)
        table["COPIES"] = _text(PACKED_COPIES if self._packed else COPIES, table)
        table["LEFT"] = "left & ~3" if self._packed else "left"
        parts = [f"place / {prod(self.blocks)} * {self.of.image.data.strides()[0]}LL"]
        parts += [f"c0 * {table['CHANNEL_STEP']}LL", f"y0 * {table['ROW_STEP']}LL", f"x0 * {table['COLUMN_STEP']}LL"]
        table["OFFSET"] = f"({' + '.join(parts)})"
        table["PART"], table["READ"] = self._read()
        table["INPUTS"] = _lines(self.filter.inputs("d", "v"), 2)
        table["RESULTS"] = _lines(self.filter.results("m", "y"), 3)
        inside = [
            f"{name} < {size}"
            for name, size, step in (
                ("n", self.of.group.shape[self.of.filters], FILTERS),
                ("line", self.of.rows.outputs, self.tile[0]),
                ("x", self.of.columns.outputs, self.tile[1]),
            )
            if size % step
        ]
        inside += [f"lane < {self._used}"] if self._used < TILES else []
        table["INSIDE"] = " && ".join(inside) or "true"
        table["STORED"] = _lines(self._stored(pointers), 4)
        lines = _filled(FILTERING, table)
        return Tiled(lines, self.launched, self.shared_bytes, [ASYNC.strip()], self.resident, self.warps * 32)

    def _read(self) -> tuple[str, str]:
        """Return the statements that find a part of the taps, and those that read two rows and add them."""
        shifts = {(self._shift(part), self._window(part)) for part in range(self.parts[1])}
        pack = self.filter.outputs
        kind = f"float{pack}"
        found = []
        for shift, (begin, count) in sorted(shifts):
            body = [
                f"float first_row[{count}], second_row[{count}];",
                "#pragma unroll",
                f"for (int q = 0; q < {count}; q += {pack}) {{",
                f"    *reinterpret_cast<{kind}*>(first_row + q) =",
                f"        *reinterpret_cast<const {kind}*>(from + one * $PITCH + {begin} + q);",
                f"    *reinterpret_cast<{kind}*>(second_row + q) =",
                f"        *reinterpret_cast<const {kind}*>(from + other * $PITCH + {begin} + q);",
                "}",
                "#pragma unroll",
                f"for (int q = 0; q < {self.filter.points}; ++q)",
                f"    d[q] = fmaf(sign, second_row[q + {shift - begin}], first_row[q + {shift - begin}]);",
            ]
            found.append((shift, body))
        pitch = {"PITCH": self._pitch}
        if len(found) == 1:
            return "", _text(_lines(["{", *statements(found[0][1], 1), "}"], 2), pitch)
        lines = []
        for place, (shift, body) in enumerate(found):
            test = "" if place + 1 == len(found) else f"if (shift == {shift}) "
            lines += [f"{'else ' if place else ''}{test}{{", *statements(body, 1), "}"]
        part = f"const int across = step / {self.chunks} % {self.parts[1]};"
        shift_text = f"const int shift = ({self.of.columns.first} + across * {self.filter.taps}) & 3;"
        return _lines([part, shift_text], 1), _text(_lines(lines, 2), pitch)

    def _stored(self, pointers: Pointers) -> list[str]:
        """Return the statements that store a thread's results: side by side, in one pack where they may be."""
        group, outputs = self.of.group, self.filter.outputs
        lines, found = values(group, pointers.of, "result")
        places = {self.of.batch: f"place / {prod(self.blocks)}", self.of.filters: "n", self.of.rows.result: "line"}
        places[self.of.columns.result] = "x + o"
        used = {axis: place for axis, place in places.items() if group.index[axis].op == "index"}
        index = [*(f"const idx i{axis} = {place};" for axis, place in used.items()), "const float result = y[o];"]
        last = f"if (x + o < {self.of.columns.outputs}) " if self.of.columns.outputs % outputs else ""
        if not self._stored_in_packs:
            body = [*index, *lines, *(each.statement for each in found)]
            return ["#pragma unroll", f"for (int o = 0; o < {outputs}; ++o) {last}{{", *statements(body, 1), "}"]
        (each,) = found
        inner = [*index, *lines, f"held[o] = {each.value};", f"if (o == 0) at = {each.offset};"]
        return [
            f"float held[{outputs}];",
            "idx at = 0;",
            "#pragma unroll",
            f"for (int o = 0; o < {outputs}; ++o) {{",
            *statements(inner, 1),
            "}",
            f"*reinterpret_cast<float{outputs}*>({each.pointer} + at) = *reinterpret_cast<float{outputs}*>(held);",
        ]

    @property
    def _stored_in_packs(self) -> bool:
        """Return whether a tile's results of a row lie side by side on a multiple of their bytes."""
        outputs = self.filter.outputs
        if len(self.of.group.targets) != 1 or self.of.columns.outputs % outputs:
            return False
        (target,) = self.of.group.targets
        if target.inside is not None or target.tensor.dtype != "float32":
            return False
        place = affine(target.tensor.offset(target_index(self.of.group, target)))
        own = self.of.group.index[self.of.columns.result]
        others = [factor for term, factor in place.factors.items() if term is not own]
        plain = all(term.op == "index" for term in place.factors)
        return plain and place.factors.get(own) == 1 and all(n % outputs == 0 for n in (*others, place.constant))


def filtering_of(group: Group, tiles: Tiles | None) -> Filtering | None:
    """Return a group as minimal filtering; None where it is no convolution, or where that saves too little."""
    if tiles is None or tiles.filtering is None:
        return None
    convolution = convolution_of(group)
    if convolution is None:
        return None
    outputs, taps = tiles.filtering
    columns = convolution.columns.taps
    if taps > NARROWEST and _points(outputs, taps, columns) >= _points(outputs, NARROWEST, columns):
        return None
    made = Filtering(convolution, Filter(outputs, taps))
    shapes = [replace(made, tiles_across=across) for across in _ACROSS if across * made.filter.outputs % 4 == 0]
    best = min(shapes, key=lambda shape: shape.units)
    return best if best.gain >= LEAST_GAIN else None


def _points(outputs: int, taps: int, columns: int) -> int:
    """Return the points of all parts of so many columns of taps."""
    return Filter(outputs, taps).points * ceil(columns / taps)


def _dot(row: list[Fraction]) -> str:
    return " + ".join(f"{float(factor)!r} * g[{tap}]" for tap, factor in enumerate(row) if factor)


def _lines(lines: list[str], depth: int) -> str:
    return "\n".join(statements(lines, depth))


def _text(text: str, table: Mapping[str, object]) -> str:
    return Template(text.replace("$HEIGHTu", "${HEIGHT}u").replace("$WIDTHu", "${WIDTH}u")).substitute(
        {key: str(value) for key, value in table.items()}
    )


def _filled(text: str, table: Mapping[str, object]) -> list[str]:
    return [line for line in _text(text, table).strip("\n").split("\n") if line.strip()]
