"""CUDA C++ text of products by sums of quarters: sums of parts as panels, products of panels, and their combination."""

from __future__ import annotations

PACKS = r"""
// strassen: matrices are cut into quarters LEVELS times, and seven products of sums of quarters do for eight
constexpr int LEVELS = $LEVELS, PRODUCTS = $PRODUCTS, PARTS = 1 << 2 * LEVELS;
constexpr int TILE_M = $TILE_M, TILE_N = $TILE_N, TILE_K = $TILE_K, STEPS = $STEPS;
constexpr long long TILES_M = $TILES_M, TILES_N = $TILES_N, DEPTH = STEPS * TILE_K;
struct alignas(16) Four { float v[4]; };
__device__ __forceinline__ Four added(const Four& a, const Four& b) {
    return {a.v[0] + b.v[0], a.v[1] + b.v[1], a.v[2] + b.v[2], a.v[3] + b.v[3]};
}
__device__ __forceinline__ Four subtracted(const Four& a, const Four& b) {
    return {a.v[0] - b.v[0], a.v[1] - b.v[1], a.v[2] - b.v[2], a.v[3] - b.v[3]};
}
__device__ __forceinline__ int row_of(int part) {  // of a matrix of parts: a bit a level, the outermost first
    int row = 0;
    #pragma unroll
    for (int level = LEVELS - 1; level >= 0; --level) row = 2 * row + (part >> (2 * level + 1) & 1);
    return row;
}
__device__ __forceinline__ int col_of(int part) { return row_of(part << 1); }
template <unsigned PLUS, unsigned MINUS, int COUNT, class Put>
__device__ __forceinline__ void all_sums(const Four (&parts)[COUNT], int number, const Put& put) {
    constexpr int EACH = COUNT / 4;
    #pragma unroll
    for (int product = 0; product < 7; ++product) {
        Four sums[EACH];
        #pragma unroll
        for (int i = 0; i < EACH; ++i) {
            bool begun = false;
            #pragma unroll
            for (int q = 3; q >= 0; --q) {  // what is subtracted comes after what is added
                if (PLUS >> (4 * product + q) & 1) {
                    sums[i] = begun ? added(sums[i], parts[q * EACH + i]) : parts[q * EACH + i];
                    begun = true;
                }
            }
            #pragma unroll
            for (int q = 0; q < 4; ++q)
                if (MINUS >> (4 * product + q) & 1) sums[i] = subtracted(sums[i], parts[q * EACH + i]);
        }
        if constexpr (EACH == 1) put(number * 7 + product, sums[0]);
        else all_sums<PLUS, MINUS>(sums, number * 7 + product, put);
    }
}
template <unsigned PLUS, unsigned MINUS, int COUNT, class Get>
__device__ __forceinline__ void combined(Four (&parts)[COUNT], int number, const Get& get) {
    constexpr int EACH = COUNT / 4;
    #pragma unroll
    for (int i = 0; i < COUNT; ++i) parts[i] = Four{};
    #pragma unroll
    for (int product = 0; product < 7; ++product) {
        Four made[EACH];
        if constexpr (EACH == 1) made[0] = get(number * 7 + product);
        else combined<PLUS, MINUS>(made, number * 7 + product, get);
        #pragma unroll
        for (int q = 0; q < 4; ++q)
            #pragma unroll
            for (int i = 0; i < EACH; ++i) {
                Four& part = parts[q * EACH + i];
                if (PLUS >> (4 * product + q) & 1) part = added(part, made[i]);
                if (MINUS >> (4 * product + q) & 1) part = subtracted(part, made[i]);
            }
    }
}
"""

DIRECT = r"""
// Sums of the parts of $NAME, whose neighbours in memory are neighbours in a panel: a thread has a pack of four.
extern "C" __global__ void __launch_bounds__(256) sum_$NAME(
    const float* __restrict__ p_$INPUT, float* __restrict__ p_sums_$NAME) {
    constexpr long long SIZE = TILES_$AXIS * DEPTH * TILE_$AXIS;
    const long long item = ((long long)blockIdx.x * 256 + threadIdx.x) * 4;
    if (item >= K_BATCHES * SIZE) return;
    const long long batch = item / SIZE, place = item % SIZE, panel = place / (DEPTH * TILE_$AXIS);
    const int in_line = (int)(panel * TILE_$AXIS) + (int)(place % TILE_$AXIS);
    const int in_depth = (int)(place / TILE_$AXIS % DEPTH);
    Four parts[PARTS];
    #pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const long long line = $LINE_OF(part) * $PART + in_line, depth = $DEPTH_OF(part) * K_PART_K + in_depth;
        const bool inside = in_line < $PART && in_depth < K_PART_K && depth < K_K;
        const float* const from = $FROM;
        parts[part] = Four{};
        $LOAD
    }
    float* const to = p_sums_$NAME + batch * PRODUCTS * SIZE + place;
    all_sums<$PLUS, $MINUS>(parts, 0, [&](int product, const Four& sum) {
        *reinterpret_cast<Four*>(to + product * SIZE) = sum;
    });
}
"""

