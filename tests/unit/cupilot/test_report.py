"""The words of a report: no stronger than what was measured."""

from __future__ import annotations

from typing import Any

import pytest

from cupilot.domain.evaluation import Baseline, Comparison, Evaluation, Interval, Verdict
from cupilot.domain.hardware import Device, Environment
from cupilot.domain.problem import Target
from cupilot.domain.roofline import Placement, Zone
from cupilot.reports.job import (
    comparison_words,
    difference_words,
    headline,
    measured_on,
    next_steps,
    steps_after_failure,
)
from cupilot.schemas import JobView, PreparationSummary
from tests.unit.cupilot.factories import build, comparison, law


def _interval(low: float, median: float, high: float) -> Interval:
    return Interval(low=low, median=median, high=high)


def _comparison(speedup: Interval, baseline: Baseline = Baseline.EAGER) -> Comparison:
    return comparison().model_copy(update={"speedup": speedup, "baseline": baseline})


def _evaluation(*comparisons: Comparison, floor_us: float = 1.0, verdict: Verdict = Verdict.REPRODUCED) -> Evaluation:
    placement = Placement(
        intensity=1.0,
        ridge_scalar=10.0,
        ridge_tensor=10.0,
        zone=Zone.MEMORY,
        memory_floor_us=floor_us,
        compute_floor_us=0.1,
        floor_us=floor_us,
    )
    return Evaluation(
        kernel_hash="k",
        problem_hash="p",
        verdict=verdict,
        build=build(),
        laws=(law(),),
        comparisons=comparisons or (comparison(),),
        placement=placement,
    )


def _job(state: str = "succeeded", op_class: str = "softmax", policy: str = "fp32", **changes: Any) -> JobView:
    preparation = PreparationSummary(
        op_class=op_class,
        zone=Zone.MEMORY,
        intensity=1.0,
        floor_us=1.0,
        baseline_us=_interval(1, 1, 1),
        device="H200",
    )
    problem = {"id": "00000000-0000-0000-0000-000000000001", "name": "p", "policy": policy, "hash": "h"}
    fields: dict[str, Any] = {
        "id": problem["id"],
        "state": state,
        "final": True,
        "problem": problem,
        "target": "cuda",
        "agents": "playbook",
        "method": {},
        "budgets": {},
        "seed": 0,
        "priority": "normal",
        "labels": {},
        "generation": 3,
        "generations": 4,
        "candidates": 9,
        "verdicts": {},
        "candidate_states": {},
        "wall_seconds": 1,
        "gpu_seconds": 1,
        "cost_usd": 0,
        "preparation": preparation,
        "created_at": "2026-01-01T00:00:00Z",
    }
    return JobView.model_validate(fields | changes)


@pytest.mark.parametrize(
    ("speedup", "words", "difference"),
    [
        (_interval(1.82, 1.84, 1.86), "1.84x as fast as PyTorch (95 % interval 1.82 to 1.86)", "faster"),
        (_interval(0.7, 0.8, 0.9), "slower than PyTorch: 0.80x (95 % interval 0.70 to 0.90) of its speed", "slower"),
        (
            _interval(0.9, 1.2, 1.5),
            "no faster and no slower than PyTorch as far as can be told: 1.20x (95 % interval 0.90 to 1.50)",
            "no clear difference",
        ),
    ],
)
def test_only_an_interval_beyond_one_is_called_faster_or_slower(speedup: Interval, words: str, difference: str) -> None:
    assert comparison_words(speedup, "PyTorch") == words
    assert difference_words(speedup) == difference


def test_the_headline_names_both_baselines_the_verdict_and_what_is_missing() -> None:
    fast, slow = _comparison(_interval(2, 3, 4)), _comparison(_interval(0.5, 0.6, 0.7), Baseline.COMPILE)
    both = headline(_evaluation(fast, slow), Verdict.REPRODUCED, final=True)
    assert both.startswith("The best kernel is 3.00x as fast as PyTorch eager")
    assert "slower than torch.compile" in both
    assert both.endswith("Verdict: reproduced.")
    one = headline(_evaluation(fast), Verdict.AUDITED, final=False)
    assert one.startswith("The best kernel so far is")
    assert "not compared with torch.compile" in one


