"""NVRTC builds in the sandbox and what their machine code shows: needs wheels, no GPU, no driver, no toolkit."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cupilot.domain.device_headers import COMMON, wants_precompiled
from cupilot.domain.evaluation import FailureKind
from cupilot.domain.problem import Graph, NumericsPolicy, ProblemFacts
from gpu_worker.build import Build, Builder
from gpu_worker.sandbox.files import SOURCE_ROOT
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.cuda import compiler, installation
from gpu_worker.targets.cuda.nvrtc import Program
from gpu_worker.targets.cuda.toolchain import CudaToolchain, architecture

pytestmark = pytest.mark.builds


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is laid out like a toolkit, on a machine without wheels."""
    cached = (installation.nvrtc, installation.compiler_version)
    monkeypatch.setattr(installation, "_wheel_roots", list)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    for function in cached:
        function.cache_clear()
    yield tmp_path
    for function in cached:
        function.cache_clear()


def test_a_toolkits_compiler_has_the_version_of_its_file(toolkit: Path) -> None:
    libraries = toolkit / "lib64"
    libraries.mkdir()
    (libraries / "libnvrtc.so.13.1.7").touch()
    (libraries / "libnvrtc.so.13").symlink_to("libnvrtc.so.13.1.7")
    assert installation.compiler_version() == "nvrtc 13.1.7"


HEADER = "#pragma once\nconstexpr long long X_SIZE = 1024LL;\nconstexpr int BLOCK = 128;\n"

SCALE = """#include "problem.h"
extern "C" __global__ void scale(const float* x, float* out) {
    long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (i < X_SIZE) out[i] = 2.0f * x[i];
}
"""

VECTOR_COPY = """#include "problem.h"
extern "C" __global__ void copy(const float* x, float* out) {
    reinterpret_cast<float4*>(out)[threadIdx.x] = reinterpret_cast<const float4*>(x)[threadIdx.x];
}
"""

TENSOR = """#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void tile(const float* a, const float* b, float* out) {
    wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> acc;
    wmma::fill_fragment(acc, 0.0f);
    wmma::load_matrix_sync(fa, a, 8);
    wmma::load_matrix_sync(fb, b, 16);
    wmma::mma_sync(acc, fa, fb, acc);
    wmma::store_matrix_sync(out, acc, 16, wmma::mem_row_major);
}
"""

HALF_TENSOR = """#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void tile(const __half* a, const __half* b, float* out) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
    wmma::fill_fragment(acc, 0.0f);
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, b, 16);
    wmma::mma_sync(acc, fa, fb, acc);
    wmma::store_matrix_sync(out, acc, 16, wmma::mem_row_major);
}
"""

HALF_MATH = """#include <cuda_fp16.h>
extern "C" __global__ void square(const float* x, float* out) {
    __half h = __float2half(x[threadIdx.x]);
    out[threadIdx.x] = __half2float(__hmul(h, h));
}
"""

APPROXIMATE = SCALE.replace("2.0f * x[i]", "__sinf(x[i])")
ACCURATE = SCALE.replace("2.0f * x[i]", "sinf(x[i]) * tanhf(x[i]) + cosf(x[i])")

CLOCK = """extern "C" __global__ void spy(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x] + clock64(); }
"""

