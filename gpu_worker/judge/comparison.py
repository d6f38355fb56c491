"""Compares what launches wrote with what is right: with the exact answer, or with PyTorch's for the same inputs.

One standard for every launch: the law's tolerance, which is measured when the problem is admitted and never depends on
what the kernel did. Where a slot's inputs happen to be worse conditioned than those that a tolerance was measured on,
the slot's own tolerance is measured in the same way, before a kernel is refused.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.problem import Role, TensorSpec
from gpu_worker.judge import bands, laws, near_ties, ties
from gpu_worker.judge.bands import Limit, Limits, held
from gpu_worker.judge.baseline_link import BaselineLink
from gpu_worker.judge.blocks import Filling, refuse_change
from gpu_worker.judge.cases import Case, Cases
from gpu_worker.judge.deviation import ABSOLUTE, Expected, deviation, largest, plain, unit_of
from gpu_worker.judge.diagnosis import wrong_output
from gpu_worker.judge.near_ties import NearTies
from gpu_worker.judge.reference_link import ReferenceLink
from gpu_worker.judge.runner_link import KernelFailed
from gpu_worker.judge.slots import Slots
from gpu_worker.judge.structure import nonzeros
from gpu_worker.judge.tolerance import TIGHTEST_FACTOR, Precision, calibrate
from gpu_worker.judge.windows import windows_of

PYTORCH_FACTOR = 1.25
"""Multiple of a tolerance for outputs that are compared with PyTorch's own, on other draws than it was measured on."""


MOST_TOLERANCE = 0.5
"""Of inputs on which PyTorch itself errs much: a constant in the place of an output errs by 1 and more."""


@dataclass(frozen=True)
class Bounds:
    """Bounds on a kernel's error under each law."""

    tolerances: Mapping[str, float]
    reference_error: Callable[[str], float]
    """Error of PyTorch's own answer under a law."""
    precision: Precision
    """Precision that the tolerances were measured for."""
    limits: Callable[[str], Limits]
    """Bounds by magnitude under a law, of each output."""


