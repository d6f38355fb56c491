"""A program that measures one GPU and prints the fields of ``gpu_worker.targets.base.MeasuredPeaks`` as JSON.

A peak is what no kernel can exceed, so each is the best of several ways to reach it, of short runs, on data that costs
the least power: zeros make matrix units 13 % faster than random numbers on an H200, since the clock drops less.
Start: ``python -I peaks.py SOURCE_ROOT NVRTC INCLUDE...``; the GPU is the one that ``CUDA_VISIBLE_DEVICES`` names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, sys.argv.pop(1))

import torch

from gpu_worker.targets.cuda import driver, nvrtc

REPEATS = 12
MAIN_MEMORY_BYTES = 2 * 2**30
MATRIX = 8192
FMA_ITERATIONS, FMA_CHAINS, FMA_THREADS, FMA_BLOCKS_PER_UNIT = 2048, 16, 256, 8
READ_THREADS, READ_BLOCKS_PER_UNIT = 512, 4
CACHE_PASSES = 100
LAUNCHES = 200

SOURCE = """
extern "C" __global__ void empty() {}

extern "C" __global__ void __launch_bounds__(256) multiply_add(float* out, float a, float b) {
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = threadIdx.x + i;
    for (int step = 0; step < 2048; ++step) {
#pragma unroll
        for (int i = 0; i < 16; ++i) x[i] = fmaf(x[i], a, b);
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; ++i) sum += x[i];
    if (sum == 12345.678f) out[0] = sum;
}

extern "C" __global__ void __launch_bounds__(512) read_all(
    const float4* in, float* out, long long count, long long passes) {
    float sum = 0.0f;
    long long stride = (long long)gridDim.x * blockDim.x;
    for (long long pass = 0; pass < passes; ++pass) {
        long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
        for (; i + 3 * stride < count; i += 4 * stride) {
            float4 a = __ldcg(in + i), b = __ldcg(in + i + stride);
            float4 c = __ldcg(in + i + 2 * stride), d = __ldcg(in + i + 3 * stride);
            sum += a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w + c.x + c.y + c.z + c.w + d.x + d.y + d.z + d.w;
        }
    }
    if (sum == 12345.678f) out[0] = sum;
}
"""


def main() -> None:
    """Measure and print."""
    torch.cuda.set_device(0)
    bench = Bench(Path(sys.argv[1]), sys.argv[2:])
    cache = bench.context.attribute("L2_CACHE_SIZE")
    result = {
        "bandwidth": [[cache // 2, bench.cache(cache // 2)], [MAIN_MEMORY_BYTES, bench.main_memory()]],
        "scalar_flops": max(bench.multiply_add(), bench.matrix(torch.float32, tf32=False)),
        "tensor_flops": {
            "tf32": bench.matrix(torch.float32, tf32=True),
            "half": max(bench.matrix(torch.bfloat16, tf32=True), bench.matrix(torch.float16, tf32=True)),
        },
        "launch_seconds": bench.launch(),
    }
    sys.stdout.write(json.dumps(result) + "\n")


class Bench:
    """The ways to reach each peak, on one GPU."""

    def __init__(self, library: Path, include: list[str]) -> None:
        self.context = driver.Context()
        self._units = self.context.attribute("MULTIPROCESSOR_COUNT")
        self._stream = driver.Stream()
        self._module = driver.Module(self._cubin(library, include))

    def _cubin(self, library: Path, include: list[str]) -> bytes:
        major, minor = self.context.compute_capability
        program = nvrtc.Program(library, SOURCE, {})
        options = [
            f"--gpu-architecture=sm_{major}{minor}",
            "--std=c++17",
            *(f"--include-path={path}" for path in include),
        ]
        if not program.compile(options):
            raise nvrtc.CompilerFault(program.log())
        return program.cubin()

    def main_memory(self) -> float:
        """Return bytes a second of main memory: the best of a copy, a fill and a pure read."""
        data = torch.zeros(MAIN_MEMORY_BYTES, dtype=torch.uint8, device="cuda")
        source, destination = data.chunk(2)
        return max(
            data.numel() / self._torch_seconds(lambda: destination.copy_(source)),
            data.numel() / self._torch_seconds(data.zero_),
            self._read(data, passes=1),
        )

    def cache(self, nbytes: int) -> float:
        """Return bytes a second read from a working set that stays in the L2 cache."""
        return self._read(torch.zeros(nbytes, dtype=torch.uint8, device="cuda"), passes=CACHE_PASSES)

    def _read(self, data: torch.Tensor, passes: int) -> float:
        grid = (READ_BLOCKS_PER_UNIT * self._units, 1, 1)
        sweep = 4 * grid[0] * READ_THREADS
        count = data.numel() // 16 // sweep * sweep
        geometry = driver.Geometry(grid=grid, block=(READ_THREADS, 1, 1))
        arguments = [data.data_ptr(), data.data_ptr(), count, passes]
        launch = driver.PreparedLaunch(self._module.function("read_all"), self._stream, arguments, geometry)
        return 16 * count * passes / self._seconds(launch.submit)

    def multiply_add(self) -> float:
        """Return fused multiply-adds a second, times two, with every operand in registers."""
        grid = (FMA_BLOCKS_PER_UNIT * self._units, 1, 1)
        out = torch.zeros(1, device="cuda")
        geometry = driver.Geometry(grid=grid, block=(FMA_THREADS, 1, 1))
        arguments = [out.data_ptr(), 0, 0]
        launch = driver.PreparedLaunch(self._module.function("multiply_add"), self._stream, arguments, geometry)
        operations = 2 * grid[0] * FMA_THREADS * FMA_CHAINS * FMA_ITERATIONS
        return operations / self._seconds(launch.submit)

    def matrix(self, dtype: torch.dtype, *, tf32: bool) -> float:
        """Return operations a second of a large matrix product."""
        a = torch.zeros(MATRIX, MATRIX, dtype=dtype, device="cuda")
        b, out = torch.zeros_like(a), torch.empty_like(a)
        torch.backends.cuda.matmul.allow_tf32 = tf32
        return 2.0 * MATRIX**3 / self._torch_seconds(lambda: torch.mm(a, b, out=out))

    def launch(self) -> float:
        """Time an empty launch in a row of them, submitted as the runner does: one by one, or as a graph."""
        geometry = driver.Geometry(grid=(1, 1, 1), block=(1, 1, 1))
        submit = driver.PreparedLaunch(self._module.function("empty"), self._stream, [], geometry).submit

        def row() -> None:
            for _ in range(LAUNCHES):
                submit()

        ways: list[Callable[[], None]] = [row]
        with suppress(driver.DriverError):
            ways.append(driver.Graph(self._stream, row).launch)
        return min(map(self._seconds, ways)) / LAUNCHES

    def _seconds(self, work: Callable[[], Any]) -> float:
        """Return least device time of a few runs on our stream."""
        start, end = driver.Event(), driver.Event()
        best = float("inf")
        for _ in range(REPEATS):
            start.record(self._stream)
            work()
            end.record(self._stream)
            self._stream.synchronize()
            best = min(best, end.microseconds_since(start) * 1e-6)
        return best

    def _torch_seconds(self, work: Callable[[], Any]) -> float:
        """Return the same on torch's stream."""
        best = float("inf")
        for _ in range(REPEATS):
            start, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            end.synchronize()
            best = min(best, start.elapsed_time(end) * 1e-3)
        return best


if __name__ == "__main__":
    main()
