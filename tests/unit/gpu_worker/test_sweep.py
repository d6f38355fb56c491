"""Tunables are varied within bounds; what is reported was judged with the values that are reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cupilot.domain.evaluation import FailureKind, Interval, Preparation, SweepPoint, Verdict
from cupilot.domain.kernel import Kernel, LaunchPlan
from cupilot.domain.problem import Target
from gpu_worker import sweep
from gpu_worker.evaluator import Evaluator
from gpu_worker.reuse import EvaluationStore
from gpu_worker.sweep import PHASES, combination, one_at_a_time
from tests.patience.judges import patient_judges
from tests.unit.gpu_worker.lines import PROBLEM

SLOW, BROKEN, WRONG, FAST = 2000, 2001, 1000, 1
"""Passes over the data: so far apart that no busy machine takes one for the other."""
KERNEL = f"""
#include "problem.h"
static_assert(PASSES != {BROKEN}, "too many");
extern "C" void run(const float* x, float* out) {{
  for (int pass = 0; pass < PASSES; ++pass) {{
    for (long i = 0; i < X_SIZE; ++i) out[i] = x[i] * 2.0f + (PASSES == {WRONG} ? 1.5f : 1.0f);
    asm volatile("" ::: "memory");
  }}
}}
"""
PLAN = {
    "launches": [{"kernel": "run", "args": ["x", "out"]}],
    "tunables": {"PASSES": {"value": SLOW, "choices": [FAST, WRONG, SLOW, BROKEN]}},
}


def plan(**tunables: tuple[int, list[int]]) -> LaunchPlan:
    data = {name: {"value": value, "choices": choices} for name, (value, choices) in tunables.items()}
    return LaunchPlan.model_validate({"launches": PLAN["launches"], "tunables": data})


def point(low: float, **tunables: int) -> SweepPoint:
    return SweepPoint(tunables=tunables, speedup=Interval(low=low, median=low + 0.1, high=low + 0.2))


def test_one_tunable_at_a_time_the_nearest_first_and_in_turn() -> None:
    both = plan(B=(256, [1024, 128, 256, 512]), A=(4, [1, 2, 4]))
    points = one_at_a_time(both, 12)
    assert [(item["A"], item["B"]) for item in points] == [(2, 256), (4, 512), (1, 256), (4, 128), (4, 1024)]
    assert one_at_a_time(both, 2) == points[:2]
    assert one_at_a_time(plan(A=(4, [4])), 12) == []
    assert one_at_a_time(plan(), 12) == []


def test_what_helped_alone_is_tried_together() -> None:
    given = point(1.0, A=4, B=256)
    faster = [point(1.5, A=2, B=256), point(1.3, A=1, B=256), point(1.4, A=4, B=512)]
    assert combination(given, faster) == {"A": 2, "B": 512}
    assert combination(given, faster[:2]) is None
    assert combination(given, [faster[0], point(1.1, A=4, B=512)]) is None, "within noise"


@pytest.fixture(scope="module")
def evaluator(work_dir: Path) -> Iterator[Evaluator]:
    """An evaluator whose judge times blocks long enough to tell the points apart."""
    with patient_judges(), Evaluator(Target.CPU, work_dir, autotune=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def preparation(evaluator: Evaluator) -> Preparation:
    result = evaluator.prepare(PROBLEM)
    assert result.preparation is not None, result.failure
    return result.preparation


@pytest.fixture
def patient(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Evaluator:
    """An evaluator that knows no kernel, and sweeps slow ones, for as long as a busy machine takes."""
    monkeypatch.setattr(sweep, "HOPELESS", 0.0)
    monkeypatch.setattr(sweep, "ROOM", 0.0)
    monkeypatch.setattr(sweep, "SCREENING_SECONDS", 600.0)
    monkeypatch.setattr(evaluator, "_known", EvaluationStore(tmp_path))
    return evaluator


@pytest.mark.judge
def test_the_best_point_is_judged_and_reported(patient: Evaluator, preparation: Preparation) -> None:
    kernel = Kernel(target=Target.CPU, source=KERNEL, plan=LaunchPlan.model_validate(PLAN))

    found = patient.evaluate(PROBLEM, preparation, kernel, timeout=600)
    assert found.verdict is Verdict.AUDITED, found.failure
    assert found.kernel_hash == kernel.content_hash()
    assert found.tunables == {"PASSES": FAST}, found.sweep
    assert {law.law for law in found.laws} == set(preparation.laws)
    points = {item.tunables["PASSES"]: item for item in found.sweep}
    assert list(points) == [SLOW, BROKEN, WRONG, FAST]
    assert points[SLOW].judged
    assert points[FAST].judged
    assert points[FAST].speedup == found.comparisons[0].speedup
    failures = {value: item.failure.kind for value, item in points.items() if item.failure}
    assert failures[BROKEN] is FailureKind.COMPILE_ERROR
    assert failures[WRONG] in (FailureKind.WRONG_VALUE, FailureKind.INSENSITIVE)  # by the check that is drawn first
    assert set(failures) == {BROKEN, WRONG}
    assert set(PHASES) <= {phase.name for phase in found.phases}
    assert found.build is not None
    assert found.build.ok

    again = patient.evaluate(PROBLEM, preparation, kernel, timeout=600)
    assert again.reused
    assert (again.tunables, again.build, again.sweep) == (found.tunables, found.build, found.sweep)


@pytest.mark.judge
def test_another_source_of_the_same_code_at_every_point_is_judged_once(
    patient: Evaluator, preparation: Preparation
) -> None:
    choices = plan(PASSES=(SLOW, [FAST, WRONG, SLOW]))

    def of(source: str, chosen: LaunchPlan = choices) -> Kernel:
        return Kernel(target=Target.CPU, source=source, plan=chosen)

    found = patient.evaluate(PROBLEM, preparation, of(KERNEL), timeout=600)
    assert found.tunables == {"PASSES": FAST}, found.sweep
    assert len({item.code for item in found.sweep}) == 3, "each point is code of its own, those that failed too"

    other = of("// in other words\n" + KERNEL)
    again = patient.evaluate(PROBLEM, preparation, other, timeout=600)
    assert again.reused
    assert again.kernel_hash == other.content_hash()
    assert again.measurement == found.measurement
    assert (again.tunables, again.sweep, again.comparisons) == (found.tunables, found.sweep, found.comparisons)
    assert again.build is not None
    assert found.build is not None
    assert again.build.binary_hash == found.build.binary_hash

    elsewhere = KERNEL.replace(f"PASSES == {WRONG}", f"PASSES != {SLOW}")
    changed = patient.evaluate(PROBLEM, preparation, of(elsewhere), timeout=600)
    assert not changed.reused, "it is the same code as given, and other code at the point that was chosen"
    assert changed.tunables == {"PASSES": SLOW}
    fewer = patient.evaluate(PROBLEM, preparation, of(KERNEL, plan(PASSES=(SLOW, [FAST, SLOW]))), timeout=600)
    assert not fewer.reused, "other choices, other sweeps"


@pytest.mark.judge
def test_a_sweep_is_retraced_only_where_each_step_would_see_the_same_code(
    evaluator: Evaluator, preparation: Preparation
) -> None:
    plain = plan(A=(1, [1, 2]), B=(1, [1, 2]), UNUSED=(1, [1, 2]))
    source = KERNEL.replace("PASSES", "(A * B)")
    kernel = Kernel(target=Target.CPU, source=source, plan=plain)

    def code(**values: int) -> str:
        built = evaluator._builder.build_kernel(kernel.tuned(values), preparation.facts)
        assert built.failure is None
        return built.identity

    given = {"A": 1, "B": 1, "UNUSED": 1}
    steps = [given, given | {"A": 2}, given | {"B": 2}, given | {"A": 2, "B": 2}]
    points = [point(1.0, **values).model_copy(update={"code": code(**values)}) for values in steps]
    once = evaluator.evaluate(
        PROBLEM, preparation, Kernel(target=Target.CPU, source=source, plan=plan(A=(1, [1]), B=(1, [1])))
    )

    def chosen_build(*told: SweepPoint) -> bool:
        known = once.model_copy(update={"sweep": told, "tunables": steps[3]})
        return evaluator._sweep.chosen_build(known, kernel, preparation.facts, 12) is not None

    assert code(**steps[1]) == code(**steps[2]), "a compiler sees their product only"
    assert chosen_build(*points), "the tunable that nothing uses is the given code again"
    assert chosen_build(points[0], points[1], points[3]), "what is other code's twin was not tried"
    assert not chosen_build(points[0], points[1], points[3].model_copy(update={"code": "other"}))
    assert not chosen_build(points[0], points[1], points[3].model_copy(update={"code": None})), "it did not build"
    assert not chosen_build(points[0], points[3]), "the sweep had no time for that code"