TRANSPOSED = r"""
// Sums of the parts of $NAME, transposed: 32 lines by 32 of the depth of each part pass through shared memory.
extern "C" __global__ void __launch_bounds__(256) sum_$NAME(
    const float* __restrict__ p_$INPUT, float* __restrict__ p_sums_$NAME) {
    extern __shared__ __align__(128) unsigned char ring_bytes[];
    float* const transposed = reinterpret_cast<float*>(ring_bytes);
    constexpr long long SIZE = TILES_$AXIS * DEPTH * TILE_$AXIS, ACROSS = (DEPTH + 31) / 32;
    constexpr long long DOWN = TILES_$AXIS * (TILE_$AXIS / 32);
    const int first_depth = (int)(blockIdx.x % ACROSS) * 32, first_line = (int)(blockIdx.x / ACROSS % DOWN) * 32;
    const long long batch = blockIdx.x / (ACROSS * DOWN);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    #pragma unroll
    for (int part = 0; part < PARTS; ++part)
        #pragma unroll
        for (int n = 0; n < 4; ++n) {
            const int in_line = first_line + warp + 8 * n, in_depth = first_depth + lane;
            const long long line = $LINE_OF(part) * $PART + in_line, depth = $DEPTH_OF(part) * K_PART_K + in_depth;
            const bool inside = in_line < $PART && line < $LINES && in_depth < K_PART_K && depth < K_K;
            transposed[(part * 32 + lane) * 33 + warp + 8 * n] = inside ? *($FROM) : 0.0f;
        }
    __syncthreads();
    const int line = threadIdx.x % 8 * 4, depth = threadIdx.x / 8;
    Four parts[PARTS];
    #pragma unroll
    for (int part = 0; part < PARTS; ++part)
        #pragma unroll
        for (int v = 0; v < 4; ++v) parts[part].v[v] = transposed[(part * 32 + depth) * 33 + line + v];
    const int in_line = first_line + line, in_depth = first_depth + depth;
    if (in_depth >= DEPTH) return;
    const long long panel = in_line / TILE_$AXIS;
    float* const to = p_sums_$NAME + batch * PRODUCTS * SIZE
        + (panel * DEPTH + in_depth) * TILE_$AXIS + in_line % TILE_$AXIS;
    all_sums<$PLUS, $MINUS>(parts, 0, [&](int product, const Four& sum) {
        *reinterpret_cast<Four*>(to + product * SIZE) = sum;
    });
}
"""

