"""The supervisor: plans and builds that fail, children that die, callers that change their minds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from cupilot.domain.errors import Unavailable
from cupilot.domain.evaluation import Baseline, Evaluation, FailureKind, Preparation, Verdict
from cupilot.domain.hardware import Peaks
from cupilot.domain.problem import Problem, Target
from gpu_worker import verdict
from gpu_worker.evaluator import Evaluator
from gpu_worker.judge.timing import MIN_PAIRS
from gpu_worker.messages.judge import Judged, KernelOrder, Unusable
from gpu_worker.peaks import PeakStore
from gpu_worker.phases import Phases
from gpu_worker.turns import Cancelled
from gpu_worker.warm_judge import WarmJudge
from tests.living import children, still_running
from tests.unit.gpu_worker.lines import KERNEL, PLAN, PROBLEM, SLOW_KERNEL, SOURCE, kernel

pytestmark = pytest.mark.judge


def test_a_preparation_says_what_is_known(preparation: Preparation, evaluator: Evaluator) -> None:
    assert preparation.facts.problem_hash == PROBLEM.content_hash()
    assert preparation.environment.device == evaluator.device
    assert preparation.environment.torch
    assert preparation.environment.sandbox
    assert preparation.placement.floor_us > 0
    assert preparation.baseline_us.median > 0
    assert preparation.peaks.bandwidth > 1e9
    assert all(preparation.admission.values())
    assert set(preparation.tolerances) == set(preparation.laws)


def test_a_kernel_is_evaluated_with_a_stored_preparation(work_dir: Path, preparation: Preparation) -> None:
    with Evaluator(Target.CPU, work_dir) as other:
        assert other.build_ahead(preparation, [kernel()]) == 0, "kernels are timed on every core"
        result = other.evaluate(PROBLEM, preparation, kernel())
        assert result.verdict is Verdict.AUDITED, result.failure
        again = other.evaluate(PROBLEM, preparation, kernel())
    assert again.build is not None
    assert again.build.cached
    assert not again.build.ahead
    assert again.kernel_hash == kernel().content_hash()


def test_peaks_that_were_seen_since_the_preparation_count(
    work_dir: Path, preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    better = preparation.peaks.model_copy(update={"bandwidth": 2 * preparation.peaks.bandwidth})
    monkeypatch.setattr(PeakStore, "at_least", lambda *_: better)
    with Evaluator(Target.CPU, work_dir) as other:
        result = other.evaluate(PROBLEM, preparation, kernel())
    assert result.placement is not None
    assert result.placement.memory_floor_us == pytest.approx(preparation.placement.memory_floor_us / 2)


def test_peaks_that_cannot_be_measured_again_accuse_no_kernel(
    work_dir: Path, preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a kernel is quarantined for its speed, peaks are measured again, for which a card may lack memory."""

    def fails(_: PeakStore) -> Peaks:
        raise Unavailable("the device's peaks could not be measured: out of memory")

    monkeypatch.setattr(verdict, "below_floor", lambda *_: True)
    monkeypatch.setattr(PeakStore, "again", fails)
    with Evaluator(Target.CPU, work_dir) as other:
        result = other.evaluate(PROBLEM, preparation, kernel())
        assert other._judge.problem is None, "its memory is free for the measurement"
    assert result.failure is not None
    assert result.failure.kind is FailureKind.INFRASTRUCTURE
    assert "out of memory" in result.failure.message
    assert result.verdict is not Verdict.QUARANTINED


@pytest.mark.parametrize(
    ("source", "plan", "kind"),
    [
        (KERNEL, {"launches": [{"kernel": "run", "args": ["y", "out"]}]}, FailureKind.INVALID_PLAN),
        (KERNEL, {"launches": [{"kernel": "run", "args": ["x", "out"], "grid": ["1"]}]}, FailureKind.INVALID_PLAN),
        (KERNEL, {"launches": [{"kernel": "other", "args": ["x", "out"]}]}, FailureKind.LAUNCH_ERROR),
        (KERNEL.replace("X_SIZE", "MISSING"), PLAN, FailureKind.COMPILE_ERROR),
        (KERNEL.replace('extern "C" ', ""), PLAN, FailureKind.LAUNCH_ERROR),
    ],
    ids=["unknown tensor", "grid on cpu", "no such function", "does not compile", "mangled name"],
)
def test_kernels_that_cannot_run(
    evaluator: Evaluator, preparation: Preparation, source: str, plan: dict[str, object], kind: FailureKind
) -> None:
    result = evaluator.evaluate(PROBLEM, preparation, kernel(source, plan))
    assert result.verdict is Verdict.REJECTED
    assert result.failure is not None
    assert result.failure.kind is kind


def test_a_preparation_of_another_problem_is_not_used(evaluator: Evaluator, preparation: Preparation) -> None:
    other = Problem(name="wider", source=SOURCE.replace("512", "256"))
    result = evaluator.evaluate(other, preparation, kernel())
    assert result.failure is not None
    assert result.failure.kind is FailureKind.INFRASTRUCTURE


def test_a_cancelled_call_raises_and_the_next_one_works(evaluator: Evaluator, preparation: Preparation) -> None:
    with pytest.raises(Cancelled):
        evaluator.evaluate(PROBLEM, preparation, kernel(SLOW_KERNEL), cancelled=lambda: True)
    with pytest.raises(Cancelled):
        evaluator.prepare(Problem(name="endless", source=SOURCE + "\nwhile True: pass\n"), cancelled=lambda: True)
    assert evaluator.evaluate(PROBLEM, preparation, kernel()).verdict is Verdict.AUDITED


