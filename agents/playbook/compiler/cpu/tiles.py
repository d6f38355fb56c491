"""Products on the ``cpu`` target for any index maps: panels under a register-blocked micro-kernel.

As :mod:`agents.playbook.templates.cpu_gemm`, but the first factor's panels are packed through the group's index maps,
and the second's for one tile at a time, or not at all where vectors can be loaded from where it lies. Runs of terms are
added in float32 before they go to the total. Terms that are zero for a whole batch are passed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from agents.playbook.compiler.cpu.lanes import Lanes
from agents.playbook.compiler.cpu.tiling import TILE_LANES, Layout, Rectangle, Tiling
from agents.playbook.compiler.cpu.windows import passed_over
from agents.playbook.compiler.cuda.operands import inner_indices
from agents.playbook.compiler.emission import Emitter, statements
from agents.playbook.compiler.groups import Target
from agents.playbook.compiler.loops import indices
from agents.playbook.compiler.parameters import store_of, target_index
from agents.playbook.compiler.shapes_of_work import depends
from agents.playbook.compiler.tensors import Reduce
from agents.playbook.compiler.terms import Term, affine, const, number, plus, substituted, times

RUN = 256
"""Terms that are added in float32 before they go to the total; the depth of a packed panel."""

TYPES = """
typedef float vf __attribute__((vector_size($BYTES)));
typedef float vf_unaligned __attribute__((vector_size($BYTES), aligned(4), may_alias));
static inline float masked(float value, idx mask) { return from_bits(to_bits(value) & (unsigned)mask); }
template <class T> static inline T masked(T value, idx mask) { return mask ? value : (T)0; }
"""


def micro_kernels(rectangle: Rectangle, kinds: set[bool]) -> str:
    """Return the functions that add a rectangle of products to a tile's totals; ``kinds`` as :attr:`Tiling.direct`."""
    head = TYPES.strip().replace("$BYTES", str(4 * rectangle.width))
    return "\n".join([head, *(_micro_kernel(rectangle, direct=kind) for kind in sorted(kinds))])


def _micro_kernel(rectangle: Rectangle, *, direct: bool) -> str:
    rows, vectors, width = range(rectangle.rows), range(rectangle.vectors), rectangle.width
    places = [f"b{v} + offsets[k]" if direct else f"b + (k * {rectangle.vectors} + {v}) * {width}" for v in vectors]
    step = [f"const vf v{v} = *(const vf_unaligned*)({place});" for v, place in enumerate(places)]
    for r in rows:
        terms = " ".join(f"c{r}_{v} += a{r} * v{v};" for v in vectors)
        step.append(f"const float a{r} = a[k * {rectangle.rows} + {r}]; {terms}")
    totals = [(f"*(vf_unaligned*)(to + {r * TILE_LANES + v * width})", f"c{r}_{v}") for r in rows for v in vectors]
    body = [
        *(f"vf {', '.join(f'c{r}_{v} = {{}}' for v in vectors)};" for r in rows),
        "for (int k = 0; k < depth; ++k) {",
        *statements(step, 1),
        "}",
        "if (first) {",
        *statements([f"{place} = {value};" for place, value in totals], 1),
        "} else {",
        *statements([f"{place} += {value};" for place, value in totals], 1),
        "}",
    ]
    second = ", ".join(f"const float* b{v}" for v in vectors) + ", const idx* offsets" if direct else "const float* b"
    head = f"static void {_name(direct)}(const float* a, {second}, int depth, float* to, bool first) {{"
    return "\n".join([head, *statements(body, 1), "}"])


def _name(direct: bool) -> str:
    return "multiply_windows" if direct else "multiply"


def tiles(tiling: Tiling, base: int) -> list[str]:
    """Return the statements of a group; the first factor's panels lie at byte ``base`` of the workspace."""
    return _Tiles(tiling).lines(base)


