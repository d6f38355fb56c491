"""The inside of a CUDA kernel for rows: the passes over a row as C++ statements, for every way of sharing rows.

A :class:`Sharing` says which threads share a row and where the row's values live between passes; this module turns the
passes of :mod:`agents.playbook.templates.passes` into loops for it. Kernels around the body: ``cuda_rows`` and
``cuda_split``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agents.playbook.expressions import Expr
from agents.playbook.operators import Operand, Rows, kept_value, moments_pair, softmax_pair
from agents.playbook.templates.cuda_packs import lanes
from agents.playbook.templates.passes import Layout, Pass, lay_out
from agents.playbook.templates.source import Options

LONG_CHAIN = 128
"""Additions in one float32 chain beyond which a thread's sum is kept in two levels."""


@dataclass(frozen=True)
class Sharing:
    """A way in which the threads of a kernel share rows."""

    contiguous: bool
    """True if neighbouring threads have neighbours of one row, else neighbouring columns."""
    group: int
    """Rows that one thread works on at a time."""
    storage: str
    """Place of values between passes: ``memory``, ``registers``, ``shared``, or pieces in a ``ring``."""
    reduce: str
    """Function that combines an accumulator over the threads of a row."""
    step: str
    """Threads that share a row, as C++ text."""
    unroll: int = 1
    chain: int = 1
    """Elements that one thread may have to add up."""
    first: str = "0"
    last: str = "K_LENGTH"

    @property
    def suffix(self) -> str:
        """Return the suffix of the name of a row's value."""
        return "[n]" if self.group > 1 else ""


@dataclass(frozen=True)
class Statistic:
    """One accumulator of a pass: how values get in, and the results that come out."""

    name: str
    kind: str
    add: tuple[str, ...]
    results: tuple[tuple[str, str], ...]
    """Name and text, ``$A`` being the combined accumulator."""


