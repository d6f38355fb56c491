"""Kernels that nvcc builds, judged on a real GPU as those of NVRTC are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cupilot.domain.errors import Unavailable
from cupilot.domain.evaluation import FailureKind, Verdict
from cupilot.domain.problem import NumericsPolicy, Target
from gpu_worker.evaluator import Evaluator
from gpu_worker.targets.cuda import installation
from tests.gpu import kernels, problems, tma_kernels
from tests.gpu.test_judging import describe

pytestmark = pytest.mark.gpu


def test_kernels_are_built_by_nvcc_and_judged_alike(tmp_path: Path) -> None:
    try:
        version = installation.nvcc_version()
    except Unavailable as error:
        pytest.skip(error.message)
    with Evaluator(Target.CUDA, tmp_path, device=os.environ.get("CUPILOT_TEST_GPU"), builder="nvcc") as evaluator:
        problem = problems.softmax()
        preparation = evaluator.prepare(problem).preparation
        assert preparation is not None
        for name, kernel in (("softmax", kernels.softmax()), ("softmax by tensor maps", tma_kernels.softmax())):
            evaluation = evaluator.evaluate(problem, preparation, kernel)
            describe(f"{name}, built by {version}", evaluation)
            assert evaluation.verdict is Verdict.AUDITED, evaluation.failure
            assert evaluation.build is not None
            assert evaluation.build.compiler == version
            assert evaluation.environment is not None
            assert evaluation.environment.compiler == version
            print(f"built in {evaluation.build.seconds:.2f} s, {evaluation.build.registers} registers")
        strict = problems.matmul(NumericsPolicy.FP32)
        prepared = evaluator.prepare(strict).preparation
        assert prepared is not None
        breach = evaluator.evaluate(strict, prepared, kernels.matmul_tensor_cores())
        assert breach.failure is not None
        assert breach.failure.kind is FailureKind.POLICY_BREACH
