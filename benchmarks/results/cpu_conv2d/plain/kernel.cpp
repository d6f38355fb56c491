#include "problem.h"

// One image of one output channel at a time, an output pixel after the other.
extern "C" void convolve(const float* __restrict x, const float* __restrict weight, float* __restrict out) {
#pragma omp parallel for collapse(2) schedule(static)
    for (long long n = 0; n < OUT_DIM0; ++n) {
        for (long long o = 0; o < OUT_DIM1; ++o) {
            for (long long row = 0; row < OUT_DIM2; ++row) {
                for (long long col = 0; col < OUT_DIM3; ++col) {
                    float sum = 0.0f;
                    for (long long c = 0; c < X_DIM1; ++c)
                        for (long long i = 0; i < CONV2D_WEIGHT_DIM2; ++i)
                            for (long long j = 0; j < CONV2D_WEIGHT_DIM3; ++j)
                                sum += x[n * X_STRIDE0 + c * X_STRIDE1 + (row + i) * X_STRIDE2 + col + j] *
                                       weight[o * CONV2D_WEIGHT_STRIDE0 + c * CONV2D_WEIGHT_STRIDE1 +
                                              i * CONV2D_WEIGHT_STRIDE2 + j];
                    out[n * OUT_STRIDE0 + o * OUT_STRIDE1 + row * OUT_STRIDE2 + col] = sum;
                }
            }
        }
    }
}
