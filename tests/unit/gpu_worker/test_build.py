"""The build service: what is remembered, what is said about failures, what a binary tells."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import psutil
import pytest

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan
from cupilot.domain.problem import NumericsPolicy, Target
from gpu_worker import build, build_ahead
from gpu_worker.build import Builder
from gpu_worker.build_ahead import BuildAhead
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.base import Access, Program
from gpu_worker.targets.cpu_toolchain import CpuToolchain
from tests.living import still_running
from tests.unit.gpu_worker.records import facts

AXPY = r"""
#include "problem.h"
extern "C" void run(const float* x, float* out) {
  #pragma omp parallel for simd
  for (long i = 0; i < N; ++i) out[i] += 2.0f * x[i];
}"""
HEADER = "constexpr long N = 1000;\n"


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(CpuToolchain(), Sandbox(), tmp_path / "builds", "x86-64")


def test_a_build_is_made_once(builder: Builder) -> None:
    first, second = builder.build(AXPY, HEADER), builder.build(AXPY, HEADER)
    assert first.binary is not None
    assert first.binary.read_bytes()[:4] == b"\x7fELF"
    assert not first.report.cached
    assert second.report.cached
    assert second.binary == first.binary
    assert second.facts == first.facts


def test_everything_that_decides_the_binary_is_in_the_key(builder: Builder, tmp_path: Path) -> None:
    first = builder.build(AXPY, HEADER)
    assert builder.build(AXPY, "constexpr long N = 1001;\n").binary != first.binary
    assert builder.build(AXPY + "\n", HEADER).binary != first.binary
    other = Builder(CpuToolchain(), Sandbox(), tmp_path / "builds", "other-arch")
    assert other.build(AXPY, HEADER).binary != first.binary


def test_failures_are_remembered_with_their_lines(builder: Builder) -> None:
    for cached in (False, True):
        build = builder.build('extern "C" void run() {\n  int x = y;\n}', HEADER)
        assert build.binary is None
        assert build.report.cached is cached
        assert build.failure is not None
        assert build.failure.kind is FailureKind.COMPILE_ERROR
        assert build.failure.details["lines"] == [2]
        assert "'y' was not declared" in build.failure.message.replace("‘", "'").replace("’", "'")


def test_a_damaged_cache_entry_is_built_again(builder: Builder) -> None:
    first = builder.build(AXPY, HEADER)
    assert first.binary is not None
    (first.binary.parent / "record.json").write_text("{")
    assert not builder.build(AXPY, HEADER).report.cached


@pytest.mark.parametrize(
    "source",
    [
        "#include </etc/passwd>",
        'extern "C" int missing(); extern "C" int run() { return missing(); }',
        'asm(".incbin \\"/dev/zero\\"");',
        "template <int N> struct A { A<N + 1> a; static const int v = A<N + 1>::v; }; int x = A<0>::v;",
    ],
    ids=["file of the machine", "undefined function", "endless file", "template bomb"],
)
def test_hostile_sources_fail_to_compile(builder: Builder, source: str) -> None:
    build = builder.build(source, HEADER)
    assert build.failure is not None
    assert build.failure.kind is FailureKind.COMPILE_ERROR
    assert build.failure.message


def test_the_binary_tells_what_it_uses(builder: Builder) -> None:
    instructions = builder.build(AXPY, HEADER).report.instructions
    assert instructions["omp_parallel"] == 1
    assert sum(instructions.get(name, 0) for name in ("simd_128", "simd_256", "simd_512")) > 0


@pytest.mark.parametrize(
    "line", ["vdpbf16ps %zmm1,%zmm2,%zmm3", "vfmadd231ph %zmm1,%zmm2,%zmm3", "vaddsh %xmm0,%xmm1,%xmm2", "tdpbssd %t"]
)
def test_half_precision_instructions_need_the_half_policy(line: str) -> None:
    toolchain = CpuToolchain()
    found = toolchain.facts("", f"  10:\t{line}\n  16:\tvfmadd231ps %zmm1,%zmm2,%zmm3\n")
    assert "which only the half policy allows" in (toolchain.refusal("", found, facts()) or "")
    assert toolchain.refusal("", found, facts(NumericsPolicy.HALF)) is None
    honest = toolchain.facts("", "  16:\tvfmadd231ps %zmm1,%zmm2,%zmm3\n  1c:\tvcvtps2ph $0,%ymm0,(%rax)\n")
    assert toolchain.refusal("", honest, facts()) is None


class _Script(CpuToolchain):
    """Shell commands in the compiler's and the disassembler's place."""

    def __init__(self, compiling: str, inspecting: str) -> None:
        super().__init__()
        self.compiling, self.inspecting = compiling, inspecting

    def compile_program(self, folder: Path) -> Program:
        command = f"cd {folder}; {self.compiling}"
        return Program(("/bin/sh", "-c", command), Access(writable=(folder,), subprocesses=True))

    def inspect_program(self, folder: Path) -> Program:
        return Program(("/bin/sh", "-c", self.inspecting), Access(read_only=(folder,), subprocesses=True))


@pytest.mark.parametrize(
    ("compiling", "inspecting"),
    [
        ("kill -9 $$", ":"),
        ('echo "bwrap: Can\'t find source path /tmp/headers.pch" >&2; exit 1', ":"),
        (
            "echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; echo 'compilation terminated.' >&2"
            "; exit 1",
            ":",
        ),
        ("while :; do :; done", ":"),
        ("echo 1 > kernel.bin", "kill -9 $$"),
        ("echo 1 > kernel.bin", "while :; do :; done"),
    ],
)
def test_what_the_machine_did_to_a_build_is_not_the_kernels_and_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiling: str, inspecting: str
) -> None:
    monkeypatch.setattr(build, "COMPILE_SECONDS", 1.0)
    monkeypatch.setattr(build, "INSPECT_SECONDS", 1.0)
    monkeypatch.setattr(build, "BUSY", 0.2)
    toolchain = _Script(compiling, inspecting)
    builder = Builder(toolchain, Sandbox(), tmp_path, "x86-64")
    spoilt = builder.build(AXPY, HEADER)
    assert spoilt.failure is not None
    assert spoilt.failure.kind is FailureKind.INFRASTRUCTURE
    assert spoilt.binary is None
    toolchain.compiling, toolchain.inspecting = "echo 1 > kernel.bin", ":"
    monkeypatch.setattr(build, "BUSY", 60.0)
    assert builder.build(AXPY, HEADER).failure is None


@pytest.mark.parametrize(
    "trap",
    [
        "ln -s {secret} record.json",
        "mkfifo record.json",
        "mkdir record.json",
        "ln -sf {secret} kernel.cpp",
        "for _ in $(seq 1500); do mkdir d && cd d; done",
    ],
)
def test_what_a_compiler_leaves_beside_its_product_does_nothing(tmp_path: Path, trap: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    toolchain = _Script(f"echo 1 > kernel.bin; {trap.format(secret=secret)}", ":")
    builder = Builder(toolchain, Sandbox(), tmp_path / "builds", "x86-64")
    made = builder.build(AXPY, HEADER)
    assert made.binary is not None
    assert {path.name for path in made.binary.parent.iterdir()} == {
        "kernel.bin", "kernel.cpp", "problem.h", "record.json",
    }  # fmt: skip
    assert builder.build(AXPY, HEADER).report.cached
    assert secret.read_text() == "secret"
    assert not list((tmp_path / "builds").glob("buil*")), "nothing is left behind"


@pytest.mark.parametrize("product", ["ln -s {secret} kernel.bin", "mkfifo kernel.bin", "mkdir kernel.bin"])
def test_a_product_that_is_no_plain_file_is_none(tmp_path: Path, product: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    builder = Builder(_Script(product.format(secret=secret), ":"), Sandbox(), tmp_path / "builds", "x86-64")
    made = builder.build(AXPY, HEADER)
    assert made.binary is None
    assert made.failure is not None


@pytest.mark.parametrize(
    ("source", "ok"),
    [
        ("#error Killed signal terminated program cc1plus\n", False),
        ('#pragma message "\\ng++: fatal error: Killed signal terminated program cc1plus"\n', True),
        ("#error x\n" + '_Pragma("message(\\"\\\\ng++: fatal error: Killed signal terminated program a\\")")\n', False),
    ],
)
def test_what_a_source_prints_is_not_what_the_machine_did(tmp_path: Path, source: str, ok: bool) -> None:
    made = Builder(CpuToolchain(), Sandbox(), tmp_path, "x86-64").build(f"{source}{AXPY}", HEADER)
    assert made.report.ok is ok, made.report.log
    assert made.failure is None or made.failure.kind is FailureKind.COMPILE_ERROR


def test_a_source_that_calls_itself_the_sandbox_is_at_fault(builder: Builder) -> None:
    failure = builder.build('#line 1 "bwrap: no"\n#error x\n', HEADER).failure
    assert failure is not None
    assert failure.kind is FailureKind.COMPILE_ERROR, failure


def test_a_source_that_makes_its_compiler_wait_is_at_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "COMPILE_SECONDS", 1.0)
    monkeypatch.setattr(build, "BUSY", 1.0)
    toolchain = _Script("mkfifo wait; exec cat wait", ":")
    made = Builder(toolchain, Sandbox(), tmp_path, "x86-64").build(AXPY, HEADER)
    assert made.failure is not None
    assert made.failure.kind is FailureKind.COMPILE_ERROR
    assert "no end" in made.failure.message


def test_a_source_that_takes_too_much_memory_is_at_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "COMPILE_MEMORY_BYTES", 2**28)
    hoard = "python3 -c 'import time; held = bytearray(200 * 2**20); time.sleep(30)' &"
    builder = Builder(_Script(f"{hoard} {hoard} sleep 30", ":"), Sandbox(), tmp_path, "x86-64")
    failure = builder.build(AXPY, HEADER).failure
    assert failure is not None
    assert failure.kind is FailureKind.COMPILE_ERROR, failure
    assert "memory" in failure.message
    assert builder.build(AXPY, HEADER).report.cached


def test_a_fault_of_a_tool_is_said_and_not_remembered(tmp_path: Path) -> None:
    toolchain = _Script("echo 'compiler fault: no space left' >&2; exit 3", ":")
    builder = Builder(toolchain, Sandbox(), tmp_path, "x86-64")
    failure = builder.build(AXPY, HEADER).failure
    assert failure is not None
    assert "no space left" in failure.message
    toolchain.compiling = "echo 1 > kernel.bin"
    assert builder.build(AXPY, HEADER).failure is None


def with_args(*args: str) -> Kernel:
    plan = LaunchPlan(launches=(Launch(kernel="run", args=args),))
    return Kernel(target=Target.CPU, source=AXPY.replace("N;", "X_SIZE;"), plan=plan)


def one_core() -> tuple[int, ...]:
    return (min(os.sched_getaffinity(0)),)


def test_kernels_are_built_before_their_turn_on_spare_cores_only(builder: Builder) -> None:
    kernel, broken, problem = with_args("x"), with_args("unknown"), facts()
    none = BuildAhead(builder, ())
    assert none.begin([kernel], problem) == 0
    ahead = BuildAhead(builder, one_core())
    assert ahead.begin([broken, kernel], problem) == 2
    assert ahead.begin([kernel], problem) == 0, "it has been begun"
    assert builder.build_kernel(kernel, problem).failure is None
    ahead.end(wait=True)
    built = builder.build_kernel(kernel, problem)
    assert built.build.report.cached
    assert built.made_ahead().build.report.ahead


def test_a_turn_that_comes_before_the_build_calls_it_off(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    going, go_on = threading.Event(), threading.Event()

    def held(*_: object, **__: object) -> None:
        going.set()
        assert go_on.wait(60)

    monkeypatch.setattr(Builder, "build_kernel", held)
    monkeypatch.setattr(build_ahead, "REMEMBERED", 2)
    first, second, third = with_args("x"), with_args("x", "out"), with_args("out")
    ahead = BuildAhead(builder, one_core())
    assert ahead.begin([first, second], facts()) == 2
    assert going.wait(60)
    assert ahead.taken(first, facts()), "it is being built, and waited for"
    assert not ahead.taken(second, facts()), "it only waits"
    assert not ahead.taken(third, facts())
    assert ahead.begin([first, second, third], facts()) == 3
    assert not ahead.taken(first, facts()), "only so many are remembered"
    go_on.set()
    ahead.end(wait=True)


class _SlowToolchain(CpuToolchain):
    """A compiler that would run for a minute."""

    def compile_program(self, folder: Path) -> Program:
        return Program(("/bin/sleep", "60"), Access(writable=(folder,)))


def test_builds_can_be_ended_and_leave_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "builds"
    slow = Builder(_SlowToolchain(), Sandbox(), folder, "x86-64")
    ahead = BuildAhead(slow, one_core())
    assert ahead.begin([with_args("x"), with_args("out")], facts()) == 2
    me = psutil.Process()
    while not (started := [child for child in me.children(recursive=True) if child.name() == "sleep"]):
        time.sleep(0.01)
    ahead.end(wait=True)
    assert still_running(started) == []
    assert not list(folder.glob("build-*")), "no scratch"
    assert not list(folder.rglob("record.json")), "least of all that it does not compile"
    quick = Builder(CpuToolchain(), Sandbox(), folder, "x86-64")
    ahead = BuildAhead(quick, one_core())
    assert ahead.begin([with_args("x")], facts()) == 1
    assert quick.build_kernel(with_args("x"), facts()).failure is None
    ahead.end(wait=True)