def busy(runner: psutil.Process) -> bool:
    """Return whether a runner has computed for longer than it takes to start."""
    try:
        return sum(runner.cpu_times()[:2]) > 1.0
    except psutil.Error:
        return False


def kill_while_measured(script: str) -> threading.Thread:
    """Kill it once a kernel runs: what is killed before is only replaced. Other tests' judges may be there, idle."""

    def watch() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            runners = [runner for runner in children("gpu_worker/runner.py") if busy(runner)]
            if runners:  # not the one that waits for the next kernel
                among = runners if "runner" in script else children(script)
                max(among, key=psutil.Process.create_time).send_signal(signal.SIGKILL)
                return
            time.sleep(0.01)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.parametrize("script", ["judge/main.py", "gpu_worker/runner.py"])
def test_a_child_killed_from_outside_is_nobodys_fault(
    evaluator: Evaluator, preparation: Preparation, script: str
) -> None:
    assert evaluator.evaluate(PROBLEM, preparation, kernel()).verdict is Verdict.AUDITED
    killer = kill_while_measured(script)
    result: Evaluation = evaluator.evaluate(PROBLEM, preparation, kernel(SLOW_KERNEL + f"// {script}\n"))
    killer.join()
    assert result.failure is not None, result.verdict
    assert result.failure.kind is FailureKind.INFRASTRUCTURE, result.failure
    assert evaluator.evaluate(PROBLEM, preparation, kernel()).verdict is Verdict.AUDITED


def test_a_kernel_that_is_slower_than_the_incumbent_is_timed_no_further(
    evaluator: Evaluator, preparation: Preparation
) -> None:
    results = [
        evaluator.evaluate(PROBLEM, preparation, kernel(f"// {number}\n{KERNEL}"), incumbent=1e6) for number in range(3)
    ]
    assert [result.verdict for result in results] == [Verdict.AUDITED] * 3, [result.failure for result in results]
    # Each cold-start block that a busy machine delays costs another pair.
    assert min(result.comparisons[0].pairs for result in results) <= MIN_PAIRS


def test_a_killed_supervisor_leaves_no_process(work_dir: Path, preparation: Preparation, tmp_path: Path) -> None:
    (tmp_path / "preparation.json").write_text(preparation.model_dump_json())
    code = f"""
import sys
from pathlib import Path
from cupilot.domain.evaluation import Preparation
from tests.unit.gpu_worker.lines import PROBLEM, SLOW_KERNEL, kernel
from cupilot.domain.problem import Target
from gpu_worker.evaluator import Evaluator
known = Preparation.model_validate_json(Path({str(tmp_path / "preparation.json")!r}).read_text())
with Evaluator(Target.CPU, Path({str(work_dir)!r})) as evaluator:
    evaluator.evaluate(PROBLEM, known, kernel(SLOW_KERNEL))
"""
    worker = subprocess.Popen([sys.executable, "-c", code], cwd=Path.cwd())
    deadline = time.monotonic() + 60
    while not children("gpu_worker/runner.py") and time.monotonic() < deadline:
        time.sleep(0.02)
    started = psutil.Process(worker.pid).children(recursive=True)
    assert len(started) >= 4
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    assert still_running(started) == []


def test_a_kernel_is_reproduced_although_autotuning_broke_the_judge(
    evaluator: Evaluator, preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, judge = Phases.stage, WarmJudge.judge

    def without_compile(warm: WarmJudge, order: KernelOrder, *more: Any) -> Judged | Unusable:
        """Save the time of the other baseline that has to be compiled."""
        baselines = tuple(baseline for baseline in order.baselines if baseline is not Baseline.COMPILE)
        return judge(warm, order.model_copy(update={"baselines": baselines}), *more)

    def killing(phases: Phases, name: str) -> None:
        if "max-autotune" in name:
            max(children("judge/main.py"), key=psutil.Process.create_time).kill()
        stage(phases, name)

    monkeypatch.setattr(Phases, "stage", killing)
    monkeypatch.setattr(WarmJudge, "judge", without_compile)
    result = evaluator.confirm(PROBLEM, preparation, kernel())
    assert result.verdict.counts, result.failure
    assert result.build is not None
    assert "no torch.compile max-autotune baseline: the judge ended while compiling" in result.build.log
    assert Baseline.MAX_AUTOTUNE not in [comparison.baseline for comparison in result.comparisons]


def test_a_confirmation_uses_fresh_processes_and_says_whether_times_agree(
    evaluator: Evaluator, preparation: Preparation
) -> None:
    tunable = {"SCALE": {"value": 3, "choices": [2, 3]}}
    subject = kernel(KERNEL.replace("2.0f", "float(SCALE)"), {**PLAN, "tunables": tunable})
    result = evaluator.confirm(PROBLEM, preparation, subject, tunables={"SCALE": 2})
    assert result.verdict.counts, result.failure
    assert result.kernel_hash == subject.content_hash()
    assert result.tunables == {"SCALE": 2}
    assert not result.sweep, "a confirmation tries nothing"
    assert result.environment is not None
    assert result.environment.torch == preparation.environment.torch
    assert {law.law for law in result.laws} == set(preparation.laws)
    assert result.comparisons[0].baseline.value == "eager"
    assert result.build is not None
    flags = {comparison.baseline.value: comparison.flags for comparison in result.comparisons}
    assert flags["eager"] == {"mode": "eager", "tf32": "off", "autocast": "off"}
    for baseline, mode in (
        ("torch.compile", "default"),
        ("torch.compile max-autotune", "max-autotune-no-cudagraphs"),
    ):
        if f"no {baseline} baseline" not in result.build.log:
            assert flags[baseline] == {"mode": mode, "tf32": "off", "autocast": "off"}
