"""Attention on the scalar units: a thread has scores of some queries and keys, and as many results.

Sixteen neighbouring threads share queries. Powers pass through shared memory from one product to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from agents.playbook.compiler.cuda.attention_block import BUFFERS, ENOUGH_BLOCKS, Block
from agents.playbook.compiler.emission import statements
from agents.playbook.compiler.parameters import Pointers

SIDE = 16
"""Threads that share queries."""
_KEYS = 4
"""Keys of a thread."""
_WIDE = 192
"""Elements of a query and a value together up to which tiles of 128 queries fit shared memory."""
_PITCH = _KEYS * SIDE + 4
"""Powers from one query to the next."""
_KINDS = {1: "float", 2: "float2", 4: "float4"}

FUNCTIONS = r"""
__device__ __forceinline__ float row_max(float x) {
    #pragma unroll
    for (int far = 8; far > 0; far /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, far));
    return x;
}
__device__ __forceinline__ float row_sum(float x) {
    #pragma unroll
    for (int far = 8; far > 0; far /= 2) x += __shfl_xor_sync(0xffffffff, x, far);
    return x;
}
__device__ __forceinline__ void warp_barrier() { __syncwarp(); }
"""


@dataclass(frozen=True)
class Scalar(Block):
    """A block whose threads multiply rectangles."""

    @property
    def _own(self) -> int:
        """Return the queries of a thread."""
        batches, rows, width = self.group.product.sizes(self.group)
        own = 8 if self.group.depth + width <= _WIDE else 4
        while own > 1 and (own * 8 >= rows or (own > 4 and batches * -(-rows // (own * SIDE)) < ENOUGH_BLOCKS)):
            own //= 2
        return own

    @property
    def rows(self) -> int:
        """Return the queries of a block."""
        return self._own * SIDE

    @property
    def keys(self) -> int:
        """Return the keys of a tile."""
        return _KEYS * SIDE

    @property
    def spare_bytes(self) -> tuple[int, int]:
        """Return the bytes of shared memory beyond the tiles, which are of powers, and beyond the results."""
        return 4 * self.rows * _PITCH, 0

    @property
    def _columns(self) -> tuple[int, int]:
        """Return the columns of a thread's results, and those that lie side by side."""
        count = self.tiles[2].padded // SIDE
        return count, next(pack for pack in (4, 2, 1) if count % pack == 0)

    def functions(self) -> list[str]:
        """Return the device functions that the statements call."""
        return [FUNCTIONS.strip()]

    def begun(self) -> list[str]:
        """Return the declarations of a thread's place and sums."""
        own = self._own
        return [
            f"const int row = threadIdx.x / {SIDE}, column = threadIdx.x % {SIDE};",
            f"float* const powers = tiles_v + {BUFFERS * self.tiles[2].size};",
            f"float run[{own}][{self._columns[0]}] = {{}}, below[{own}] = {{}}, top[{own}];",
            "#pragma unroll",
            f"for (int i = 0; i < {own}; ++i) top[i] = -FN_INFF;",
        ]

    def stepped(self, pointers: Pointers) -> list[str]:
        """Return the statements for a tile of keys and values."""
        query, key, value = self.tiles
        own, (count, pack) = self._own, self._columns
        kind = _KINDS[pack]
        read = f"*reinterpret_cast<const {kind}*>({value.at('k + u', f'(g * {SIDE} + column) * {pack}')})"
        return [
            f"float s[{own}][{_KEYS}] = {{}};",
            "#pragma unroll 4",
            f"for (int k = 0; k < {-(-query.width // 4) * 4}; k += 4) {{",
            f"    float4 b[{_KEYS}];",
            "    #pragma unroll",
            f"    for (int j = 0; j < {_KEYS}; ++j)",
            f"        b[j] = *reinterpret_cast<const float4*>({key.at(f'column + j * {SIDE}', 'k')});",
            *statements(
                _loop(
                    "i",
                    own,
                    [
                        f"const float4 a = *reinterpret_cast<const float4*>({query.at(f'row + i * {SIDE}', 'k')});",
                        "#pragma unroll",
                        f"for (int j = 0; j < {_KEYS}; ++j)",
                        "    s[i][j] = fmaf(a.w, b[j].w, fmaf(a.z, b[j].z, "
                        "fmaf(a.y, b[j].y, fmaf(a.x, b[j].x, s[i][j]))));",
                    ],
                ),
                1,
            ),
            "}",
            *self._powers(pointers),
            "warp_barrier();",
            "#pragma unroll 2",
            f"for (int k = 0; k < {self.keys}; k += 4) {{",
            f"    __align__(16) float p[{own}][4], v[{count}];",
            *statements(
                _loop(
                    "i",
                    own,
                    [
                        "*reinterpret_cast<float4*>(p[i]) =",
                        f"    *reinterpret_cast<const float4*>(powers + (row + i * {SIDE}) * {_PITCH} + k);",
                    ],
                ),
                1,
            ),
            "    #pragma unroll",
            "    for (int u = 0; u < 4; ++u) {",
            "        #pragma unroll",
            f"        for (int g = 0; g < {count // pack}; ++g)",
            f"            *reinterpret_cast<{kind}*>(v + g * {pack}) = {read};",
            *statements(_loop("i", own, _loop("j", count, ["run[i][j] = fmaf(p[i][u], v[j], run[i][j]);"])), 2),
            "    }",
            "}",
        ]

    def _powers(self, pointers: Pointers) -> list[str]:
        """Return the statements that turn products into powers, and rescale what was summed before."""
        place = f"powers[(row + i * {SIDE}) * {_PITCH} + column + j * {SIDE}]"
        body = [
            "float most = -FN_INFF;",
            "#pragma unroll",
            f"for (int j = 0; j < {_KEYS}; ++j) {{",
            *statements(self.scored(pointers, "s[i][j]", f"row + i * {SIDE}", f"column + j * {SIDE}"), 1),
            "    most = fmaxf(most, s[i][j]);",
            "}",
            "const float larger = fmaxf(top[i], row_max(most));",
            "const float shift = larger == -FN_INFF ? 0.0f : larger;",
            "const float scale = fn_exp(top[i] - shift);",
            "top[i] = larger, below[i] *= scale;",
            "#pragma unroll",
            f"for (int j = 0; j < {self._columns[0]}; ++j) run[i][j] *= scale;",
            "#pragma unroll",
            f"for (int j = 0; j < {_KEYS}; ++j) {{",
            "    const float power = fn_exp(s[i][j] - shift);",
            f"    below[i] += power, {place} = power;",
            "}",
        ]
        return _loop("i", self._own, body)

    def ended(self) -> list[str]:
        """Return the statements that divide by the sums of powers, and put the results into shared memory."""
        count, pack = self._columns
        column = f"(j / {pack} * {SIDE} + column) * {pack} + j % {pack}"
        body = [
            "const float all = row_sum(below[i]);",
            f"const float factor = {self.inverse('top[i]', 'all')};",
            "#pragma unroll",
            f"for (int j = 0; j < {count}; ++j)",
            f"    sums[{self.results.place(f'row + i * {SIDE}', column)}] = run[i][j] * factor;",
        ]
        return _loop("i", self._own, body)


def _loop(name: str, count: int, body: list[str]) -> list[str]:
    return ["#pragma unroll", f"for (int {name} = 0; {name} < {count}; ++{name}) {{", *statements(body, 1), "}"]