class Comparer:
    """Compares the launches of one kernel."""

    def __init__(
        self,
        slots: Slots,
        specs: Sequence[TensorSpec],
        *,
        reference: ReferenceLink,
        pytorch: BaselineLink,
        cases: Cases,
        bounds: Bounds,
    ) -> None:
        self._slots = slots
        self._outputs = [spec for spec in specs if spec.role is Role.OUTPUT]
        self._inputs = sum(spec.role is Role.INPUT for spec in specs)
        self._reference = reference
        self._pytorch = pytorch
        self._cases = cases
        self._bounds = bounds
        self._random = random.Random()
        self.compared: Counter[str] = Counter()
        """Launches that were right, by law."""

    def with_case(self, slot: int, filling: Filling, case: Case) -> float:
        """Return the error of a slot that holds a case. Raises :class:`KernelFailed`, for trespassing too."""
        self._refuse_trespass(slot, filling)
        error = self._exact_error(slot, case)
        self.compared[case.law] += 1
        return error

    def with_exact(self, slot: int, filling: Filling) -> float:
        """Return the error of a slot against the exact answer to what it holds. Raises :class:`KernelFailed`."""
        return self.with_case(slot, filling, self._case_of(slot, filling.laws[slot]))

    def with_pytorch(self, slot: int, filling: Filling) -> None:
        """Compare a slot with PyTorch's answer to what it holds. Raises :class:`KernelFailed`."""
        self._refuse_trespass(slot, filling)
        law = filling.laws[slot]
        if not self._agrees_with_pytorch(slot, law):
            self._look_again(slot, law)
        self.compared[law] += 1

    def _refuse_trespass(self, slot: int, filling: Filling) -> None:
        broken = self._slots.broken_guard(slot)
        if broken is not None:
            message = f"the kernel wrote outside of its buffers, next to {broken}"
            raise KernelFailed(FailureKind.OUT_OF_BOUNDS_WRITE, message, tensor=broken, law=filling.laws[slot])
        refuse_change(self._slots.changed_since(slot, filling.digests[slot]), filling.laws[slot])

    def _agrees_with_pytorch(self, slot: int, law: str) -> bool:
        """Return False, too, where PyTorch errs by more than half of what a kernel may: its answer says too little."""
        tolerance, error = self._bounds.tolerances[law], self._bounds.reference_error(law)
        if 2 * error > tolerance:
            return False
        limits = self._bounds.limits(law)
        storages = self._slots.storages(slot)
        self._pytorch.fill(slot, storages)
        self._pytorch.assume(storages[self._inputs :])
        bound = PYTORCH_FACTOR * tolerance + 2 * error
        # From here on nothing else is asked: the answer lies in memory that the next one takes.
        got, wanted = self._slots.outputs(slot), self._pytorch.answer(slot)
        compared = zip(wanted, got, limits, strict=True)
        return all(self._difference(law, *tensors) <= bound for tensors in compared)

    def _difference(self, law: str, wanted: torch.Tensor, got: torch.Tensor, limit: Limit | None) -> float:
        """Return the difference of two outputs in units of the wanted one's spread; of large ones, in some windows."""
        unit = ABSOLUTE if law == laws.INTEGERS else unit_of(wanted)
        windows = windows_of(wanted.numel(), self._random)
        mine, its = (_windowed(tensor, windows) for tensor in (wanted, got))
        mine = mine.to(its.dtype if limit is None else torch.float64)
        return deviation(held(Expected(mine, unit), limit, self._bounds.tolerances[law], asking=False), its)

    def _look_again(self, slot: int, law: str) -> None:
        """Compare a slot with the exact answer, at the tolerance of its own inputs where that is larger.

        Indices that differ from PyTorch's are right where they select values that are as good.
        """
        case = self._case_of(slot, law)
        try:
            self._exact_error(slot, case)
        except KernelFailed as failure:
            if failure.kind is not FailureKind.WRONG_VALUE:
                raise
            message = f"{failure}, although the same kernel passed on other data: it seems to reuse results"
            raise KernelFailed(failure.kind, message, **(failure.details | {"law": "timed", "drawn": law})) from failure

    def _case_of(self, slot: int, law: str) -> Case:
        self._cases.make_room()  # for the copies
        return self._cases.expect(law, [tensor.clone() for tensor in self._slots.given(slot)])

    def _exact_error(self, slot: int, case: Case) -> float:
        """Return the largest error over all outputs."""
        tolerance, limits = self._bounds.tolerances[case.law], self._bounds.limits(case.law)
        got = self._slots.outputs(slot)
        errors = _errors(case, got, tolerance, limits)
        if max(errors) > tolerance:
            near = near_ties.neighbours(self._reference, case)
            got = near_ties.settled(got, near)
            errors = _errors(case, got, tolerance, limits)
        if max(errors) > tolerance:
            tolerance, limits = self._widened(case, tolerance, limits, near)
            errors = _errors(case, got, tolerance, limits)
        if max(errors) > tolerance:
            errors = self._but_for_ties(slot, case, tolerance, limits, errors)
        for index, error in enumerate(errors):
            if error > tolerance:
                raise self._wrong(slot, index, case, tolerance, limits)
            if case.expected[index].has_nan:
                self._check_written(slot, index, case)
        return max(errors)

    def _but_for_ties(
        self, slot: int, case: Case, tolerance: float, limits: Limits, errors: list[float]
    ) -> list[float]:
        """Return the errors, at most the tolerance where another order of equal elements explains more."""
        if not ties.chooses(self._reference.graph):
            return errors
        bounded = [held(expected, limit, tolerance) for expected, limit in zip(case.expected, limits, strict=True)]
        others = ties.answers(self._reference, case)
        right = ties.explained(bounded, others, self._slots.outputs(slot), tolerance)
        return [min(error, tolerance) if fine else error for error, fine in zip(errors, right, strict=True)]

    def _widened(self, case: Case, tolerance: float, limits: Limits, near: NearTies) -> tuple[float, Limits]:
        """Return the bounds that this case's own inputs would have been admitted with, where those are larger.

        On inputs that would not have been, a kernel may err a few times as much as PyTorch, within a bound: in a
        softmax over scores of 2^15 and more, the last bits of the scores decide.
        """
        if case.law == laws.INTEGERS or all(expected.integral for expected in case.expected):
            return tolerance, limits
        answer = self._reference.run(case.given)
        error = largest(case.expected, near_ties.settled(answer, near))
        own = bands.measured(self._reference, case, self._bounds.precision, answer, near)
        del answer  # as large as what the next answers take
        calibrated = calibrate(self._reference, case, error, self._bounds.precision, near)
        if calibrated is not None:
            allowed = calibrated[0]
        else:
            allowed = min(TIGHTEST_FACTOR * error, MOST_TOLERANCE) if math.isfinite(error) else 0.0
        return max(tolerance, allowed), bands.widest(limits, own)

    def _wrong(self, slot: int, index: int, case: Case, tolerance: float, limits: Limits) -> KernelFailed:
        failure = wrong_output(
            self._outputs[index],
            held(case.expected[index], limits[index], tolerance),
            self._slots.outputs(slot)[index],
            self._slots.unwritten(slot, index),
            tolerance=tolerance,
            law=case.law,
        )
        return _as_insensitive(failure) if case.law == laws.PERTURBED else failure

    def _check_written(self, slot: int, index: int, case: Case) -> None:
        """Poison is a NaN: where one is expected, an element that was never written looks right."""
        missing = nonzeros(self._slots.unwritten(slot, index))
        if missing:
            name = self._outputs[index].name
            message = f"{missing} elements of {name} were never written, where NaN is expected"
            raise KernelFailed(FailureKind.UNWRITTEN_OUTPUT, message, output=name, law=case.law)


def _errors(case: Case, got: Sequence[torch.Tensor], tolerance: float, limits: Limits) -> list[float]:
    compared = zip(case.expected, limits, got, strict=True)
    return [deviation(held(expected, limit, tolerance), mine) for expected, limit, mine in compared]


def _windowed(tensor: torch.Tensor, windows: Sequence[slice]) -> torch.Tensor:
    flat = plain(tensor).reshape(-1)
    return torch.cat([flat[window] for window in windows])


def _as_insensitive(failure: KernelFailed) -> KernelFailed:
    if failure.kind is not FailureKind.WRONG_VALUE:
        return failure
    message = f"single changed input elements do not move the output as they move the reference's: {failure}"
    return KernelFailed(FailureKind.INSENSITIVE, message, **failure.details)
