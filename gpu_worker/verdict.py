"""The verdict stage: concludes an evaluation from the results of the other stages.

Pure, but for one request to measure the device's peaks again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic import JsonValue

from cupilot.domain.data_sheets import stated_peaks
from cupilot.domain.evaluation import (
    MAX_LOG_CHARACTERS,
    BuildReport,
    Comparison,
    Evaluation,
    Failure,
    FailureKind,
    Profile,
    ProfileSource,
    Verdict,
)
from cupilot.domain.hardware import Peaks
from cupilot.domain.imported import ImportedKernel, KernelKind
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Target
from cupilot.domain.roofline import Placement, place
from gpu_worker.messages.judge import Judged
from gpu_worker.stages import EvaluationInput, StageResults
from gpu_worker.targets.base import BuildFacts, HostTarget

BELOW_FLOOR = 0.85
"""Share of the least possible time below which a kernel's is not believed. The margin covers what peaks miss (a few
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
"""The law (input distribution) of the problem's own inputs, which every preparation has."""

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


def conclude(
    subject: EvaluationInput,
    results: StageResults,
    target: HostTarget,
    remeasure: Callable[[], Peaks],
) -> Evaluation:
    """Return the evaluation that follows from the results of all stages.

    ``remeasure`` measures the device's peaks, and is called only before a kernel is quarantined for its speed.
    """
    facts, eager, peaks = subject.preparation.facts, results.eager, subject.preparation.peaks
    stated = stated_peaks(target.device.name)
    placement = place(facts, peaks, stated)
    if eager is not None and below_floor(eager, placement):
        peaks = remeasure()
        placement = place(facts, peaks, stated)
    verdict, failure = _verdict(subject, results, placement)
    chosen, standing = results.sweep.chosen, results.standing
    tuned = replace(subject, tunables=chosen.tunables).tuned() if chosen is not None else subject.tuned()
    return Evaluation(
        kernel_hash=subject.kernel.content_hash(),
        problem_hash=subject.problem.content_hash(),
        verdict=verdict,
        failure=failure,
        build=_report(results),
        laws=standing.verification.laws if standing is not None else (),
        comparisons=results.comparisons,
        profile=_profile(subject, results, eager, target, peaks=peaks, placement=placement)
        if eager is not None
        else None,
        placement=placement,
        tunables=tuned.tunable_values(),
        sweep=results.sweep.points,
        handover_us=standing.timing.handover_us if standing is not None and standing.timing is not None else None,
        **_origin(subject.kernel),
    )


def _report(results: StageResults) -> BuildReport | None:
    """Return the build's report, with the notes of later stages in its log."""
    if results.standing_build is None:
        return None
    report = results.standing_build.build.report
    log = "\n".join([report.log, *results.notes]).strip()
    return report.model_copy(update={"log": log[:MAX_LOG_CHARACTERS]})


def _origin(kernel: Kernel | ImportedKernel) -> dict[str, Any]:
    """Return the fields that mark an imported file's evaluation."""
    if not isinstance(kernel, ImportedKernel):
        return {}
    return {"kernel_kind": KernelKind.IMPORTED, "unchecked": UNCHECKED[kernel.target]}


def _verdict(subject: EvaluationInput, results: StageResults, placement: Placement) -> tuple[Verdict, Failure | None]:
    failure, eager = results.failure, results.eager
    if failure is not None and failure.kind is FailureKind.CLOCK_MISMATCH:
        return Verdict.QUARANTINED, failure
    if failure is not None:
        return _climbed(results, failure), failure
    assert eager is not None
    if below_floor(eager, placement):
        return Verdict.QUARANTINED, _too_fast(eager, placement)
    if _disturbed(subject, eager):
        return Verdict.QUARANTINED, _too_slow(subject, eager)
    if results.confirmation is None:
        return Verdict.AUDITED, None
    return _confirmed(eager, results.confirmation.repeated)


def _climbed(results: StageResults, failure: Failure) -> Verdict:
    """Return the verdict of a kernel that failed."""
    if failure.kind is FailureKind.INFRASTRUCTURE:
        built = results.standing_build is not None and results.standing_build.build.report.ok
        return Verdict.COMPILED if built else Verdict.REJECTED
    laws = results.standing.verification.laws if results.standing is not None else ()
    own = any(law.law == OWN and law.passed for law in laws)
    # What a tool that watches memory finds is undefined behaviour: right results until now prove nothing.
    if not own or failure.kind in _REJECTING or "tool" in failure.details:
        return Verdict.REJECTED
    return Verdict.CORRECT


