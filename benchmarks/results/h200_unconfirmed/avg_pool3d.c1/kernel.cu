#include "problem.h"

// A block owns ROWS output rows of one (n, c) volume and walks down the depth. A ring stage holds one plane's strip:
// 2 * ROWS + 1 input rows (at the top edge the first one is a row of zeros that is written once).
// A warp makes one output row: lane l has the float4 columns l and l + 32, hence outputs 2l, 2l+1, 64+2l, 64+2l+1.

constexpr int W = int(X_COLS);
constexpr int W4 = W / 4;
constexpr int D = int(X_DIM2);
constexpr int IN_ROWS = 2 * ROWS + 1;
constexpr int STAGE4 = IN_ROWS * W4;                 // float4s of a stage
constexpr int ROW_BYTES = W * 4;
constexpr int STRIPS = int(OUT_DIM3) / ROWS;
static_assert(W == 256 && D % 2 == 0 && D >= STAGES, "shape");
static_assert(POOL_KERNEL_SIZE == 3 && POOL_STRIDE == 2 && POOL_PADDING == 1 && POOL_COUNT_INCLUDE_PAD, "pool");

__device__ __forceinline__ unsigned at(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void bar_init(unsigned bar, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void bar_expect(unsigned bar, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulk_load(unsigned to, const void* from, unsigned bytes, unsigned bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
__device__ __forceinline__ void bar_wait(unsigned bar, unsigned parity) {
    unsigned done;
    do asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                    : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    while (!done);
}

__device__ __forceinline__ float4 sum3(float4 a, float4 b, float4 c) {
    return make_float4((a.x + b.x) + c.x, (a.y + b.y) + c.y, (a.z + b.z) + c.z, (a.w + b.w) + c.w);
}

// The 3x3 sums of one plane for the thread's four outputs; base is the thread's column in the first of its three rows.
__device__ __forceinline__ float4 plane_sums(const float4* base, int lane) {
    const float4 a0 = base[0], a1 = base[W4], a2 = base[2 * W4];
    const float4 b0 = base[32], b1 = base[W4 + 32], b2 = base[2 * W4 + 32];
    const float4 a = sum3(a0, a1, a2);
    const float4 b = sum3(b0, b1, b2);
    float left_a = __shfl_up_sync(0xffffffffu, a.w, 1);
    if (lane == 0) left_a = 0.f;
    const float send = lane == 31 ? a.w : b.w;       // only lane 0 takes from lane 31
    const float left_b = __shfl_sync(0xffffffffu, send, (lane + 31) & 31);
    return make_float4((left_a + a.x) + a.y, (a.y + a.z) + a.w, (left_b + b.x) + b.y, (b.y + b.z) + b.w);
}

extern "C" __global__ void __launch_bounds__(ROWS * 32) pool(const float* __restrict__ x, float* __restrict__ out) {
    extern __shared__ __align__(128) float4 ring[];
    __shared__ __align__(8) unsigned long long bars[STAGES];

    const int tid = int(threadIdx.x);
    const int lane = tid & 31;
    const int row = tid >> 5;
    const int strip = int(blockIdx.x) % STRIPS;
    const int volume = int(blockIdx.x) / STRIPS;
    const bool top = strip == 0;

    const float* src = x + (long long)volume * X_STRIDE1 + (long long)(strip * 2 * ROWS - (top ? 0 : 1)) * X_STRIDE3;
    const unsigned bytes = unsigned((top ? IN_ROWS - 1 : IN_ROWS) * ROW_BYTES);
    const unsigned to = at(ring) + (top ? unsigned(ROW_BYTES) : 0u);
    const unsigned bar = at(bars);

    if (top) {
        for (int i = tid; i < STAGES * W4; i += ROWS * 32)
            ring[(i / W4) * STAGE4 + i % W4] = make_float4(0.f, 0.f, 0.f, 0.f);
    }
    if (tid == 0) {
        for (int s = 0; s < STAGES; ++s) bar_init(bar + 8u * s, 1u);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    __syncthreads();
    if (tid == 0) {
        for (int s = 0; s < STAGES; ++s) {
            bar_expect(bar + 8u * s, bytes);
            bulk_load(to + unsigned(s * STAGE4 * 16), src + (long long)s * X_STRIDE2, bytes, bar + 8u * s);
        }
    }
    const float* ahead = src + (long long)STAGES * X_STRIDE2;    // the plane that the next free stage takes

    float* to_out = out + (long long)volume * OUT_STRIDE1 + (long long)(strip * ROWS + row) * OUT_STRIDE3 + 2 * lane;
    const float4* mine = ring + 2 * row * W4 + lane;

    float4 carry = make_float4(0.f, 0.f, 0.f, 0.f);
    int stage = 0;
    unsigned parity = 0;
    int left = D - STAGES;                           // planes that are not asked for yet

    for (int od = 0; od < D / 2; ++od) {
        float4 sum = carry;
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            bar_wait(bar + 8u * stage, parity);
            const float4 p = plane_sums(mine + stage * STAGE4, lane);
            sum.x += p.x; sum.y += p.y; sum.z += p.z; sum.w += p.w;
            carry = p;                               // after the odd plane: the next output's first term
            __syncthreads();                         // all have read the stage
            if (tid == 0 && left > 0) {
                bar_expect(bar + 8u * stage, bytes);
                bulk_load(to + unsigned(stage * STAGE4 * 16), ahead, bytes, bar + 8u * stage);
            }
            ahead += X_STRIDE2;
            --left;
            if (++stage == STAGES) { stage = 0; parity ^= 1u; }
        }
        __stcs(reinterpret_cast<float2*>(to_out), make_float2(sum.x / 27.f, sum.y / 27.f));
        __stcs(reinterpret_cast<float2*>(to_out + 64), make_float2(sum.z / 27.f, sum.w / 27.f));
        to_out += OUT_STRIDE2;
    }
}
