"""Members and evaluations for the tests of the evolution methods."""

from __future__ import annotations

from hypothesis import strategies as st

from cupilot.domain.evaluation import (
    Baseline,
    BuildReport,
    Comparison,
    Evaluation,
    Failure,
    FailureKind,
    Interval,
    Profile,
    ProfileSource,
    Verdict,
)
from cupilot.domain.evolution.population import Member
from cupilot.domain.roofline import Placement, Zone
from cupilot.domain.strategy import Strategy, TechniqueUse


def strategy(*ids: str) -> Strategy:
    return Strategy(techniques=tuple(TechniqueUse(id=each) for each in ids))


def make_member(
    ordinal: int,
    fitness: float | None,
    *,
    generation: int = 0,
    techniques: tuple[str, ...] | None = None,
    floor_share: float | None = None,
) -> Member:
    counts = fitness is not None
    return Member(
        candidate=f"c{ordinal}",
        ordinal=ordinal,
        generation=generation,
        strategy=strategy(*(techniques if techniques is not None else (f"technique_{ordinal}",))),
        kernel_hash=f"k{ordinal}",
        verdict=Verdict.AUDITED if counts else Verdict.REJECTED,
        speedup=2.0 if counts else None,
        utilisation=0.5,
        fitness=fitness,
        floor_share=floor_share if counts else None,
    )


@st.composite
def populations(draw: st.DrawFn, max_size: int = 24) -> list[Member]:
    fitnesses = draw(st.lists(st.none() | st.floats(-3, 3, width=16), max_size=max_size))
    members = [
        make_member(
            ordinal,
            fitness,
            generation=draw(st.integers(0, 3)),
            techniques=(f"technique_{draw(st.integers(0, 3))}",),
            floor_share=draw(st.floats(0, 0.9)),
        )
        for ordinal, fitness in enumerate(fitnesses)
    ]
    return draw(st.permutations(members))


def interval(median: float, spread: float = 0.01) -> Interval:
    return Interval(low=median * (1 - spread), median=median, high=median * (1 + spread))


def measured(speedup: float, *, memory: float = 0.0, compute: float = 0.0, kernel_us: float = 10.0) -> Evaluation:
    return Evaluation(
        kernel_hash="kernel",
        problem_hash="problem",
        verdict=Verdict.AUDITED,
        build=BuildReport(ok=True, compiler="g++ 12", seconds=0.1),
        comparisons=(
            Comparison(
                baseline=Baseline.EAGER,
                kernel_us=interval(kernel_us),
                baseline_us=interval(kernel_us * speedup),
                speedup=interval(speedup),
                pairs=10,
                launches=100,
            ),
        ),
        profile=Profile(
            source=ProfileSource.MEASURED,
            metrics={"dram_throughput_pct": memory, "sm_throughput_pct": compute, "floor_pct": 50.0},
        ),
    )


def failed(kind: FailureKind, verdict: Verdict = Verdict.REJECTED) -> Evaluation:
    return Evaluation(
        kernel_hash="kernel",
        problem_hash="problem",
        verdict=verdict,
        failure=Failure(kind=kind, message="why"),
        build=BuildReport(ok=True, compiler="g++ 12", seconds=0.1),
    )


def placement(zone: Zone = Zone.MEMORY, floor_us: float = 5.0) -> Placement:
    return Placement(
        intensity=1.0,
        ridge_scalar=10.0,
        ridge_tensor=20.0,
        zone=zone,
        memory_floor_us=floor_us,
        compute_floor_us=floor_us / 2,
        floor_us=floor_us,
    )
