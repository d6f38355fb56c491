"""A runner that waits for the next kernel is fresh, open before anything is timed, and never outlives a failure."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cupilot.evaluation import FailureKind, Verdict
from cupilot.problem import Target
from gpu_worker.evaluator import Evaluator
from gpu_worker.runner_process import RunnerProcess
from gpu_worker.sandbox import Sandbox
from gpu_worker.spare_runner import SpareRunner
from gpu_worker.targets.cpu_host import CpuHost
from gpu_worker.targets.registry import open_host
from tests.unit.gpu_worker.test_evaluator import KERNEL, PROBLEM, kernel


class Runners:
    """Starts runners and remembers them."""

    def __init__(self) -> None:
        self.started: list[RunnerProcess] = []

    def __call__(self) -> RunnerProcess:
        self.started.append(RunnerProcess(open_host(Target.CPU), Sandbox()))
        return self.started[-1]


@pytest.fixture
def runners() -> Iterator[Runners]:
    started = Runners()
    yield started
    for runner in started.started:
        runner.close()


def test_the_one_that_waits_is_taken_once(runners: Runners) -> None:
    spare = SpareRunner(runners)
    spare.begin()
    first, second = spare.take(), spare.take()
    assert runners.started == [first, second]
    assert first is not second
    first.begin_opening()
    assert first.opened(20), "it still answers"


def test_one_that_died_is_replaced(runners: Runners) -> None:
    spare = SpareRunner(runners)
    spare.begin()
    runners.started[0]._child.kill()
    assert spare.take() is runners.started[1]


def test_one_that_does_not_open_in_time_is_dropped(runners: Runners, monkeypatch: pytest.MonkeyPatch) -> None:
    spare = SpareRunner(runners)
    spare.begin()
    runners.started[0].hold(True)
    monkeypatch.setattr("gpu_worker.spare_runner.OPEN_SECONDS", 0.1)
    spare.settle()
    assert spare.take() is runners.started[1]
    assert runners.started[0].ending().code == -signal.SIGKILL


def test_kernels_go_through_runners_that_waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuHost, "trusts_runner", True)
    begun: list[SpareRunner] = []
    taken: list[bool] = []
    begin, take = SpareRunner.begin, SpareRunner.take
    monkeypatch.setattr(SpareRunner, "begin", lambda spare: (begun.append(spare), begin(spare))[1])
    monkeypatch.setattr(SpareRunner, "take", lambda spare: (taken.append(spare._runner is not None), take(spare))[1])
    with Evaluator(Target.CPU, tmp_path) as evaluator:
        preparation = evaluator.prepare(PROBLEM).preparation
        assert preparation is not None
        wrong = kernel(KERNEL.replace("+ 1.0f", "+ 1.5f"))
        verdicts = [evaluator.evaluate(PROBLEM, preparation, one) for one in (kernel(), kernel(), wrong, kernel())]
    assert [one.verdict is Verdict.AUDITED for one in verdicts] == [True, True, False, True]
    assert verdicts[2].failure is not None
    assert verdicts[2].failure.kind is FailureKind.WRONG_VALUE
    assert taken == [False, True, True, False], "after a failure nothing waits"
    assert len(begun) == 4
