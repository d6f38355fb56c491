#include "problem.h"

// A strip of TILE output pixels of CHANNELS output channels stays in registers while all input channels pass by.
constexpr int CHANNELS = 4, TILE = 32;

template <int WIDTH>
static inline void strip(const float* __restrict x, const float* __restrict weight, float* __restrict out) {
    float sum[CHANNELS][WIDTH] = {};
    for (long long c = 0; c < X_DIM1; ++c)
        for (long long i = 0; i < CONV2D_WEIGHT_DIM2; ++i)
            for (long long j = 0; j < CONV2D_WEIGHT_DIM3; ++j) {
                const float* pixels = x + c * X_STRIDE1 + i * X_STRIDE2 + j;
                const float* weights = weight + c * CONV2D_WEIGHT_STRIDE1 + i * CONV2D_WEIGHT_STRIDE2 + j;
                for (int o = 0; o < CHANNELS; ++o) {
                    const float factor = weights[o * CONV2D_WEIGHT_STRIDE0];
#pragma omp simd
                    for (int k = 0; k < WIDTH; ++k) sum[o][k] += factor * pixels[k];
                }
            }
    for (int o = 0; o < CHANNELS; ++o)
        for (int k = 0; k < WIDTH; ++k) out[o * OUT_STRIDE1 + k] = sum[o][k];
}

extern "C" void convolve(const float* __restrict x, const float* __restrict weight, float* __restrict out) {
#pragma omp parallel for collapse(2) schedule(static)
    for (long long n = 0; n < OUT_DIM0; ++n) {
        for (long long row = 0; row < OUT_DIM2; ++row) {
            for (long long o = 0; o < OUT_DIM1; o += CHANNELS) {
                const float* image = x + n * X_STRIDE0 + row * X_STRIDE2;
                const float* filters = weight + o * CONV2D_WEIGHT_STRIDE0;
                float* result = out + n * OUT_STRIDE0 + o * OUT_STRIDE1 + row * OUT_STRIDE2;
                long long col = 0;
                for (; col + TILE <= OUT_DIM3; col += TILE) strip<TILE>(image + col, filters, result + col);
                for (; col < OUT_DIM3; ++col) strip<1>(image + col, filters, result + col);
            }
        }
    }
}
