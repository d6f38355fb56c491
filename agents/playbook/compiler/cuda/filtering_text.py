"""C++ text of convolutions by minimal filtering: the launch that transforms filters, and the one that does the rest.

A block sums, for 32 tiles of two by ``OUTPUTS`` results and 64 filters, at the points of the columns' filtering. Rows
are filtered by F(2, 3): the points 1 and -1 come first, become the two rows' sums, and the points 0 and infinity are
added to these. Half a warp has sums of one row: eight tiles by eight filters a thread.
"""

from __future__ import annotations

PANELS = r"""
const int id = (int)blockIdx.x * $BLOCK + (int)threadIdx.x;
if (id >= $FILTERS * $CHANNELS * $PARTS) return;
const int column = id % $FILTERS, depth = id / $FILTERS % $CHANNELS, part = id / ($FILTERS * $CHANNELS);
double transformed[4][$TAPS];
#pragma unroll
for (int b = 0; b < $TAPS; ++b) {
    double taps[3];
    #pragma unroll
    for (int a = 0; a < 3; ++a) {
        const int down = part / $ACROSS * 3 + a, across = part % $ACROSS * $TAPS + b;
        taps[a] = 0;
        if (column < $FILTERS_USED && depth < $CHANNELS_USED && down < $KERNEL_ROWS && across < $KERNEL_COLUMNS) {
$WEIGHT
            taps[a] = weight;
        }
    }
    transformed[0][b] = (taps[0] + taps[1] + taps[2]) / 2;
    transformed[1][b] = (taps[0] - taps[1] + taps[2]) / 2;
    transformed[2][b] = taps[0];
    transformed[3][b] = taps[2];
}
float* to = reinterpret_cast<float*>(arena + $BASE);
to += ((long long)(column / 64) * $STEPS + part * $CHUNKS + depth / $DEPTH) * $FILTER_WORDS;
to += depth % $DEPTH * 64;
#pragma unroll
for (int q = 0; q < 4; ++q) {
    const double (&g)[$TAPS] = transformed[q];
    float* const own = to + q / 2 * (long long)($STEPS / 2) * $FILTER_WORDS + q % 2 * $DEPTH * 64
        + (column % 64 ^ q % 2 * $BANK);
$TRANSFORMED
}
"""
"""The filters' launch; a thread has one channel of a filter."""

