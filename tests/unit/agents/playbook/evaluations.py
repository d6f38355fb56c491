"""Evaluations, attempts and pool entries for these tests."""

from __future__ import annotations

from agents.interface import Attempt
from cupilot.domain.evaluation import (
    Baseline,
    BuildReport,
    Comparison,
    Evaluation,
    Failure,
    FailureKind,
    Interval,
    LawResult,
    Profile,
    ProfileSource,
    Verdict,
)
from cupilot.domain.kernel import Kernel
from cupilot.domain.pool import PoolEntry, PoolMatch
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.roofline import Placement, Zone
from cupilot.domain.strategy import Strategy


def build_report(**changes: object) -> BuildReport:
    return BuildReport.model_validate({"ok": True, "compiler": "test", "seconds": 0.1, **changes})


def audited(metrics: dict[str, float], placement: Placement | None = None, **build: object) -> Evaluation:
    interval = Interval(low=1.0, median=2.0, high=3.0)
    return Evaluation(
        kernel_hash="k",
        problem_hash="0" * 64,
        verdict=Verdict.AUDITED,
        build=build_report(**build),
        laws=(LawResult(law="own", passed=True, error=0.0, tolerance=1.0, reference_error=0.0),),
        comparisons=(
            Comparison(
                baseline=Baseline.EAGER,
                kernel_us=interval,
                baseline_us=interval,
                speedup=interval,
                pairs=10,
                launches=100,
            ),
        ),
        profile=Profile(source=ProfileSource.INFERRED, metrics=metrics),
        placement=placement,
    )


def failed(kind: FailureKind, message: str = "it broke") -> Evaluation:
    return Evaluation(
        kernel_hash="k",
        problem_hash="0" * 64,
        verdict=Verdict.REJECTED,
        failure=Failure(kind=kind, message=message),
    )


def attempt(strategy: Strategy, evaluation: Evaluation | None = None, kernel: Kernel | None = None) -> Attempt:
    return Attempt(strategy=strategy, kernel=kernel, evaluation=evaluation)


def match(
    strategy: Strategy,
    *,
    number: int = 0,
    speedup: float | None = 2.0,
    failure: FailureKind | None = None,
    target: Target = Target.CUDA,
    problem_hash: str = "1" * 64,
    score: float = 1.0,
    operators: tuple[str, ...] = ("aten._softmax.default",),
    shapes: tuple[tuple[int, ...], ...] = (),
) -> PoolMatch:
    entry = PoolEntry(
        id=f"entry-{number}",
        team="team",
        problem_name="an earlier problem",
        problem_hash=problem_hash,
        op_class="softmax",
        operators=operators,
        shapes=shapes,
        target=target,
        policy=NumericsPolicy.FP32,
        dtype="float32",
        device_class="sm_90",
        zone=Zone.MEMORY,
        strategy=strategy,
        kernel_hash="k",
        verdict=Verdict.REJECTED if failure else Verdict.AUDITED,
        speedup=None if failure else speedup,
        failure=failure,
        created_at="2026-01-01T00:00:00+00:00",
    )
    return PoolMatch(entry=entry, similarity=0.9, score=score)
