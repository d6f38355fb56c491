"""From what was measured to an evaluation: verdict, floor, profile. Pure, but for one wish to measure peaks again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from cupilot.domain.evaluation import (
    Baseline,
    BuildReport,
    Comparison,
    Evaluation,
    Failure,
    FailureKind,
    LawResult,
    Phase,
    Preparation,
    Profile,
    ProfileSource,
    SweepPoint,
    Verdict,
)
from cupilot.domain.hardware import Environment, Peaks
from cupilot.domain.imported import ImportedKernel, KernelKind
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem, Target
from cupilot.domain.roofline import Placement, place
from gpu_worker.targets.base import BuildFacts, Counted, HostTarget

BELOW_FLOOR = 0.85
"""A kernel faster than this share of the floor is not believed. The margin covers what a peak measurement misses (a few
percent) and the part of the last output that still lies in a cache when the clock stops."""

DISTURBED = 1.3
"""PyTorch beside an imported file may be this many times slower than when the problem was prepared: clocks of a card
differ by a tenth between cold and hot, and short operators by their launches."""

UNCHECKED = {
    Target.CUDA: (
        "numerics policy: by calibrated tolerance only, its machine code is not read",
        "memory: by guard zones only, compute-sanitizer is not run",
        "profile: no hardware counters",
    ),
    Target.CPU: ("numerics policy: by calibrated tolerance only, its machine code is not read",),
}
"""By target: checks of kernels with a plan that a file with host code of its own does not allow."""

OWN = "own"
"""The law of the problem's own inputs, which every preparation has."""

AGREEMENT = 0.10
"""Two confirmations agree when their speedups differ by less than this, or than their intervals are wide."""

_REJECTING = frozenset(
    {
        FailureKind.CRASH, FailureKind.ILLEGAL_ACCESS, FailureKind.OUT_OF_MEMORY, FailureKind.TIMEOUT,
        FailureKind.LAUNCH_ERROR, FailureKind.POLICY_BREACH, FailureKind.OUT_OF_BOUNDS_WRITE,
        FailureKind.INPUT_MUTATED, FailureKind.INVALID_PLAN, FailureKind.COMPILE_ERROR,
    }
)  # fmt: skip
"""Failures that reject a kernel even when its own inputs gave right values."""


