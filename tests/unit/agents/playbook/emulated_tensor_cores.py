"""Functions that kernels on tensor cores call, for the CPU: fragments of a warp are exchanged through memory.

Every thread of a warp calls each function at the same time.
Tiles that tensor maps describe are copied by the thread that asks for them; blocks of a cluster are not emulated.
Fragments lie as PTX ISA 9.0 has them (sections 9.7.15.5.8 and 9.7.15.5.9).
"""

from __future__ import annotations

import itertools
import re

from agents.playbook.compiler.cuda import attention_mma, attention_scalar, mma, tensor_copies, wgmma

_POOL = r"extern __shared__ __align__\(\d+\) unsigned char pool\[\];"
_WAITS_OF_WARPS = r'asm volatile\("wgmma.wait_group[^"]*" ::: "memory"\);'
_WAITS = r'asm volatile\("(?:wgmma|fence)[^"]*" ::: "memory"\);'
_COPIES = r"""
template <class T> void copy_pack(void* to, const T* from, bool inside) {
    if (inside) memcpy(to, from, 16); else memset(to, 0, 16);
}
static void commit_copies() {}
template <int PENDING> void wait_for_copies() {}
"""
_EMULATED = r"""
static const unsigned short* matrix_rows[32][32];
static unsigned short word(int matrix, int row, int column) {
    return matrix_rows[threadIdx.x / 32][matrix * 8 + row][column];
}
static void four_matrices(unsigned (&d)[4], const unsigned short* row) {
    const int lane = threadIdx.x % 32;
    matrix_rows[threadIdx.x / 32][lane] = row;
    __syncwarp();
    for (int q = 0; q < 4; ++q)
        d[q] = word(q, lane / 4, lane % 4 * 2) | (unsigned)word(q, lane / 4, lane % 4 * 2 + 1) << 16;
    __syncwarp();
}
static void four_transposed(unsigned (&d)[4], const unsigned short* row) {
    const int lane = threadIdx.x % 32;
    matrix_rows[threadIdx.x / 32][lane] = row;
    __syncwarp();
    for (int q = 0; q < 4; ++q)
        d[q] = word(q, lane % 4 * 2, lane / 4) | (unsigned)word(q, lane % 4 * 2 + 1, lane / 4) << 16;
    __syncwarp();
}
static unsigned as_tf32(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
static unsigned first[32][32][4], second[32][32][2];
static float element(const unsigned* words, int half) { $ELEMENT }
static void multiply_add(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int e = 0; e < 4; ++e) first[warp][lane][e] = a[e];
    second[warp][lane][0] = b0, second[warp][lane][1] = b1;
    __syncwarp();
    for (int e = 0; e < 4; ++e) {
        const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        for (int k = 0; k < $DEPTH; ++k) {
            const int place = k % ($DEPTH / 2) / $EACH, upper = k / ($DEPTH / 2);
            d[e] += element(&first[warp][row % 8 * 4 + place][row / 8 + upper * 2], k % $EACH)
                * element(&second[warp][column * 4 + place][upper], k % $EACH);
        }
    }
    __syncwarp();
}
"""
_JOINED = r"""
static float lanes[1024];
template <class F> static float joined(float x, int count, F join) {
    const int first = threadIdx.x / count * count;
    lanes[threadIdx.x] = x;
    __syncwarp();
    x = lanes[first];
    for (int other = 1; other < count; ++other) x = join(x, lanes[first + other]);
    __syncwarp();
    return x;
}
static float $NAME_max(float x) { return joined(x, $COUNT, [](float a, float b) { return fmaxf(a, b); }); }
static float $NAME_sum(float x) { return joined(x, $COUNT, [](float a, float b) { return a + b; }); }
static float power_of_two(float x) { return exp2f(x); }
static float tanh_by_power(float x) { return 1 - 2 / (exp2f(x * 2.88539008f) + 1); }
static void warp_barrier() { __syncwarp(); }
"""
_PAIR = "static unsigned pair_of(float low, float high) { return $ROUND(low) | (unsigned)$ROUND(high) << 16; }"
_DESCRIBED = r"""
static unsigned long long described(const unsigned short* rows, unsigned long long blocks) {
    return (unsigned long long)rows | blocks << 48;
}
static const unsigned short* in_memory(unsigned long long described, bool transposed, int line, int k) {
    unsigned long long at = described & 0xffffffffffffull;
    at += transposed ? line / 64 * (described >> 48) * 16 + k / 8 * 1024 + k % 8 * 128 + line % 64 * 2
                     : line / 8 * 1024 + line % 8 * 128 + k * 2;
    return (const unsigned short*)(at ^ (at >> 7 & 7) << 4);
}
"""
_WARPGROUP = r"""
static float number_$NAME(const unsigned short* word) { const unsigned words = *word, half = 0; $ELEMENT }
static void $NAME(float (&d)[$COUNT], unsigned long long a, unsigned long long b) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    for (int e = 0; e < $COUNT; ++e) {
        const int row = warp * 16 + lane / 4 + e % 4 / 2 * 8, column = e / 4 * 8 + lane % 4 * 2 + e % 2;
        for (int k = 0; k < 16; ++k)
            d[e] += number_$NAME(in_memory(a, $FIRST, row, k)) * number_$NAME(in_memory(b, $SECOND, column, k));
    }
}
"""
_TENSOR_COPIES = r"""
struct CUtensorMap { const unsigned char* from; long long sizes[2], stride, box[2]; };  // stride in bytes
struct Barrier { unsigned char count, pending, phase; int bytes; };
static mutex of_barriers;
static void settle(Barrier* b) { if (!b->pending && !b->bytes) b->phase ^= 1, b->pending = b->count; }
static void init(Barrier* b, int count) { *b = {(unsigned char)count, (unsigned char)count, 0, 0}; }
static void arrive(Barrier* b, int) { lock_guard<mutex> held(of_barriers); --b->pending; settle(b); }
static void expect(Barrier* b, int bytes) {
    lock_guard<mutex> held(of_barriers);
    --b->pending, b->bytes += bytes;
    settle(b);
}
static void wait(Barrier* b, int phase) {
    for (;; sched_yield()) {
        lock_guard<mutex> held(of_barriers);
        if (b->phase != phase) return;
    }
}
static void copy_tile(void* to, const CUtensorMap& map, int x, int y, Barrier* b) {
    for (int row = 0; row < map.box[1]; ++row)
        for (int column = 0; column < map.box[0]; ++column) {
            unsigned short value = 0;
            const bool inside = x + column < map.sizes[0] && y + row < map.sizes[1];
            if (inside) memcpy(&value, map.from + (y + row) * map.stride + (x + column) * 2, 2);
            const int place = row * 128 + column * 2;  // swizzled
            memcpy((unsigned char*)to + (place ^ (place >> 7 & 7) << 4), &value, 2);
        }
    lock_guard<mutex> held(of_barriers);
    b->bytes -= map.box[0] * map.box[1] * 2;
    settle(b);
}
"""
_ELEMENTS = {
    "half": "const unsigned short bits = *words >> 16 * half; _Float16 value; memcpy(&value, &bits, 2); return value;",
    "bfloat16": "const unsigned bits = *words >> 16 * half << 16; float value; memcpy(&value, &bits, 4); return value;",
    "tf32": "float value; memcpy(&value, words, 4); return value;",
}