@dataclass(frozen=True)
class Body:
    """A row operator's passes as C++ text."""

    operator: Rows
    options: Options
    sharing: Sharing
    layout: Layout
    keep: Expr | None

    @property
    def single(self) -> str | None:
        """The accumulator that makes both statistics in one pass, where the strategy asks for one."""
        if "online_softmax" in self.options and softmax_pair(self.operator):
            return "Online"
        if "one_pass_moments" in self.options and moments_pair(self.operator):
            welford = self.options.text("one_pass_moments", "method") == "welford"
            return "Moments" if welford else "WideMoments"
        return None

    @property
    def by_packs(self) -> bool:
        """True if the accumulator takes the elements of a pack together, as ``values``."""
        return self.single == "Online" or (self.single == "Moments" and self.sharing.storage == "ring")

    def statistics(self) -> list[tuple[Pass, list[Statistic]]]:
        """Return the reducing passes with their accumulators."""
        passes = [item for item in self.layout.passes if item.reductions]
        if self.single == "Online":
            results = (("m0", "$A.top"), ("m1", "$A.sum"))
            return [(passes[0], [Statistic("both", "Online", ("both$N.add(values);",), results)])]
        if self.single == "Moments":
            results = (("m0", "$A.mean * K_LENGTH"), ("m1", "$A.squares"))
            one = "both$N.add(values);" if self.by_packs else f"both$N.add({passes[0].values[0]}, {self.index});"
            return [(passes[0], [Statistic("both", "Moments", (one,), results)])]
        if self.single:
            results = (("m0", "(float)$A.total"), ("m1", "$A.deviations(K_LENGTH)"))
            add = (f"both$N.add({passes[0].values[0]}, {self.index});",)
            return [(passes[0], [Statistic("both", self.single, add, results)])]
        count, statistics = 0, []
        for item in passes:
            made = []
            for node, value in zip(item.reductions, item.values, strict=True):
                text = "kept" if self._stores(item) else value
                name = f"m{count}"
                kind = "LongSum" if node.name == "Sum" and self.sharing.chain > LONG_CHAIN else node.name
                add = (f"{name}_sum$N.add({text}, {self.index});",)
                made.append(Statistic(f"{name}_sum", kind, add, ((name, "$A.value()"),)))
                count += 1
            statistics.append((item, made))
        return statistics

    def skipped(self) -> list[str]:
        """Return values of the row that belong before passes which a one-pass statistic has made needless."""
        passes = [item for item in self.layout.passes if item.reductions]
        return [line for item in passes[1:] for line in self.row_values(item.before)] if self.single else []

    def accumulators(self) -> list[str]:
        """Return names of the accumulator types that the body uses."""
        kinds = {item.kind for _, group in self.statistics() for item in group}
        return [*sorted(kinds), *sorted({self._gathered(kind) for kind in kinds} - kinds)]

    @property
    def index(self) -> str:
        """Position of an element in its row."""
        return "i + k" if self.sharing.contiguous else "l"

    def _stores(self, item: Pass) -> bool:
        if self.keep is None or self.sharing.storage == "memory" or self.single:
            return False
        return item is [entry for entry in self.layout.passes if entry.reductions][-1]

    def loading(self) -> list[str]:
        """Return statements that bring the row's values to where they stay between the passes."""
        if self.sharing.storage == "memory":
            return []
        lines = []
        if self.sharing.storage == "registers":
            dimension = f"[{self.sharing.group}]" if self.sharing.group > 1 and self.sharing.contiguous else ""
            lines += [f"Pack x_{name}{dimension}[K_ITEMS];  // register_rows" for name in self.operator.elements]
        inner = []
        for name in self.operator.elements:
            target = self._place(name)
            inner.append(f"{target} = load_pack({self._address(name)});")
        return [*lines, *self._loop(self._rows_of_pack(inner), self.sharing.storage == "registers")]

    def pass_lines(self, item: Pass, statistics: list[Statistic]) -> list[str]:
        """Return a reducing pass: accumulators, loop, and the statement that combines them."""
        inner = self.pass_body(item, statistics)
        return [*self.declarations(item, statistics), *self._loop(inner, self.sharing.storage == "registers")]

    def declarations(self, item: Pass, statistics: list[Statistic]) -> list[str]:
        """Return the row's values and the accumulators of a reducing pass."""
        return [*self.row_values(item.before), *(self._declare(entry.kind, entry.name) for entry in statistics)]

    def pass_body(self, item: Pass, statistics: list[Statistic]) -> list[str]:
        """Return the statements of a reducing pass for one pack."""
        if self.by_packs:
            return self._whole_packs(item)
        values = list(item.lines)
        if self._stores(item):
            values.append(f"const float kept = {item.values[0]};")
            values.append(f"{self._place(self.operator.elements[0])}.v[{self._lane}] = kept;")
        adds = [line for entry in statistics for line in entry.add]
        return self._element_loop(item.inputs, [*values, *adds])

    def combine(self, statistics: list[Statistic]) -> list[str]:
        """Return statements that combine each accumulator over the threads of a row, and the values that result."""
        lines: list[str] = []
        for entry in statistics:
            function = self.sharing.reduce.replace("$CALL", re.sub(r"\D", "", entry.name) or "0")
            lines += self.named(entry, f"{function}({entry.name}{self.sharing.suffix})")
        return lines

    def named(self, entry: Statistic, combined: str) -> list[str]:
        """Return the results of a combined accumulator, under their names."""
        if self.sharing.group == 1:
            return [
                f"const {entry.kind} all_{entry.name} = {combined};",
                *(f"const auto {name} = {text.replace('$A', f'all_{entry.name}')};" for name, text in entry.results),
            ]
        kind = "long long" if entry.kind.startswith("Arg") else "float"
        declared = ", ".join(f"{name}[{self.sharing.group}]" for name, _ in entry.results)
        inner = [f"const {entry.kind} all = {combined};"]
        inner += [f"{name}[n] = {text.replace('$A', 'all')};" for name, text in entry.results]
        return [f"{kind} {declared};", *self._for_rows(inner)]

    def row_values(self, values: tuple[tuple[str, str], ...]) -> list[str]:
        """Return statements for values of a row."""
        lines: list[str] = []
        for name, text in values:
            if self.sharing.group == 1:
                lines.append(f"const auto {name} = {text};")
            else:
                lines += [f"float {name}[{self.sharing.group}];", *self._for_rows([f"{name}[n] = {text};"])]
        return lines

    def map_lines(self) -> list[str]:
        """Return the last pass, which writes an element-wise result."""
        before = self.row_values(self.layout.passes[-1].before)
        return [*before, *self._loop(self.map_body(), self.sharing.storage == "registers")]

    def map_body(self) -> list[str]:
        """Return the statements of the last pass for one pack."""
        item = self.layout.passes[-1]
        inner = [*item.lines, f"result.v[{self._lane}] = {item.values[0]};"]
        return self._element_loop(item.inputs, inner, result=self.operator.outputs[0][0])

    def single_value(self, name: str) -> str:
        """Return the text of an input's element ``i``, where the row's own elements have been read one by one."""
        if name in self.operator.columns:
            return f"p_{name}[i]"
        for item in self.operator.spread:
            if item.name == name:
                return f"p_{name}[{self._spread(item)}]"
        return f"edge_{name}"

    @property
    def _lane(self) -> str:
        return "k" if self.sharing.contiguous else ("n" if self.sharing.group > 1 else "0")

    def _gathered(self, kind: str) -> str:
        """Return the accumulator in which a thread gathers what becomes one of this kind."""
        return "ShortMoments" if kind == "Moments" and self.by_packs else kind

    def _declare(self, kind: str, name: str) -> str:
        kind = self._gathered(kind)
        return f"{kind} {name}[{self.sharing.group}];" if self.sharing.group > 1 else f"{kind} {name};"

    def _for_rows(self, lines: list[str]) -> list[str]:
        if self.sharing.group == 1:
            return lines
        head = f"for (int n = 0; n < {self.sharing.group}; ++n) {{"
        return ["#pragma unroll", head, *indented(lines), "}"]

    def _rows_of_pack(self, lines: list[str]) -> list[str]:
        """Return statements for each pack.

        With contiguous rows one pack a row of the group, else one for all of them.
        """
        return self._for_rows(lines) if self.sharing.contiguous else lines

    def _spread(self, item: Operand, more: str = "") -> str:
        """Return the place that element ``i`` of a row reads of an input that repeats in another way."""
        place = f"at + i{more}"
        return f"{f'(unsigned int)({place})' if self.operator.size < 2**32 else f'({place})'} / {item.div} % {item.mod}"

    def _address(self, name: str) -> str:
        if self.sharing.storage == "ring":
            return f"piece_{self.operator.elements[0]} + q * K_VEC"
        if not self.sharing.contiguous:
            return f"p_{name} + at + (long long)l * K_INNER"
        return f"p_{name} + at + i" + (" + n * K_LENGTH" if self.sharing.group > 1 else "")

    def _place(self, name: str) -> str:
        if self.sharing.storage == "registers":
            row = "[n]" if self.sharing.group > 1 and self.sharing.contiguous else ""
            return f"x_{name}{row}[item]"
        offset = self.operator.elements.index(name)
        start = f"{offset} * K_STAGED + " if offset else ""
        index = "i" if self.sharing.first == "0" else f"i - {self.sharing.first}"
        return f"staged_pack({start}{index})"

    def _element_loop(self, inputs: tuple[str, ...], lines: list[str], result: str | None = None) -> list[str]:
        """Return the statements for every element of a pack; packs are loaded first, and a result pack stored last."""
        loads, values = [], []
        for name in inputs:
            load, value = self._input(name)
            loads += load
            values.append(f"const float v_{name} = {value};")
        inner = [*values, *(line.replace("$N", self.sharing.suffix) for line in lines)]
        if self.sharing.contiguous:
            loop = ["#pragma unroll", "for (int k = 0; k < K_VEC; ++k) {", *indented(inner), "}"]
            if result is None:
                return self._for_rows([*loads, *loop])
            return self._for_rows([*loads, "Pack result;", *loop, f"store_pack({self._address(result)}, result);"])
        loop = self._for_rows(inner) if self.sharing.group > 1 else ["{", *indented(inner), "}"]
        if result is None:
            return [*loads, *loop]
        return [*loads, "Pack result;", *loop, f"store_pack({self._address(result)}, result);"]

    def _input(self, name: str) -> tuple[list[str], str]:
        """Return how an input's value is read: statements for the pack, and the text of one element."""
        if name in self.operator.columns:
            if not self.sharing.contiguous:
                return [f"const float w_{name} = p_{name}[l];"], f"w_{name}"
            if self.sharing.storage == "ring" and self.operator.length % lanes(self.operator, self.options):
                return [], f"p_{name}[i + k]"
            return [f"const Pack a_{name} = load_pack(p_{name} + i);"], f"a_{name}.v[k]"
        for item in self.operator.spread:
            if item.name == name:
                row = " + n * K_LENGTH" if self.sharing.group > 1 else ""
                width = lanes(self.operator, self.options)
                if item.div % width == 0 and self.operator.length % width == 0:
                    return [f"const float w_{name} = p_{name}[{self._spread(item, row)}];"], f"w_{name}"
                return [], f"p_{name}[{self._spread(item, ' + k' + row)}]"
        if self.sharing.storage == "ring":
            return [f"const Pack a_{name} = load_pack(piece_{name} + q * K_VEC);"], f"a_{name}.v[k]"
        if self.sharing.storage == "registers":
            return [], f"{self._place(name)}.v[{self._lane}]"
        if self.sharing.storage == "shared":
            return [f"const Pack a_{name} = {self._place(name)};"], f"a_{name}.v[{self._lane}]"
        return [f"const Pack a_{name} = load_pack({self._address(name)});"], f"a_{name}.v[{self._lane}]"

    def _whole_packs(self, item: Pass) -> list[str]:
        if self.sharing.contiguous:
            fill_in = self._element_loop(item.inputs, [*item.lines, f"values[k] = {item.values[0]};"])
            if self.sharing.group == 1:
                return ["float values[K_VEC];", *fill_in, "both.add(values);"]
            # inside the loop over rows: the pack of one row at a time
            head, body, tail = fill_in[:2], fill_in[2:-1], fill_in[-1]
            return [*head, "    float values[K_VEC];", *body, "    both[n].add(values);", tail]
        add = f"both{self.sharing.suffix}.add(values);"
        return self._element_loop(item.inputs, [*item.lines, f"const float values[1] = {{{item.values[0]}}};", add])

    def _loop(self, lines: list[str], in_registers: bool) -> list[str]:
        """Return the loop over a thread's share of a row."""
        first, last, step = self.sharing.first, self.sharing.last, self.sharing.step
        own = "lane * K_VEC" if self.sharing.contiguous else "slice"
        name = "i" if self.sharing.contiguous else "l"
        width = " * K_VEC" if self.sharing.contiguous else ""
        begin = own if first == "0" else f"{first} + {own}"
        if in_registers:
            start = "" if first == "0" else f"{first} + "
            index = f"const int {name} = {start}(item * {step} + lane) * K_VEC;"
            if not self.sharing.contiguous:
                index = f"const int {name} = item * {step} + slice;"
            whole = self.sharing.contiguous and first == "0"
            exact = f"{last} % ({step}{width}) == 0 || " if whole else ""
            guard = [index, f"if ({exact}{name} < {last}) {{", *indented(lines), "}"]
            return ["#pragma unroll", "for (int item = 0; item < K_ITEMS; ++item) {", *indented(guard), "}"]
        pragma = [f"#pragma unroll {self.sharing.unroll}"] if self.sharing.unroll > 1 else []
        head = f"for (int {name} = {begin}; {name} < {last}; {name} += {step}{width}) {{"
        return [*pragma, head, *indented(lines), "}"]


def indented(lines: list[str]) -> list[str]:
    """Return the lines four columns further right."""
    return [f"    {line}" for line in lines]


def body(operator: Rows, options: Options, sharing: Sharing) -> Body:
    """Return the body of an operator for a way of sharing rows."""
    keep = kept_value(operator) if sharing.storage in ("registers", "shared") else None
    single = ("online_softmax" in options and softmax_pair(operator)) or (
        "one_pass_moments" in options and moments_pair(operator)
    )
    keep = None if single else keep
    return Body(operator, options, sharing, lay_out(operator, keep=keep, suffix=sharing.suffix), keep)
