"""GPU tests run where there is an NVIDIA GPU and are skipped elsewhere. Preparations take seconds and are shared.

They use the first card, or the one that ``CUPILOT_TEST_GPU`` names by index or UUID. With pytest-xdist each process
has a card of its own: the first process the first one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cupilot.domain.evaluation import Evaluation, Preparation
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem, Target
from gpu_worker.evaluator import Evaluator

HAS_GPU = Path("/dev/nvidiactl").exists()

if process := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ["CUPILOT_TEST_GPU"] = os.environ["CUDA_VISIBLE_DEVICES"] = process.removeprefix("gw")

Judge = Callable[[Problem, Kernel], Evaluation]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not HAS_GPU:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add the test's outcome to the log that ``benchmarks.gpu_tests`` asks for, in the process that runs the others."""
    log = os.environ.get("CUPILOT_TEST_LOG")
    if log is None or "PYTEST_XDIST_WORKER" in os.environ or (report.passed and report.when != "call"):
        return
    why = "" if report.passed else _reason(report)
    printed = "\n".join(line for line in report.capstdout.splitlines() if line.strip())
    outcome = {"test": report.nodeid, "outcome": report.outcome, "why": why, "seconds": round(report.duration, 1)}
    row = {**outcome, "printed": printed, "commit": os.environ.get("CUPILOT_TEST_COMMIT", "")}
    with Path(log).open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")


def _reason(report: pytest.TestReport) -> str:
    """Return why a test failed or was skipped, in one line."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    errors = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
    return (errors[0][1:].strip() if errors else report.longreprtext[-300:])[:600]


@pytest.fixture(scope="session")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    with Evaluator(Target.CUDA, tmp_path_factory.mktemp("work"), device=os.environ.get("CUPILOT_TEST_GPU")) as opened:
        yield opened


@pytest.fixture(scope="session")
def prepare(evaluator: Evaluator) -> Callable[[Problem], Preparation]:
    prepared: dict[str, Preparation] = {}

    def of(problem: Problem) -> Preparation:
        key = problem.content_hash()
        if key not in prepared:
            result = evaluator.prepare(problem)
            assert result.preparation is not None, result.failure
            prepared[key] = result.preparation
        return prepared[key]

    return of


@pytest.fixture(scope="session")
def judge(evaluator: Evaluator, prepare: Callable[[Problem], Preparation]) -> Judge:
    def of(problem: Problem, kernel: Kernel) -> Evaluation:
        return evaluator.evaluate(problem, prepare(problem), kernel)

    return of
