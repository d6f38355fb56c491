// Matrix product: (4096 x 4096) (4096 x 4096)
// Techniques: shared_tiling(tile_m=128, tile_n=128, tile_k=16), register_blocking(rows=8, cols=8), double_buffering, bank_padding(words=4), vector_loads(width=4), launch_bounds(min_blocks=2), block_swizzle(group=8)
#include "problem.h"

constexpr long long K_BATCHES = 1LL;
constexpr long long K_M = 4096LL;
constexpr long long K_N = 4096LL;
constexpr long long K_K = 4096LL;

constexpr long long K_PARTS = 1LL;
constexpr long long K_PART = 4096LL;

constexpr int TILE_M = 128, TILE_N = 128, TILE_K = 16, THREADS = 256, STAGES = 2, PAD = 4;
constexpr long long TILES_M = (K_M + TILE_M - 1) / TILE_M, TILES_N = (K_N + TILE_N - 1) / TILE_N;

constexpr bool WHOLE_M = K_M % TILE_M == 0, WHOLE_N = K_N % TILE_N == 0, WHOLE_K = K_K % (TILE_K * K_PARTS) == 0;

constexpr int ROWS = 8, COLS = 8;  // register_blocking: the rectangle of one thread
constexpr int CHUNK_M = 4, CHUNK_N = 4;  // neighbours within it; chunks lie a stride apart
constexpr int STRIDE_M = TILE_M / (ROWS / CHUNK_M), STRIDE_N = TILE_N / (COLS / CHUNK_N);
constexpr int PITCH_A = TILE_M + PAD, PITCH_B = TILE_N + PAD;  // bank_padding
struct alignas(4 * CHUNK_M) ChunkA { float v[CHUNK_M]; };
struct alignas(4 * CHUNK_N) ChunkB { float v[CHUNK_N]; };
struct alignas(16) Four { float v[4]; };

