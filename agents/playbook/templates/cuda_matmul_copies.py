"""Copies of operand tiles of CUDA matrix products to shared memory: through registers, or asynchronously past them."""

from __future__ import annotations

from dataclasses import dataclass

from agents.playbook.operators import Operand2D

ASYNC = r"""
// async_copy: from global to shared memory without registers; where `inside` is false, zeros are written
template <int BYTES> __device__ __forceinline__ void copy_async(void* to, const void* from, bool inside) {
    const unsigned int address = (unsigned int)__cvta_generic_to_shared(to);
    const int size = inside ? BYTES : 0;
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(address), "l"(from), "r"(size));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(address), "l"(from), "r"(size));
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
template <int PENDING> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING));
}
"""


def contiguous_axis(item: Operand2D, *, depth_is_row: bool) -> str:
    """Return ``depth``, ``line`` or ``none``: along which axis neighbours of an operand are neighbours in memory."""
    depth, line = (item.row, item.col) if depth_is_row else (item.col, item.row)
    return "depth" if depth == 1 else "line" if line == 1 else "none"


def packs_aligned(item: Operand2D, lines: int, depth: int, *, depth_is_row: bool) -> bool:
    """Return whether four neighbours always lie on a 16-byte boundary and wholly inside or outside the operand."""
    axis = contiguous_axis(item, depth_is_row=depth_is_row)
    other = item.col if (axis == "depth") == depth_is_row else item.row
    size = depth if axis == "depth" else lines
    return axis != "none" and size % 4 == 0 and other % 4 == 0 and item.batch % 4 == 0


@dataclass(frozen=True)
class TileCopy:
    """One operand's tile: ``lines`` rows of A or columns of B, ``TILE_K`` deep."""

    name: str
    """``a`` or ``b``."""
    item: Operand2D
    axis: str
    """Along which axis a thread's pack lies: ``depth`` or ``line``."""
    width: int
    """Floats of a pack."""
    lines: int
    depth: int
    place: str
    """Index in the operand's shared buffers of the element at ``line`` and ``depth`` of ``buffer``, as C++ text."""
    scattered: bool = False
    """True if neighbours of a pack are apart in shared memory."""
    stored: str = ""
    """Function that rounds a value to what shared memory holds; none where it holds floats as they are."""

    @property
    def count(self) -> str:
        """Packs of the tile, as C++ text."""
        return f"TILE_{'M' if self.name == 'a' else 'N'} * TILE_K / {self.width}"

    @property
    def kind(self) -> str:
        """Type of a pack."""
        return "Four" if self.width == 4 else "float"

    def where(self) -> list[str]:
        """Return statements that turn a pack's number ``p`` into its ``line`` and ``depth``."""
        if self.axis == "depth":
            return [
                f"const int line = p / (TILE_K / {self.width}), depth = p % (TILE_K / {self.width}) * {self.width};"
            ]
        lines = f"(TILE_{'M' if self.name == 'a' else 'N'} / {self.width})"
        return [f"const int depth = p / {lines}, line = p % {lines} * {self.width};"]

    def address(self) -> list[str]:
        """Return statements for the place of pack ``p``, whether it exists, and where it is in memory."""
        upper, origin = ("M", "i0") if self.name == "a" else ("N", "j0")
        line_stride, depth_stride = self.item.row, self.item.col
        if self.name == "b":
            line_stride, depth_stride = depth_stride, line_stride
        return [
            *self.where(),
            f"const long long i = {origin} + line, k = k0 + depth;",
            f"const bool inside = (WHOLE_{upper} || i < K_{upper}) && (WHOLE_K || k < k_last);",
            f"const float* const from = {self.name} + i * {line_stride}LL + k * {depth_stride}LL;",
        ]

    def to(self, step: str = "") -> str:
        """Return the element's place in shared memory; ``step`` is added to its depth."""
        return f"tiles_{self.name}[{self.place.replace('depth', f'(depth{step})') if step else self.place}]"

    def write(self) -> list[str]:
        """Return statements that put pack ``n`` into shared memory."""
        source = f"next_{self.name}[n]"
        if self.width == 1:
            return [f"{self.to()} = {self.stored}({source});" if self.stored else f"{self.to()} = {source};"]
        if self.scattered:
            return ["#pragma unroll", f"for (int v = 0; v < 4; ++v) {self.to(' + v')} = {source}.v[v];"]
        if not self.stored:
            return [f"*reinterpret_cast<Four*>(&{self.to()}) = {source};"]
        words = ", ".join(f"{self.stored}({source}.v[{v}])" for v in range(4))
        return [f"*reinterpret_cast<FourStored*>(&{self.to()}) = FourStored{{{words}}};"]


def fetching(tiles: list[TileCopy], threads: int) -> list[str]:
    """Return lambdas ``fetch``, which reads a pair of tiles into registers, and ``put``, which puts it into shared
    memory.
    """
    registers: list[str] = []
    fetch: list[str] = []
    put: list[str] = []
    for tile in tiles:
        rounds = f"({tile.count} + THREADS - 1) / THREADS"
        registers.append(f"{tile.kind} next_{tile.name}[{rounds}];")
        loop = ["#pragma unroll", f"for (int n = 0; n < {rounds}; ++n) {{"]
        number = ["const int p = threadIdx.x + n * THREADS;"]
        if tile.lines * tile.depth // tile.width % threads:
            number.append(f"if (p >= {tile.count}) break;")
        zero = f"{tile.kind}{{}}"
        read = f"next_{tile.name}[n] = inside ? *reinterpret_cast<const {tile.kind}*>(from) : {zero};"
        fetch += [*loop, *indented([*number, *tile.address(), read]), "}"]
        put += [*loop, *indented([*number, *tile.where(), *tile.write()]), "}"]
    k0 = "const long long k0 = k_first + (long long)t * TILE_K;"
    lines = [*registers, "auto fetch = [&](int t) {", *indented([k0, *fetch]), "};"]
    return [*lines, "auto put = [&](int buffer) {", *indented(put), "};"]


def starting(tiles: list[TileCopy]) -> list[str]:
    """Return a lambda ``start_copies``, which starts the copies of one pair of tiles."""
    inner = ["const long long k0 = k_first + (long long)t * TILE_K;"]
    for tile in tiles:
        copy = f"copy_async<{4 * tile.width}>(&{tile.to()}, inside ? from : {tile.name}, inside);"
        loop = f"for (int p = threadIdx.x; p < {tile.count}; p += THREADS) {{"
        inner += ["#pragma unroll", loop, *indented([*tile.address(), copy]), "}"]
    return ["auto start_copies = [&](int buffer, int t) {", *indented(inner), "};"]


def indented(lines: list[str]) -> list[str]:
    """Return the lines four columns further right."""
    return [f"    {line}" for line in lines]