def test_at_the_floor_there_is_nothing_left_to_search() -> None:
    steps = next_steps(_job(), _evaluation(floor_us=9.9))
    assert steps[0].startswith("Nothing under this policy")
    assert not any("longer" in step for step in steps)


def test_far_from_the_floor_a_longer_search_is_advised() -> None:
    assert "10%" in next_steps(_job(), _evaluation(floor_us=1.0))[0]


def test_a_budget_that_ran_out_is_named() -> None:
    steps = next_steps(_job("budget_exhausted", reason="wall_seconds"), _evaluation())
    assert "wall_seconds" in steps[0]


def test_an_interval_around_one_asks_for_a_quieter_machine() -> None:
    steps = next_steps(_job(), _evaluation(_comparison(_interval(0.9, 1.0, 1.1))))
    assert "quieter machine" in steps[0]


def test_a_kernel_that_is_not_faster_is_told_what_there_is_to_gain() -> None:
    slower = _evaluation(_comparison(_interval(0.80, 0.85, 0.90)), floor_us=10.0)
    (told,) = [step for step in next_steps(_job(target="cpu"), slower) if "all there is to gain" in step]
    assert f"{slower.comparisons[0].baseline_us.median / 10.0:.2f} times the bound" in told
    assert "a GPU has a bound of its own" in told
    assert told.startswith("PyTorch takes")
    near = _evaluation(slower.comparisons[0], floor_us=slower.comparisons[0].baseline_us.median / 1.1)
    assert any(step.startswith("Expect little of this operator") for step in next_steps(_job(), near))
    faster = _evaluation(_comparison(_interval(1.1, 1.2, 1.3)))
    assert not [step for step in next_steps(_job(), faster) if "to gain" in step]


def test_tensor_cores_are_advised_only_where_they_could_help() -> None:
    def advised(**changes: Any) -> bool:
        return any("tensor cores" in step for step in next_steps(_job(**changes), _evaluation()))

    assert any("(policy half)" in step for step in next_steps(_job(op_class="matmul", policy="tf32"), _evaluation()))
    assert advised(op_class="matmul")
    assert not advised(op_class="softmax")
    assert not advised(op_class="matmul", target="cpu")


def test_a_number_that_was_not_reproduced_is_not_to_be_relied_on() -> None:
    def warned(verdict: Verdict) -> bool:
        return any("reproduced" in step for step in next_steps(_job(), _evaluation(verdict=verdict)))

    assert warned(Verdict.AUDITED)
    assert not warned(Verdict.REPRODUCED)
    first = next_steps(_job(reason="not_confirmed"), _evaluation(verdict=Verdict.AUDITED))[0]
    assert first.startswith("Run the job again before relying on the number: it could not be measured again")


def test_too_few_pairs_decide_nothing() -> None:
    few = _comparison(_interval(1.82, 1.84, 1.86)).model_copy(update={"pairs": 2})
    words = headline(_evaluation(few), Verdict.AUDITED, final=True)
    assert "not yet decided against PyTorch eager: 1.84x (undecided, from too few pairs: 1.82 to 1.86)" in words
    assert "95 %" not in words


def test_the_load_of_the_host_stands_beside_the_device() -> None:
    device = Device(
        target=Target.CPU, uid="cpu", name="two cores", arch="x86-64", units=2, memory_bytes=1, cache_bytes=1
    )
    assert measured_on(Environment(device=device, load_average=3.14)) == "two cores (load of the host 3.1)"
    assert measured_on(Environment(device=device)) == "two cores"


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("failed", "no_template", "--agents hybrid"),
        ("failed", "invalid_problem", "Mend the problem file"),
        ("failed", "out_of_memory", "smaller"),
        ("budget_exhausted", "wall_seconds", "cupilot retry"),
        ("cancelled", None, "cupilot retry"),
        ("failed", "a reason of the future", "cupilot logs"),
    ],
)
def test_a_job_without_a_kernel_says_what_to_do_first(state: str, reason: str | None, words: str) -> None:
    steps = steps_after_failure(_job(state, reason=reason))
    assert words in steps[0]
    assert "cupilot logs" in steps[-1]


def test_rejected_kernels_are_pointed_at() -> None:
    steps = steps_after_failure(_job("failed", reason="no_valid_kernel", verdicts={"rejected": 2}))
    assert "cupilot candidates" in steps[0]
