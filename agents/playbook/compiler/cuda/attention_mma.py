"""Attention on tensor cores: a warp has 16 queries, whose scores and results stay in its registers.

Where queries are few, warps take keys of their own, and what they found is joined in the end. Exponents are of two, so
that one instruction gives a power.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import e as euler
from math import log2

from agents.playbook.compiler.cuda import mma
from agents.playbook.compiler.cuda.attention_block import ENOUGH_BLOCKS, Block
from agents.playbook.compiler.emission import statements
from agents.playbook.compiler.parameters import Pointers
from agents.playbook.compiler.terms import Term, const, is_const, make, rewritten

_LOG2E = f"{log2(euler):.9g}f"
_KEYS = {1: 64, 2: 32, 4: 32, 8: 16}
"""Keys of a warp's tile, by the warps that share queries."""


FUNCTIONS = r"""
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float tanh_by_power(float x) {  // errs by 1e-7, not by 1e-7 of a small result
    return 1.0f - __fdividef(2.0f, power_of_two(x * 2.88539008f) + 1.0f);
}
"""
_PAIR = r"""
__device__ __forceinline__ unsigned pair_of(float low, float high) {
    unsigned both;
    asm("cvt.rn.$TYPEx2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
"""
TYPES = {"half": "f16", "bfloat16": "bf16"}


def pair(precision: str) -> str:
    """Return the device function that rounds two floats to a word."""
    return _PAIR.replace("$TYPE", TYPES[precision]).strip()


