"""A block of an attention's launch: tiles of queries, keys and values in shared memory, and the walk over keys.

Running maxima and sums of exponentials stay in float32 registers, and what was summed is rescaled where a maximum grows
(Dao et al., arXiv 2205.14135). What multiplies is left to the kinds of blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from agents.playbook.compiler.attention import Attention
from agents.playbook.compiler.cuda.mma import COPIES
from agents.playbook.compiler.cuda.operands import HELD, ROUNDED, THREADS
from agents.playbook.compiler.cuda.results import Results
from agents.playbook.compiler.cuda.tiles import Tiled
from agents.playbook.compiler.emission import Emitter, statements
from agents.playbook.compiler.loops import indices
from agents.playbook.compiler.parameters import Pointers
from agents.playbook.compiler.products import bare, follows, loads_of, packed
from agents.playbook.compiler.terms import Term

ENOUGH_BLOCKS = 128
"""Blocks that keep a card busy: fewer queries are taken where there would be fewer."""
BUFFERS = 2
"""Tiles of keys and values in shared memory: one is on its way while the other is used."""
_NARROW = 128
"""Elements of a query and a value together whose sums leave registers for two blocks of a multiprocessor."""


@dataclass(frozen=True)
class Tile:
    """Lines of a factor in shared memory: each a row, padded such that neighbours meet no bank twice."""

    name: str
    factor: Term
    lines: int
    width: int
    along: Term
    """Index that moves along a line."""
    item_bytes: int

    @property
    def padded(self) -> int:
        """Elements of a line, with zeros up to a whole fragment."""
        return -(-self.width // 16) * 16

    @property
    def pitch(self) -> int:
        """Elements from one line to the next."""
        return self.padded + self.pack

    @property
    def pack(self) -> int:
        """Elements of 16 bytes."""
        return 16 // self.item_bytes

    @property
    def size(self) -> int:
        """Elements of the tile."""
        return self.lines * self.pitch

    def at(self, line: str, along: str) -> str:
        """Return the address of an element."""
        return f"{self.name} + ({line}) * {self.pitch} + {along}"


@dataclass(frozen=True)
class Block(ABC):
    """Statements of a block."""

    group: Attention
    precision: str
    """Type that operands are rounded to for tensor cores; empty for the scalar units."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """Return the queries of a block."""

    @property
    @abstractmethod
    def keys(self) -> int:
        """Return the keys of a tile."""

    @property
    @abstractmethod
    def spare_bytes(self) -> tuple[int, int]:
        """Return the bytes of shared memory beyond the tiles, and beyond the results."""

    @abstractmethod
    def functions(self) -> list[str]:
        """Return the device functions that the statements call, beside those of copies."""

    @abstractmethod
    def begun(self) -> list[str]:
        """Return the statements before the walk, when the queries are there."""

    @abstractmethod
    def stepped(self, pointers: Pointers) -> list[str]:
        """Return the statements for a tile of keys and values."""

    @abstractmethod
    def ended(self) -> list[str]:
        """Return the statements that put results into shared memory, as ``sums``."""

    @property
    def score(self) -> Term:
        """Return the term of a score, in functions that suffice for the type of operands."""
        return self.group.score

    @property
    def item_bytes(self) -> int:
        """Return the bytes of an element in shared memory."""
        return 2 if self.precision else 4

    @property
    def tiles(self) -> tuple[Tile, Tile, Tile]:
        """Return the tiles of queries, keys and values."""
        group = self.group
        _, _, width = group.product.sizes(group)
        column = group.index[group.product.columns[-1]]
        return (
            Tile("tile_q", group.query, self.rows, group.depth, group.depth_index, self.item_bytes),
            Tile("tile_k", group.key, self.keys, group.depth, group.depth_index, self.item_bytes),
            Tile("tile_v", group.value, self.keys, width, column, self.item_bytes),
        )

    @property
    def results(self) -> Results:
        """Return how sums come to the result."""
        return Results(self.group, self.group.product, self.rows, self.tiles[2].padded)

    @property
    def _bytes_of_tiles(self) -> int:
        query, key, value = self.tiles
        return self.item_bytes * (query.size + BUFFERS * (key.size + value.size))

    @property
    def shared_bytes(self) -> int:
        """Return the dynamic shared memory of a block: of the tiles, and in the end of the results."""
        beyond_tiles, beyond_results = self.spare_bytes
        return max(self._bytes_of_tiles + beyond_tiles, self.results.shared_bytes + beyond_results)

    @property
    def blocks(self) -> int:
        """Return the number of blocks."""
        batches, rows, _ = self.group.product.sizes(self.group)
        return batches * -(-rows // self.rows)

    @property
    def resident(self) -> int:
        """Return the blocks that a multiprocessor has registers for: two where sums are few and scores load nothing."""
        narrow = self.tiles[0].padded + self.tiles[2].padded <= _NARROW
        return 2 if narrow and not loads_of(self.group.score) else 1

    @property
    def is_copied(self) -> bool:
        """Return whether some tile is copied past the registers."""
        return any(self._pack(tile) > 1 for tile in self.tiles)

    def tiled(self, pointers: Pointers) -> Tiled:
        """Return the work of the launch."""
        batches, rows, _ = self.group.product.sizes(self.group)
        down = -(-rows // self.rows)
        # The last queries of causal attention have the most keys, so that they come first, those of all batches.
        turned = self.masked_ahead is not None
        number = f"blockIdx.x / {batches}" if turned else f"blockIdx.x % {down}"
        batch = f"blockIdx.x % {batches}" if turned else f"blockIdx.x / {down}"
        first = f"({down - 1} - (int)({number})) * {self.rows}" if down > 1 else "0"
        lines = [
            f"const int m0 = {first}, n0 = 0;",
            *([f"const long long o = {batch};"] if batches > 1 else []),
            *indices(self.group, "o", self.group.product.batch),
            *self._memory(),
            *self._copies(pointers),
            *self._steps(),
            "start(0, 0);",
            "commit_copies();",
            "wait_for_copies<0>();",
            "__syncthreads();",
            *self.begun(),
            "for (int t = 0; t < steps; ++t) {",
            *statements(self._step(pointers), 1),
            "}",
            "wait_for_copies<0>();",
            "__syncthreads();",
            *self.ended(),
            *self.results.written(pointers),
        ]
        return Tiled(lines, self.blocks, self.shared_bytes, [COPIES.strip(), *self.functions()], self.resident)

    @property
    def _stored(self) -> str:
        return "unsigned short" if self.precision else "float"

    def _memory(self) -> list[str]:
        (query, key, _), stored = self.tiles, self._stored
        return [
            "extern __shared__ __align__(128) unsigned char pool[];",
            f"{stored}* const tile_q = reinterpret_cast<{stored}*>(pool);",
            f"{stored}* const tiles_k = tile_q + {query.size};",
            f"{stored}* const tiles_v = tiles_k + {BUFFERS * key.size};",
            "float* const sums = reinterpret_cast<float*>(pool);",
        ]

    def _step(self, pointers: Pointers) -> list[str]:
        (_, key, value), stored = self.tiles, self._stored
        return [
            "wait_for_copies<0>();",
            "__syncthreads();",
            f"if (t + 1 < steps) start(t + 1, (t + 1) % {BUFFERS});",
            "commit_copies();",
            f"const {stored}* const tile_k = tiles_k + t % {BUFFERS} * {key.size};",
            f"const {stored}* const tile_v = tiles_v + t % {BUFFERS} * {value.size};",
            *self.stepped(pointers),
        ]

    def scored(self, pointers: Pointers, place: str, row: str, key: str) -> list[str]:
        """Return the statements that turn a product into a score: minus infinity where there is no key."""
        group, name = self.group, str(self.group.key_index.data)
        emitter = Emitter({group.scored: "product"}, pointers.of, "s")
        (score,) = emitter.emit(self.score)
        _, rows, _ = group.product.sizes(group)
        inside = [f"m < {rows}"] if rows % self.rows and loads_of(group.score) else []
        inside += [f"{name} < {group.keys}"] if group.keys % self.keys else []
        lines = [*emitter.lines, f"{place} = {score};"]
        if inside:
            lines = [f"{place} = -FN_INFF;", f"if ({' && '.join(inside)}) {{", *statements(lines, 1), "}"]
        return [
            f"const int m = m0 + {row};",
            f"const idx {name} = (idx)(t * {self.keys} + {key});",
            *indices(group, "m", group.product.rows),
            f"const float product = {place};",
            *lines,
        ]

    def inverse(self, top: str, below: str) -> str:
        """Return what sums are multiplied by in the end."""
        return f"({top} == -FN_INFF ? 0.0f : 1.0f / {below})" if self.group.safe else f"1.0f / {below}"

    def _copies(self, pointers: Pointers) -> list[str]:
        """Return the function that brings a tile of keys and of values, and the statements that bring the queries."""
        query, key, value = self.tiles
        group = self.group
        depth, columns = str(group.depth_index.data), indices(group, "n", group.product.columns)
        own = [f"const int m = m0 + line, {depth} = side;", *indices(group, "m", group.product.rows)]
        one = f"const idx {group.key_index.data} = (idx)(t * {self.keys} + line);"
        bound = str(group.key_index.data), group.keys
        moved = [
            *self._copy(key, [one, f"const int {depth} = side;"], bound, pointers),
            *self._copy(value, [one, "const int n = side;", *columns], bound, pointers),
        ]
        return [
            "auto start = [&](int t, int buffer) {",
            f"    {self._stored}* const tile_k = tiles_k + buffer * {key.size};",
            f"    {self._stored}* const tile_v = tiles_v + buffer * {value.size};",
            *statements(moved, 1),
            "};",
            *self._copy(query, own, ("m", group.product.sizes(group)[1]), pointers),
        ]

    def _pack(self, tile: Tile) -> int:
        """Return the elements that are copied at once: those of 16 bytes where they lie so, else one."""
        load = bare(tile.factor)
        if load is None or load.data.dtype != HELD[self.precision] or len(load.args) > len(load.data.shape):
            return 1
        return tile.pack if packed(load, tile.along, tile.along.high + 1, tile.pack) else 1

    def _copy(self, tile: Tile, names: list[str], bound: tuple[str, int], pointers: Pointers) -> list[str]:
        """Return the loop that brings a tile: past the registers in packs of 16 bytes, else element by element."""
        load, pack = bare(tile.factor), self._pack(tile)
        line, lines = bound
        in_line, count = tile.padded // pack, tile.lines * tile.padded // pack
        inside = [*([f"{line} < {lines}"] if lines % tile.lines else [])]
        inside += [f"side < {tile.width}"] if tile.padded != tile.width else []
        to, emitter = tile.at("line", "side"), Emitter({}, pointers.of, "q")
        if pack > 1 and load is not None:
            (offset,) = emitter.emit(load.data.offset(load.args))
            base = pointers.of(load.data)
            from_ = f"inside ? {base} + {offset} : {base}" if inside else f"{base} + {offset}"
            brought = [*emitter.lines, f"copy_pack({to}, {from_}, inside);"]
        else:
            (value,) = emitter.emit(tile.factor)
            value = f"{ROUNDED[self.precision]}({value})"
            guarded = ["if (inside) {", *statements([*emitter.lines, f"bits = {value};"], 1), "}"]
            brought = [f"{self._stored} bits = 0;", *guarded, f"*({to}) = bits;"]
        across = pack == 1 and not follows(tile.factor, tile.along)
        where = (
            f"line = e % {tile.lines}, side = e / {tile.lines}"
            if across
            else (f"line = e / {in_line}, side = e % {in_line}{f' * {pack}' if pack > 1 else ''}")
        )
        body = [
            f"const int {where};",
            *names,
            f"const bool inside = {' && '.join(inside) or 'true'};",
            *brought,
        ]
        if count % THREADS:
            loop = ["#pragma unroll 1", f"for (int e = threadIdx.x; e < {count}; e += {THREADS}) {{"]
        else:
            loop = ["#pragma unroll", f"for (int i = 0; i < {count // THREADS}; ++i) {{"]
            body.insert(0, f"const int e = threadIdx.x + i * {THREADS};")
        return [*loop, *statements(body, 1), "}"]

    def _steps(self) -> list[str]:
        """Return the declaration of the number of tiles: of those that hold a key that is not masked."""
        all_tiles, masked = -(-self.group.keys // self.keys), self.masked_ahead
        if masked is None:
            return [f"const int steps = {all_tiles};"]
        ahead = self.rows - 1 + masked
        return [
            f"const int end = m0 + {ahead};" if ahead >= 0 else f"const int end = m0 - {-ahead};",
            f"const int tiles = end > 0 ? (end + {self.keys - 1}) / {self.keys} : 0;",
            f"const int steps = tiles < {all_tiles} ? tiles : {all_tiles};",
        ]

    @property
    def masked_ahead(self) -> int | None:
        """Return what is added to a query's number for the first key behind which all are masked; None for no such."""
        masked = self.group.first_masked()
        axes = [axis for axis in self.group.product.rows if self.group.index[axis].op == "index"]
        if masked is None or [self.group.index[axis] for axis in axes] != [masked[0]]:
            return None
        return masked[1]