@dataclass(frozen=True)
class _Tiles:
    tiling: Tiling

    def __post_init__(self) -> None:
        self.results.even_roots(range(1, 3 * len(self.tiling.group.targets), 3))

    @property
    def reduction(self) -> Reduce:
        source = self.tiling.group.source
        assert isinstance(source, Reduce)
        return source

    @cached_property
    def passed(self) -> list[Term]:
        """Conditions of terms that are not passed over."""
        return passed_over(self.tiling.group, self.tiling.product)

    def _lanes(self, factor: Term, axes: list[int], width: int, prefix: str) -> Lanes:
        along = tuple(self.tiling.group.index[axis] for axis in axes)
        (factor,) = substituted([factor], {part: const(True, "bool") for part in self.passed})
        return Lanes(frozenset(along), along[-1], [factor], width, self.tiling.pointers.of, prefix)

    @cached_property
    def second(self) -> Lanes:
        """The second factor, for a vector of lanes."""
        product = self.tiling.product
        return self._lanes(product.second, product.columns, self.tiling.rectangle.width, "b")

    @cached_property
    def results(self) -> Lanes:
        """Values, offsets and conditions of all targets, for lanes of results."""
        group = self.tiling.group
        assert group.accumulated is not None
        along = tuple(group.index[axis] for axis in self.tiling.product.columns)
        roots: list[Term] = []
        for target in group.targets:
            inside = self._row_inside(target)
            roots += [target.value, target.tensor.offset(target_index(group, target))]
            roots += [const(True, "bool") if inside is None else inside]
        names = {group.accumulated: f"total[row * {TILE_LANES} + start[g] + l]"}
        width, pointer = self.tiling.rectangle.width, self.tiling.pointers.of
        return Lanes(frozenset(along), along[-1], roots, width, pointer, "s", names)

    def _row_inside(self, target: Target) -> Term | None:
        """Return the condition under which a result is stored, where it differs from row to row."""
        rows = [self.tiling.group.index[axis] for axis in self.tiling.product.rows]
        inside = target.inside
        return inside if inside is not None and any(depends(inside, row) for row in rows) else None

    def lines(self, base: int) -> list[str]:
        offsets = [f"idx* const offsets = (idx*)(arena + {base + 4 * self.tiling.packed}LL);"]
        return [
            f"float* const packed = (float*)(arena + {base}LL);",
            *(offsets if self.tiling.direct else []),
            *self._first_packed(),
            *self._tiles(),
        ]

    def _listed(self) -> list[str]:
        """Return the statements that list the terms that are not passed over, and count them."""
        if not self.passed:
            return [f"const int count = {self.tiling.depth};"]
        emitter = Emitter({}, self.tiling.pointers.of, "c")
        conditions = emitter.emit(*self.passed)
        inside = [
            *inner_indices(self.tiling.group, self.reduction),
            *emitter.lines,
            f"if ({' && '.join(conditions)}) list[count++] = r;",
        ]
        loop = [f"for (int r = 0; r < {self.tiling.depth}; ++r) {{", *statements(inside, 1), "}"]
        return [f"int list[{self.tiling.depth}], count = 0;", *loop]

    def _term(self, place: str) -> list[str]:
        """Return the statements that find the indices of a term."""
        inner = inner_indices(self.tiling.group, self.reduction)
        return [f"const int r = {f'list[{place}]' if self.passed else place};", *inner]

    def _first_packed(self) -> list[str]:
        """Return the loop that packs all panels of the first factor."""
        tiling, group, product = self.tiling, self.tiling.group, self.tiling.product
        rows, panels = tiling.rectangle.rows, tiling.panels
        lanes = self._lanes(product.first, product.rows, rows, "a")
        batches, height, _ = product.sizes(group)
        parts = -(-tiling.depth // RUN)
        inside = [
            *self._term("k"),
            *lanes.around(),
            *lanes.vector("0", lambda texts: [f"to[k * {rows} + l] = {texts[0]};"]),
            *(self._offsets(f"t / {parts * panels}") if tiling.direct else []),
        ]
        own = f"const idx own = panel * {rows} + l, m = own < {height} ? own : {height - 1};"
        lines = [
            f"const int panel = (int)(t / {parts} % {panels}), part = (int)(t % {parts});",
            *indices(group, f"(t / {parts * panels})", product.batch),
            *self._listed(),
            *lanes.arrays(rows),
            *lanes.flags(rows),
            f"for (int l = 0; l < {rows}; ++l) {{",
            *statements([own, *indices(group, "m", product.rows), *lanes.filled("l")], 1),
            "}",
            *lanes.compared("0", str(rows)),
            f"float* const to = packed + (t / {parts}) * {rows * tiling.depth}LL;",
            f"const int end = (part + 1) * {RUN} < count ? (part + 1) * {RUN} : count;",
            f"for (int k = part * {RUN}; k < end; ++k) {{",
            *statements(inside, 1),
            "}",
        ]
        return _loop("static", batches * panels * parts, lines)

    def _offsets(self, batch: str) -> list[str]:
        """Return the statements that keep how far a term of the second factor lies from the first one."""
        lanes = {self.tiling.group.index[axis] for axis in self.tiling.product.columns}
        form = affine(self.tiling.second_offset)
        rest = number(form.constant)
        for base, factor in form.factors.items():
            rest = rest if base in lanes else plus(rest, times(base, factor))
        emitter = Emitter({}, self.tiling.pointers.of, "d")
        (offset,) = emitter.emit(rest)
        return [*emitter.lines, f"if (panel == 0) offsets[{batch} * {self.tiling.depth}LL + k] = {offset};"]

    def _tiles(self) -> list[str]:
        """Return the loop over tiles."""
        tiling, group, product = self.tiling, self.tiling.group, self.tiling.product
        width, vectors = tiling.rectangle.width, tiling.rectangle.vectors
        across = vectors * width
        batches, height, _ = product.sizes(group)
        rows, lanes = tiling.tile()
        total = tiling.layout.lanes
        down, beside = -(-height // rows), -(-total // lanes)
        lines = [
            f"const idx n0 = (idx)(t % {beside}) * {lanes}, m0 = (idx)(t / {beside} % {down}) * {rows};",
            f"const long long o = t / {beside * down};",
            f"const int rows = {height} - m0 < {rows} ? (int)({height} - m0) : {rows};",
            f"const int beside = {total} - n0 < {lanes} ? (int)({total} - n0) : {lanes};",
            f"const int vectors = (beside + {across - 1}) / {across} * {vectors};",
            *indices(group, "o", product.batch),
            *self._lanes_found(lanes),
            *self._listed(),
            f"alignas(64) float total[{rows * TILE_LANES}];",
            *(self._from_windows() if tiling.direct else self._from_panels(lanes)),
            *([f"if (count == 0) for (int e = 0; e < {rows * TILE_LANES}; ++e) total[e] = 0;"] if self.passed else []),
            "for (int row = 0; row < rows; ++row) {",
            *statements(self._stored(), 1),
            "}",
        ]
        return _loop("dynamic", batches * down * beside, lines)

    def _from_panels(self, lanes: int) -> list[str]:
        """Return the statements that pack a tile's panels of the second factor and multiply them."""
        rectangle, depth = self.tiling.rectangle, self.tiling.depth
        rows, width, vectors = rectangle.rows, rectangle.width, rectangle.vectors
        pack = [
            *self._term("(k0 + k)"),
            *self.second.around(),
            "for (int v = 0; v < vectors; ++v) {",
            f"    float* const to = panels + ((v / {vectors} * {RUN} + k) * {vectors} + v % {vectors}) * {width};",
            *statements(self.second.vector("v", lambda texts: [f"to[l] = {texts[0]};"]), 1),
            "}",
        ]
        panel = f"packed + (o * {self.tiling.panels} + (m0 + m) / {rows}) * {rows * depth}LL + k0 * {rows}"
        to = f"total + m * {TILE_LANES} + p * {vectors * width}"
        return [
            f"alignas(64) float panels[{RUN * lanes}];",
            f"for (int k0 = 0; k0 < count; k0 += {RUN}) {{",
            f"    const int depth = count - k0 < {RUN} ? count - k0 : {RUN};",
            "    for (int k = 0; k < depth; ++k) {",
            *statements(pack, 2),
            "    }",
            f"    for (int p = 0; p < vectors / {vectors}; ++p)",
            f"        for (int m = 0; m < rows; m += {rows})",
            f"            multiply({panel}, panels + p * {RUN * vectors * width}, depth, {to}, k0 == 0);",
            "}",
        ]

    def _from_windows(self) -> list[str]:
        """Return the statements that multiply vectors from where the second factor lies."""
        rectangle, depth = self.tiling.rectangle, self.tiling.depth
        rows, vectors = rectangle.rows, rectangle.vectors
        panel = f"packed + (o * {self.tiling.panels} + (m0 + m) / {rows}) * {rows * depth}LL + k0 * {rows}"
        source = self.tiling.pointers.of(self.tiling.product.second.data)
        second = ", ".join(f"{source} + first[p * {vectors} + {v}]" for v in range(vectors))
        to = f"total + m * {TILE_LANES} + p * {vectors * rectangle.width}"
        return [
            f"for (int k0 = 0; k0 < count; k0 += {RUN}) {{",
            f"    const int depth = count - k0 < {RUN} ? count - k0 : {RUN};",
            f"    const idx* const at = offsets + o * {depth}LL + k0;",
            f"    for (int p = 0; p < vectors / {vectors}; ++p)",
            f"        for (int m = 0; m < rows; m += {rows})",
            f"            multiply_windows({panel}, {second}, at, depth, {to}, k0 == 0);",
            "}",
        ]

    def _lanes_found(self, lanes: int) -> list[str]:
        """Return the statements that find what a tile's lanes need, and the runs of results that lie evenly."""
        layout, width, direct = self.tiling.layout, self.tiling.rectangle.width, self.tiling.direct
        within = {"run": layout.runs, "line": layout.rows, "at": layout.last}
        kept = [
            *_place("n0 + l", layout),
            f"is_result[l] = {' && '.join(f'{name} < {size}' for name, size in within.items())};",
            *(f"const idx {name}_in = {name} < {size} ? {name} : {size - 1};" for name, size in within.items()),
            *self._column("run_in", "line_in", "at_in"),
            *self._inside(),
            *([] if direct else self.second.filled("l")),
            *self.results.filled("l"),
        ]
        runs = [
            f"if (is_result[l] && l > 0 && is_result[l - 1] && {self.results.continues('l')}) {{",
            "    ++length[runs - 1];",
            "} else if (is_result[l]) {",
            "    start[runs] = l;",
            "    length[runs++] = 1;",
            "}",
            *([] if direct else [f"valid[l / {width}] += is_result[l];"]),
        ]
        arrays = [
            f"bool is_result[{lanes}];",
            f"int start[{lanes}], length[{lanes}], runs = 0;",
            *self.results.arrays(lanes),
        ]
        if direct:
            vectors, arrays = self._first_of_vector(), [*arrays, f"idx first[{lanes // width}];"]
        else:
            vectors = self.second.compared("v", "valid[v]")
            counts = f"int valid[{lanes // width}] = {{}};"
            arrays = [*arrays, counts, *self.second.arrays(lanes), *self.second.flags(lanes)]
        each = f"for (int l = 0; l < vectors * {width}; ++l) {{"
        return [
            *arrays,
            "#pragma omp simd",
            *(each, *statements(kept, 1), "}"),
            *(each, *statements(runs, 1), "}"),
            *(["for (int v = 0; v < vectors; ++v) {", *statements(vectors, 1), "}"] if vectors else []),
        ]

    def _inside(self) -> list[str]:
        """Return the statements that take a lane for no result where nothing is stored in any row."""
        inside = self.tiling.group.targets[0].inside
        if inside is None or self._row_inside(self.tiling.group.targets[0]) is not None:
            return []
        emitter = Emitter({}, self.tiling.pointers.of, "e")
        (text,) = emitter.emit(inside)
        return [*emitter.lines, f"is_result[l] &= {text};"]

    def _column(self, run: str, line: str, at: str) -> list[str]:
        """Return the statements that find the indices of a lane's column."""
        group, axes, layout = self.tiling.group, self.tiling.product.columns, self.tiling.layout
        if layout.runs * layout.rows == 1 and len(axes) > 1:
            return indices(group, at, axes)
        outer = f"({run} * {layout.rows} + {line})" if layout.rows > 1 else run
        return [*indices(group, outer, axes[:-1]), f"const idx i{axes[-1]} = {at};"]

    def _first_of_vector(self) -> list[str]:
        """Return the statements that keep where a vector begins, which may lie between two rows."""
        layout = self.tiling.layout
        lanes = {self.tiling.group.index[axis] for axis in self.tiling.product.columns}
        offset = number(0)
        for base, factor in affine(self.tiling.second_offset).factors.items():
            offset = plus(offset, times(base, factor)) if base in lanes else offset
        emitter = Emitter({}, self.tiling.pointers.of, "f")
        (text,) = emitter.emit(offset)
        keep = f"first[v] = run < {layout.runs} ? {text} : 0;"
        place = _place(f"n0 + v * {layout.width}", layout)
        return [*place, *self._column("run", "line", "at"), *emitter.lines, keep]

    def _stored(self) -> list[str]:
        """Return the statements that store a row of a tile's results."""
        group, product, pointers = self.tiling.group, self.tiling.product, self.tiling.pointers

        def body(texts: list[str]) -> list[str]:
            lines = []
            for place, target in enumerate(group.targets):
                value, offset, inside = texts[3 * place : 3 * place + 3]
                store = store_of(target, pointers.of, offset, value)
                lines.append(store if self._row_inside(target) is None else f"if ({inside}) {store}")
            return lines

        around = ["const idx m = m0 + row;", *indices(group, "m", product.rows), *self.results.around()]
        run = self.results.run("start[g]", "length[g]", body)
        return [*around, "for (int g = 0; g < runs; ++g) {", *statements(run, 1), "}"]


def _place(lane: str, layout: Layout) -> list[str]:
    """Return the statements that find a lane's run, its row and its place there."""
    first = f"const idx lane = {lane}, run = lane / {layout.run}, in = lane % {layout.run};"
    row = f"line = in / {layout.pitch}, at = in % {layout.pitch}" if layout.rows > 1 else "line = 0, at = in"
    return [first, f"const idx {row};"]


def _loop(schedule: str, count: int, lines: list[str]) -> list[str]:
    head = [f"#pragma omp parallel for schedule({schedule})", f"for (long long t = 0; t < {count}; ++t) {{"]
    return [*head, *statements(lines, 1), "}"]
