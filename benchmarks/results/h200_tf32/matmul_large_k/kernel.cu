// Matrix product: (256 x 524288) (524288 x 256)
// Techniques: shared_tiling(tile_m=128, tile_n=128, tile_k=32), tensor_cores(precision=tf32, warp_m=64, warp_n=32), warpgroup_mma, tma_loads(stages=4), split_k(parts=32)
#include "problem.h"

constexpr long long K_BATCHES = 1LL;
constexpr long long K_M = 256LL;
constexpr long long K_N = 256LL;
constexpr long long K_K = 524288LL;

constexpr long long K_PARTS = 32LL;
constexpr long long K_PART = 16384LL;

constexpr int TILE_M = 128, TILE_N = 128, TILE_K = 32, THREADS = 384, STAGES = 4;
constexpr long long TILES_M = (K_M + TILE_M - 1) / (TILE_M), TILES_N = (K_N + TILE_N - 1) / (TILE_N);

constexpr bool WHOLE_M = K_M % TILE_M == 0, WHOLE_N = K_N % TILE_N == 0;

constexpr int BLOCKS = 1, WARPS = THREADS / 32 - 4;
constexpr int SIZE_S = 128 * TILE_K, SIZE_R = 128 * TILE_K, SUMS = 128 / 2;
__device__ __forceinline__ int fragment_line(int warp, int lane, int half) {
    return warp / 2 * 32 + (warp % 2 * 2 + half) * 4 + lane / 4 % 4 + lane / 16 * 16;
}

// tma_loads: the copy engine fills tiles, and barriers in shared memory count what has come
struct alignas(128) CUtensorMap { unsigned long long opaque[16]; };  // cuda.h's, which is long to read
using Barrier = unsigned long long;
__device__ __forceinline__ unsigned int at(const void* shared) {
    return (unsigned int)__cvta_generic_to_shared(shared);
}
__device__ __forceinline__ void init(Barrier* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void expect(Barrier* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(Barrier* barrier, int phase) {
    unsigned int done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(at(barrier)), "r"(phase) : "memory");
}

__device__ __forceinline__ void arrive(Barrier* barrier, int) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at(barrier)) : "memory");
}

__device__ __forceinline__ void copy_shared(void* to, const CUtensorMap& map, int x, int y, Barrier* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];"
        :: "r"(at(to)), "l"(&map), "r"(x), "r"(y), "r"(at(barrier)) : "memory");
}

__device__ __forceinline__ void copy_own(void* to, const CUtensorMap& map, int x, int y, Barrier* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];"
        :: "r"(at(to)), "l"(&map), "r"(x), "r"(y), "r"(at(barrier)) : "memory");
}

// warpgroup_mma: four warps multiply 64 lines of one operand, in registers, by SHARED lines of the other, shared one
__device__ __forceinline__ unsigned long long described(const float* rows) {  // swizzled rows of 128 bytes, by eight
    return (unsigned long long)((at(rows) & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
__device__ __forceinline__ void multiply_add(float (&d)[64], const unsigned int (&r)[4], unsigned long long s) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "l"(s));
}

extern "C" __global__ void __launch_bounds__(THREADS) multiply(
    const __grid_constant__ CUtensorMap s_tiles, const __grid_constant__ CUtensorMap r_tiles, float* __restrict__ p_parts) {
    const long long tile = blockIdx.x % (TILES_M * TILES_N), rest = blockIdx.x / (TILES_M * TILES_N);
    const long long batch = rest % K_BATCHES, part = rest / K_BATCHES;
    const long long i0 = tile / TILES_N * TILE_M, j0 = tile % TILES_N * TILE_N;
    const long long k_first = part * K_PART, k_last = k_first + K_PART < K_K ? k_first + K_PART : K_K;
    const int tiles = k_first < k_last ? (int)((k_last - k_first + TILE_K - 1) / TILE_K) : 0;
    extern __shared__ __align__(1024) float tiles_s[];  // eight swizzled rows
    float* const tiles_r = tiles_s + STAGES * SIZE_S;
    Barrier* const filled = reinterpret_cast<Barrier*>(tiles_r + STAGES * SIZE_R);
    Barrier* const freed = filled + STAGES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            init(filled + s, 1);
            init(freed + s, BLOCKS * WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp >= WARPS) {
        if (threadIdx.x == 32 * WARPS) {
            for (int t = 0; t < tiles; ++t) {
                const int s = t % STAGES, k = (int)(k_first + (long long)t * TILE_K);
                if (t >= STAGES) wait(freed + s, (t / STAGES - 1) & 1);
                expect(filled + s, (SIZE_S + SIZE_R) * 4);
                copy_shared(tiles_s + s * SIZE_S, s_tiles, k, (int)i0, filled + s);
                #pragma unroll
                for (int n = 0; n < 128; n += 32)
                    copy_own(tiles_r + s * SIZE_R + n * TILE_K, r_tiles, (int)j0 + n, k, filled + s);
            }
        }
    } else {
        float sums[SUMS] = {};
        for (int t = 0; t < tiles; ++t) {
            const int s = t % STAGES;
            wait(filled + s, t / STAGES & 1);
            unsigned int part[TILE_K / 8][4];
            #pragma unroll
            for (int k = 0; k < TILE_K; k += 8) {
                #pragma unroll
                for (int v = 0; v < 4; ++v) {
                    const int line = fragment_line(warp, lane, v % 2), depth = k + lane % 4 + v / 2 * 4;
                    part[k / 8][v] = __float_as_uint(tiles_r[s * SIZE_R + line / 32 * 32 * TILE_K + depth * 32 + (line % 32 / 4 ^ depth % 8) * 4 + line % 4]);
                }
            }
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            #pragma unroll
            for (int k = 0; k < TILE_K; k += 8) multiply_add(sums, part[k / 8], described(tiles_s + s * SIZE_S + k));
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");  // meanwhile the other warpgroups multiply
            if (lane < BLOCKS) arrive(freed + s, lane);
        }
        float* const to = p_parts + (part * K_BATCHES + batch) * K_M * K_N;
        #pragma unroll
        for (int n = 0; n < SUMS; ++n) {
            const int shared = n / 4 * 8 + lane % 4 * 2 + n % 2, own = fragment_line(warp, lane, n % 4 / 2);
            const long long i = i0 + shared, j = j0 + own;
            const float sum = sums[n];
            if ((WHOLE_M || i < K_M) && (WHOLE_N || j < K_N)) to[i * K_N + j] = sum;
        }
    }
}

// split_k: the parts of each element are added up
extern "C" __global__ void __launch_bounds__(256) add_parts(const float* __restrict__ p_parts, float* __restrict__ p_out) {
    const long long item = (long long)blockIdx.x * 256 + threadIdx.x;
    if (item >= K_BATCHES * K_M * K_N) return;
    float total = 0.0f;
    for (long long part = 0; part < K_PARTS; ++part) total += p_parts[part * (K_BATCHES * K_M * K_N) + item];
    p_out[item] = total;
}