GRID_SYNC = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void twice(const float* x, float* out) {
    out[threadIdx.x] = x[threadIdx.x];
    cg::this_grid().sync();
    out[threadIdx.x] += x[threadIdx.x];
}
"""

SPILLING = """extern "C" __global__ void keep(const float* x, float* out) {
    float local[64];
    for (int i = 0; i < 64; ++i) local[(int)x[i] & 63] = x[i * 7];
    out[threadIdx.x] = local[(int)x[threadIdx.x] & 63];
}
"""

HABITS = """#include <cuda_runtime.h>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include "problem.h"
extern "C" __global__ void habits(const float* x, float* out) {
    uint32_t i = threadIdx.x;
    float low = fminf(-FLT_MAX, std::numeric_limits<float>::lowest());
    out[i] = fmaxf(low, fminf(x[i], INFINITY)) + (float)M_PI + (float)INT_MAX + __expf(x[i]);
}
"""

INTEGERS = """#include <cuda/std/cstdint>
#include <cuda/std/climits>
#include <cuda/std/type_traits>
static_assert(cuda::std::is_same_v<cuda::std::int64_t, int64_t> && sizeof(uintptr_t) == 8 && sizeof(int_fast16_t) == 2);
static_assert(INT8_MIN == -128 && UINT16_MAX == 65535 && INT64_MAX == LLONG_MAX && SIZE_MAX == ~0ull && CHAR_BIT == 8);
extern "C" __global__ void fill(uint32_t* out) { out[threadIdx.x] = UINT32_C(7); }
"""


@pytest.fixture(scope="module")
def toolchain() -> CudaToolchain:
    return CudaToolchain("sm_90")


@pytest.fixture(scope="module")
def builder(toolchain: CudaToolchain, tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(toolchain, Sandbox(), tmp_path_factory.mktemp("builds"), "sm_90")


def under(policy: NumericsPolicy) -> ProblemFacts:
    return ProblemFacts(
        problem_hash="",
        policy=policy,
        tensors=(),
        graph=Graph(nodes=(), outputs=()),
        op_class="other",
        flops=0.0,
        compulsory_bytes=0,
    )


def built(builder: Builder, source: str) -> Build:
    build = builder.build(source, HEADER)
    assert build.failure is None, build.report.log
    assert build.binary is not None
    return build


def test_the_architecture_specific_variant_is_built_from_hopper_on() -> None:
    assert [architecture(arch) for arch in ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")] == [
        "sm_80",
        "sm_89",
        "sm_90a",
        "sm_100a",
        "sm_120a",
    ]


def test_a_plain_kernel_becomes_a_cubin_with_its_resources(builder: Builder) -> None:
    build = built(builder, SCALE)
    assert build.binary is not None
    assert build.binary.read_bytes()[:4] == b"\x7fELF"
    assert build.report.compiler.startswith("nvrtc 13.")
    assert "--gpu-architecture=sm_90a" in build.report.flags
    assert not any("/" in flag for flag in build.report.flags), "flags are part of results: no machine paths"
    assert build.facts.registers is not None
    assert 1 <= build.facts.registers <= 255
    assert build.facts.spill_bytes == 0
    assert build.facts.shared_bytes == 0
    assert build.facts.instructions["global_load"] == 1
    assert build.facts.instructions["global_store"] == 1
    assert "vector_load_128" not in build.facts.instructions


def test_a_second_build_comes_from_the_cache(builder: Builder) -> None:
    built(builder, SCALE)
    assert built(builder, SCALE).report.cached


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_every_supported_generation_builds_without_a_gpu(arch: str, tmp_path: Path) -> None:
    build = built(Builder(CudaToolchain(arch), Sandbox(), tmp_path, arch), TENSOR)
    assert build.facts.instructions["tensor_core"] >= 1


def test_vector_access_is_seen(builder: Builder) -> None:
    instructions = built(builder, VECTOR_COPY).facts.instructions
    assert instructions["vector_load_128"] == 1
    assert instructions["vector_store_128"] == 1


def test_local_memory_is_seen(builder: Builder) -> None:
    assert built(builder, SPILLING).facts.instructions["local_memory"] > 0


def test_headers_that_nvcc_users_include_out_of_habit_exist(builder: Builder) -> None:
    built(builder, HABITS)


def test_every_kernel_has_the_integers_of_the_headers(builder: Builder) -> None:
    """Written out, since reading them takes a tenth of a short build."""
    assert built(builder, INTEGERS).report.log == ""
    built(builder, re.sub(r"#include.*|cuda::std::is_same_v.*? && ", "", INTEGERS))
    folder = installation.include_folders()[1] / "cuda" / "std"
    theirs = _defined((folder / "cstdint").read_text()) | _defined((folder / "climits").read_text())
    ours = _defined(COMMON)
    integers = {name for name in theirs if re.match(r"U?INT|SIZE|PTRDIFF|S?CHAR|U?(SHRT|LONG|LLONG|CHAR)", name)}
    assert len(integers) > 70
    assert {name for name in integers if name not in ours} == set()
    choices = {"CHAR_MIN", "CHAR_MAX", "LONG_MAX", "ULONG_MAX"}
    assert {name: ours[name] for name in integers - choices} == {name: theirs[name] for name in integers - choices}


def _defined(header: str) -> dict[str, str]:
    """Macros by name, with the first value that a header gives them."""
    found = re.findall(r"^# *define +(\w+(?:\(X\))?) +(.*?) *$", header, re.M)
    return dict(reversed(found))


def test_a_builds_process_imports_little() -> None:
    """Each of these would take some of the milliseconds that a build has."""
    listing = compiler.START.replace("compiler.main()", "print(*sys.modules)")
    argv = [sys.executable, "-I", "-S", "-c", listing, str(SOURCE_ROOT)]
    modules = set(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())
    assert "gpu_worker.targets.cuda.nvrtc" in modules
    assert not modules & {"argparse", "collections", "json", "pathlib", "re", "subprocess", "typing"}


def test_slow_headers_come_precompiled(builder: Builder, toolchain: CudaToolchain) -> None:
    built(builder, GRID_SYNC)
    assert toolchain._precompiled is not None
    assert toolchain._precompiled.stat().st_size > 0
    shutil.rmtree(toolchain._precompiled.parent)  # as whatever tidies /tmp
    built(builder, f"{GRID_SYNC}// again\n")
    assert toolchain._precompiled.stat().st_size > 0


def test_headers_that_are_quick_are_not_precompiled() -> None:
    """Reading the precompiled ones takes longer: ``benchmarks.header_builds``."""
    slow = ("cooperative_groups.h", "cooperative_groups/reduce.h", "cuda/barrier", "cuda/pipeline", "cuda/std/complex")
    quick = ("cuda_fp16.h", "mma.h", "cuda/ptx", "cuda/std/limits", "cuda.h", "cuda_pipeline.h")
    assert all(wants_precompiled(f"#include <{name}>\n") for name in slow)
    assert not any(wants_precompiled(f"#include <{name}>\n") for name in quick)
    assert not wants_precompiled("#define _CG_ABI_EXPERIMENTAL\n#include <cooperative_groups.h>\n")


def test_a_compile_error_names_the_line_and_what_is_wrong(builder: Builder) -> None:
    build = builder.build(SCALE.replace("2.0f", "factor"), HEADER)
    assert build.binary is None
    assert build.failure is not None
    assert build.failure.kind is FailureKind.COMPILE_ERROR
    assert build.failure.details["lines"] == [4]
    assert 'identifier "factor" is undefined' in build.failure.message
    assert "ptxas info" not in build.report.log


def test_the_source_cannot_read_the_machine(builder: Builder, tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("#error the secret was read\n")
    build = builder.build(f'#include "{secret}"\n{SCALE}', HEADER)
    assert build.failure is not None
    assert "cannot open source file" in build.report.log
    assert "secret was read" not in build.report.log


def test_device_code_cannot_launch_kernels_of_its_own(builder: Builder) -> None:
    source = (
        'extern "C" __global__ void child(float* p) {}\nextern "C" __global__ void f(float* p) { child<<<1, 1>>>(p); }'
    )
    build = builder.build(source, HEADER)
    assert build.failure is not None
    assert build.failure.kind is FailureKind.COMPILE_ERROR


@pytest.mark.parametrize(
    ("source", "allowed"),
    [
        (SCALE, {"fp32", "tf32", "half"}),
        (ACCURATE, {"fp32", "tf32", "half"}),
        (APPROXIMATE, {"tf32", "half"}),
        (TENSOR, {"tf32", "half"}),
        (HALF_TENSOR, {"half"}),
        (HALF_MATH, {"half"}),
        (CLOCK, set()),
    ],
    ids=["scalar", "accurate", "approximate", "tf32", "fp16-tensor", "fp16-math", "clock"],
)
def test_the_machine_code_shows_which_policies_a_kernel_keeps(
    builder: Builder, toolchain: CudaToolchain, source: str, allowed: set[str]
) -> None:
    facts = built(builder, source).facts
    kept = {policy.value for policy in NumericsPolicy if toolchain.refusal(source, facts, under(policy)) is None}
    assert kept == allowed


def test_code_that_nobody_could_read_is_refused(toolchain: CudaToolchain) -> None:
    facts = toolchain.facts("", "nvdisasm crashed")
    assert toolchain.refusal(SCALE, facts, under(NumericsPolicy.HALF)) == "the machine code could not be disassembled"


def test_an_empty_log_leaves_no_trace_in_this_process() -> None:
    """NVRTC writes into what it is given, and Python has one object for each single byte."""
    program = Program(installation.nvrtc(), "", {})
    assert program.compile(["-arch=sm_90a"])
    assert program.log() == ""
    assert ord(b" " * len(".")) == 0x20
