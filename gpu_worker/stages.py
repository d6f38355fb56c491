"""The stages of an evaluation: their common input, the result of each, and all results together.

A kernel comes through them in this order; each stands in one module, takes the results before it and changes none:

================  ====================================  ==================================================
stage             module                                result
================  ====================================  ==================================================
build             :mod:`gpu_worker.build`               :class:`gpu_worker.build.BuiltKernel`
recall            :mod:`gpu_worker.reuse`               :class:`Recalled`
verification      :mod:`gpu_worker.judging`             :class:`gpu_worker.messages.judge.VerificationResult`
timing            :mod:`gpu_worker.judging`             :class:`gpu_worker.messages.judge.TimingResult`
confirmation      :mod:`gpu_worker.judging`             :class:`ConfirmationResult`
memory check      the target                            :class:`gpu_worker.targets.base.MemoryWatch`
sweep             :mod:`gpu_worker.sweep`               :class:`SweepResult`
profile           :mod:`gpu_worker.profiling`           :class:`ProfileResult`
verdict           :mod:`gpu_worker.verdict`             :class:`cupilot.domain.evaluation.Evaluation`
================  ====================================  ==================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cupilot.domain.evaluation import BuildReport, Comparison, Evaluation, Failure, Preparation, SweepPoint
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem
from gpu_worker.build import BuiltKernel
from gpu_worker.messages.judge import Judged
from gpu_worker.phases import Phases
from gpu_worker.targets.base import Counters, MemoryWatch


@dataclass(frozen=True)
class EvaluationInput:
    """A kernel to be evaluated for a prepared problem."""

    problem: Problem
    preparation: Preparation
    kernel: Kernel | ImportedKernel
    tunables: Mapping[str, int] = field(default_factory=dict)
    """Values of tunables to evaluate instead of the plan's own."""

    def tuned(self) -> Kernel | ImportedKernel:
        """Return the kernel with the tunable values that are evaluated."""
        return self.kernel.tuned(dict(self.tunables))


@dataclass(frozen=True)
class Call:
    """Terms of one evaluation: how long it may take, and how thorough it is."""

    deadline: float
    """By :func:`time.monotonic`."""
    cancelled: Callable[[], bool]
    thorough: bool
    """True if it is a confirmation."""
    incumbent: float | None = None
    """Speedup over eager of the best kernel so far, if there is one."""
    candidate: bool = True
    """True if the kernel may become the best: hardware counters are read for such kernels only."""
    fresh: bool = False
    """True if no earlier evaluation of the kernel may stand for this one."""
    phases: Phases = field(default_factory=Phases)
    """Stopwatch of the evaluation."""

    def remaining(self) -> float:
        """Return seconds until the deadline, at least one."""
        return max(self.deadline - time.monotonic(), 1.0)


@dataclass(frozen=True)
class Recalled:
    """Result of looking a kernel up among earlier evaluations."""

    key: str
    """Under which the evaluation is kept."""
    evaluation: Evaluation | None
    """An earlier evaluation of the same machine code."""
    report: BuildReport
    """The build that the evaluation is given with."""


@dataclass(frozen=True)
class ConfirmationResult:
    """Result of timing a kernel for the second time."""

    repeated: Judged
    comparisons: tuple[Comparison, ...] = ()
    """With further baselines."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variant:
    """A kernel with other tunable values, judged whole."""

    tunables: Mapping[str, int]
    built: BuiltKernel
    judged: Judged


@dataclass(frozen=True)
class SweepResult:
    """Result of trying other tunable values."""

    points: tuple[SweepPoint, ...] = ()
    """Points that were tried; the first is the kernel as given."""
    chosen: Variant | None = None
    """The variant that stands for the kernel; None where the kernel as given does."""


@dataclass(frozen=True)
class ProfileResult:
    """Result of reading hardware counters."""

    promoted: bool = False
    """True if they were asked for; see :mod:`gpu_worker.profiling`."""
    counters: Counters = field(default_factory=Counters)


@dataclass(frozen=True)
class StageResults:
    """Results of the stages that a kernel came through."""

    built: BuiltKernel | None = None
    recalled: Recalled | None = None
    judged: Judged | None = None
    """Verification and timing."""
    confirmation: ConfirmationResult | None = None
    memory: MemoryWatch = field(default_factory=MemoryWatch)
    sweep: SweepResult = field(default_factory=SweepResult)
    profile: ProfileResult = field(default_factory=ProfileResult)
    interruption: Failure | None = None
    """Failure of the machine's, or of the plan, in the midst of a stage, which left no result."""

    @property
    def failure(self) -> Failure | None:
        """The failure that ended the evaluation."""
        stages = (self.memory, self.judged, self.built)
        return self.interruption or next((stage.failure for stage in stages if stage and stage.failure), None)

    @property
    def standing_build(self) -> BuiltKernel | None:
        """The build that stands for the kernel after the sweep."""
        return self.sweep.chosen.built if self.sweep.chosen is not None else self.built

    @property
    def standing(self) -> Judged | None:
        """The verification and timing that stand for the kernel after the sweep."""
        return self.sweep.chosen.judged if self.sweep.chosen is not None else self.judged

    @property
    def eager(self) -> Comparison | None:
        """The comparison with PyTorch eager that stands for the kernel."""
        return self.standing.eager if self.standing is not None else None

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """All comparisons that stand for the kernel."""
        further = self.confirmation.comparisons if self.confirmation is not None else ()
        return (self.standing.comparisons if self.standing is not None else ()) + further

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of all stages that stand for the kernel."""
        own = self.standing.notes if self.standing is not None else ()
        further = self.confirmation.notes if self.confirmation is not None else ()
        return own + tuple(note for note in further if note not in own) + self.memory.notes
