"""The judge of an in-process job, asked again where the machine failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from cupilot.domain.evaluation import Evaluation, Failure, FailureKind, Preparation, PreparationResult, Tracing
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem
from workers.stages import InfrastructureFailure

INFRASTRUCTURE_ATTEMPTS = 3

Answer = TypeVar("Answer", Evaluation, Tracing)


class Judge(Protocol):
    """The part of :class:`gpu_worker.evaluator.Evaluator` that a job needs."""

    def prepare(self, problem: Problem, /) -> PreparationResult:
        """Check the reference, time the baseline, place the problem."""

    def trace(self, problem: Problem, /) -> Tracing:
        """Run a problem file once and return what it computes."""

    def evaluate(self, problem: Problem, preparation: Preparation, kernel: Kernel | ImportedKernel, /) -> Evaluation:
        """Measure a kernel."""

    def confirm(self, problem: Problem, preparation: Preparation, kernel: Kernel, /) -> Evaluation:
        """Measure a kernel again, in fresh processes and against every baseline."""


@dataclass(frozen=True)
class RetryingJudge:
    """See :class:`workers.stages.StageJudge`."""

    judge: Judge

    def trace(self, problem: Problem) -> Tracing:
        """See :class:`workers.stages.StageJudge`."""
        return _answer(retried(lambda: self.judge.trace(problem)))

    def evaluate(
        self,
        problem: Problem,
        preparation: Preparation,
        kernel: Kernel | ImportedKernel,
        *,
        incumbent: float | None,  # noqa: ARG002 - every candidate is measured to the end
        fresh: bool = False,  # noqa: ARG002 - no candidate is measured again
    ) -> Evaluation:
        """See :class:`workers.stages.StageJudge`."""
        return _answer(retried(lambda: self.judge.evaluate(problem, preparation, kernel)))


def retried(ask: Callable[[], Answer]) -> Answer | None:
    """Return the first answer that says something about the kernel; None where the machine fails again and again."""
    for _ in range(INFRASTRUCTURE_ATTEMPTS):
        answer = ask()
        failure: Failure | None = answer.failure
        if failure is None or failure.kind is not FailureKind.INFRASTRUCTURE:
            return answer
    return None


def _answer(answer: Answer | None) -> Answer:
    if answer is None:
        raise InfrastructureFailure(f"the machine failed {INFRASTRUCTURE_ATTEMPTS} times")
    return answer
