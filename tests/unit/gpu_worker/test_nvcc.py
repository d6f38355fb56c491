"""nvcc as a builder: found or not, and where it is, held to what NVRTC is held to. No GPU, no driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from cupilot.domain.errors import InvalidInput, Unavailable
from cupilot.domain.evaluation import FailureKind
from cupilot.domain.problem import NumericsPolicy, Target
from gpu_worker.build import Build, Builder
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.cuda import installation
from gpu_worker.targets.cuda.nvcc import BUILDERS, NVCC, NvccToolchain, toolchain
from gpu_worker.targets.cuda.toolchain import CudaToolchain
from gpu_worker.targets.registry import open_host
from tests.gpu import tma_kernels
from tests.unit.gpu_worker.test_cuda_build import CLOCK, HEADER, SCALE, TENSOR, under


@pytest.fixture(scope="module")
def nvcc() -> NvccToolchain:
    try:
        return NvccToolchain("sm_90")
    except Unavailable as error:
        pytest.skip(error.message)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("builds")


@pytest.fixture(scope="module")
def builder(nvcc: NvccToolchain, folder: Path) -> Builder:
    return Builder(nvcc, Sandbox(), folder, "sm_90")


def built(builder: Builder, source: str) -> Build:
    build = builder.build(source, HEADER)
    assert build.failure is None, build.report.log
    return build


def test_nvrtc_is_used_unless_a_worker_is_told_otherwise() -> None:
    assert BUILDERS[0] == "nvrtc"
    assert isinstance(toolchain("sm_90", None), CudaToolchain)
    assert isinstance(toolchain("sm_90", "nvrtc"), CudaToolchain)
    with pytest.raises(InvalidInput, match="one builder for the cpu"):
        open_host(Target.CPU, builder=NVCC)


def test_a_machine_without_nvcc_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    monkeypatch.setattr(installation, "_toolkits", lambda: [tmp_path])  # a driver without its compiler is none
    monkeypatch.setattr(installation, "_wheel_roots", list)
    monkeypatch.setattr(installation, "nvcc", installation.nvcc.__wrapped__)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match="nvcc is not installed") as caught:
        toolchain("sm_90", NVCC)
    assert "CUDA_HOME" in (caught.value.hint or "")


def test_builds_of_the_two_are_the_same_but_kept_apart(builder: Builder, folder: Path) -> None:
    ours = built(builder, SCALE)
    other = built(Builder(CudaToolchain("sm_90"), Sandbox(), folder, "sm_90"), SCALE)
    assert not other.report.cached
    assert built(builder, SCALE).report.cached
    assert ours.binary is not None
    assert ours.binary.read_bytes()[:4] == b"\x7fELF"
    assert sorted(path.name for path in ours.binary.parent.iterdir()) == [
        "kernel.bin", "kernel.cu", "problem.h", "record.json", "resources.txt",
    ]  # fmt: skip
    assert ours.report.compiler.startswith("nvcc ")
    assert not any("/" in flag for flag in ours.report.flags), "flags are part of results: no machine paths"
    for family in ("global_load", "global_store"):
        assert ours.facts.instructions[family] == other.facts.instructions[family]
    assert ours.facts.registers is not None
    assert (ours.facts.spill_bytes, ours.facts.shared_bytes) == (0, 0)


def test_machine_code_of_nvcc_is_held_to_the_policy(builder: Builder, nvcc: NvccToolchain) -> None:
    for source, allowed in ((SCALE, {"fp32", "tf32", "half"}), (TENSOR, {"tf32", "half"}), (CLOCK, set())):
        facts = built(builder, source).facts
        kept = {policy.value for policy in NumericsPolicy if nvcc.refusal(source, facts, under(policy)) is None}
        assert kept == allowed


def test_a_kernel_for_nvrtc_builds_with_the_toolkits_headers(builder: Builder) -> None:
    header = HEADER + "constexpr int TILE_COLS = 32, TILE_ROWS = 64;\n"
    build = builder.build(tma_kernels.gelu().source, header)
    assert build.failure is None, build.report.log
    assert (build.facts.instructions["tma_load"], build.facts.instructions["tma_store"]) == (1, 1)


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        (SCALE.replace("2.0f", "factor"), 4, 'identifier "factor" is undefined'),
        (SCALE.replace("problem.h", "nowhere.h"), 1, "nowhere.h: No such file"),
        (SCALE + 'extern "C" __global__ void f(float* x) { scale<<<1, 1>>>(x, x); }\n', 6, "launch from __device__"),
    ],
    ids=["identifier", "header", "launch"],
)
def test_an_error_names_the_line_and_what_is_wrong(builder: Builder, source: str, line: int, message: str) -> None:
    build = builder.build(source, HEADER)
    assert build.failure is not None
    assert build.failure.kind is FailureKind.COMPILE_ERROR
    assert build.failure.details["lines"] == [line]
    assert message in build.failure.message
    assert "ptxas info" not in build.report.log
    assert "errors detected" not in build.report.log


def test_the_source_cannot_read_the_machine(builder: Builder, tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("#error the secret was read\n")
    build = builder.build(f'#include "{secret}"\n{SCALE}', HEADER)
    assert build.failure is not None
    assert "secret was read" not in build.report.log