@dataclass(frozen=True)
class Flash(Block):
    """A block whose warps multiply fragments of 16-bit operands."""

    @property
    def warps(self) -> tuple[int, int]:
        """Return the warps that have queries of their own, and those that share them."""
        batches, rows, _ = self.group.product.sizes(self.group)
        down = mma.WARPS
        while down > 1 and (down * 8 >= rows or (down > 4 and batches * -(-rows // (down * 16)) < ENOUGH_BLOCKS)):
            down //= 2
        return down, mma.WARPS // down

    @property
    def _own_keys(self) -> int:
        return _KEYS[self.warps[1]]

    @property
    def rows(self) -> int:
        """Return the queries of a block."""
        return self.warps[0] * 16

    @property
    def keys(self) -> int:
        """Return the keys of a tile."""
        return self._own_keys * self.warps[1]

    @property
    def spare_bytes(self) -> tuple[int, int]:
        """Return the bytes of shared memory beyond the tiles, and beyond the results: of maxima and sums to join."""
        return 0, 8 * self.rows * self.warps[1]

    @property
    def score(self) -> Term:
        """Return the term of a score, with hyperbolic tangents by two instructions of the special units, and products
        for divisions by constants: both err by less than a hundredth of what operands are rounded by.
        """

        def change(term: Term, args: tuple[Term, ...]) -> Term | None:
            if term.op == "fn_tanh" and term.dtype == "float32":
                return make("tanh_by_power", "float32", *args)
            if term.op == "div" and term.dtype == "float32" and is_const(args[1]) and 1e-30 < abs(args[1].data) < 1e30:
                return make("mul", "float32", args[0], const(1 / args[1].data, "float32"))
            return None

        return rewritten([self.group.score], change)[0]

    def functions(self) -> list[str]:
        """Return the device functions that the statements call."""
        return [mma.functions(self.precision), FUNCTIONS.strip(), pair(self.precision)]

    def begun(self) -> list[str]:
        """Return the statements that read the queries, and first values."""
        query, _, value = self.tiles
        beside, deep = self.warps[1], query.padded // 16
        return [
            "const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;",
            f"const int row = warp / {beside} * 16, own = warp % {beside} * {self._own_keys};",
            f"unsigned q[{deep}][4];",
            "#pragma unroll",
            f"for (int k = 0; k < {deep}; ++k)",
            f"    four_matrices(q[k], {query.at('row + lane % 16', 'k * 16 + lane / 16 * 8')});",
            f"float run[{value.padded // 8}][4] = {{}}, below[2] = {{}}, top[2] = {{-FN_INFF, -FN_INFF}};",
        ]

    def stepped(self, pointers: Pointers) -> list[str]:
        """Return the statements for a tile of keys and values."""
        query, key, value = self.tiles
        own, deep = self._own_keys, query.padded // 16
        key_at = key.at("own + j * 16 + lane / 16 * 8 + lane % 8", "k * 16 + lane / 8 % 2 * 8")
        value_at = value.at("own + k * 16 + lane / 8 % 2 * 8 + lane % 8", "j * 16 + lane / 16 * 8")
        masked = self.masked_ahead
        skipped = [] if masked is None else [f"if (t * {self.keys} + own >= m0 + row + {15 + masked}) continue;"]
        return [
            *skipped,
            f"float s[{own // 8}][4] = {{}};",
            "#pragma unroll",
            f"for (int k = 0; k < {deep}; ++k)",
            "    #pragma unroll",
            f"    for (int j = 0; j < {own // 16}; ++j) {{",
            "        unsigned b[4];",
            f"        four_matrices(b, {key_at});",
            "        multiply_add(s[2 * j], q[k], b[0], b[1]);",
            "        multiply_add(s[2 * j + 1], q[k], b[2], b[3]);",
            "    }",
            *self._powers(pointers),
            "#pragma unroll",
            f"for (int k = 0; k < {own // 16}; ++k) {{",
            "    const float (&left)[4] = s[2 * k], (&right)[4] = s[2 * k + 1];",
            "    const unsigned a[4] = {pair_of(left[0], left[1]), pair_of(left[2], left[3]),",
            "                           pair_of(right[0], right[1]), pair_of(right[2], right[3])};",
            "    #pragma unroll",
            f"    for (int j = 0; j < {value.padded // 16}; ++j) {{",
            "        unsigned b[4];",
            f"        four_transposed(b, {value_at});",
            "        multiply_add(run[2 * j], a, b[0], b[1]);",
            "        multiply_add(run[2 * j + 1], a, b[2], b[3]);",
            "    }",
            "}",
        ]

    def _powers(self, pointers: Pointers) -> list[str]:
        """Return the statements that turn products into powers, and rescale what was summed before."""
        own, value = self._own_keys, self.tiles[2]
        each = [
            *self.scored(pointers, "s[j][e]", "row + lane / 4 + e / 2 * 8", "own + j * 8 + lane % 4 * 2 + e % 2"),
            "most[e / 2] = fmaxf(most[e / 2], s[j][e]);",
        ]
        return [
            "float most[2] = {-FN_INFF, -FN_INFF}, shift[2];",
            *_loop(own // 8, each),
            "#pragma unroll",
            "for (int h = 0; h < 2; ++h) {",
            f"    const float larger = fmaxf(top[h], quad_max(most[h]) * {_LOG2E});",
            "    shift[h] = larger == -FN_INFF ? 0.0f : larger;",
            "    const float scale = power_of_two(top[h] - shift[h]);",
            "    top[h] = larger, below[h] *= scale;",
            "    #pragma unroll",
            f"    for (int j = 0; j < {value.padded // 8}; ++j) run[j][2 * h] *= scale, run[j][2 * h + 1] *= scale;",
            "}",
            *_loop(
                own // 8,
                [
                    f"s[j][e] = power_of_two(fmaf(s[j][e], {_LOG2E}, -shift[e / 2]));",
                    "below[e / 2] += s[j][e];",
                ],
            ),
        ]

    def ended(self) -> list[str]:
        """Return the statements that divide by the sums of powers, and put the results into shared memory."""
        beside, results = self.warps[1], self.results
        _, _, value = self.tiles
        place = results.place("row + lane / 4 + e / 2 * 8", "j * 8 + lane % 4 * 2 + e % 2")
        count = value.padded // 8
        lines = [
            "float factor[2];",
        ]
        if beside == 1:
            return [
                *lines,
                "#pragma unroll",
                f"for (int h = 0; h < 2; ++h) factor[h] = {self.inverse('top[h]', 'quad_sum(below[h])')};",
                *_loop(count, [f"sums[{place}] = run[j][e] * factor[e / 2];"]),
            ]
        size = results.shared_bytes // 4
        own = f"warp % {beside} * {self.rows} + row + lane / 4 + h * 8"
        other = f"w * {self.rows} + row + lane / 4 + h * 8"
        return [
            *lines,
            f"float* const tops = sums + {size}, * const belows = tops + {self.rows * beside};",
            "#pragma unroll",
            "for (int h = 0; h < 2; ++h) {",
            "    const float all = quad_sum(below[h]);",
            f"    if (lane % 4 == 0) tops[{own}] = top[h], belows[{own}] = all;",
            "}",
            "__syncthreads();",
            "#pragma unroll",
            "for (int h = 0; h < 2; ++h) {",
            "    float largest = -FN_INFF, all = 0;",
            f"    for (int w = 0; w < {beside}; ++w) largest = fmaxf(largest, tops[{other}]);",
            "    const float shift = largest == -FN_INFF ? 0.0f : largest;",
            f"    for (int w = 0; w < {beside}; ++w) all += belows[{other}] * power_of_two(tops[{other}] - shift);",
            f"    factor[h] = power_of_two(top[h] - shift) * {self.inverse('largest', 'all')};",
            "}",
            f"for (int w = 0; w < {beside}; ++w) {{",
            f"    if (warp % {beside} == w) {{",
            *statements(
                _loop(
                    count,
                    [
                        f"float& sum = sums[{place}];",
                        "const float part = run[j][e] * factor[e / 2];",
                        "sum = w ? sum + part : part;",
                    ],
                ),
                2,
            ),
            "    }",
            "    __syncthreads();",
            "}",
        ]


def _loop(count: int, body: list[str]) -> list[str]:
    """Return the loop over a warp's fragments and a thread's elements of each."""
    inner = ["#pragma unroll", "for (int e = 0; e < 4; ++e) {", *statements(body, 1), "}"]
    return ["#pragma unroll", f"for (int j = 0; j < {count}; ++j) {{", *statements(inner, 1), "}"]
