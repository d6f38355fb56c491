"""Problems with several shapes: prepared, judged and reported at each, by the real judge."""

from __future__ import annotations

import json
from math import exp, log

import pytest

from cupilot.domain.evaluation import (
    Evaluation,
    Failure,
    FailureKind,
    Interval,
    Preparation,
    PreparationResult,
    Verdict,
)
from cupilot.domain.flashinfer_bench.reading import problem_source
from cupilot.domain.flashinfer_bench.schema import Definition, read, read_workloads
from cupilot.domain.flashinfer_bench.writing import traces
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem
from cupilot.reports import tables
from gpu_worker import summary
from gpu_worker.evaluator import Evaluator
from gpu_worker.stages import EvaluationInput
from gpu_worker.workloads import evaluate_each, mean_interval, prepare_each
from tests.unit.gpu_worker.lines import KERNEL, kernel

DEFINITION = read(
    Definition,
    json.dumps(
        {
            "name": "line",
            "op_type": "elementwise",
            "axes": {
                "n": {"type": "var"},
                "half": {"type": "const", "value": 250},
                "columns": {"type": "expr", "expression": "2 * half"},
            },
            "inputs": {
                "x": {"shape": ["n", "columns"], "dtype": "float32"},
                "offset": {"shape": None, "dtype": "float32"},
            },
            "outputs": {"out": {"shape": ["n", "columns"], "dtype": "float32"}},
            "reference": "import torch\n\n@torch.no_grad()\ndef run(x, offset):\n    return x * 2.0 + offset\n",
        }
    ),
    "line.json",
)
INPUTS = {"x": {"type": "random"}, "offset": {"type": "scalar", "value": 1.0}}
WORKLOADS = read_workloads(
    json.dumps({"uuid": "small", "axes": {"n": 48}, "inputs": INPUTS})
    + "\n"
    + json.dumps(
        {"definition": "line", "workload": {"uuid": "large", "axes": {"n": 320}, "inputs": INPUTS, "weight": 3}}
    ),
    "line.jsonl",
)
PROBLEM = Problem(name="line", source=problem_source(DEFINITION, WORKLOADS))
RIGHT_AT_48 = KERNEL.replace("i < X_SIZE", "i < (X_SIZE < 48 * 500 ? X_SIZE : 48 * 500)")


@pytest.fixture(scope="module")
def prepared(evaluator: Evaluator) -> Preparation:
    result = evaluator.prepare(PROBLEM)
    assert result.preparation is not None, result.failure
    return Preparation.model_validate_json(result.preparation.model_dump_json())


@pytest.fixture(scope="module")
def audited(evaluator: Evaluator, prepared: Preparation) -> Evaluation:
    evaluation = evaluator.evaluate(PROBLEM, prepared, kernel())
    return Evaluation.model_validate_json(evaluation.model_dump_json())


@pytest.mark.judge
def test_each_workload_is_prepared(prepared: Preparation) -> None:
    small, large = prepared.workloads
    assert [part.facts.tensor("x").shape for part in (small, large)] == [(48, 500), (320, 500)]
    assert prepared.facts.tensor("x").shape == (320, 500), "the heaviest stands for the problem"
    assert prepared.facts.problem_hash == PROBLEM.content_hash()
    assert small.facts.problem_hash == PROBLEM.at(small.workload).content_hash()
    assert large.placement.floor_us > small.placement.floor_us
    assert "workload   small (weight 1): N 48, OFFSET 1.0" in summary.preparation(prepared)


@pytest.mark.judge
def test_the_speedup_is_the_weighted_geometric_mean(audited: Evaluation) -> None:
    assert audited.verdict is Verdict.AUDITED, audited.failure
    assert audited.problem_hash == PROBLEM.content_hash()
    by_name = {part.workload.name: part for part in audited.workloads}
    small, large = (by_name[name].comparisons[0].speedup for name in ("small", "large"))
    whole = audited.comparisons[0].speedup
    assert whole.median == pytest.approx(exp((log(small.median) + 3 * log(large.median)) / 4))
    assert whole.low <= whole.median <= whole.high
    assert audited.speedup == whole.median
    assert audited.placement is not None
    assert all(part.verdict is Verdict.AUDITED and part.laws and part.build for part in audited.workloads)
    text = tables.pull_request(audited, "line")
    assert text.count("audited") == 3
    assert "| small | N 48, OFFSET 1.0 | 1 |" in text
    assert "| **all** | weighted geometric mean |" in text
    assert "workload   small (N 48, OFFSET 1.0): audited, " in summary.evaluation(audited)


