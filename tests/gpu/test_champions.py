"""Checks that only champions go through, and those that depend on the policy, on a real GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agents.playbook import agents
from agents.playbook.ladders import parse
from cupilot.domain.errors import InvalidInput
from cupilot.domain.evaluation import Evaluation, FailureKind, Preparation, Verdict
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import NumericsPolicy, Problem, Target
from gpu_worker.evaluator import Evaluator
from gpu_worker.targets.cuda import sanitizer
from gpu_worker.targets.cuda.nvml import Nvml
from tests.gpu import kernels, problems
from tests.gpu.champions import FP16, UNDEFINED
from tests.unit.agents.playbook.briefings import briefing

pytestmark = pytest.mark.gpu

Judge = Callable[[Problem, Kernel], Evaluation]
Prepare = Callable[[Problem], Preparation]


@pytest.mark.parametrize("tool", UNDEFINED)
def test_undefined_behaviour_is_found_before_a_kernel_is_confirmed(
    evaluator: Evaluator, prepare: Prepare, tool: str
) -> None:
    if sanitizer.checker() is None:
        pytest.skip("compute-sanitizer is not installed")
    problem, kernel = problems.softmax(), UNDEFINED[tool]
    first = evaluator.evaluate(problem, prepare(problem), kernel)
    assert first.verdict is Verdict.AUDITED, first.failure
    confirmed = evaluator.confirm(problem, prepare(problem), kernel)
    assert confirmed.failure is not None, "nothing was found"
    print(f"\n{confirmed.failure.kind.value}: {confirmed.failure.message}")
    assert confirmed.failure.details["tool"] == tool
    assert confirmed.failure.kind in (FailureKind.ILLEGAL_ACCESS, FailureKind.NON_DETERMINISTIC)
    assert confirmed.verdict is Verdict.REJECTED


@pytest.mark.parametrize("blocks", [8, 16])
def test_synccheck_errs_about_large_clusters_alone(
    evaluator: Evaluator, prepare: Prepare, monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    """Why it is not asked about them. Where it no longer errs, this fails, and ``SYNCCHECK_LARGEST_CLUSTER`` can go."""
    if sanitizer.checker() is None:
        pytest.skip("compute-sanitizer is not installed")
    preparation = prepare(problems.softmax_of_long_rows(blocks))
    told = briefing(preparation.facts, Target.CUDA)
    strategy = parse(f"vector_loads, cluster_rows(blocks={blocks}), shared_rows, warp_shuffle_reduction: ")
    built = evaluator._builder.build_kernel(agents().translator.translate(told, strategy, None, 0), preparation.facts)
    assert built.failure is None, built.failure
    watched = (built.binary, built.plan, preparation.facts.tensors)
    monkeypatch.setattr(sanitizer, "TOOLS", ("synccheck",))
    assert evaluator._host.watched_memory(*watched).failure is None
    monkeypatch.setattr(sanitizer, "SYNCCHECK_LARGEST_CLUSTER", 16)
    watch = evaluator._host.watched_memory(*watched)
    print(f"\nclusters of {blocks}: {watch.failure.message if watch.failure else watch.notes}")
    assert (watch.failure is None) is (blocks == 8)


def test_half_precision_is_for_the_half_policy(judge: Judge) -> None:
    refused = judge(problems.softmax(), FP16)
    assert refused.failure is not None
    assert refused.failure.kind is FailureKind.POLICY_BREACH
    accepted = judge(problems.softmax(NumericsPolicy.HALF), FP16)
    assert accepted.verdict is Verdict.AUDITED, accepted.failure
    print(f"\nfp32: {refused.failure.message}; half: {accepted.verdict.value}, {accepted.speedup}")


def test_a_kernel_is_reproduced_on_another_card(prepare: Prepare, tmp_path: Path) -> None:
    problem, kernel = problems.softmax(), kernels.softmax()
    preparation = prepare(problem)
    own = preparation.environment.device.uid
    try:
        other = next(uid for uid in (Nvml("1").uuid, Nvml("0").uuid) if uid != own)
    except InvalidInput:
        pytest.skip("one card only")
    with Evaluator(Target.CUDA, tmp_path, device=other) as second:
        confirmed = second.confirm(problem, preparation, kernel)
    assert confirmed.verdict is Verdict.REPRODUCED, confirmed.failure
    assert confirmed.environment is not None
    print(f"\nprepared on {own}, reproduced on {confirmed.environment.device.uid}: {confirmed.speedup}")
    assert confirmed.environment.device.uid == other


def test_the_next_kernel_is_built_while_one_is_on_the_card(evaluator: Evaluator, prepare: Prepare) -> None:
    problem = problems.gelu()
    preparation = prepare(problem)
    first, second = kernels.gelu(), kernels.gelu()
    second = second.model_copy(update={"source": second.source + "\n// another\n"})
    begun = evaluator.build_ahead(preparation, [second])
    if not begun:
        pytest.skip("no core is spare")
    evaluator.evaluate(problem, preparation, first)
    result = evaluator.evaluate(problem, preparation, second)
    assert result.build is not None
    print(f"\nahead: {result.build.ahead}; {[(phase.name, round(phase.seconds, 3)) for phase in result.phases]}")
    assert result.build.ahead