def _confirmed(eager: Comparison, repeated: Judged) -> tuple[Verdict, Failure | None]:
    """Return the verdict of a kernel that was timed for the second time."""
    failure = repeated.failure
    if failure is None:
        return (Verdict.REPRODUCED if agree(eager, repeated.eager) else Verdict.AUDITED), None
    if failure.kind is FailureKind.INFRASTRUCTURE:
        return Verdict.COMPILED, failure
    message = f"passed at first, failed when it was timed again in a fresh process: {failure.message}"
    return Verdict.PLAUSIBLE, failure.model_copy(update={"message": message[:MAX_LOG_CHARACTERS]})


def agree(first: Comparison, second: Comparison | None) -> bool:
    """Return whether two timings of one kernel show the same speedup."""
    if second is None:
        return False
    difference = abs(math.log(first.speedup.median / second.speedup.median))
    widths = math.log(first.speedup.high / first.speedup.low) + math.log(second.speedup.high / second.speedup.low)
    return difference <= max(AGREEMENT, widths)


def below_floor(eager: Comparison, placement: Placement) -> bool:
    """Return whether a time is too far below what any correct kernel needs to be believed."""
    return eager.kernel_us.median < BELOW_FLOOR * placement.physical_us


def _disturbed(subject: EvaluationInput, eager: Comparison) -> bool:
    """Return whether PyTorch was slower beside an imported file, whose host code could leave work on the device."""
    if not isinstance(subject.kernel, ImportedKernel) or subject.kernel.target is not Target.CUDA:
        return False
    return eager.baseline_us.median > DISTURBED * subject.preparation.baseline_us.median


def _too_slow(subject: EvaluationInput, eager: Comparison) -> Failure:
    alone = subject.preparation.baseline_us.median
    message = (
        f"PyTorch took {eager.baseline_us.median:.4g} us beside this file and {alone:.4g} us without it: the file may "
        "keep the device busy while it should be idle"
    )
    details: dict[str, JsonValue] = {"baseline_us": eager.baseline_us.median, "alone_us": alone}
    return Failure(kind=FailureKind.CLOCK_MISMATCH, message=message, details=details)


def _too_fast(eager: Comparison, placement: Placement) -> Failure:
    message = (
        f"{eager.kernel_us.median:.4g} us is faster than the device's roofline bound of {placement.physical_us:.4g} us "
        f"(at measured peaks: memory {placement.memory_floor_us:.4g}, operations of the best algorithms known "
        f"{placement.compute_floor_us:.4g})"
    )
    details: dict[str, JsonValue] = {"kernel_us": eager.kernel_us.median, "floor_us": placement.physical_us}
    return Failure(kind=FailureKind.BELOW_FLOOR, message=message, details=details)


def _resources(build: BuildFacts) -> dict[str, float]:
    """Return the resources of a thread or a block, as far as the compiler reported them."""
    resources = {
        "registers": build.registers,
        "spill_bytes": build.spill_bytes,
        "static_shared_bytes": build.shared_bytes,
    }
    return {name: float(value) for name, value in resources.items() if value is not None}


def _occupancy(results: StageResults, target: HostTarget) -> dict[str, float]:
    """Return the warps that a multiprocessor can hold with the plan's blocks, of those it has room for, in percent."""
    occupancy = results.standing.verification.facts.get("occupancy_pct") if results.standing is not None else None
    if target.trusts_runner and isinstance(occupancy, float):
        return {"occupancy_pct": occupancy}
    return {}


def _profile(
    subject: EvaluationInput,
    results: StageResults,
    eager: Comparison,
    target: HostTarget,
    *,
    peaks: Peaks,
    placement: Placement,
) -> Profile:
    """Return rates of counted work against the measured peaks, and the hardware's counters where there are any."""
    facts, counters = subject.preparation.facts, results.profile.counters
    seconds = eager.kernel_us.median * 1e-6
    rate = peaks.matrix_flops(facts.policy) if facts.matmul_flops else peaks.scalar_flops
    build = results.standing_build.build.facts if results.standing_build is not None else BuildFacts()
    metrics = {
        "memory_throughput_pct": 100.0 * facts.compulsory_bytes / seconds / peaks.bandwidth,
        "compute_throughput_pct": 100.0 * facts.flops / seconds / rate,
        "floor_pct": 100.0 * placement.floor_us / eager.kernel_us.median,
        "direct_pct": 100.0 * (placement.direct_us or placement.floor_us) / eager.kernel_us.median,
        "operations_a_byte": facts.flops / max(facts.compulsory_bytes, 1),
        **_resources(build),
        **target.profile_metrics(build),
        **counters.metrics,
        **_occupancy(results, target),
    }
    source = ProfileSource.MEASURED if counters.metrics else ProfileSource.INFERRED
    return Profile(source=source, metrics=metrics, missing=counters.missing, promoted=results.profile.promoted)