@pytest.mark.judge
def test_an_evaluation_is_written_as_traces(audited: Evaluation) -> None:
    small, large = traces(DEFINITION, WORKLOADS, "mine", audited)
    assert [item["workload"]["uuid"] for item in (small, large)] == ["small", "large"]
    assert small["workload"]["inputs"] == INPUTS
    assert (large["definition"], large["solution"]) == ("line", "mine")
    measured = large["evaluation"]
    assert measured["status"] == "PASSED"
    assert measured["performance"]["speedup_factor"] == audited.workloads[1].comparisons[0].speedup.median
    assert 0 <= measured["correctness"]["max_relative_error"] < 1e-4
    assert measured["environment"]["hardware"]


@pytest.mark.judge
def test_a_kernel_that_is_wrong_at_the_heaviest_is_judged_at_no_other(
    evaluator: Evaluator, prepared: Preparation
) -> None:
    evaluation = evaluator.evaluate(PROBLEM, prepared, kernel(RIGHT_AT_48))
    assert evaluation.verdict is Verdict.REJECTED
    assert evaluation.failure is not None
    assert evaluation.failure.kind is FailureKind.UNWRITTEN_OUTPUT
    assert evaluation.failure.details["workload"] == "large"
    assert [part.workload.name for part in evaluation.workloads if part.verdict is None] == ["small"]
    assert evaluation.comparisons == ()
    assert evaluation.speedup is None
    (trace,) = traces(DEFINITION, WORKLOADS, "mine", evaluation)
    assert trace["evaluation"]["status"] == "INCORRECT_NUMERICAL"
    assert trace["evaluation"]["performance"] is None
    assert "none: unwritten_output" in tables.pull_request(evaluation, "line")


@pytest.mark.judge
def test_the_verdict_is_the_lowest_and_tunables_are_those_of_the_heaviest(
    prepared: Preparation, audited: Evaluation
) -> None:
    asked = []
    failure = Failure(kind=FailureKind.WRONG_VALUE, message="no")
    plan = {
        "launches": [{"kernel": "run", "args": ["x", "out"]}],
        "tunables": {"BLOCK": {"value": 1, "choices": [1, 2]}},
    }

    def evaluate(subject: EvaluationInput) -> Evaluation:
        asked.append(subject)
        if len(asked) == 1:
            return audited.model_copy(update={"tunables": {"BLOCK": 2}})
        return audited.model_copy(update={"verdict": Verdict.CORRECT, "failure": failure})

    evaluation = evaluate_each(EvaluationInput(PROBLEM, prepared, kernel(KERNEL, plan)), evaluate)
    assert [item.preparation.facts.tensor("x").shape[0] for item in asked] == [320, 48]
    assert [item.preparation.facts.problem_hash for item in asked] == [item.problem.content_hash() for item in asked]
    fixed = asked[1].kernel
    assert isinstance(fixed, Kernel)
    assert fixed.plan.tunables["BLOCK"].choices == (2,)
    assert (evaluation.verdict, evaluation.tunables) == (Verdict.CORRECT, {"BLOCK": 2})
    assert evaluation.failure is not None
    assert evaluation.failure.message.startswith("workload 'small' (N 48, OFFSET 1.0): no")


def test_a_workload_whose_reference_fails_is_named() -> None:
    failure = Failure(kind=FailureKind.INVALID_PROBLEM, message="no")
    result = prepare_each(PROBLEM, lambda _: PreparationResult(failure=failure))
    assert result.failure is not None
    assert result.failure.message == "workload 'large' (N 320, OFFSET 1.0): no"


def test_intervals_of_a_mean_narrow_with_the_number_of_workloads() -> None:
    one = Interval(low=1.8, median=2.0, high=2.2)
    assert mean_interval([one], [1.0]).low == pytest.approx(1.8)
    four = mean_interval([one] * 4, [0.25] * 4)
    assert four.median == pytest.approx(2.0)
    assert log(2.0 / four.low) == pytest.approx(log(2.0 / 1.8) / 2)
