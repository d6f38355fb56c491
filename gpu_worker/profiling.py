"""Which kernels' hardware counters are read, and when: those that are promoted, once they are.

A profiler takes seconds to start, many times what an evaluation takes otherwise. Promoted is a kernel that may be its
job's best, or is confirmed; all others get the inferred profile at once. Reads nothing itself: that is the target's.
"""

from __future__ import annotations

from collections.abc import Callable

from cupilot.domain.evaluation import Comparison, Evaluation, ProfileSource
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import ProblemFacts
from gpu_worker.build import BuiltKernel
from gpu_worker.targets.base import Counted, HostTarget
from gpu_worker.verdict import Measured
from gpu_worker.warm_judge import Call


def promoted(eager: Comparison | None, call: Call) -> bool:
    """Whether a kernel with this time is to be counted: none is certainly faster, or this is its confirmation.

    Counted is also what a job measures before it has a best kernel. What is no candidate to be one never is
    (``Call.candidate``).
    """
    if eager is None or not call.candidate:
        return False
    return call.thorough or call.incumbent is None or eager.speedup.high >= call.incumbent


class Profiling:
    """Has the counters of promoted kernels read on one device."""

    def __init__(self, host: HostTarget) -> None:
        self._host = host

    def promote(self, measured: Measured, built: BuiltKernel, call: Call) -> None:
        """Count a kernel that was judged, if it is promoted."""
        measured.promoted = measured.failure is None and promoted(measured.eager(), call)
        if measured.promoted:
            measured.counters = self._count(measured, built)

    @staticmethod
    def owes(measured: Measured, call: Call) -> bool:
        """Whether this job promotes a known evaluation's kernel, which the one that measured it did not."""
        known = measured.known
        if known is None or known.profile is None or known.profile.promoted or not known.verdict.counts:
            return False
        return isinstance(measured.kernel, Kernel) and promoted(known.comparison(), call)

    def catch_up(self, measured: Measured, build: Callable[[Kernel, ProblemFacts], BuiltKernel]) -> None:
        """Count the kernel of a known evaluation, as ``build`` makes it with the tunables that its times belong to."""
        known, kernel = measured.known, measured.kernel
        assert known is not None
        assert isinstance(kernel, Kernel)
        chosen = kernel.tuned(known.tunables) if known.sweep else kernel
        counted = self._count(measured, build(chosen, measured.preparation.facts))
        measured.known = _with_counters(known, counted)

    def _count(self, measured: Measured, built: BuiltKernel) -> Counted:
        preparation = measured.preparation
        zone = preparation.placement.zone
        return self._host.measured_profile(built.binary, built.plan, preparation.facts.tensors, zone)


def _with_counters(known: Evaluation, counted: Counted) -> Evaluation:
    assert known.profile is not None
    source = ProfileSource.MEASURED if counted.metrics else ProfileSource.INFERRED
    # Occupancy stays what the launch allows: counters have a name of their own for what was reached.
    metrics = {**known.profile.metrics, **counted.metrics}
    profile = known.profile.model_copy(
        update={"source": source, "metrics": metrics, "missing": counted.missing, "promoted": True}
    )
    return known.model_copy(update={"profile": profile})
