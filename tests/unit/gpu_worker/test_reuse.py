"""Nothing is measured twice: what is the same is given again and says so, what might differ is measured."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cupilot.domain.evaluation import BuildReport, Evaluation, Failure, FailureKind, Preparation, Verdict
from cupilot.domain.hardware import Environment
from cupilot.domain.kernel import Kernel, LaunchPlan, resolve
from gpu_worker import reuse
from gpu_worker.build import Build, BuiltKernel
from gpu_worker.evaluator import Evaluator
from gpu_worker.reuse import EvaluationStore, key_of
from gpu_worker.stages import EvaluationInput
from gpu_worker.targets.base import BuildFacts
from tests.unit.gpu_worker.lines import KERNEL
from tests.unit.gpu_worker.lines import PROBLEM as LINE
from tests.unit.gpu_worker.lines import kernel as line
from tests.unit.gpu_worker.records import DEVICE, PROBLEM, kernel
from tests.unit.gpu_worker.records import preparation as recorded

ENVIRONMENT = Environment(device=DEVICE, driver="1", torch="2")


def failed(kind: FailureKind) -> Evaluation:
    failure = Failure(kind=kind, message="why")
    return Evaluation(kernel_hash="k", problem_hash="p", verdict=Verdict.REJECTED, failure=failure, measurement="m")


def key(
    binary: str = "b", plan_of: Kernel | None = None, environment: Environment = ENVIRONMENT, sweep: int = 0
) -> str:
    prepared = recorded()
    subject = plan_of or kernel()
    build = BuildReport(ok=True, compiler="g++", seconds=0.1, binary_hash=binary)
    built = BuiltKernel(resolve(subject, prepared.facts), Build(build, BuildFacts(), None, None), None)
    return key_of(EvaluationInput(PROBLEM, prepared, subject), built, environment, sweep)


def test_failures_are_kept_but_not_what_another_run_may_not_find(tmp_path: Path) -> None:
    store = EvaluationStore(tmp_path)
    assert store.get("ab") is None
    for kind in (FailureKind.INFRASTRUCTURE, FailureKind.TIMEOUT, FailureKind.BELOW_FLOOR, FailureKind.CLOCK_MISMATCH):
        store.put("ab", failed(kind))
        assert store.get("ab") is None, kind
    store.put("ab", failed(FailureKind.WRONG_VALUE))
    assert EvaluationStore(tmp_path).get("ab") == failed(FailureKind.WRONG_VALUE)
    (tmp_path / "ab" / "ab.json").write_text("{")
    assert store.get("ab") is None


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    one = failed(FailureKind.WRONG_VALUE)
    size = len(one.model_dump_json())
    store = EvaluationStore(tmp_path, most_bytes=5 * size, look_every=1)
    for place, name in enumerate(("aa", "bb", "cc", "dd", "ee")):
        store.put(name, one)
        os.utime(tmp_path / name / f"{name}.json", (place, place))
    assert store.get("aa") == one, "used just now"
    store.put("ff", one)
    assert [name for name in ("aa", "bb", "cc", "dd", "ee", "ff") if store.get(name)] == ["aa", "dd", "ee", "ff"]


def test_words_do_not_count_but_all_that_decides_does(monkeypatch: pytest.MonkeyPatch) -> None:
    same = key()
    other = kernel("other words, one binary")
    assert key(plan_of=other) == same
    assert key(sweep=3, plan_of=other) == key(sweep=3), "what a sweep builds beside this binary is compared when found"
    tunable = {"SIZE": {"value": 1, "choices": [1, 2]}}
    varied = other.model_copy(
        update={"plan": LaunchPlan.model_validate({**other.plan.model_dump(), "tunables": tunable})}
    )
    assert len({same, key(sweep=3), key(sweep=3, plan_of=varied)}) == 3
    others = {
        key(binary="c"),
        key(environment=ENVIRONMENT.model_copy(update={"driver": "2"})),
        key(environment=ENVIRONMENT.model_copy(update={"device": DEVICE.model_copy(update={"uid": "cpu-1"})})),
    }
    monkeypatch.setattr(reuse, "judge_version", lambda: "another")
    others.add(key())
    assert len(others | {same}) == 5


@pytest.mark.judge
def test_equal_binaries_are_judged_once(
    evaluator: Evaluator, preparation: Preparation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(evaluator, "_known", EvaluationStore(tmp_path))
    wrong = KERNEL.replace("+ 1.0f", "+ 1.5f")
    first = evaluator.evaluate(LINE, preparation, line(wrong))
    second = evaluator.evaluate(LINE, preparation, line("// in other words\n" + wrong))
    assert first.failure is not None
    assert first.failure.kind is FailureKind.WRONG_VALUE
    assert not first.reused
    assert first.measurement
    assert second.reused
    assert second.measurement == first.measurement
    assert second.failure == first.failure
    assert second.kernel_hash != first.kernel_hash
    assert {phase.name for phase in second.phases} == {"build"}
    fresh = evaluator.evaluate(LINE, preparation, line(wrong), fresh=True)
    assert not fresh.reused
    assert fresh.measurement != first.measurement
    assert evaluator.evaluate(LINE, preparation, line(wrong)).measurement == fresh.measurement


def test_the_version_of_the_judge_covers_the_domain_and_the_gpu_worker() -> None:
    sources = {"/".join(path.parts[-3:]) for path in reuse.judge_sources()}
    assert {"cupilot/domain/roofline.py", "cupilot/domain/evaluation.py"} <= sources
    assert {"gpu_worker/judge/laws.py", "gpu_worker/sandbox/seccomp.py"} <= sources
