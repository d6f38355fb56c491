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
    size: int
    """Lines of the operand's matrix."""
    reach: int
    """Depth of the operand's matrix."""
    threads: int
    place: str
    """Index in the operand's shared buffers of the element at ``line`` and ``depth`` of ``buffer``, as C++ text."""
    scattered: bool = False
    """True if neighbours of a pack are apart in shared memory."""
    stored: str = ""
    """Function that rounds a value to what shared memory holds; none where it holds floats as they are."""

    @property
    def kind(self) -> str:
        """Type of a pack."""
        return "Four" if self.width == 4 else "float"

    def where(self) -> list[str]:
        """Return statements for the ``line`` and the ``depth`` of a thread's pack ``n``."""
        return [self._line(), self._depth()]

    def _line(self) -> str:
        return self._along("line", 1 if self.axis == "depth" else self.width)

    def _depth(self) -> str:
        return self._along("depth", self.width if self.axis == "depth" else 1)

    def _along(self, name: str, width: int) -> str:
        """Return a pack's place on one axis: constant steps from the first pack's where these are whole."""
        across = (self.depth if self.axis == "depth" else self.lines) // self.width
        whole = self.threads % across == 0
        if name == self.axis:
            number = "(int)threadIdx.x" if whole else f"((int)threadIdx.x + n * {self.threads})"
            return f"const int {name} = {number} % {across} * {width};"
        if whole and self.scattered and across == 4 and self.lines % 16 == 0:
            # packs of the upper depths go to other banks than those of the lower ones
            swizzled = "((int)threadIdx.x / 4 ^ (int)threadIdx.x % 4 / 2 * 8)"
            return f"const int {name} = {swizzled} + n * {self.threads // across};"
        if whole:
            return f"const int {name} = (int)threadIdx.x / {across} + n * {self.threads // across};"
        return f"const int {name} = ((int)threadIdx.x + n * {self.threads}) / {across};"

    def begun(self) -> list[str]:
        """Return statements that find where a thread's packs of the first tile lie, and how many lines are left there.

        Steps between packs are constant where they are whole: one pointer then does for all of them.
        """
        name, upper, origin = self.name, *(("M", "i0") if self.name == "a" else ("N", "j0"))
        line, depth = self._strides()
        first = f"{name} + ({origin} + line) * {line}LL + (k_first + depth) * {depth}LL"
        if self._steps is not None:
            return [
                f"const float* from_{name};",
                f"int lines_{name};",
                "{",
                *indented(["constexpr int n = 0;", *self.where()]),
                f"    from_{name} = {first};",
                f"    const long long lines = K_{upper} - {origin};",
                f"    lines_{name} = (int)(lines < TILE_{upper} ? lines : TILE_{upper}) - line;",
                "}",
            ]
        return [
            f"{self._offset_type()} at_{name}[{self.rounds}];",
            f"bool line_inside_{name}[{self.rounds}];",
            *self.each(
                [
                    *self.where(),
                    f"line_inside_{name}[n] = WHOLE_{upper} || {origin} + line < K_{upper};",
                    f"at_{name}[n] = ({origin} + line) * {line}LL + (k_first + depth) * {depth}LL;",
                ],
            ),
        ]

    def address(self) -> list[str]:
        """Return statements for whether pack ``n`` exists, and where it is in memory."""
        name, steps = self.name, self._steps
        inside = "(WHOLE_K || depth < left)"
        if steps is None:
            return [
                self._depth(),
                f"const bool inside = line_inside_{name}[n] && {inside};",
                f"const float* const from = {name} + at_{name}[n];",
                f"at_{name}[n] += TILE_K * {self._strides()[1]};",
            ]
        upper, (line, depth) = "M" if name == "a" else "N", self._strides()
        down = f"n * {steps[0]}" if steps[0] else "0"
        return [
            self._depth(),
            f"const bool inside = (WHOLE_{upper} || {down} < lines_{name}) && {inside};",
            f"const float* const from = from_{name} + n * {steps[0] * line + steps[1] * depth}LL;",
        ]

    def advance(self) -> list[str]:
        """Return statements that go on to the next tile, once all packs of one were found."""
        return [] if self._steps is None else [f"from_{self.name} += TILE_K * {self._strides()[1]};"]

    @property
    def _steps(self) -> tuple[int, int] | None:
        """Return lines and depth between a thread's packs; None where these are not the same for all."""
        across = (self.depth if self.axis == "depth" else self.lines) // self.width
        if self.threads % across:
            return None
        return (self.threads // across, 0) if self.axis == "depth" else (0, self.threads // across)

    @property
    def rounds(self) -> int:
        """Packs of a thread."""
        return -(-self.lines * self.depth // self.width // self.threads)

    def each(self, body: list[str]) -> list[str]:
        """Return the loop over a thread's packs, which numbers them ``n``."""
        packs = self.lines * self.depth // self.width
        end = [f"if ((int)threadIdx.x + n * {self.threads} >= {packs}) break;"] if packs % self.threads else []
        return ["#pragma unroll", f"for (int n = 0; n < {self.rounds}; ++n) {{", *indented([*end, *body]), "}"]

    def _strides(self) -> tuple[int, int]:
        """Return the operand's strides along lines and along the depth."""
        return (self.item.row, self.item.col) if self.name == "a" else (self.item.col, self.item.row)

    def _offset_type(self) -> str:
        """Return the type of offsets within one matrix of the operand, a tile beyond its end included."""
        line, depth = self._strides()
        return "int" if (self.size + self.lines) * line + (self.reach + 2 * self.depth) * depth < 2**31 else "long long"

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


def fetching(tiles: list[TileCopy]) -> list[str]:
    """Return lambdas ``fetch``, which reads a pair of tiles into registers, and ``put``, which puts it into shared
    memory. Pairs are fetched in order.
    """
    registers: list[str] = []
    fetch: list[str] = []
    put: list[str] = []
    for tile in tiles:
        registers += [f"{tile.kind} next_{tile.name}[{tile.rounds}];", *tile.begun()]
        read = f"next_{tile.name}[n] = inside ? *reinterpret_cast<const {tile.kind}*>(from) : {tile.kind}{{}};"
        fetch += [*tile.each([*tile.address(), read]), *tile.advance()]
        put += tile.each([*tile.where(), *tile.write()])
    lines = [*registers, "auto fetch = [&](int t) {", *indented([_LEFT, *fetch]), "};"]
    return [*lines, "auto put = [&](int buffer) {", *indented(put), "};"]


def starting(tiles: list[TileCopy]) -> list[str]:
    """Return a lambda ``start_copies``, which starts the copies of one pair of tiles; pairs are copied in order."""
    begun = [line for tile in tiles for line in tile.begun()]
    inner = [_LEFT]
    for tile in tiles:
        copy = f"copy_async<{4 * tile.width}>(&{tile.to()}, inside ? from : {tile.name}, inside);"
        inner += [*tile.each([tile.where()[0], *tile.address(), copy]), *tile.advance()]
    return [*begun, "auto start_copies = [&](int buffer, int t) {", *indented(inner), "};"]


_LEFT = "const int left = (int)(k_last - k_first) - t * TILE_K;  // of the depth, from this tile on"


def indented(lines: list[str]) -> list[str]:
    """Return the lines four columns further right."""
    return [f"    {line}" for line in lines]
