"""``python -m gpu_worker`` on a real GPU, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cupilot.domain.evaluation import Evaluation, Verdict
from cupilot.domain.hardware import Device
from tests.gpu import kernels, problems

pytestmark = pytest.mark.gpu


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    card = os.environ.get("CUPILOT_TEST_GPU")
    command = [sys.executable, "-m", "gpu_worker", *arguments, *(("--device", card) if card else ())]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_device_is_described(tmp_path: Path) -> None:
    done = run("device", "--target", "cuda", "--work-dir", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    device = Device.model_validate_json(done.stdout)
    assert device.arch.startswith("sm_")
    assert device.units > 0
    assert device.cache_bytes > 0


def test_files_of_a_problem_a_kernel_and_a_plan_give_an_evaluation(tmp_path: Path) -> None:
    problem, kernel = problems.softmax(), kernels.softmax()
    (tmp_path / "softmax.py").write_text(problem.source)
    (tmp_path / "softmax.cu").write_text(kernel.source)
    (tmp_path / "plan.json").write_text(kernel.plan.model_dump_json())
    files = ("--problem", str(tmp_path / "softmax.py"), "--kernel", str(tmp_path / "softmax.cu"))
    plan = ("--plan", str(tmp_path / "plan.json"))
    done = run("evaluate", "--target", "cuda", *files, *plan, "--work-dir", str(tmp_path / "work"), "--json")
    assert done.returncode == 0, done.stderr
    evaluation = Evaluation.model_validate(json.loads(done.stdout))
    assert evaluation.verdict is Verdict.AUDITED
