"""Several reductions of each row, and maps over its elements, in one launch on the ``cuda`` target.

Threads of a warp, or a block, take a row. They read its elements once, as packs where these lie side by side, and hold
them in registers; each level of reductions is computed from what is held, and its totals are joined by shuffles within
a warp, and through shared memory between the warps of a block. Values that levels and maps share are held too.
"""

from __future__ import annotations

from math import prod

from agents.playbook.compiler.accumulators import Accumulator
from agents.playbook.compiler.cuda.packs import EACH, FIRST, each_item, each_pack, fetched
from agents.playbook.compiler.cuda.row_layouts import BLOCK, Layout
from agents.playbook.compiler.cuda.rows import RUN, WARP
from agents.playbook.compiler.emission import TYPES, Emitter, statements
from agents.playbook.compiler.fused import FusedRows, Step
from agents.playbook.compiler.groups import Target
from agents.playbook.compiler.loops import indices
from agents.playbook.compiler.packs import joined
from agents.playbook.compiler.parameters import Pointers, store, unrounded
from agents.playbook.compiler.shapes_of_work import counted, depends
from agents.playbook.compiler.terms import COMPARISONS, FLOATS, Term, const, make, rewritten
from agents.playbook.ordering import walk

KEPT_ITEMS = 64
"""Values that threads keep for later levels, beyond the elements that they hold."""
LEAST_KEPT = 3
"""Operations of a value from which on keeping it is cheaper than computing it again."""
_STEPS = ("round", "fn_round", "fn_floor", "fn_ceil", "fn_trunc", "fn_fmod", *COMPARISONS)
"""Operations whose result may change much with the last bit of an operand."""


def with_inverses(roots: list[Term], column: Term) -> list[Term]:
    """Return terms that multiply with the inverse of what is the same for a row, in place of dividing by it.

    Both sides are scaled first where the inverse would be no normal number. Quotients that a step function is applied
    to are rounded right.
    """
    steps = [term for term in walk(roots) if term.op in _STEPS or (term.op == "cast" and term.dtype not in FLOATS)]
    exact = set(walk(steps))

    def change(term: Term, args: tuple[Term, ...]) -> Term | None:
        if term.op != "div" or term.dtype != "float32":
            return None
        above, below = args
        if below.op == "const" or depends(below, column) or not depends(above, column):
            return None
        factor = make("fn_rescale", "float32", below)
        above, below = (make("mul", "float32", side, factor) for side in args)
        inverse = make("div", "float32", const(1, "float32"), below)
        if term in exact:
            return make("fn_ratio", "float32", above, below, inverse)
        return make("mul", "float32", above, inverse)

    return rewritten(roots, change)