@dataclass
class Measured:
    """Everything known about a kernel, filled step by step."""

    problem: Problem
    preparation: Preparation
    kernel: Kernel | ImportedKernel
    build: BuildReport | None = None
    build_facts: BuildFacts = field(default_factory=BuildFacts)
    laws: tuple[LawResult, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    failure: Failure | None = None
    audited: bool = False
    notes: tuple[str, ...] = ()
    handover_us: float | None = None
    """What copying an imported file's outputs takes, in microseconds."""
    repeated: Measured | None = None
    """The second timing of a confirmation."""
    occupancy_pct: float | None = None
    """Warps that a multiprocessor can hold at once with the plan's blocks, of those it has room for."""
    counters: Counted = field(default_factory=Counted)
    """What hardware counters said; nothing where there are none."""
    promoted: bool = False
    """Whether they were asked for; see :mod:`gpu_worker.profiling`."""
    peaks: Peaks | None = None
    """The device's peaks as known now, which may be higher than when the problem was prepared; None for those."""
    environment: Environment | None = None
    seconds: float = 0.0
    phases: tuple[Phase, ...] = ()
    key: str | None = None
    """Under which the evaluation may be kept; None: it may not."""
    known: Evaluation | None = None
    """An earlier evaluation of the same; nothing else was measured then."""
    tunables: dict[str, int] = field(default_factory=dict)
    """Values of tunables that are measured instead of the plan's own."""
    sweep: list[SweepPoint] = field(default_factory=list)

    def repetition(self) -> Measured:
        """An empty record for the same kernel and build."""
        return Measured(
            self.problem, self.preparation, self.kernel, self.build, self.build_facts, tunables=self.tunables
        )

    def variant(self, tunables: dict[str, int], build: BuildReport, facts: BuildFacts) -> Measured:
        """An empty record for the same kernel with other tunable values."""
        return Measured(self.problem, self.preparation, self.kernel, build, facts, tunables=tunables)

    def adopt(self, variant: Measured) -> None:
        """Let a variant that was judged stand for the kernel."""
        self.tunables, self.build, self.build_facts = variant.tunables, variant.build, variant.build_facts
        self.laws, self.comparisons, self.notes = variant.laws, variant.comparisons, variant.notes
        self.audited, self.occupancy_pct = variant.audited, variant.occupancy_pct

    def tuned(self) -> Kernel | ImportedKernel:
        """The kernel with the tunable values that are measured."""
        return self.kernel.tuned(self.tunables)

    def through_graphs(self) -> bool:
        """Whether the comparison with eager went through graphs."""
        eager = self.eager()
        return eager is not None and eager.graphs

    def eager(self) -> Comparison | None:
        """The comparison with PyTorch eager."""
        return next((item for item in self.comparisons if item.baseline is Baseline.EAGER), None)


def conclude(measured: Measured, target: HostTarget, remeasure: Callable[[], Peaks]) -> Evaluation:
    """The evaluation of what was measured; ``remeasure`` is asked only before a kernel is quarantined for its speed."""
    facts = measured.preparation.facts
    peaks = measured.peaks or measured.preparation.peaks
    placement = place(facts, peaks)
    eager = measured.eager()
    if eager is not None and below_floor(eager, placement):
        peaks = remeasure()
        placement = place(facts, peaks)
    verdict, failure = _verdict(measured, placement)
    log = "\n".join([measured.build.log, *measured.notes]).strip() if measured.build else ""
    return Evaluation(
        kernel_hash=measured.kernel.content_hash(),
        problem_hash=measured.problem.content_hash(),
        verdict=verdict,
        failure=failure,
        build=measured.build.model_copy(update={"log": log[:16_000]}) if measured.build else None,
        laws=measured.laws,
        comparisons=measured.comparisons,
        profile=_profile(measured, eager, peaks, placement, target) if eager else None,
        placement=placement,
        environment=measured.environment,
        tunables=measured.tuned().tunable_values(),
        sweep=tuple(measured.sweep),
        seconds=measured.seconds,
        phases=measured.phases,
        handover_us=measured.handover_us,
        **_origin(measured),
    )


def _origin(measured: Measured) -> dict[str, Any]:
    """What marks an imported file's evaluation."""
    if not isinstance(measured.kernel, ImportedKernel):
        return {}
    return {"kernel_kind": KernelKind.IMPORTED, "unchecked": UNCHECKED[measured.kernel.target]}


def _verdict(measured: Measured, placement: Placement) -> tuple[Verdict, Failure | None]:
    failure = measured.failure
    built = measured.build is not None and measured.build.ok
    if failure is not None and failure.kind is FailureKind.CLOCK_MISMATCH:
        return Verdict.QUARANTINED, failure
    if failure is not None:
        return _climbed(measured, failure, built=built), failure
    eager = measured.eager()
    assert eager is not None
    if below_floor(eager, placement):
        return Verdict.QUARANTINED, _too_fast(eager, placement)
    if _disturbed(measured, eager):
        return Verdict.QUARANTINED, _too_slow(measured, eager)
    repeated = measured.repeated
    if repeated is None:
        return Verdict.AUDITED, None
    if repeated.failure is not None and repeated.failure.kind is FailureKind.INFRASTRUCTURE:
        return Verdict.COMPILED, repeated.failure
    if repeated.failure is not None:
        message = f"passed at first, failed when it was timed again in a fresh process: {repeated.failure.message}"
        return Verdict.PLAUSIBLE, repeated.failure.model_copy(update={"message": message[:16_000]})
    return (Verdict.REPRODUCED if agree(eager, repeated.eager()) else Verdict.AUDITED), None


def _climbed(measured: Measured, failure: Failure, *, built: bool) -> Verdict:
    if failure.kind is FailureKind.INFRASTRUCTURE:
        return Verdict.COMPILED if built else Verdict.REJECTED
    own = any(law.law == OWN and law.passed for law in measured.laws)
    # What a tool that watches memory finds is undefined behaviour: right results until now prove nothing.
    if not own or failure.kind in _REJECTING or "tool" in failure.details:
        return Verdict.REJECTED
    return Verdict.CORRECT


def agree(first: Comparison, second: Comparison | None) -> bool:
    """Whether two timings of one kernel tell the same speedup."""
    if second is None:
        return False
    difference = abs(math.log(first.speedup.median / second.speedup.median))
    widths = math.log(first.speedup.high / first.speedup.low) + math.log(second.speedup.high / second.speedup.low)
    return difference <= max(AGREEMENT, widths)


def below_floor(eager: Comparison, placement: Placement) -> bool:
    """Whether a time cannot be believed."""
    return eager.kernel_us.median < BELOW_FLOOR * placement.floor_us


def _disturbed(measured: Measured, eager: Comparison) -> bool:
    """Whether PyTorch was slower beside an imported file than alone: its host code could leave work on the device."""
    if not isinstance(measured.kernel, ImportedKernel) or measured.kernel.target is not Target.CUDA:
        return False
    return eager.baseline_us.median > DISTURBED * measured.preparation.baseline_us.median


def _too_slow(measured: Measured, eager: Comparison) -> Failure:
    alone = measured.preparation.baseline_us.median
    message = (
        f"PyTorch took {eager.baseline_us.median:.4g} us beside this file and {alone:.4g} us without it: the file may "
        "keep the device busy while it should be idle"
    )
    details: dict[str, JsonValue] = {"baseline_us": eager.baseline_us.median, "alone_us": alone}
    return Failure(kind=FailureKind.CLOCK_MISMATCH, message=message, details=details)


def _too_fast(eager: Comparison, placement: Placement) -> Failure:
    message = (
        f"{eager.kernel_us.median:.4g} us is faster than the device's physical floor of {placement.floor_us:.4g} us "
        f"(memory {placement.memory_floor_us:.4g}, compute {placement.compute_floor_us:.4g})"
    )
    details: dict[str, JsonValue] = {"kernel_us": eager.kernel_us.median, "floor_us": placement.floor_us}
    return Failure(kind=FailureKind.BELOW_FLOOR, message=message, details=details)


def _resources(build: BuildFacts) -> dict[str, float]:
    """What the compiler gave a thread or a block, as far as it said so."""
    found = {
        "registers": build.registers,
        "spill_bytes": build.spill_bytes,
        "static_shared_bytes": build.shared_bytes,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def _profile(measured: Measured, eager: Comparison, peaks: Peaks, placement: Placement, target: HostTarget) -> Profile:
    """Rates of counted work against the measured peaks, and the hardware's counters where there are any."""
    facts = measured.preparation.facts
    seconds = eager.kernel_us.median * 1e-6
    rate = peaks.matrix_flops(facts.policy) if facts.matmul_flops else peaks.scalar_flops
    metrics = {
        "memory_throughput_pct": 100.0 * facts.compulsory_bytes / seconds / peaks.bandwidth,
        "compute_throughput_pct": 100.0 * facts.flops / seconds / rate,
        "floor_pct": 100.0 * placement.floor_us / eager.kernel_us.median,
        "operations_a_byte": facts.flops / max(facts.compulsory_bytes, 1),
        **_resources(measured.build_facts),
        **target.profile_metrics(measured.build_facts),
        **measured.counters.metrics,
    }
    if measured.occupancy_pct is not None:
        metrics["occupancy_pct"] = measured.occupancy_pct
    source = ProfileSource.MEASURED if measured.counters.metrics else ProfileSource.INFERRED
    return Profile(source=source, metrics=metrics, missing=measured.counters.missing, promoted=measured.promoted)
