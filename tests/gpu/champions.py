"""Kernels with right results and undefined behaviour, one for each tool that looks at champions; and one in fp16."""

from __future__ import annotations

from cupilot.domain.kernel import Kernel
from tests.gpu import kernels

_SCALE = "float scale = 1.0f / total;"

UNDEFINED: dict[str, Kernel] = {
    "memcheck": kernels.edited_softmax(_SCALE, f"{_SCALE} if (x[X_SIZE] == 12345.0f) scale = 0.0f;"),
    "racecheck": kernels.edited_softmax(
        _SCALE,
        "__shared__ volatile float flag; if (threadIdx.x == 0) flag = total; "
        f"{_SCALE} if (flag == 12345.0f) scale = 0.0f;",
    ),
    "initcheck": kernels.edited_softmax(
        _SCALE,
        f"{_SCALE} if (blockIdx.x == 0 && threadIdx.x == 0 && out[0] == 12345.0f) scale = 0.0f;",
    ),
    "synccheck": kernels.edited_softmax(
        _SCALE,
        f"{_SCALE} if (threadIdx.x % 32 < 16) __syncthreads();",
    ),
}
"""By the tool that finds what is wrong."""

WHAT = {
    "memcheck": "reads past the input",
    "racecheck": "reads a flag in shared memory while it is written",
    "initcheck": "reads the output, which nothing has written",
    "synccheck": "half of each warp waits at a barrier that the other half skips",
}

FP16 = kernels.softmax(
    "#include <cuda_fp16.h>\n"
    + kernels.edited_softmax(_SCALE, "float scale = __half2float(__hdiv(__half(1.0f), __half(total)));").source
)
"""Divides in half precision: within the policy ``half``, a breach of ``fp32``."""
