"""Measure what a heavy header costs an NVRTC build: ``python -m benchmarks.header_builds``.

Processor seconds of the compiler's process (start included), the least of several builds of a kernel that includes one
header and does nothing with it; needs no GPU. The rule of ``cupilot.domain.device_headers.wants_precompiled`` should
choose the cheaper of the two for each header.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import tempfile
from pathlib import Path

from benchmarks import records
from cupilot.domain import device_headers
from gpu_worker.targets.cuda.toolchain import CudaToolchain

HEADERS = (
    "cuda_fp16.h",
    "cuda_bf16.h",
    "mma.h",
    "cuda_pipeline.h",
    "cooperative_groups.h",
    "cooperative_groups/reduce.h",
    "cooperative_groups/memcpy_async.h",
    "cuda/atomic",
    "cuda/barrier",
    "cuda/pipeline",
    "cuda/ptx",
    "cuda/std/complex",
)
_KERNEL = 'extern "C" __global__ void k(float* out) { out[threadIdx.x] = 1.0f; }\n'
_WITH = "#if 0\n#include <cooperative_groups.h>\n#endif\n"
_WITHOUT = "#if 0\n#define _CG_NEVER\n#endif\n"
"""Text that the rule sees and the compiler does not."""


def processor_seconds(toolchain: CudaToolchain, source: str, builds: int) -> float:
    """Return the least that one build of ``source`` took."""
    seconds = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "problem.h").write_text("#pragma once\n", encoding="utf-8")
        (folder / "kernel.cu").write_text(source, encoding="utf-8")
        for _ in range(builds):
            program = toolchain.compile_program(folder)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            # Not in the sandbox, whose processes' time is not counted; the source is this module's own.
            subprocess.run(
                program.argv, env={**os.environ, **program.access.environment}, stderr=subprocess.DEVNULL, check=True
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(seconds)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--builds", type=int, default=5, help="builds of each kind; the least counts")
    parser.add_argument("--out", type=Path, help="the record as JSON")
    options = parser.parse_args()
    toolchain = CudaToolchain(options.arch)
    processor_seconds(toolchain, f"{_WITH}{_KERNEL}", 1)  # makes the precompiled headers
    print(f"{'header':<34} {'plain':>6} {'precompiled':>12}  chosen, processor seconds")
    rows = []
    for header in HEADERS:
        source = f"#include <{header}>\n{_KERNEL}"
        plain = processor_seconds(toolchain, _WITHOUT + source, options.builds)
        ready = processor_seconds(toolchain, _WITH + source, options.builds)
        chosen = "precompiled" if device_headers.wants_precompiled(source) else "plain"
        print(f"{header:<34} {plain:6.2f} {ready:12.2f}  {chosen}", flush=True)
        rows.append({"header": header, "plain": plain, "precompiled": ready, "chosen": chosen})
    if options.out:
        unit = f"processor seconds, least of {options.builds} builds"
        what = f"{toolchain.compiler}, {options.arch}"
        records.write(options.out, {**records.stamp(), "what": what, "unit": unit, "headers": rows})


if __name__ == "__main__":
    main()
