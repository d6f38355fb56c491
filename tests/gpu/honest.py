"""Honest CUDA kernels over all families of level 1, at sizes that take seconds: which problems, and how many of each.

The kernels are those of :mod:`benchmarks.judge_kernels`, made for a problem when its facts are known.
"""

from __future__ import annotations

HONEST: dict[str, int] = {
    "gelu": 4,
    "hardtanh": 2,
    "matmul": 4,
    "matmul_transposed_b": 2,
    "matmul_lower_triangular": 2,
    "matvec": 2,
    "softmax": 4,
    "layer_norm": 3,
    "group_norm": 2,
    "batch_norm": 2,
    "sum_reduction": 3,
    "argmax": 3,
    "mse_loss": 2,
    "cross_entropy_loss": 3,
    "triplet_margin_loss": 2,
    "conv1d_dilated_strided": 2,
    "conv2d_alexnet": 3,
    "conv2d_depthwise_separable": 2,
    "conv3d_rectangular_kernel": 2,
    "conv_transpose1d_padded_strided_dilated": 2,
    "conv_transpose2d_strided_grouped_padded_dilated": 2,
    "conv_transpose3d_strided_padded_grouped": 2,
    "max_pool2d": 2,
    "avg_pool3d": 2,
    "cumsum": 3,
    "cumprod": 2,
    "masked_cumsum": 2,
    "attention": 2,
}
"""Built-in problem, and how many of its kernels are judged."""

CASES = [(problem, index) for problem, count in HONEST.items() for index in range(count)]