FILTERING = r"""
extern __shared__ __align__(128) unsigned char pool[];
float* const images = reinterpret_cast<float*>(pool);
float* const inputs = images + 2 * $IMAGE_WORDS;
float* const filters = inputs + 2 * $INPUT_WORDS;
float* const sums = filters + 2 * $FILTER_WORDS;
const float* const panels = reinterpret_cast<const float*>(arena + $BASE);
const int warp = (int)(threadIdx.x / 32), lane = (int)(threadIdx.x % 32);
const int point = warp / 2, half = warp % 2, row = lane / 16, tile = lane % 4 * 4, filter = lane / 4 % 4 * 4;
const bool early = warp / 4 % 2;  // half of the warps transform tiles while the others multiply
const int own = $OWN;  // tile on whose way and result the thread works
const int apart = row * $BANK;  // both halves of a warp read other banks

auto bring_image = [&](int unit, int step, int buffer) {
    const int place = unit / $FILTER_BLOCKS, part = step / $CHUNKS % $PARTS;
    const int left = place % $BLOCKS_ACROSS * $COLUMNS + $FIRST_COLUMN + part % $ACROSS * $TAPS;
    const int x0 = $LEFT, y0 = place / $BLOCKS_ACROSS % $BLOCKS_DOWN * $ROWS + $FIRST_ROW + part / $ACROSS * 3;
    const int c0 = step % $CHUNKS * $DEPTH;
    const float* const from = $IMAGE + $OFFSET;
    float* const to = images + buffer * $IMAGE_WORDS;
$COPIES
};
auto bring_filters = [&](int unit, int step, int buffer) {
    const float* const from = panels + (unit % $FILTER_BLOCKS * $STEPS + step) * (long long)$FILTER_WORDS;
    #pragma unroll
    for (int i = 0; i < $FILTER_WORDS / 4 / $THREADS; ++i) {
        const int e = (i * $THREADS + (int)threadIdx.x) * 4;
        copy_async<16>(filters + buffer * $FILTER_WORDS + e, from + e, true);
    }
};
auto transform = [&](int step, int buffer) {  // rows and columns under the tiles become points
    const bool first = step < $STEPS / 2;
$PART
    #pragma unroll
    for (int i = 0; i < $ITEM_ROUNDS; ++i) {
        const int item = i * $WARPS + warp;
        $LAST_ITEM
        const int c = item / 2, lower = item % 2;
        const int one = first ? 1 + lower : 3 * lower, other = 2 - lower;
        const float sign = first && lower == 0 ? 1.0f : -1.0f;
        const float* const from = images + buffer * $IMAGE_WORDS + (c * $IMAGE_ROWS + own / $TILES_ACROSS * 2) * $PITCH
            + own % $TILES_ACROSS * $OUTPUTS;
        float d[$POINTS], v[$POINTS];
$READ
$INPUTS
        float* const to = inputs + buffer * $INPUT_WORDS + (lower * $DEPTH + c) * 32 + (lane ^ lower * $BANK);
        #pragma unroll
        for (int p = 0; p < $POINTS; ++p) to[p * 2 * $DEPTH * 32] = v[p];
    }
};
float run[8][8] = {};
auto multiply = [&](int buffer) {
    const float* const v = inputs + buffer * $INPUT_WORDS + (point * 2 + row) * $DEPTH * 32 + tile;
    const float* const u = filters + buffer * $FILTER_WORDS + (point * 2 + row) * $DEPTH * 64 + half * 32 + filter;
    #pragma unroll
    for (int k = 0; k < $DEPTH; ++k) {
        float a[8], b[8];
        #pragma unroll
        for (int g = 0; g < 2; ++g) {
            *reinterpret_cast<float4*>(a + 4 * g) = *reinterpret_cast<const float4*>(v + k * 32 + (g * 16 ^ apart));
            *reinterpret_cast<float4*>(b + 4 * g) = *reinterpret_cast<const float4*>(u + k * 64 + (g * 16 ^ apart));
        }
        #pragma unroll
        for (int i = 0; i < 8; ++i)
            #pragma unroll
            for (int j = 0; j < 8; ++j) run[i][j] += a[i] * b[j];
    }
};
auto join = [&] {  // sums at 1 and -1 become those of the two rows
    #pragma unroll
    for (int i = 0; i < 8; ++i)
        #pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float other = __shfl_xor_sync(0xffffffff, run[i][j], 16);
            run[i][j] = row ? other - run[i][j] : run[i][j] + other;
        }
};
auto finish = [&](int unit) {
    const int place = unit / $FILTER_BLOCKS;
    const int y0 = place / $BLOCKS_ACROSS % $BLOCKS_DOWN * $ROWS + own / $TILES_ACROSS * 2;
    const int x = place % $BLOCKS_ACROSS * $COLUMNS + own % $TILES_ACROSS * $OUTPUTS;
    #pragma unroll 1
    for (int h = 0; h < 2; ++h) {
        __syncthreads();
        if (half == h) {
            #pragma unroll
            for (int j = 0; j < 8; ++j)
                #pragma unroll
                for (int g = 0; g < 2; ++g) {
                    const int own = filter + j % 4 + j / 4 * 16;
                    float* const to = sums + ((point * 2 + row) * 32 + own) * 36 + tile + g * 16;
                    *reinterpret_cast<float4*>(to) =
                        float4{run[4 * g][j], run[4 * g + 1][j], run[4 * g + 2][j], run[4 * g + 3][j]};
                }
        }
        __syncthreads();
        #pragma unroll 1
        for (int item = warp; item < 64; item += $WARPS) {
            float m[$POINTS], y[$OUTPUTS];
            #pragma unroll
            for (int p = 0; p < $POINTS; ++p)
                m[p] = sums[((p * 2 + item % 2) * 32 + item / 2) * 36 + lane];
$RESULTS
            const int n = unit % $FILTER_BLOCKS * 64 + h * 32 + item / 2, line = y0 + item % 2;
            if ($INSIDE) {
$STORED
            }
        }
    }
    #pragma unroll
    for (int i = 0; i < 8; ++i)
        #pragma unroll
        for (int j = 0; j < 8; ++j) run[i][j] = 0;
};

int unit = (int)blockIdx.x, next = unit, step = 0, transformed = 0, later = unit, brought = 0;
auto advance = [](int& of, int& at) {
    if (++at == $STEPS) at = 0, of += $BLOCKS;
};
bring_image(later, brought, 0);
advance(later, brought);
commit_copies();
bring_filters(unit, 0, 0);
if (later < $UNITS) bring_image(later, brought, 1);
commit_copies();
wait_for_copies<1>();
__syncthreads();
transform(0, 0);
advance(next, transformed);
advance(later, brought);
for (int buffer = 0; unit < $UNITS; buffer ^= 1) {
    wait_for_copies<0>();
    __syncthreads();
    if (next < $UNITS) {
        bring_filters(next, transformed, buffer ^ 1);
        if (later < $UNITS) bring_image(later, brought, buffer);
        commit_copies();
        if (early) transform(transformed, buffer ^ 1);
    }
    multiply(buffer);
    if (!early && next < $UNITS) transform(transformed, buffer ^ 1);
    if (step == $STEPS / 2 - 1) join();
    if (step == $STEPS - 1) finish(unit);
    advance(unit, step);
    advance(next, transformed);
    advance(later, brought);
}
"""
"""The main launch."""

PACKED_COPIES = r"""
    const int place_in = (int)(threadIdx.x % $PLANE), r = place_in / ($PITCH / 4), q = place_in % ($PITCH / 4) * 4;
    const int c = (int)(threadIdx.x / $PLANE);
    const bool inside = (unsigned)(y0 + r) < $HEIGHTu && (unsigned)(x0 + q) < $WIDTHu;
    const float* const pack = inside ? from + ((idx)c * $CHANNEL_STEP + r * $ROW_STEP + q) : $IMAGE;
    #pragma unroll
    for (int i = 0; i < $ROUNDS; ++i)
        if ($IN_ROUND)
            copy_async<16>(to + (i * $AT_ONCE * $PLANE + (int)threadIdx.x) * 4,
                pack + (idx)(i * $AT_ONCE) * $CHANNEL_STEP, inside$IN_DEPTH);"""
COPIES = r"""
    for (int e = warp; e < $DEPTH * $IMAGE_ROWS; e += $WARPS) {
        const int c = e / $IMAGE_ROWS, r = e % $IMAGE_ROWS;
        const bool in_row = c0 + c < $CHANNELS_USED && (unsigned)(y0 + r) < $HEIGHTu;
        for (int q = lane; q < $PITCH; q += 32) {
            const bool inside = in_row && (unsigned)(x0 + q) < $WIDTHu;
            const float* const each = from + ((idx)c * $CHANNEL_STEP + r * $ROW_STEP + q * $COLUMN_STEP);
            copy_async<4>(to + e * $PITCH + q, inside ? each : $IMAGE, inside);
        }
    }"""
