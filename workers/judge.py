"""The judge of a GPU worker, and how its steps ask it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cupilot import tracing
from cupilot.domain.evaluation import Evaluation, Preparation, PreparationResult, Tracing
from cupilot.domain.hardware import Device
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem, Target
from cupilot.settings import Settings
from workers.devices import StepCancelled, uid_of
from workers.stages import raise_infrastructure


class Judge(Protocol):
    """The part of :class:`gpu_worker.evaluator.Evaluator` that device steps need."""

    def prepare(self, problem: Problem, *, timeout: float, cancelled: Callable[[], bool]) -> PreparationResult:
        """Check the reference, time the baseline, place it on the roofline."""

    def trace(self, problem: Problem, *, timeout: float, cancelled: Callable[[], bool]) -> Tracing:
        """Run a problem file once and return what it computes."""

    def evaluate(
        self,
        problem: Problem,
        preparation: Preparation,
        kernel: Kernel | ImportedKernel,
        *,
        incumbent: float | None,
        candidate: bool = True,
        fresh: bool = False,
        timeout: float,
        cancelled: Callable[[], bool],
    ) -> Evaluation:
        """Build, judge, time and profile a kernel; stop early once it is certainly slower than the incumbent.

        Hardware counters are read only for a ``candidate`` that may become the best. A ``fresh`` evaluation is measured
        now, whatever is known of the kernel.
        """

    def confirm(
        self,
        problem: Problem,
        preparation: Preparation,
        kernel: Kernel | ImportedKernel,
        *,
        tunables: Mapping[str, int],
        timeout: float,
        cancelled: Callable[[], bool],
    ) -> Evaluation:
        """Measure a kernel again in fresh processes, with the tunables that were chosen, against every baseline."""

    @property
    def builds_ahead(self) -> int:
        """Number of waiting kernels that may be built while another is measured; 0 for none."""

    def build_ahead(self, preparation: Preparation, kernels: Sequence[Kernel]) -> int:
        """Start builds of waiting kernels without waiting for them; return how many were started. Thread-safe."""

    def end_builds(self) -> None:
        """Kill builds started by :meth:`build_ahead`."""


@dataclass(frozen=True)
class StepJudge:
    """The judge as one step asks it: within the settings' time limits, until it is cancelled.

    Raises :class:`workers.stages.InfrastructureFailure` where the answer says nothing about the kernel or the problem.
    """

    judge: Judge
    settings: Settings
    cancelled: Callable[[], bool]

    def prepare(self, problem: Problem) -> PreparationResult:
        """See :class:`Judge`."""
        timeout = self.settings.prepare_timeout_seconds
        with _cancellable():
            result = self.judge.prepare(problem, timeout=timeout, cancelled=self.cancelled)
        raise_infrastructure(result.failure)
        return result

    def trace(self, problem: Problem) -> Tracing:
        """See :class:`Judge`."""
        timeout = self.settings.prepare_timeout_seconds
        with _cancellable():
            answer = self.judge.trace(problem, timeout=timeout, cancelled=self.cancelled)
        raise_infrastructure(answer.failure)
        return answer

    def evaluate(
        self,
        problem: Problem,
        preparation: Preparation,
        kernel: Kernel | ImportedKernel,
        *,
        incumbent: float | None,
        candidate: bool = True,
        fresh: bool = False,
    ) -> Evaluation:
        """See :class:`Judge`."""
        timeout = self.settings.evaluate_timeout_seconds
        with _cancellable():
            evaluation = self.judge.evaluate(
                problem,
                preparation,
                kernel,
                incumbent=incumbent,
                candidate=candidate,
                fresh=fresh,
                timeout=timeout,
                cancelled=self.cancelled,
            )
        return _traced(evaluation)

    def confirm(
        self,
        problem: Problem,
        preparation: Preparation,
        kernel: Kernel | ImportedKernel,
        *,
        tunables: Mapping[str, int],
    ) -> Evaluation:
        """See :class:`Judge`."""
        timeout = self.settings.confirm_timeout_seconds
        with _cancellable():
            evaluation = self.judge.confirm(
                problem, preparation, kernel, tunables=tunables, timeout=timeout, cancelled=self.cancelled
            )
        return _traced(evaluation)


def device_judge(device: Device, settings: Settings) -> Judge:
    """Return the judge of a GPU worker's device."""
    from gpu_worker.build_ahead import BUILDS_AHEAD
    from gpu_worker.evaluator import Evaluator
    from gpu_worker.turns import cpu_is_measured_on

    class DeviceJudge(Evaluator):
        builds_ahead = BUILDS_AHEAD[device.target] if settings.build_ahead is None else settings.build_ahead

        def build_ahead(self, preparation: Preparation, kernels: Iterable[Kernel]) -> int:
            """Start none while a step measures on this machine's CPU."""
            return 0 if cpu_is_measured_on() else super().build_ahead(preparation, kernels)

    return DeviceJudge(
        device.target,
        Path(settings.work_dir),
        device=uid_of(device),
        reuse=True,
        sweep=settings.sweep_points,
        builder=settings.cuda_builder if device.target is Target.CUDA else None,
        compile_baseline=settings.compile_baseline,
        autotune=settings.max_autotune,
    )


def _traced(evaluation: Evaluation) -> Evaluation:
    tracing.record_phases(evaluation.phases, evaluation.seconds)
    tracing.note(verdict=evaluation.verdict.value)
    raise_infrastructure(evaluation.failure)
    return evaluation


@contextmanager
def _cancellable() -> Iterator[None]:
    """Raise :class:`StepCancelled` for the judge's own exception.

    It is not imported: the scheduler, which settles batches, has no ``gpu_worker``. Where it was raised it is loaded.
    """
    try:
        yield
    except Exception as error:
        turns = sys.modules.get("gpu_worker.turns")
        if turns is not None and isinstance(error, turns.Cancelled):
            raise StepCancelled from error
        raise