extern "C" __global__ void __launch_bounds__(THREADS, 2) multiply(const float* __restrict__ p_a, const float* __restrict__ p_b, float* __restrict__ p_out) {
    const long long tile = blockIdx.x % (TILES_M * TILES_N), rest = blockIdx.x / (TILES_M * TILES_N);
    const long long batch = rest % K_BATCHES, part = rest / K_BATCHES;
    // block_swizzle: 8 tile rows at a time, column by column
    const long long first_m = tile / (8 * TILES_N) * 8;
    const long long in_group = tile % (8 * TILES_N);
    const long long high = TILES_M - first_m < 8 ? TILES_M - first_m : 8;
    const long long i0 = (first_m + in_group % high) * TILE_M, j0 = in_group / high * TILE_N;
    const long long k_first = part * K_PART, k_last = k_first + K_PART < K_K ? k_first + K_PART : K_K;
    const int tiles = k_first < k_last ? (int)((k_last - k_first + TILE_K - 1) / TILE_K) : 0;
    const float* const a = p_a;
    const float* const b = p_b;
    extern __shared__ __align__(16) float tiles_a[];
    float* const tiles_b = tiles_a + STAGES * TILE_K * PITCH_A;
    const int row = threadIdx.x / (TILE_N / COLS) * CHUNK_M, col = threadIdx.x % (TILE_N / COLS) * CHUNK_N;
    float sums[ROWS][COLS] = {};
    Four next_a[(TILE_M * TILE_K / 4 + THREADS - 1) / THREADS];
    Four next_b[(TILE_N * TILE_K / 4 + THREADS - 1) / THREADS];
    auto fetch = [&](int t) {
        const long long k0 = k_first + (long long)t * TILE_K;
        #pragma unroll
        for (int n = 0; n < (TILE_M * TILE_K / 4 + THREADS - 1) / THREADS; ++n) {
            const int p = threadIdx.x + n * THREADS;
            const int line = p / (TILE_K / 4), depth = p % (TILE_K / 4) * 4;
            const long long i = i0 + line, k = k0 + depth;
            const bool inside = (WHOLE_M || i < K_M) && (WHOLE_K || k < k_last);
            const float* const from = a + i * 4096LL + k * 1LL;
            next_a[n] = inside ? *reinterpret_cast<const Four*>(from) : Four{};
        }
        #pragma unroll
        for (int n = 0; n < (TILE_N * TILE_K / 4 + THREADS - 1) / THREADS; ++n) {
            const int p = threadIdx.x + n * THREADS;
            const int depth = p / (TILE_N / 4), line = p % (TILE_N / 4) * 4;
            const long long i = j0 + line, k = k0 + depth;
            const bool inside = (WHOLE_N || i < K_N) && (WHOLE_K || k < k_last);
            const float* const from = b + i * 1LL + k * 4096LL;
            next_b[n] = inside ? *reinterpret_cast<const Four*>(from) : Four{};
        }
    };
    auto put = [&](int buffer) {
        #pragma unroll
        for (int n = 0; n < (TILE_M * TILE_K / 4 + THREADS - 1) / THREADS; ++n) {
            const int p = threadIdx.x + n * THREADS;
            const int line = p / (TILE_K / 4), depth = p % (TILE_K / 4) * 4;
            #pragma unroll
            for (int v = 0; v < 4; ++v) tiles_a[(buffer * TILE_K + (depth + v)) * PITCH_A + line] = next_a[n].v[v];
        }
        #pragma unroll
        for (int n = 0; n < (TILE_N * TILE_K / 4 + THREADS - 1) / THREADS; ++n) {
            const int p = threadIdx.x + n * THREADS;
            const int depth = p / (TILE_N / 4), line = p % (TILE_N / 4) * 4;
            *reinterpret_cast<Four*>(&tiles_b[(buffer * TILE_K + depth) * PITCH_B + line]) = next_b[n];
        }
    };
    auto compute = [&](int buffer) {
        const float* const from_a = tiles_a + buffer * TILE_K * PITCH_A + row;
        const float* const from_b = tiles_b + buffer * TILE_K * PITCH_B + col;
        #pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            ChunkA a_values[ROWS / CHUNK_M];
            ChunkB b_values[COLS / CHUNK_N];
            #pragma unroll
            for (int r = 0; r < ROWS / CHUNK_M; ++r)
                a_values[r] = *reinterpret_cast<const ChunkA*>(from_a + k * PITCH_A + r * STRIDE_M);
            #pragma unroll
            for (int c = 0; c < COLS / CHUNK_N; ++c)
                b_values[c] = *reinterpret_cast<const ChunkB*>(from_b + k * PITCH_B + c * STRIDE_N);
            #pragma unroll
            for (int r = 0; r < ROWS; ++r)
                #pragma unroll
                for (int c = 0; c < COLS; ++c)
                    sums[r][c] += a_values[r / CHUNK_M].v[r % CHUNK_M] * b_values[c / CHUNK_N].v[c % CHUNK_N];
        }
    };
    // double_buffering: the next tile is on its way while this one is multiplied
    if (tiles > 0) { fetch(0); put(0); }
    __syncthreads();
    for (int t = 0; t < tiles; ++t) {
        if (t + 1 < tiles) fetch(t + 1);
        compute(t % 2);
        if (t + 1 < tiles) put((t + 1) % 2);
        __syncthreads();
    }
    float* const to = p_out + batch * K_M * K_N;
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const long long i = i0 + row + r / CHUNK_M * STRIDE_M + r % CHUNK_M;
        if (i >= K_M) continue;
        #pragma unroll
        for (int c = 0; c < COLS; c += 4) {
            const long long j = j0 + col + c / CHUNK_N * STRIDE_N;
            const Four four = {sums[r][c], sums[r][c + 1], sums[r][c + 2], sums[r][c + 3]};
            if (j < K_N) *reinterpret_cast<Four*>(to + i * K_N + j) = four;
        }
    }
}
