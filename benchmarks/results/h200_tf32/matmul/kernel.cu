// Matrix product: (4096 x 4096) (4096 x 4096)
// Techniques: shared_tiling(tile_m=128, tile_n=128, tile_k=32), tensor_cores(precision=tf32, warp_m=64, warp_n=64), async_copy(stages=2), bank_padding(words=4), block_swizzle(group=8)
#include "problem.h"

constexpr long long K_BATCHES = 1LL;
constexpr long long K_M = 4096LL;
constexpr long long K_N = 4096LL;
constexpr long long K_K = 4096LL;

#include <mma.h>
using namespace nvcuda;

constexpr long long K_PARTS = 1LL;
constexpr long long K_PART = 4096LL;

constexpr int TILE_M = 128, TILE_N = 128, TILE_K = 32, THREADS = 128, STAGES = 2, PAD = 4;
constexpr long long TILES_M = (K_M + TILE_M - 1) / TILE_M, TILES_N = (K_N + TILE_N - 1) / TILE_N;

constexpr bool WHOLE_M = K_M % TILE_M == 0, WHOLE_N = K_N % TILE_N == 0, WHOLE_K = K_K % (TILE_K * K_PARTS) == 0;

constexpr int WARP_M = 64, WARP_N = 64, DEPTH = 8;  // tensor_cores: the rectangle of one warp
constexpr int PITCH_A = TILE_K + PAD, PITCH_B = TILE_N + PAD;  // bank_padding
constexpr int SIZE_A = TILE_M * PITCH_A, SIZE_B = TILE_K * PITCH_B;
typedef float Stored;
typedef wmma::fragment<wmma::matrix_a, 16, 16, DEPTH, wmma::precision::tf32, wmma::row_major> FragmentA;
typedef wmma::fragment<wmma::matrix_b, 16, 16, DEPTH, wmma::precision::tf32, wmma::row_major> FragmentB;
typedef wmma::fragment<wmma::accumulator, 16, 16, DEPTH, float> Result;
struct alignas(16) Four { float v[4]; };
struct alignas(4 * sizeof(Stored)) FourStored { Stored v[4]; };
__device__ __forceinline__ Stored stored(float value) { return wmma::__float_to_tf32(value); }

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

extern "C" __global__ void __launch_bounds__(THREADS) multiply(const float* __restrict__ p_a, const float* __restrict__ p_b, float* __restrict__ p_out) {
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
    extern __shared__ __align__(128) unsigned char memory[];
    Stored* const tiles_a = reinterpret_cast<Stored*>(memory);
    Stored* const tiles_b = tiles_a + STAGES * SIZE_A;
    const int warp = threadIdx.x / 32;
    const int row = warp / (TILE_N / WARP_N) * WARP_M, col = warp % (TILE_N / WARP_N) * WARP_N;
    Result sums[WARP_M / 16][WARP_N / 16];
    #pragma unroll
    for (int r = 0; r < WARP_M / 16; ++r)
        #pragma unroll
        for (int c = 0; c < WARP_N / 16; ++c) wmma::fill_fragment(sums[r][c], 0.0f);
    auto start_copies = [&](int buffer, int t) {
        const long long k0 = k_first + (long long)t * TILE_K;
        #pragma unroll
        for (int p = threadIdx.x; p < TILE_M * TILE_K / 4; p += THREADS) {
            const int line = p / (TILE_K / 4), depth = p % (TILE_K / 4) * 4;
            const long long i = i0 + line, k = k0 + depth;
            const bool inside = (WHOLE_M || i < K_M) && (WHOLE_K || k < k_last);
            const float* const from = a + i * 4096LL + k * 1LL;
            copy_async<16>(&tiles_a[buffer * SIZE_A + line * PITCH_A + depth], inside ? from : a, inside);
        }
        #pragma unroll
        for (int p = threadIdx.x; p < TILE_N * TILE_K / 4; p += THREADS) {
            const int depth = p / (TILE_N / 4), line = p % (TILE_N / 4) * 4;
            const long long i = j0 + line, k = k0 + depth;
            const bool inside = (WHOLE_N || i < K_N) && (WHOLE_K || k < k_last);
            const float* const from = b + i * 1LL + k * 4096LL;
            copy_async<16>(&tiles_b[buffer * SIZE_B + depth * PITCH_B + line], inside ? from : b, inside);
        }
    };
    auto compute = [&](int buffer) {
        #pragma unroll
        for (int k = 0; k < TILE_K; k += DEPTH) {
            FragmentA part_a[WARP_M / 16];
            FragmentB part_b[WARP_N / 16];
            #pragma unroll
            for (int r = 0; r < WARP_M / 16; ++r) {
                wmma::load_matrix_sync(part_a[r], tiles_a + buffer * SIZE_A + (row + r * 16) * PITCH_A + k, PITCH_A);
                for (int e = 0; e < part_a[r].num_elements; ++e) part_a[r].x[e] = wmma::__float_to_tf32(part_a[r].x[e]);
            }
            #pragma unroll
            for (int c = 0; c < WARP_N / 16; ++c) {
                wmma::load_matrix_sync(part_b[c], tiles_b + buffer * SIZE_B + k * PITCH_B + col + c * 16, PITCH_B);
                for (int e = 0; e < part_b[c].num_elements; ++e) part_b[c].x[e] = wmma::__float_to_tf32(part_b[c].x[e]);
            }
            #pragma unroll
            for (int r = 0; r < WARP_M / 16; ++r)
                #pragma unroll
                for (int c = 0; c < WARP_N / 16; ++c) wmma::mma_sync(sums[r][c], part_a[r], part_b[c], sums[r][c]);
        }
    };
    for (int t = 0; t < STAGES - 1; ++t) {
        if (t < tiles) start_copies(t, t);
        commit_copies();
    }
    for (int t = 0; t < tiles; ++t) {
        wait_for_copies<0>();
        __syncthreads();
        if (t + STAGES - 1 < tiles) start_copies((t + STAGES - 1) % STAGES, t + STAGES - 1);
        commit_copies();
        compute(t % STAGES);
    }
    wait_for_copies<0>();
    __syncthreads();
    float* const to = p_out + batch * K_M * K_N;
    #pragma unroll
    for (int r = 0; r < WARP_M / 16; ++r)
        #pragma unroll
        for (int c = 0; c < WARP_N / 16; ++c) {
            const long long i = i0 + row + r * 16, j = j0 + col + c * 16;
            if (i < K_M && j < K_N) wmma::store_matrix_sync(to + i * K_N + j, sums[r][c], K_N, wmma::mem_row_major);
        }
}
