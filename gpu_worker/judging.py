"""The stages of verification and timing, and their repetition in a confirmation: requests to the judge.

The judge verifies and times a kernel in one go, in a runner of its own. This module orders it and turns what went wrong
into failures: of the kernel, or of the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cupilot.domain.evaluation import LACKS_MEMORY, MAX_LOG_CHARACTERS, Baseline, Failure, FailureKind
from cupilot.domain.imported import ImportedKernel
from gpu_worker.build import BuiltKernel
from gpu_worker.judge_process import JudgeTimeout, JudgingFailed, OnStage, UnusableJudge
from gpu_worker.messages.judge import Judged, KernelOrder, Unusable, VerificationResult
from gpu_worker.runner_process import RunnerProcess
from gpu_worker.stages import Call, ConfirmationResult, EvaluationInput
from gpu_worker.targets.base import HostTarget
from gpu_worker.warm_judge import WarmJudge

_FAULTS = frozenset({FailureKind.ILLEGAL_ACCESS, FailureKind.CRASH, FailureKind.TIMEOUT})
"""Failures that may leave a device unusable."""


class Judging:
    """The stages that verify and time kernels on one device."""

    def __init__(self, host: HostTarget, judge: WarmJudge, *, compile_baseline: bool, autotune: bool) -> None:
        """Make the stages; the flags say which modes of ``torch.compile`` a confirmation also compares with."""
        self._host = host
        self._judge = judge
        self._thorough = (Baseline.EAGER, Baseline.COMPILE) if compile_baseline else (Baseline.EAGER,)
        self._autotune = autotune

    def judge(self, subject: EvaluationInput, built: BuiltKernel, call: Call) -> Judged:
        """Verify a kernel, and time it against eager; in a confirmation against its other baselines too.

        Once more, sparing memory, where the judge had too little.
        """
        judged = self._judged(subject, built, call)
        short = judged.failure is not None and judged.failure.details.get("code") == LACKS_MEMORY
        if short and self._judge.spare(subject.problem):
            self._judge.close()
            return self._judged(subject, built, call)
        return judged

    def _judged(self, subject: EvaluationInput, built: BuiltKernel, call: Call) -> Judged:
        call.phases.enter("open")
        began = time.monotonic()
        self._judge.open(subject.problem, subject.preparation.facts, call)
        opening = time.monotonic() - began
        order = order_of(subject, built, call)
        if call.thorough:
            order = order.model_copy(update={"baselines": self._thorough})
        return self._with_device_checked(self.ordered(order, call, call.phases.stage, opening=opening))

    def confirm(self, subject: EvaluationInput, built: BuiltKernel, call: Call) -> ConfirmationResult:
        """Time a kernel for the second time, in a fresh runner."""
        order = order_of(subject, built, call).model_copy(update={"only_timing": True})
        repeated = self._with_device_checked(self.ordered(order, call, call.phases.stage))
        if not self._autotune or repeated.failure is not None:
            return ConfirmationResult(repeated)
        return self._with_autotuned(repeated, order, call)

    def _with_autotuned(self, repeated: Judged, order: KernelOrder, call: Call) -> ConfirmationResult:
        """Add PyTorch's best compiled code as a baseline; a failure there says nothing about the kernel."""
        baselines = (Baseline.EAGER, Baseline.MAX_AUTOTUNE)
        try:
            further = self.ordered(order.model_copy(update={"baselines": baselines}), call, call.phases.stage)
            reason = further.failure.message if further.failure is not None else None
        except (JudgingFailed, OSError) as error:
            self._judge.close()
            reason = str(error)
        if reason is not None:
            return ConfirmationResult(repeated, notes=(f"no {Baseline.MAX_AUTOTUNE.value} baseline: {reason[:500]}",))
        comparisons = tuple(item for item in further.comparisons if item.baseline is Baseline.MAX_AUTOTUNE)
        return ConfirmationResult(repeated, comparisons, further.notes)

    def ordered(
        self, order: KernelOrder, call: Call, on_stage: OnStage | None = None, *, opening: float = 0.0
    ) -> Judged:
        """Carry an order out in a runner of its own. Raises JudgingFailed where the judge or the reference ended.

        ``opening`` is how many seconds of the call's time it took to open the problem: where that was most of it, it is
        no fault of the kernel's that the time was up.
        """
        return self._completed(lambda: self._judge.judge(order, call, on_stage), cut_short=opening > call.remaining())

    def ordered_in(self, runner: RunnerProcess, order: KernelOrder, call: Call) -> Judged:
        """Judge as :meth:`ordered` does, in a runner that the caller keeps."""
        return self._completed(lambda: self._judge.judge_in(runner, order, call))

    def _completed(self, judge: Callable[[], Judged | Unusable], *, cut_short: bool = False) -> Judged:
        """Return the judge's answer, with a failure where it timed out or could not judge."""
        try:
            answer = judge()
        except JudgeTimeout as error:
            self._judge.close()
            kind = FailureKind.INFRASTRUCTURE if cut_short and error.overall else FailureKind.TIMEOUT
            return _failed(Failure(kind=kind, message=f"the evaluation: {error}"))
        if isinstance(answer, Unusable):
            return _failed(answer.failure)
        if answer.failure is None and answer.eager is None:
            raise UnusableJudge("its answer has neither a failure nor a time")
        return answer

    def _with_device_checked(self, judged: Judged) -> Judged:
        """Turn a kernel's fault into the machine's where the device does not work any more."""
        failure = judged.failure
        if failure is None or failure.kind not in _FAULTS or self._host.healthy():
            return judged
        message = (
            "the device does not work any more: reset it (nvidia-smi --gpu-reset) or restart the machine, and see its"
            f" kernel log for Xid errors; before that, {failure.message}"
        )[:MAX_LOG_CHARACTERS]
        return judged.failed(Failure(kind=FailureKind.INFRASTRUCTURE, message=message, details=failure.details))


def order_of(subject: EvaluationInput, built: BuiltKernel, call: Call) -> KernelOrder:
    """Return the order to verify a built kernel and to time it against eager."""
    return KernelOrder(
        binary=str(built.binary),
        launches=built.plan.launches,
        workspace=built.plan.workspace,
        laws=subject.preparation.laws,
        tolerances=subject.preparation.tolerances,
        thorough=call.thorough,
        incumbent=call.incumbent,
        baselines=(Baseline.EAGER,),
        imported=isinstance(subject.kernel, ImportedKernel),
    )


def _failed(failure: Failure) -> Judged:
    return Judged(verification=VerificationResult(failure=failure))
