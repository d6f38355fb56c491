"""Reading disassembly, ptxas reports and compiler logs: text only."""

from __future__ import annotations

import pytest

from cupilot.domain.evaluation import MAX_LOG_CHARACTERS, FailureKind
from cupilot.domain.problem import DType, NumericsPolicy
from gpu_worker.targets.cuda import log, policy, sanitizer, sass


def line(text: str) -> str:
    return f"        /*0a40*/                   {text} ;\n"


@pytest.mark.parametrize(
    ("instruction", "families"),
    [
        ("FFMA R1, R2, R3, R4", {"float_arithmetic"}),
        ("LDG.E.128.CONSTANT R4, desc[UR4][R2.64]", {"global_load", "vector_load_128", "read_only_load"}),
        ("LDG.E.EF R4, desc[UR4][R4.64]", {"global_load", "streaming"}),
        ("STG.E.EF.128 desc[UR4][R2.64], R7", {"global_store", "vector_store_128", "streaming"}),
        ("UCGABAR_WAIT", {"cluster_barrier"}),
        ("@!P0 LDG.E R4, desc[UR4][R2.64]", {"global_load"}),
        ("STG.E.128 desc[UR6][R8.64], R12", {"global_store", "vector_store_128"}),
        ("LDGSTS.E.BYPASS.128 [R7], desc[UR4][R2.64]", {"async_copy"}),
        ("UBLKCP.S.G [UR8], [UR6], UR4", {"async_copy"}),
        ("UTMALDG.2D [UR8], [UR4]", {"async_copy", "tma_load"}),
        ("@P0 UTMASTG.3D [UR8], [UR4]", {"async_copy", "tma_store"}),
        ("HMMA.1688.F32.TF32 R4, R8, R10, R4", {"tensor_core", "tensor_tf32"}),
        ("HMMA.16816.F32.BF16 R4, R8, R10, R4", {"tensor_core", "tensor_f16"}),
        ("HGMMA.64x128x16.F32 R24, gdesc[UR8], R24", {"tensor_core", "tensor_f16"}),
        ("HGMMA.64x64x8.F32.TF32 R24, gdesc[UR8], R24", {"tensor_core", "tensor_tf32"}),
        ("QGMMA.64x64x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24", {"tensor_core", "tensor_f8"}),
        ("IMMA.16832.S8.S8.SAT R8, R4.ROW, R2.COL, R8", {"tensor_core", "tensor_int"}),
        ("DMMA.884 R4, R2, R6, R4", {"tensor_core", "tensor_f64"}),
        ("UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8], tmem[UR10], idesc[UR11], UP0", {"tensor_core", "tensor_f16"}),
        ("HFMA2.MMA R7, -RZ, RZ, 0, 5.9604644775390625e-08", set()),
        ("HFMA2 R7, R4, R5, R6", {"half_arithmetic"}),
        ("HADD2.F32 R3, -RZ, R3.H0_H0", set()),
        ("HADD2 R3, R4, R5", {"half_arithmetic"}),
        ("F2FP.BF16.F32.PACK_AB R3, R4, R5", {"half_narrowing"}),
        ("F2F.F16.F32 R3, R4", {"half_narrowing"}),
        ("F2F.F32.F64 R3, R4", set()),
        ("F2F.F64.F32 R4, R3", set()),
        ("MUFU.EX2 R3, R3", {"special_function"}),
        ("MUFU.SIN R3, R3", {"special_function", "approximate_function"}),
        ("MUFU.EX2.F16 R0, R0", {"special_function", "half_arithmetic"}),
        ("MUFU.TANH.BF16 R11, R9.H1", {"special_function", "approximate_function", "half_arithmetic"}),
        ("REDG.E.ADD.BF16x2.RN.STRONG.GPU desc[UR4][R4.64], R9", {"atomic", "half_arithmetic"}),
        ("ATOMG.E.ADD.F16x2.RN.STRONG.GPU PT, R9, desc[UR4][R4.64], R7", {"atomic", "half_arithmetic"}),
        ("HMNMX2.BF16_V2 R7, R0, R7, !PT", {"half_arithmetic"}),
        ("I2F.F16 R0, R0", {"half_narrowing"}),
        ("I2FP.F32.U32 R8, R8", set()),
        ("CS2R R2, SR_CLOCKLO", {"clock_read"}),
        ("S2UR UR4, SR_GLOBALTIMERLO", {"clock_read"}),
        ("S2R R0, SR_TID.X", set()),
        ("LDL R3, [R1+0x10]", {"local_memory"}),
        ("SHFL.BFLY PT, R3, R2, 0x10, 0x1f", {"shuffle"}),
        ("RED.E.ADD.F32.FTZ.RN.STRONG.GPU desc[UR4][R2.64], R5", {"atomic"}),
    ],
)
def test_an_instruction_counts_in_its_families(instruction: str, families: set[str]) -> None:
    counts = sass.families(line(instruction))
    assert counts.pop("instructions") == 1
    assert counts == dict.fromkeys(families, 1)


def test_text_that_is_no_instruction_counts_nothing() -> None:
    assert sass.families("\t.target sm_90a\nfoo:\n.text.foo:\n") == {}


