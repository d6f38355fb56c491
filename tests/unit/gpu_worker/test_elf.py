"""Sections with machine code: in libraries and cubins that compilers here really made, and in files that are none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupilot.domain.problem import NumericsPolicy
from gpu_worker.build import Builder
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.cpu_toolchain import FLAGS
from gpu_worker.targets.cuda import policy
from gpu_worker.targets.cuda.toolchain import CudaToolchain
from gpu_worker.targets.elf import Image, InvalidElf

pytestmark = pytest.mark.builds

PLAIN = 'extern "C" void run(const float* x, float* out) { out[0] = 2 * x[0]; }\n'


def library(folder: Path, source: str) -> Image:
    (folder / "kernel.cpp").write_text(source)
    product = folder / "kernel.so"
    subprocess.run(["g++", *FLAGS, "-o", product, folder / "kernel.cpp"], check=True, capture_output=True)
    return Image.read(product.read_bytes())


def test_an_honest_library_has_one_mapping_of_code_and_nothing_else_in_it(tmp_path: Path) -> None:
    image = library(tmp_path, PLAIN)
    assert image.writable_code() is None
    assert image.unnamed_code() is None
    assert {".text", ".init", ".fini"} <= {section.name for section in image.code_sections()}
    ((offset, length),) = image.code_maps()
    assert (offset % 4096, length % 4096) == (0, 0)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            'extern "C" __attribute__((section(".data.exec,\\"awx\\"#"))) void run() {}\n',
            "its segment with .data is writable and executable",
        ),
        ('asm(".pushsection .note.GNU-stack,\\"x\\",@progbits\\n.popsection");\n' + PLAIN, "an executable stack"),
        ('asm(".text\\n.quad stored");\nextern "C" { float stored; }\n' + PLAIN, "text relocations"),
    ],
)
def test_memory_that_can_be_written_and_executed_is_named(tmp_path: Path, source: str, reason: str) -> None:
    assert reason in (library(tmp_path, source).writable_code() or "")


def test_executable_bytes_outside_of_sections_are_seen(tmp_path: Path) -> None:
    """As a linker makes them that puts constants beside the code."""
    (tmp_path / "kernel.cpp").write_text('extern "C" const char* run() { return "a constant"; }\n')
    product = tmp_path / "kernel.so"
    argv = ["g++", "-shared", "-fPIC", "-Wl,-z,noseparate-code", "-o", product, tmp_path / "kernel.cpp"]
    subprocess.run(argv, check=True)
    assert "in no section of code" in (Image.read(product.read_bytes()).unnamed_code() or "")


@given(st.binary(max_size=200), st.integers(0, 200))
def test_whatever_is_no_elf_file_is_refused(noise: bytes, keep: int) -> None:
    header = (b"\x7fELF\x02\x01" + b"\xff" * 58)[:keep]
    with pytest.raises(InvalidElf):
        Image.read(header + noise)


HELPERS = """
__noinline__ __device__ float twice(float x) { return 2.0f * x; }
__noinline__ __device__ float thrice(float x) { return 3.0f * x; }
"""
KERNELS = {
    "plain": ("__global__ void k(const float* x, float* out) { out[0] = x[0] / x[1]; }", False),
    "a_function": (HELPERS + "__global__ void k(const float* x, float* out) { out[0] = twice(thrice(x[0])); }", False),
    "two_kernels": (
        "__global__ void k(const float* x, float* out) { out[0] = sinf(x[0]); }\n"
        "__global__ void l(const float* x, float* out) { out[1] = x[1]; }",
        False,
    ),
    "a_table_of_functions": (
        HELPERS + "__device__ float (*const table[2])(float) = {twice, thrice};\n"
        "__global__ void k(const float* x, float* out) { out[0] = table[x[0] > 0](x[1]); }",
        True,
    ),
    "data_called_as_a_function": (
        "__global__ void k(const float* x, float* out) { ((void (*)(float*))x)(out); }",
        True,
    ),
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", KERNELS)
def test_every_instruction_of_a_cubin_is_read_and_computed_calls_are_refused(
    tmp_path: Path, name: str, arch: str
) -> None:
    source, refused = KERNELS[name]
    build = Builder(CudaToolchain(arch), Sandbox(), tmp_path, arch).build(source, "")
    assert build.binary is not None, build.report.log
    held = sum(section.size for section in Image.read(build.binary.read_bytes()).code_sections())
    assert build.facts.instructions["instructions"] == held // 16
    assert ("computed" in (policy.breach(build.facts.instructions, NumericsPolicy.FP32) or "")) == refused