class RowBlocks:
    """The statements of a block in the making, with the names of what is known so far."""

    def __init__(self, group: FusedRows, pointers: Pointers) -> None:
        layout = Layout(group)
        self.group, self.pointers, self.packs = group, pointers, layout.packs
        self.lanes, self.flight, self.is_held = layout.lanes, layout.flight, layout.is_held
        self.held, self.columns = layout.held, layout.columns and layout.lanes > 1
        self.rows, self.each = prod(self.group.shape), BLOCK // layout.lanes
        self.even = self.rows % self.each == 0
        self.names: dict[Term, str] = {}
        self.shared: list[str] = []
        self.kept = 0
        steps = [step for level in group.levels for step in level]
        roots = [*(step.argument for step in steps), *(unrounded(each.value, each.tensor) for each in group.maps)]
        terms = self.packs.unguarded(with_inverses(roots, group.column))
        in_float = self.flight * self.packs.width <= RUN and self.is_held
        runs = [_Run(step, term, at, in_float) for at, (step, term) in enumerate(zip(steps, terms, strict=False))]
        self.levels = [[run for run in runs if run.step in level] for level in group.levels]
        self.maps = terms[len(steps) :]

    def lines(self) -> tuple[list[str], int]:
        """Return the statements of a block, and how many blocks there are."""
        fetch = self._fetched() if self.is_held else []
        early = self._early()
        levels = [line for at in range(len(self.levels)) for line in self._level(at)]
        maps = self._maps() if self.maps else []
        if maps and not self.even:
            maps = [f"if (row < {self.rows}) {{", *statements(maps, 1), "}"]
        results = self._results()
        return [*self._begin(), *self.shared, *fetch, *early, *levels, *results, *maps], -(-self.rows // self.each)

    def _begin(self) -> list[str]:
        lanes, each = self.lanes, self.each
        own = f"threadIdx.x % {WARP}" if self.columns else f"threadIdx.x / {lanes}"
        row = "blockIdx.x" if each == 1 else f"(long long)blockIdx.x * {each} + {own}"
        first = [] if self.even else [f"const long long row = {row};"]
        row = row if self.even else f"row < {self.rows} ? row : {self.rows - 1}"
        found = indices(self.group, "o", list(range(len(self.group.shape))))
        place = "(int)threadIdx.x" if lanes == BLOCK else f"(int)threadIdx.x % {lanes}"
        place = f"(int)threadIdx.x / {WARP}" if self.columns else place
        return [*first, *([f"const idx o = (idx)({row});", *found] if found else []), f"const int lane = {place};"]

    @property
    def _is_writer(self) -> str:
        return "lane == 0" if self.even else f"lane == 0 && row < {self.rows}"

    def _early(self) -> list[str]:
        """Return the statements by which the thread that writes results loads what they need from elsewhere."""
        found, stack, seen = list[Term](), [target.value for target in self.group.results], set[Term]()
        while stack:
            term = stack.pop()
            parts = walk([term])
            if term in seen or all(part.op != "load" for part in parts):
                continue
            seen.add(term)
            if all(part.op != "accumulated" for part in parts) and term.dtype != "index":
                found.append(term)
            else:
                stack.extend(term.args)
        if not found:
            return []
        emitter = Emitter({}, self.pointers.of, "e")
        texts = emitter.emit(*found)
        names = {term: f"early{place}" for place, term in enumerate(found)}
        self.names |= names
        take = [f"{name} = {text};" for name, text in zip(names.values(), texts, strict=True)]
        return [
            *(f"{TYPES[term.dtype]} {name} = 0;" for term, name in names.items()),
            f"if ({self._is_writer}) {{",
            *statements([*emitter.lines, *take], 1),
            "}",
        ]

    def _fetched(self) -> list[str]:
        inputs = fetched(self.packs, self.held, self.flight, self.pointers.of, prefix="all_")
        self.names |= inputs.names
        return [*inputs.declared, *self._each_pack(inputs.lines)]

    def _each_pack(self, body: list[str]) -> list[str]:
        if not body:
            return []
        step = self.lanes * self.packs.width
        base = f"lane * {self.packs.width}" if self.is_held else "b"
        whole = self.group.length % (step * self.flight) == 0
        found = f"const idx {FIRST} = {base} + u * {step};"
        return each_pack(self.flight, found, "" if whole else str(self.group.length), body)

    def _level(self, at: int) -> list[str]:
        """Return the statements by which every thread gets the results of a level."""
        level = self.levels[at]
        arguments = [run.argument for run in level]
        kept = self._shared_with_later(at, arguments)
        inputs = fetched(self.packs, arguments, self.flight, self.pointers.of, known=self.names, prefix=f"level{at}_")
        emitter = Emitter({**self.names, **inputs.names, self.packs.index: EACH}, self.pointers.of)
        texts = emitter.emit(*arguments, *kept)
        declared, keep = list[str](), list[str]()
        for term, text in zip(kept, texts[len(level) :], strict=True):
            name = f"kept{self.kept}"
            self.kept += 1
            declared.append(f"{TYPES[term.dtype]} {name}[{self.flight}][{self.packs.width}];")
            keep.append(f"{name}[u][k] = {text};")
            self.names[term] = f"{name}[u][k]" if self.packs.width > 1 else f"{name}[u][0]"
        take = [run.taken(text) for run, text in zip(level, texts, strict=False)]
        compute = each_item(self.packs.width, [*emitter.lines, *keep, *take])
        begin, end = [run.begin for run in level if run.begin], [run.end for run in level if run.end]
        if self.flight * self.packs.width > RUN:
            body = [*self._each_pack(inputs.lines), *self._each_pack([*begin, *compute, *end])]
        else:
            body = [*self._each_pack(inputs.lines), *begin, *self._each_pack(compute), *end]
        if not self.is_held:
            width, size = self.packs.width, self.lanes * self.packs.width * self.flight
            head = f"for (idx b = lane * {width}; b < {self.group.length}; b += {size}) {{"
            body = [head, *statements([*inputs.declared, *body], 1), "}"]
        else:
            body = ["{", *statements([*inputs.declared, *body], 1), "}"]
        lines = [*declared, *(run.declared for run in level), *body, *self._joined(level)]
        self.names |= {run.step.result: f"result{run.number}" for run in level}
        return [*lines, *(run.result for run in level)]

    def _shared_with_later(self, at: int, arguments: list[Term]) -> list[Term]:
        """Return the largest values of a level that later levels or maps need too."""
        if not self.is_held:
            return []
        here, found = set(walk(arguments)), list[Term]()
        seen = set(self.names)
        stack = [*(run.argument for level in self.levels[at + 1 :] for run in level), *self.maps]
        room = KEPT_ITEMS // (self.flight * self.packs.width)
        while stack:
            term = stack.pop()
            if term in seen:
                continue
            seen.add(term)
            moves = depends(term, self.packs.index) and term.dtype in FLOATS and term.op not in ("load", "cast")
            if moves and term in here and counted([term]) >= LEAST_KEPT:
                found.append(term)
            else:
                stack.extend(term.args)
        return found[: max(0, room - self.kept)]

    def _joined(self, level: list[_Run]) -> list[str]:
        """Return the statements by which the totals of threads become those of a row."""
        if self.lanes == 1:
            return []
        if self.columns:
            return self._joined_in_columns(level)
        across = [line for run in level for line in run.across]
        lines = [
            "#pragma unroll",
            f"for (int by = {min(self.lanes, WARP) // 2}; by > 0; by /= 2) {{",
            *statements(across, 1),
            "}",
        ]
        if self.lanes <= WARP:
            return lines
        warps = BLOCK // WARP
        self.shared += [f"__shared__ {run.type} totals{run.number}[{warps}];" for run in level]
        put = [f"totals{run.number}[threadIdx.x / {WARP}] = {run.total};" for run in level]
        lines += [f"if (threadIdx.x % {WARP} == 0) {{", *statements(put, 1), "}", "__syncthreads();"]
        lines += [f"{run.total} = totals{run.number}[0];" for run in level]
        steps = [run.accumulator.step(run.total, f"totals{run.number}[warp]") for run in level]
        loop = f"for (int warp = 1; warp < {warps}; ++warp) {{"
        return [*lines, "#pragma unroll", loop, *statements(steps, 1), "}"]

    def _joined_in_columns(self, level: list[_Run]) -> list[str]:
        """Return the statements by which the totals of each warp's threads become those of their rows."""
        self.shared += [f"__shared__ {run.type} totals{run.number}[{self.lanes}][{WARP}];" for run in level]
        column = f"[threadIdx.x % {WARP}]"
        steps = [run.accumulator.step(run.total, f"totals{run.number}[other]{column}") for run in level]
        return [
            *(f"totals{run.number}[lane]{column} = {run.total};" for run in level),
            "__syncthreads();",
            *(f"{run.total} = totals{run.number}[0]{column};" for run in level),
            "#pragma unroll",
            f"for (int other = 1; other < {self.lanes}; ++other) {{",
            *statements(steps, 1),
            "}",
        ]

    def _maps(self) -> list[str]:
        """Return the statements that compute and store elements."""
        targets, width = self.group.maps, self.packs.width
        inputs = fetched(self.packs, self.maps, self.flight, self.pointers.of, known=self.names, prefix="map_")
        emitter = Emitter({**self.names, **inputs.names, self.packs.index: EACH}, self.pointers.of, "v")
        texts = emitter.emit(*self.maps)
        places = Emitter({self.packs.index: FIRST}, self.pointers.of, "q")
        offsets = places.emit(*(joined(target.tensor.offset(target.place)) for target in targets))
        fetch = [*inputs.declared, *self._each_pack(inputs.lines)]
        if width == 1:
            put = [self._stored(*each) for each in zip(targets, offsets, texts, strict=True)]
            return [*fetch, *self._each_pack([*places.lines, *each_item(1, [*emitter.lines, *put])])]
        declared, keep, put = list[str](), list[str](), list[str]()
        for number, (target, text, offset) in enumerate(zip(targets, texts, offsets, strict=True)):
            declared.append(f"pack<{TYPES[target.tensor.dtype]}, {width}> o{number};")
            keep.append(store(f"o{number}.items", target.tensor, "k", text))
            put.append(f"put({self.pointers.of(target.tensor)} + {offset}, o{number});")
        body = [*declared, *each_item(width, [*emitter.lines, *keep]), *places.lines, *put]
        return [*fetch, *self._each_pack(body)]

    def _stored(self, target: Target, offset: str, text: str) -> str:
        return store(self.pointers.of(target.tensor), target.tensor, offset, text)

    def _results(self) -> list[str]:
        """Return the statements by which one thread stores the results of a row."""
        if not self.group.results:
            return []
        emitter = Emitter(dict(self.names), self.pointers.of, "w")
        body = list[str]()
        for target in self.group.results:
            value = unrounded(target.value, target.tensor)
            text, offset = emitter.emit(value, joined(target.tensor.offset(target.place)))
            body.append(self._stored(target, offset, text))
        return [f"if ({self._is_writer}) {{", *statements([*emitter.lines, *body], 1), "}"]


class _Run:
    """One reduction of a level, as text."""

    def __init__(self, step: Step, argument: Term, number: int, in_float: bool) -> None:
        self.step, self.argument, self.number = step, argument, number
        self.accumulator = Accumulator(step.reduction.kind, step.reduction.value)
        self.type = "float" if in_float and self.accumulator.chunked else self.accumulator.total

    @property
    def total(self) -> str:
        """Name of a thread's total, and in the end of the row's."""
        return f"total{self.number}"

    @property
    def declared(self) -> str:
        return f"{self.type} {self.total} = {self.accumulator.first};"

    @property
    def begin(self) -> str:
        return f"float run{self.number} = 0;" if self.accumulator.chunked else ""

    @property
    def end(self) -> str:
        return f"{self.total} += run{self.number};" if self.accumulator.chunked else ""

    @property
    def across(self) -> list[str]:
        total, other = self.total, f"other{self.number}"
        return [
            f"const {self.type} {other} = across({total}, by);",
            self.accumulator.step(total, other),
        ]

    @property
    def result(self) -> str:
        kind = self.accumulator.term
        return f"const {kind} result{self.number} = ({kind}){self.total};"

    def taken(self, text: str) -> str:
        """Return the statement that takes a term in."""
        if self.accumulator.chunked:
            return f"run{self.number} += {text};"
        return self.accumulator.step(self.total, text)
