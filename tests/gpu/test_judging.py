"""The judge on a real GPU: honest kernels are audited, wrong ones are rejected for what is wrong with them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from cupilot.domain.evaluation import Baseline, Evaluation, FailureKind, Preparation, ProfileSource, Verdict
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import NumericsPolicy, Problem
from cupilot.domain.tensor_map import Swizzle
from gpu_worker.evaluator import Evaluator
from gpu_worker.sweep import PHASES
from gpu_worker.targets.cuda import counters, sanitizer
from gpu_worker.targets.cuda.nvml import Nvml
from tests.gpu import kernels, problems, tma_kernels

pytestmark = pytest.mark.gpu

Judge = Callable[[Problem, Kernel], Evaluation]

HONEST: dict[str, tuple[Problem, Kernel]] = {
    "softmax": (problems.softmax(), kernels.softmax()),
    "layer_norm": (problems.layer_norm(), kernels.layer_norm()),
    "gelu": (problems.gelu(), kernels.gelu()),
    "row_sum": (problems.row_sum(), kernels.row_sum()),
    "matmul": (problems.matmul(), kernels.matmul()),
    "matmul_tf32": (problems.matmul(NumericsPolicy.TF32), kernels.matmul_tensor_cores()),
    "softmax_by_tensor_maps": (problems.softmax(), tma_kernels.softmax()),
    "gelu_by_tensor_maps": (problems.gelu_of_odd_sides(), tma_kernels.gelu(swizzle=Swizzle.B128)),
}


def describe(name: str, evaluation: Evaluation) -> None:
    comparison = evaluation.comparison()
    if comparison is not None:
        print(
            f"\n{name}: {evaluation.verdict.value}, kernel {comparison.kernel_us.median:.1f} us, "
            f"eager {comparison.baseline_us.median:.1f} us, speedup {comparison.speedup.median:.3f} "
            f"[{comparison.speedup.low:.3f}, {comparison.speedup.high:.3f}], {evaluation.seconds:.1f} s"
        )


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_kernel_is_audited(judge: Judge, name: str) -> None:
    problem, kernel = HONEST[name]
    evaluation = judge(problem, kernel)
    describe(name, evaluation)
    assert evaluation.verdict is Verdict.AUDITED, evaluation.failure
    assert evaluation.failure is None
    assert evaluation.build is not None
    assert evaluation.build.registers is not None
    assert evaluation.environment is not None
    assert evaluation.environment.device.uid.startswith("GPU-")
    assert evaluation.placement is not None
    assert evaluation.profile is not None
    print({name: round(value, 1) for name, value in evaluation.profile.metrics.items()})
    comparison = evaluation.comparison(Baseline.EAGER)
    assert comparison is not None
    assert comparison.kernel_us.median > evaluation.placement.floor_us * 0.9


SPIN = "volatile float* v = x; while (v[0] > -1e30f) {} out[0] = 1.0f;"

WRONG: dict[str, tuple[Kernel, set[FailureKind]]] = {
    "no_op": (kernels.broken_softmax(""), {FailureKind.UNWRITTEN_OUTPUT}),
    "half_of_the_rows": (
        kernels.edited_softmax("float4 v[VECTORS];", "if (blockIdx.x % 2) return; float4 v[VECTORS];"),
        {FailureKind.UNWRITTEN_OUTPUT},
    ),
    "zeros": (
        kernels.broken_softmax("for (int c = t; c < X_COLS; c += BLOCK) out[row * X_COLS + c] = 0.0f;"),
        {FailureKind.WRONG_VALUE},
    ),
    "no_maximum": (
        kernels.edited_softmax("top = block_reduce(top, Max(), -INFINITY);", "top = 0.0f;"),
        {FailureKind.WRONG_VALUE},
    ),
    "first_call_only": (
        kernels.edited_softmax(
            "float4 v[VECTORS];",
            "static __device__ unsigned calls[X_ROWS]; __shared__ unsigned before; "
            "if (threadIdx.x == 0) before = calls[blockIdx.x]++; "
            "__syncthreads(); if (before) return; float4 v[VECTORS];",
        ),
        {FailureKind.UNWRITTEN_OUTPUT, FailureKind.NON_DETERMINISTIC},
    ),
    "writes_its_input": (
        kernels.broken_softmax(
            "for (int c = t; c < X_COLS; c += BLOCK) { x[row * X_COLS + c] += 1.0f; "
            "out[row * X_COLS + c] = x[row * X_COLS + c]; }"
        ),
        {FailureKind.INPUT_MUTATED, FailureKind.WRONG_VALUE},
    ),
    "writes_past_its_output": (
        kernels.edited_softmax(
            "float scale = 1.0f / total;",
            "float scale = 1.0f / total; if (blockIdx.x == 0 && threadIdx.x < 16) out[X_SIZE + threadIdx.x] = 1.0f;",
        ),
        {FailureKind.OUT_OF_BOUNDS_WRITE},
    ),
    "illegal_address": (kernels.broken_softmax("out[t + (1ll << 42)] = 1.0f;"), {FailureKind.ILLEGAL_ACCESS}),
    "misaligned_address": (
        kernels.broken_softmax("*reinterpret_cast<float4*>(out + 1 + t) = make_float4(1, 1, 1, 1);"),
        {FailureKind.ILLEGAL_ACCESS},
    ),
    "trap": (kernels.broken_softmax("__trap();"), {FailureKind.CRASH}),
    "too_much_shared_memory": (kernels.softmax(shared_bytes="300000"), {FailureKind.LAUNCH_ERROR}),
    "too_many_threads": (kernels.softmax(block=("2048",)), {FailureKind.LAUNCH_ERROR}),
    "missing_argument": (kernels.softmax(args=("x",)), {FailureKind.INVALID_PLAN}),
    "unknown_function": (kernels.softmax(kernel="soft_max"), {FailureKind.LAUNCH_ERROR, FailureKind.INVALID_PLAN}),
    "compile_error": (kernels.broken_softmax("undeclared = 1;"), {FailureKind.COMPILE_ERROR}),
    "reads_the_clock": (
        kernels.edited_softmax(
            "float scale = 1.0f / total;", "float scale = 1.0f / total; if (clock64() == 1) scale = 2;"
        ),
        {FailureKind.POLICY_BREACH},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_never_counts_and_is_told_what_is_wrong(judge: Judge, name: str) -> None:
    kernel, kinds = WRONG[name]
    evaluation = judge(problems.softmax(), kernel)
    assert evaluation.failure is not None, f"{name} was {evaluation.verdict.value}"
    print(f"\n{name}: {evaluation.failure.kind.value}: {evaluation.failure.message[:200]}")
    assert evaluation.verdict in (Verdict.REJECTED, Verdict.CORRECT)
    assert evaluation.failure.kind in kinds, evaluation.failure


def test_an_endless_loop_is_killed_and_the_next_kernel_is_fine(
    evaluator: Evaluator, prepare: Callable[[Problem], Preparation]
) -> None:
    problem = problems.softmax()
    evaluation = evaluator.evaluate(problem, prepare(problem), kernels.broken_softmax(SPIN), timeout=20)
    assert evaluation.failure is not None
    assert evaluation.failure.kind is FailureKind.TIMEOUT
    assert evaluator.evaluate(problem, prepare(problem), kernels.softmax()).verdict is Verdict.AUDITED


OTHERS = {
    "one product after another": "while True: a @ a; torch.cuda.synchronize()",
    "one endless kernel": "torch.cuda._sleep(1 << 62); torch.cuda.synchronize()",
}


@pytest.mark.parametrize("work", OTHERS)
def test_a_process_of_others_on_the_card_is_not_held_against_a_kernel(
    evaluator: Evaluator, prepare: Callable[[Problem], Preparation], work: str
) -> None:
    busy = f'import torch\na = torch.randn(8192, 8192, device="cuda")\nprint("ready", flush=True)\n{OTHERS[work]}\n'
    problem = problems.softmax()
    preparation = prepare(problem)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": os.environ.get("CUPILOT_TEST_GPU", "0")}
    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE, env=environment) as others:
        try:
            assert others.stdout is not None
            assert others.stdout.readline() == b"ready\n"
            evaluation = evaluator.evaluate(problem, preparation, kernels.softmax())
        finally:
            others.kill()
    describe(f"softmax beside {work}", evaluation)
    if evaluation.verdict is not Verdict.AUDITED:
        assert evaluation.failure is not None
        assert evaluation.failure.kind is FailureKind.INFRASTRUCTURE, evaluation.failure
        assert "another process" in evaluation.failure.message
    assert evaluator.evaluate(problem, preparation, kernels.softmax()).verdict is Verdict.AUDITED


def test_tensor_cores_under_strict_fp32_are_a_breach(judge: Judge) -> None:
    evaluation = judge(problems.matmul(NumericsPolicy.FP32), kernels.matmul_tensor_cores())
    assert evaluation.failure is not None
    assert evaluation.failure.kind is FailureKind.POLICY_BREACH
    assert "tensor-core" in evaluation.failure.message


def test_a_confirmed_kernel_is_reproduced_and_compared_with_torch_compile(
    evaluator: Evaluator, prepare: Callable[[Problem], Preparation]
) -> None:
    problem = problems.softmax()
    evaluation = evaluator.confirm(problem, prepare(problem), kernels.softmax())
    describe("softmax confirmed", evaluation)
    assert evaluation.verdict is Verdict.REPRODUCED, evaluation.failure
    print([(item.baseline.value, item.baseline_us.median, item.flags) for item in evaluation.comparisons])
    assert [item.baseline for item in evaluation.comparisons] == list(Baseline)


def test_a_sweep_finds_a_better_block(judge: Judge) -> None:
    evaluation = judge(problems.softmax(), kernels.softmax_badly_launched())
    describe("softmax, swept", evaluation)
    assert evaluation.verdict is Verdict.AUDITED, evaluation.failure
    for point in evaluation.sweep:
        print(point.tunables, point.kernel_us.median if point.kernel_us else point.failure, point.judged)
    spent = sum(phase.seconds for phase in evaluation.phases if phase.name in PHASES)
    print(f"sweep: {spent:.2f} s for {len(evaluation.sweep)} points, one of them judged whole")
    given = evaluation.sweep[0]
    assert given.tunables == {"BLOCK": 32}
    assert len(evaluation.sweep) == 6
    assert evaluation.tunables["BLOCK"] > 32
    comparison = evaluation.comparison()
    assert comparison is not None
    assert given.kernel_us is not None
    assert comparison.kernel_us.median < given.kernel_us.median


def test_a_read_past_an_input_is_found_before_a_kernel_is_confirmed(
    evaluator: Evaluator, prepare: Callable[[Problem], Preparation]
) -> None:
    if sanitizer.checker() is None:
        pytest.skip("compute-sanitizer is not installed")
    problem = problems.softmax()
    past = "float scale = 1.0f / total; if (x[X_SIZE] == 12345.0f) scale = 0.0f;"
    kernel = kernels.edited_softmax("float scale = 1.0f / total;", past)
    assert evaluator.evaluate(problem, prepare(problem), kernel).verdict is Verdict.AUDITED
    confirmed = evaluator.confirm(problem, prepare(problem), kernel)
    assert confirmed.failure is not None
    print(f"\n{confirmed.failure.message}")
    assert confirmed.failure.kind is FailureKind.ILLEGAL_ACCESS
    assert confirmed.verdict is Verdict.REJECTED


def test_a_comparison_tells_what_the_card_did_meanwhile(judge: Judge, evaluator: Evaluator) -> None:
    comparison = judge(problems.gelu(), kernels.gelu()).comparison()
    assert comparison is not None
    conditions = comparison.conditions
    assert conditions is not None
    print(f"\n{conditions}")
    assert conditions.blocks == 2 * comparison.pairs
    assert 0 < conditions.clocks_mhz["sm"].low <= conditions.clocks_mhz["sm"].high
    assert conditions.temperature_c is not None
    assert conditions.power_w is not None
    card = Nvml(evaluator.device.uid)
    started = time.perf_counter()
    for _ in range(100):
        card.state()
    print(f"a reading takes {(time.perf_counter() - started) * 10:.2f} ms, two of them a pair of blocks")


def test_counters_are_measured_where_the_machine_has_them(judge: Judge) -> None:
    if counters.profiler() is None:
        pytest.skip("ncu is not installed")
    evaluation = judge(problems.gelu(), kernels.gelu())
    assert evaluation.profile is not None
    assert evaluation.profile.source is ProfileSource.MEASURED
    assert 0 < evaluation.profile.metrics["dram_throughput_pct"] <= 100