def test_resources_are_the_largest_over_the_kernels() -> None:
    text = """ptxas info    : 0 bytes gmem
ptxas         .     400 bytes stack frame, 8 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 400 bytes cumulative stack size, 1332 bytes smem
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers
    0 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
"""
    assert sass.resources(text) == sass.Resources(registers=40, stack_bytes=400, spill_bytes=24, shared_bytes=1332)


def test_resources_of_a_log_without_any_are_unknown() -> None:
    assert sass.resources("nothing") == sass.Resources(None, None, None, None)


def test_a_log_gives_errors_first_with_their_source_lines() -> None:
    text = (
        "kernel.cu(3): warning #177-D: variable was declared but never referenced\n"
        "  int y = 0;\n"
        "      ^\n"
        '"unit.cu": using precompiled header file "/tmp/x.pch"\n'
        'kernel.cu(9): error: identifier "z" is undefined\n'
        "  out[0] = z;\n"
        "           ^\n"
        "ptxas info    : 0 bytes gmem\n"
    )
    digest = log.digest(text)
    assert digest.splitlines()[:3] == [
        'kernel.cu(9): error: identifier "z" is undefined',
        "  out[0] = z;",
        "           ^",
    ]
    assert "warning #177-D" in digest
    assert "ptxas" not in digest
    assert "precompiled" not in digest


def test_a_log_keeps_why_warpgroup_products_wait_for_each_other() -> None:
    advice = "ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized"
    assert log.digest(f"ptxas info    : 0 bytes gmem\n{advice}\nptxas info    : Used 158 registers\n") == advice


def test_a_log_without_messages_is_empty() -> None:
    text = (
        '"unit.cu": creating precompiled header file "/tmp/x.pch"\n'
        "ptxas info    : Function properties for scale\n"
        "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        '2 errors detected in the compilation of "kernel.cu".\n'
        "Compilation terminated.\n\0"
    )
    assert log.digest(text) == ""


def test_a_flood_of_errors_is_bounded() -> None:
    text = "".join(f"kernel.cu({number}): error: {'x' * 2000}\n" for number in range(1, 500))
    digest = log.digest(text)
    assert log.MAX_CHARACTERS == MAX_LOG_CHARACTERS
    assert len(digest) <= MAX_LOG_CHARACTERS
    assert digest.count("error:") <= log.MAX_ERRORS


def test_half_values_may_be_written_where_the_problem_has_them() -> None:
    counts = {"instructions": 10, "half_narrowing": 2}
    assert policy.breach(counts, NumericsPolicy.FP32) is not None
    assert policy.breach(counts, NumericsPolicy.FP32, [DType.FLOAT16]) is None
    assert policy.breach({**counts, "half_arithmetic": 1}, NumericsPolicy.FP32, [DType.FLOAT16]) is not None


@pytest.mark.parametrize(
    ("report", "finding"),
    [
        ("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", None),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", None),
        ("compute-sanitizer: not permitted\n", None),
        (
            "========= Invalid __global__ read of size 4 bytes\n"
            "=========     at softmax+0x150 in kernel.cu:7\n"
            "=========     by thread (0,0,0) in block (8191,0,0)\n"
            "========= ERROR SUMMARY: 1 error\n",
            "Invalid __global__ read of size 4 bytes at softmax+0x150 in kernel.cu:7",
        ),
        (
            "========= Error: Race reported between Write access at softmax+0x90\n"
            "=========     and Read access at softmax+0xd0 [12 hazards]\n"
            "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n",
            "Race reported between Write access at softmax+0x90",
        ),
        (
            "========= Uninitialized __global__ memory read of size 4 bytes\n"
            "=========     at softmax+0x210 in kernel.cu:31\n"
            "========= ERROR SUMMARY: 8192 errors\n",
            "Uninitialized __global__ memory read of size 4 bytes at softmax+0x210 in kernel.cu:31",
        ),
        (
            "========= Uninitialized __global__ memory read of size 4 bytes\n"
            "=========     at softmax+0x210 in kernel.cu:31\n",  # it was stopped here
            "Uninitialized __global__ memory read of size 4 bytes at softmax+0x210 in kernel.cu:31",
        ),
        (
            "========= Barrier error detected. Divergent thread(s) in block.\n"
            "=========     at softmax+0x90 in kernel.cu:40\n"
            "========= ERROR SUMMARY: 3 errors\n",
            "Barrier error detected. Divergent thread(s) in block. at softmax+0x90 in kernel.cu:40",
        ),
    ],
)
def test_a_memory_checkers_report_gives_its_first_finding(report: str, finding: str | None) -> None:
    assert sanitizer.read(report) == finding


def test_each_memory_checkers_finding_is_a_result_of_its_own() -> None:
    found = {tool: sanitizer.failure(tool, "at softmax+0x90") for tool in sanitizer.TOOLS}
    assert list(found) == ["memcheck", "racecheck", "initcheck", "synccheck"]
    assert found["memcheck"].kind is FailureKind.ILLEGAL_ACCESS
    assert {found[tool].kind for tool in sanitizer.TOOLS[1:]} == {FailureKind.NON_DETERMINISTIC}
    assert len({failure.message for failure in found.values()}) == 4
    assert all(failure.details["tool"] == tool and tool in failure.message for tool, failure in found.items())
