"""The profile stage: reads the hardware counters of promoted kernels.

A profiler takes seconds to start, many times what an evaluation takes otherwise. Promoted is a kernel that may be its
job's best, or is confirmed; all others get the inferred profile at once. How counters are read is the target's.
"""

from __future__ import annotations

from collections.abc import Callable

from cupilot.domain.evaluation import Comparison, Evaluation, ProfileSource
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import ProblemFacts
from gpu_worker.build import BuiltKernel
from gpu_worker.stages import Call, EvaluationInput, ProfileResult, StageResults
from gpu_worker.targets.base import Counters, HostTarget

Build = Callable[[Kernel, ProblemFacts], BuiltKernel]


def is_promoted(eager: Comparison | None, call: Call) -> bool:
    """Return whether a kernel with this time is promoted: none is certainly faster, or this is its confirmation.

    So is a kernel that a job measures before it has a best one. A kernel that is no candidate to be the best never is
    (``Call.candidate``).
    """
    if eager is None or not call.candidate:
        return False
    return call.thorough or call.incumbent is None or eager.speedup.high >= call.incumbent


class Profiling:
    """Reads the counters of promoted kernels on one device."""

    def __init__(self, host: HostTarget) -> None:
        self._host = host

    def profile(self, subject: EvaluationInput, results: StageResults, call: Call) -> ProfileResult:
        """Read the counters of a kernel that passed all stages, if it is promoted."""
        call.phases.enter("profile")
        built = results.standing_build
        if built is None or results.failure is not None or not is_promoted(results.eager, call):
            return ProfileResult()
        return ProfileResult(promoted=True, counters=self._count(subject, built))

    @staticmethod
    def needs_counters(known: Evaluation, kernel: Kernel | ImportedKernel, call: Call) -> bool:
        """Return whether this job promotes the kernel of a known evaluation, which the job that measured it did not."""
        if known.profile is None or known.profile.promoted or not known.verdict.counts:
            return False
        return isinstance(kernel, Kernel) and is_promoted(known.comparison(), call)

    def add_counters(self, known: Evaluation, subject: EvaluationInput, build: Build) -> Evaluation:
        """Return a known evaluation with counters, of the kernel with the tunables that its times belong to."""
        assert isinstance(subject.kernel, Kernel)
        chosen = subject.kernel.tuned(known.tunables) if known.sweep else subject.kernel
        return _with_counters(known, self._count(subject, build(chosen, subject.preparation.facts)))

    def _count(self, subject: EvaluationInput, built: BuiltKernel) -> Counters:
        preparation = subject.preparation
        zone = preparation.placement.zone
        return self._host.measured_profile(built.binary, built.plan, preparation.facts.tensors, zone)


def _with_counters(known: Evaluation, counted: Counters) -> Evaluation:
    assert known.profile is not None
    source = ProfileSource.MEASURED if counted.metrics else ProfileSource.INFERRED
    # Occupancy stays what the launch allows: counters have a name of their own for what was reached.
    metrics = {**known.profile.metrics, **counted.metrics}
    profile = known.profile.model_copy(
        update={"source": source, "metrics": metrics, "missing": counted.missing, "promoted": True}
    )
    return known.model_copy(update={"profile": profile})
