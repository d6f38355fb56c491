"""Runs a kernel against cases and checks everything that can be seen from outside: values, poison, guards, inputs,
repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cupilot.domain.evaluation import FailureKind, LawResult
from cupilot.domain.problem import Role, TensorSpec
from gpu_worker.judge import laws
from gpu_worker.judge.cases import Case, Cases
from gpu_worker.judge.deviation import deviation
from gpu_worker.judge.diagnosis import wrong_output
from gpu_worker.judge.runner_link import KernelFailed, RunnerLink
from gpu_worker.judge.slots import Slots


@dataclass(frozen=True)
class Bounds:
    """Bounds on a kernel's error under each law."""

    tolerances: Mapping[str, float]
    reference_errors: Mapping[str, float]


class Auditor:
    """Checks one loaded kernel in one slot."""

    def __init__(
        self, link: RunnerLink, slots: Slots, specs: Sequence[TensorSpec], cases: Cases, bounds: Bounds
    ) -> None:
        self._link = link
        self._slots = slots
        self._outputs = [spec for spec in specs if spec.role is Role.OUTPUT]
        self._cases = cases
        self._bounds = bounds

    def check(self, law: str, timeout: float) -> tuple[LawResult, float]:
        """Run the kernel under a law; its result and the seconds of the launch. Raises :class:`KernelFailed`."""
        case = self._cases.get(law)
        seconds = self._launch(case, timeout)
        error = self._compare(case)
        result = LawResult(
            law=law,
            passed=True,
            error=error,
            tolerance=self._bounds.tolerances[law],
            reference_error=self._bounds.reference_errors.get(law, 0.0),
        )
        return result, seconds

    def check_again(self, law: str, timeout: float) -> float:
        """Run a law that passed once more, over other poison; the seconds of the launch."""
        try:
            _, seconds = self.check(law, timeout)
        except KernelFailed as failure:
            if failure.kind in (FailureKind.WRONG_VALUE, FailureKind.UNWRITTEN_OUTPUT):
                message = f"the second run on the same inputs failed where the first had passed: {failure}"
                raise KernelFailed(FailureKind.NON_DETERMINISTIC, message, **failure.details) from failure
            raise
        return seconds

    def _launch(self, case: Case, timeout: float) -> float:
        self._slots.fill(0, case.given)
        self._slots.poison(0)
        self._slots.settle()
        seconds, _ = self._link.run([0], timeout)
        broken = self._slots.broken_guard(0)
        if broken is not None:
            message = f"the kernel wrote outside of its buffers, next to {broken}"
            raise KernelFailed(FailureKind.OUT_OF_BOUNDS_WRITE, message, tensor=broken, law=case.law)
        changed = self._slots.unchanged(0, case.given)
        if changed is not None:
            message = f"the kernel changed {changed}, which it is only given to read"
            raise KernelFailed(FailureKind.INPUT_MUTATED, message, tensor=changed, law=case.law)
        return seconds

    def _compare(self, case: Case) -> float:
        tolerance = self._bounds.tolerances[case.law]
        worst = 0.0
        for index, (spec, expected, got) in enumerate(
            zip(self._outputs, case.expected, self._slots.outputs(0), strict=True)
        ):
            error = deviation(expected, got)
            if error > tolerance:
                failure = wrong_output(
                    spec, expected, got, self._slots.unwritten(0, index), tolerance=tolerance, law=case.law
                )
                raise _as_insensitive(failure) if case.law == laws.PERTURBED else failure
            if expected.has_nan:
                self._check_written(index, spec, case)
            worst = max(worst, error)
        return worst

    def _check_written(self, index: int, spec: TensorSpec, case: Case) -> None:
        """Poison is a NaN: where one is expected, an element that was never written looks right."""
        missing = int(self._slots.unwritten(0, index).sum())
        if missing:
            message = f"{missing} elements of {spec.name} were never written, where NaN is expected"
            raise KernelFailed(FailureKind.UNWRITTEN_OUTPUT, message, output=spec.name, law=case.law)


def _as_insensitive(failure: KernelFailed) -> KernelFailed:
    if failure.kind is not FailureKind.WRONG_VALUE:
        return failure
    message = f"single changed input elements do not move the output as they move the reference's: {failure}"
    return KernelFailed(FailureKind.INSENSITIVE, message, **failure.details)