MULTIPLY = r"""
constexpr int ROWS = $ROWS, COLS = $COLS, STRIDE_M = TILE_M / (ROWS / 4), STRIDE_N = TILE_N / (COLS / 4);
constexpr int SIZE_A = TILE_K * TILE_M, SIZE_B = TILE_K * TILE_N, SLOT = SIZE_A + SIZE_B, WARPS_N = TILE_N / COLS / 8;
// Products of panels. A slot of the ring is a tile of each; the first thread asks for the next ones as slots come free.
extern "C" __global__ void $BOUNDS multiply(
    const float* __restrict__ p_sums_a, const float* __restrict__ p_sums_b, float* __restrict__ p_products) {
    extern __shared__ __align__(128) unsigned char ring_bytes[];
    __shared__ Barrier full[RING], empty[RING];
    float* const ring = reinterpret_cast<float*>(ring_bytes);
    $PLACE
    const float* const from_a = p_sums_a + (batch * TILES_M + down) * (DEPTH * TILE_M);
    const float* const from_b = p_sums_b + (batch * TILES_N + across) * (DEPTH * TILE_N);
    auto fill = [&](int step, int slot) {
        float* const to = ring + slot * SLOT;
        expect(&full[slot], SLOT * 4);
        bulk_load(to, from_a + step * SIZE_A, SIZE_A * 4, &full[slot]);
        bulk_load(to + SIZE_A, from_b + step * SIZE_B, SIZE_B * 4, &full[slot]);
    };
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < RING; ++slot) {
            init(&full[slot], 1);
            init(&empty[slot], THREADS / 32);
        }
        fence_barriers();
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int slot = 0; slot < RING && slot < STEPS; ++slot) fill(slot, slot);
    // A warp has four by eight rectangles.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = (warp / WARPS_N * 4 + lane / 8) * 4, col = (warp % WARPS_N * 8 + lane % 8) * 4;
    Four next_a[ROWS / 4], next_b[COLS / 4];
    auto read = [&](const float* from, int k) {
        #pragma unroll
        for (int r = 0; r < ROWS / 4; ++r)
            next_a[r] = *reinterpret_cast<const Four*>(from + k * TILE_M + row + r * STRIDE_M);
        #pragma unroll
        for (int c = 0; c < COLS / 4; ++c)
            next_b[c] = *reinterpret_cast<const Four*>(from + SIZE_A + k * TILE_N + col + c * STRIDE_N);
    };
    float sums[ROWS][COLS] = {};
    int slot = 0, parity = 0;
    wait(&full[0], 0);
    read(ring, 0);
    #pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
        const int after = slot + 1 == RING ? 0 : slot + 1, before = slot == 0 ? RING - 1 : slot - 1;
        const int then = slot + 1 == RING ? parity ^ 1 : parity;
        #pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            Four a_values[ROWS / 4], b_values[COLS / 4];
            #pragma unroll
            for (int r = 0; r < ROWS / 4; ++r) a_values[r] = next_a[r];
            #pragma unroll
            for (int c = 0; c < COLS / 4; ++c) b_values[c] = next_b[c];
            if (k + 1 < TILE_K) {
                read(ring + slot * SLOT, k + 1);
            } else if (step + 1 < STEPS) {
                wait(&full[after], then);
                read(ring + after * SLOT, 0);
            }
            #pragma unroll
            for (int r = 0; r < ROWS; ++r)
                #pragma unroll
                for (int c = 0; c < COLS; ++c) {  // in alternating direction: what was read last is used again
                    const int j = r % 2 ? COLS - 1 - c : c;
                    sums[r][j] += a_values[r / 4].v[r % 4] * b_values[j / 4].v[j % 4];
                }
            if (k == TILE_K / 2 && threadIdx.x == 0 && step > 0 && step - 1 + RING < STEPS) {
                wait(&empty[before], slot == 0 ? parity ^ 1 : parity);
                fill(step - 1 + RING, before);
            }
        }
        __syncwarp();
        if (lane == 0) arrive(&empty[slot], 0);
        slot = after;
        parity = then;
        if constexpr (STEPS > CHAIN) {  // a chain's sums are added to those of earlier ones
            Four* const kept = reinterpret_cast<Four*>(ring + RING * SLOT) + threadIdx.x;
            const bool last = step + 1 == STEPS;
            if ((step + 1) % CHAIN == 0 || last) {
                #pragma unroll
                for (int r = 0; r < ROWS; ++r)
                    #pragma unroll
                    for (int c = 0; c < COLS; c += 4) {
                        Four& earlier = kept[(r * COLS + c) / 4 * THREADS];
                        Four now = {sums[r][c], sums[r][c + 1], sums[r][c + 2], sums[r][c + 3]};
                        if (step >= CHAIN) now = added(earlier, now);
                        if (!last) earlier = now;
                        #pragma unroll
                        for (int v = 0; v < 4; ++v) sums[r][c + v] = last ? now.v[v] : 0.0f;
                    }
            }
        }
    }
    constexpr long long PITCH = TILES_N * TILE_N;
    float* const to = p_products + ((batch * TILES_M + down) * TILE_M + row) * PITCH + across * TILE_N + col;
    #pragma unroll
    for (int r = 0; r < ROWS; ++r)
        #pragma unroll
        for (int c = 0; c < COLS; c += 4)
            *reinterpret_cast<Four*>(to + (r / 4 * STRIDE_M + r % 4) * PITCH + c / 4 * STRIDE_N)
                = Four{sums[r][c], sums[r][c + 1], sums[r][c + 2], sums[r][c + 3]};
}
"""

COMBINE = r"""
// strassen: each element of the result is a sum of products
extern "C" __global__ void __launch_bounds__(256) combine($ARGUMENTS) {
    constexpr long long PITCH = TILES_N * TILE_N, SIZE = TILES_M * TILE_M * PITCH;
    const long long item = (long long)blockIdx.x * 256 + threadIdx.x;
    if (item >= K_BATCHES * K_PART_M * (K_PART_N / 4)) return;
    const long long in_col = item % (K_PART_N / 4) * 4, in_row = item / (K_PART_N / 4) % K_PART_M;
    const long long batch = item / (K_PART_N / 4) / K_PART_M;
    const float* const from = p_products + batch * PRODUCTS * SIZE + in_row * PITCH + in_col;
    Four parts[PARTS];
    combined<$PLUS, $MINUS>(parts, 0, [&](int product) {
        const float4 made = __ldcs(reinterpret_cast<const float4*>(from + product * SIZE));
        return Four{made.x, made.y, made.z, made.w};
    });
    #pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const long long i = row_of(part) * K_PART_M + in_row, j = col_of(part) * K_PART_N + in_col;
        if (i >= K_M) continue;
        float* const to = p_$OUT + (batch * K_M + i) * K_N + j;
        $STORE
    }
}
"""