def emulated(source: str) -> str:
    """Return a kernel's source with its calls of tensor cores replaced, and its dynamic shared memory static."""
    for precision, element in _ELEMENTS.items():
        depth, each = (8, 1) if precision == "tf32" else (16, 2)
        text = _EMULATED.replace("$ELEMENT", element).replace("$DEPTH", str(depth)).replace("$EACH", str(each))
        source = source.replace(mma.functions(precision), text)
    for module, name, count in ((attention_mma, "quad", 4), (attention_scalar, "row", 16)):
        source = source.replace(module.FUNCTIONS.strip(), _JOINED.replace("$NAME", name).replace("$COUNT", str(count)))
    for precision, rounding in (("half", "halved"), ("bfloat16", "narrowed")):
        source = source.replace(attention_mma.pair(precision), _PAIR.replace("$ROUND", rounding))
    source = source.replace(mma.COPIES.strip(), _COPIES)
    source = source.replace(wgmma.FUNCTIONS.strip(), _DESCRIBED)
    for precision, columns, transposed in itertools.product(
        ("half", "bfloat16"), (64, 128, 192, 256), itertools.product((False, True), repeat=2)
    ):
        text = _WARPGROUP.replace("$ELEMENT", _ELEMENTS[precision].replace("*words", "words"))
        text = text.replace("$NAME", wgmma.function_name(columns, transposed)).replace("$COUNT", str(columns // 2))
        text = text.replace("$FIRST", str(int(transposed[0]))).replace("$SECOND", str(int(transposed[1])))
        source = source.replace(wgmma.function(precision, columns, transposed), text)
    source = source.replace(tensor_copies.BARRIERS.strip(), _TENSOR_COPIES)
    for text in (tensor_copies.TENSOR_MAP, tensor_copies.ARRIVE_ALONE, tensor_copies.copy_function("copy_tile", 2, 1)):
        source = source.replace(text.strip(), "")
    source = re.sub(_WAITS_OF_WARPS, "__syncwarp();", source)
    source = re.sub(_WAITS, "", source)
    return re.sub(_POOL, "static unsigned char pool[1 << 18] __attribute__((aligned(1024)));", source)
