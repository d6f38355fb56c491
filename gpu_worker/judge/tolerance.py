"""Measures the tolerance of an input law.

A tolerance is a multiple of the larger of two measured errors: PyTorch's own under the policy, and what one unit of
rounding in the inputs does to the exact result (its conditioning). It is then tightened until the next lower precision
fails. Where PyTorch rounds to few bits between its operators and so errs by :data:`MOST_ERROR` or more, the
conditioning alone counts, up to that bound: a kernel that keeps float32 between them is well below it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from cupilot.domain.problem import DType, NumericsPolicy, Role, TensorSpec
from gpu_worker.judge import laws
from gpu_worker.judge.cases import MOST_ERROR, Case, usable_error
from gpu_worker.judge.deviation import MIN_SPREAD_ELEMENTS, largest
from gpu_worker.judge.near_ties import NearTies, settled
from gpu_worker.judge.reference_link import ReferenceLink
from gpu_worker.judge.refusal import FIXED_SHAPES, SHAPES_BY_VALUES, UnusableReference
from gpu_worker.judge.roundings import round_mantissa

LEAST_ERROR = 16 * 2.0**-24
"""Least error assumed of PyTorch. If it errs less, it was lucky, as happens with an output of one number. Honest sums
of half a million squares, row after row, were seen to err by up to 20 units of 2^-24; :data:`TIGHTEST_FACTOR` times
this are 64."""


@dataclass(frozen=True)
class Precision:
    """Constants of a numerics policy."""

    factor: float
    """Multiple of PyTorch's own error that a kernel may err by: naive summation of 1000 terms errs 5 to 10 times more
    than PyTorch's blocked summation (measured), and is still honest float32."""
    floor: float
    """Smallest tolerance; polynomial exp and erf of a few units in the last place need it."""
    unit: float
    """Relative size of one rounding of an input."""
    lower_bits: int
    """Mantissa bits of the next lower precision: TF32, bf16, fp8 (e4m3)."""
    least: float = LEAST_ERROR

    @property
    def short(self) -> bool:
        """Return whether PyTorch may round to fewer bits than float32's between its operators."""
        return self.unit > 2.0**-24


PRECISIONS = {
    NumericsPolicy.FP32: Precision(factor=32.0, floor=1e-4, unit=2.0**-24, lower_bits=10),
    NumericsPolicy.TF32: Precision(factor=8.0, floor=5e-4, unit=2.0**-12, lower_bits=7),
    NumericsPolicy.HALF: Precision(factor=4.0, floor=4e-3, unit=2.0**-9, lower_bits=3),
}

MOST_CONDITIONING = 2 * MOST_ERROR
"""Most that nudged inputs may do to a result that PyTorch is no measure of. Each moves by a whole unit, while what a
kernel rounds is off by half of one at most: attention with its weights in bfloat16 erred by less than half of this."""

TIGHTEST_FACTOR = 4.0
"""Below this multiple of PyTorch's own error a tolerance would reject honest kernels; lower precision then passes."""

_BY_DTYPE = {
    DType.FLOAT16: replace(PRECISIONS[NumericsPolicy.TF32], least=2.0**-12),
    DType.BFLOAT16: replace(PRECISIONS[NumericsPolicy.HALF], least=2.0**-9),
}
"""Outputs of these are rounded to as few bits whatever the policy: 32 such roundings would hide a lower precision."""

_DOUBLE = Precision(factor=32.0, floor=1e-10, unit=2.0**-53, lower_bits=23, least=1e-12)
"""Of float64 throughout. The exact answer is no more exact; what float32 leaves, 6e-8 and more, is far above."""


def precision_of(policy: NumericsPolicy, specs: Sequence[TensorSpec]) -> Precision:
    """Return the precision of kernels: the policy's, unless outputs have fewer bits, or all tensors have more."""
    floating = [spec for spec in specs if spec.dtype.value.startswith(("float", "bfloat"))]
    if floating and all(spec.dtype is DType.FLOAT64 for spec in floating):
        return _DOUBLE
    written = {spec.dtype for spec in floating if spec.role is Role.OUTPUT}
    rounded = [_BY_DTYPE[dtype] for dtype in written if dtype in _BY_DTYPE]
    if not rounded or len(rounded) < len(written):
        return PRECISIONS[policy]
    return max(PRECISIONS[policy], *rounded, key=lambda precision: precision.unit)


def calibrate(
    reference: ReferenceLink,
    case: Case,
    reference_error: float,
    precision: Precision,
    near: NearTies,
) -> tuple[float, float | None] | None:
    """Return tolerance of a case, and the error of the next lower precision (None where precision plays no part).

    ``reference_error`` is without what ``near`` ties explain, and so is the error of nudged inputs.
    None where PyTorch errs too much for a tolerance to mean anything; raises :class:`UnusableReference` where other
    values make other shapes. Without its measure, roundings have to average
    out as nudges do, which those of values with a large part in common do not.
    """
    measured = usable_error(reference_error)
    averaging = precision.short and math.isfinite(reference_error) and laws.kind(case.law) != laws.OFFSET
    if not measured and not averaging:
        return None
    if all(item.integral for item in case.expected):
        return 0.0, None
    nudged = reference.run_exact(case.given, rounded=True, nudge=precision.unit, seed=secrets.randbits(31))
    conditioning = largest(case.expected, settled(_as_expected(case, nudged), near))
    del nudged  # as large as the rounded outputs that follow
    if measured:
        inherent = max(reference_error, conditioning if usable_error(conditioning) else 0.0, precision.least)
    elif conditioning < MOST_CONDITIONING:
        inherent = max(conditioning, precision.least)
    else:
        return None
    lowered = [round_mantissa(tensor, precision.lower_bits) for tensor in case.given]
    lower = largest(case.expected, _as_expected(case, reference.run_exact(lowered, rounded=True)))
    del lowered
    tolerance = precision.factor * inherent
    if any(item.values.numel() >= MIN_SPREAD_ELEMENTS for item in case.expected):
        tolerance = max(tolerance, precision.floor)  # one number is a sum, in which a polynomial's errors average out
    if not measured:
        tolerance = min(tolerance, MOST_ERROR)
    if lower <= TIGHTEST_FACTOR * inherent:
        return tolerance, None
    return min(tolerance, max(lower / 2, TIGHTEST_FACTOR * inherent)), lower


def _as_expected(case: Case, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    if [tensor.shape for tensor in outputs] != case.shapes:
        raise UnusableReference(SHAPES_BY_VALUES + FIXED_SHAPES)
    return outputs
