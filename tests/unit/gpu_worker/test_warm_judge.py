"""Processes of a warm judge: those started ahead, and what happens where there is too little memory."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from cupilot.domain.evaluation import LACKS_MEMORY, Failure, FailureKind, Preparation, Verdict
from cupilot.domain.problem import Target
from gpu_worker.evaluator import Evaluator
from gpu_worker.judge_process import JudgeProcess
from gpu_worker.messages.judge import Judged, JudgeRequest, Unusable
from gpu_worker.sandbox.child import Child
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.base import Program
from gpu_worker.targets.cpu_host import CpuHost
from gpu_worker.warm_judge import WarmJudge
from tests.living import children, still_running
from tests.unit.gpu_worker.lines import KERNEL, PROBLEM, kernel

pytestmark = pytest.mark.judge


def test_the_next_kernels_runner_is_started_while_one_is_audited(
    work_dir: Path, preparation: Preparation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(CpuHost, "starts_ahead", True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def waiting() -> list[psutil.Process]:
        return [process for process in children("gpu_worker/runner.py") if process.status() != psutil.STATUS_ZOMBIE]

    with Evaluator(Target.CPU, work_dir) as evaluator:
        assert evaluator.evaluate(PROBLEM, preparation, kernel()).verdict is Verdict.AUDITED
        [first] = waiting()
        assert evaluator.evaluate(PROBLEM, preparation, kernel(KERNEL + "// another\n")).verdict is Verdict.AUDITED
        [second] = waiting()
        assert second.pid != first.pid, "each kernel has a process of its own"
        sandbox = [parent for parent in second.parents() if "bwrap" in parent.name()]
        second.kill()
        psutil.wait_procs([second, *sandbox], timeout=10)
        assert evaluator.evaluate(PROBLEM, preparation, kernel(KERNEL + "// a third\n")).verdict is Verdict.AUDITED
        [third] = waiting()
        assert [path.name for path in next(tmp_path.glob("cupilot-runner-*")).iterdir()] == [], "it was given no kernel"
    assert still_running([third]) == []
    assert not list(tmp_path.glob("cupilot-runner-*"))


def test_the_next_problems_reference_is_started_ahead_and_stands_still_while_a_kernel_is_judged(
    work_dir: Path, preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuHost, "starts_ahead", True)
    judge, others = JudgeProcess.ask, children("gpu_worker/reference/main.py")
    stopped: list[int] = []

    def references() -> dict[int, psutil.Process]:
        found = children("gpu_worker/reference/main.py")
        return {process.pid: process for process in found if process not in others}

    def two() -> dict[int, psutil.Process]:
        """Return the problem's and one that waits, when the latter has begun."""
        deadline = time.monotonic() + 20
        while len(found := references()) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(found) == 2
        return found

    def watching(process: JudgeProcess, request: Any, *more: Any, **named: Any) -> Any:
        if isinstance(request, JudgeRequest):
            stopped.extend(pid for pid, item in references().items() if item.status() == psutil.STATUS_STOPPED)
        return judge(process, request, *more, **named)

    monkeypatch.setattr(JudgeProcess, "ask", watching)
    with Evaluator(Target.CPU, work_dir) as evaluator:
        assert evaluator.prepare(PROBLEM).preparation is not None
        first = two()
        assert evaluator.evaluate(PROBLEM, preparation, kernel()).verdict is Verdict.AUDITED
        assert len(stopped) == 1
        other = PROBLEM.model_copy(update={"source": PROBLEM.source + "\n"})
        assert evaluator.prepare(other).preparation is not None
        second = two()
        assert list(first.keys() & second.keys()) == stopped, "the one that waited"
        [waiting] = second.keys() - first.keys()
        second[waiting].kill()
        psutil.wait_procs([second[waiting]], timeout=10)
        assert evaluator.prepare(PROBLEM).preparation is not None, "without it, one is started"
        third = two()
    assert still_running([*first.values(), *second.values(), *third.values()]) == []


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Requests about problems, and whether they spare memory; the first preparation finds too little."""
    requests: list[tuple[str, bool]] = []
    ask = JudgeProcess.ask

    def asking(process: JudgeProcess, request: Any, *more: Any, **named: Any) -> Any:
        if not isinstance(request, JudgeRequest):
            requests.append((request.op, request.sparing))
            if requests == [("prepare", False)]:
                return Unusable(failure=Failure(kind=FailureKind.OUT_OF_MEMORY, message="too large"))
        return ask(process, request, *more, **named)

    monkeypatch.setattr(JudgeProcess, "ask", asking)
    return requests


def test_a_problem_that_lacked_memory_is_prepared_again_with_less(
    work_dir: Path, opened: list[tuple[str, bool]]
) -> None:
    with Evaluator(Target.CPU, work_dir) as evaluator:
        assert evaluator.prepare(PROBLEM).preparation is not None
    assert opened == [("prepare", False), ("prepare", True)]


def test_a_kernel_whose_judge_lacked_memory_is_judged_again_with_less(
    work_dir: Path, preparation: Preparation, opened: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = WarmJudge.judge
    lacking = Failure(kind=FailureKind.INFRASTRUCTURE, message="too large", details={"code": LACKS_MEMORY})

    def judging(warm: WarmJudge, *more: Any) -> Judged | Unusable:
        if len(opened) > 1:
            return judge(warm, *more)
        warm.close()
        return Unusable(failure=lacking)

    monkeypatch.setattr(WarmJudge, "judge", judging)
    with Evaluator(Target.CPU, work_dir) as evaluator:
        evaluation = evaluator.evaluate(PROBLEM, preparation, kernel())
    assert evaluation.verdict is Verdict.AUDITED, evaluation.failure
    assert opened == [("open", False), ("open", True)]


def test_a_spare_runner_that_cannot_start_harms_no_kernel_under_way(
    evaluator: Evaluator, preparation: Preparation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(CpuHost, "starts_ahead", True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    start = Sandbox.start
    failing = {2, 3, 5}
    begun: list[int] = []

    def short(sandbox: Sandbox, program: Program, *more: Any) -> Child:
        if any("gpu_worker/runner.py" in word for word in program.argv):
            begun.append(len(begun) + 1)
            if begun[-1] in failing:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return start(sandbox, program, *more)

    monkeypatch.setattr(Sandbox, "start", short)
    results = [evaluator.evaluate(PROBLEM, preparation, kernel(KERNEL + f"// {place}\n")) for place in range(4)]
    assert [len(children("gpu_worker/runner.py")) > 0, len(list(tmp_path.glob("cupilot-runner-*")))] == [True, 1]
    evaluator.close()
    assert [item.verdict for item in (results[0], results[2], results[3])] == [Verdict.AUDITED] * 3
    failure = results[1].failure
    assert failure is not None, "without a spare it starts one, once"
    assert (failure.kind, "Cannot allocate memory" in failure.message) == (FailureKind.INFRASTRUCTURE, True)
    assert begun == [1, 2, 3, 4, 5, 6, 7], "a kernel's own and the next one's, of which the second and fifth failed"
    assert not list(tmp_path.glob("cupilot-runner-*"))


def test_nothing_is_left_of_a_reference_that_was_closed(evaluator: Evaluator) -> None:
    assert evaluator.prepare(PROBLEM).preparation is not None
    assert evaluator._judge._reference is not None
    before = evaluator._judge._reference._child.program_pid()
    evaluator._judge.close_problem()
    assert not psutil.pid_exists(before), "its memory would be missing to the next"


def test_what_a_judge_still_answers_is_no_verdict_on_the_next_kernel(work_dir: Path, preparation: Preparation) -> None:
    looks = 0

    def failing() -> bool:
        nonlocal looks
        looks += 1
        if looks > 3:
            raise MemoryError
        return False

    with Evaluator(Target.CPU, work_dir) as evaluator:
        evaluator.evaluate(PROBLEM, preparation, kernel())
        with pytest.raises(MemoryError):
            evaluator.evaluate(PROBLEM, preparation, kernel(KERNEL + "// honest\n"), cancelled=failing)
        assert evaluator._judge._process is None
