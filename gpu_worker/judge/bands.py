"""Holds small elements of an output to their own size: bounds on the error by the magnitude of the exact answer.

A law's tolerance is a share of an output's spread, which a few large elements make. Elements are therefore grouped by
the power of two below their magnitude. In each band an error may be as many times PyTorch's own, or what one rounding
of the inputs does, as in the whole output; what sums cancel shows in both. Measures bounds, does not judge.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from gpu_worker.judge.cases import Case, Cases
from gpu_worker.judge.counting import base_name, products
from gpu_worker.judge.deviation import (
    BANDS,
    MIN_SPREAD_ELEMENTS,
    Expected,
    Finest,
    band_of,
    chunks,
    difference,
    largest,
    stretches,
)
from gpu_worker.judge.near_ties import NearTies, neighbours, settled
from gpu_worker.judge.reference_link import ReferenceLink
from gpu_worker.judge.refusal import UnusableReference, out_of_memory
from gpu_worker.judge.tolerance import Precision

Most: TypeAlias = tuple[torch.Tensor | None, ...]
"""Of each output, the most that a kernel may err by, by band; None where the law's tolerance alone holds."""

FEWEST = 64
"""Elements that say how large errors are: a band of fewer is taken together with those above it. Where these are fewer
still, the law's tolerance alone holds; those elements are the output's largest."""

TYPICAL = 0.25
"""Share of the elements that are smaller than a typical one, zeros left out. No element is held to less than that one's
size: near zero, a tanh that is made of exponentials errs as much as elsewhere, and honestly."""

SURELY = TYPICAL / 2
"""The same share of a sample: a typical element of the whole output is certainly no smaller than that of the sample."""

SAMPLE = 2**20
"""Elements of it, about."""

MARGIN = 4.0
"""Of errors that were seen in a band, beside those of the whole output: a sum of 32,768 terms in order errs by up to
80 times as much as PyTorch's on elements near zero, over a dozen draws."""

SMALLEST = 2.0**-80
"""Errors of less than this are no errors: float32 holds what is near its range's end in few bits."""

RUNNING_PRODUCTS = frozenset({"cumprod", "prod"})
"""Of many factors: one that falls below float32's range and grows again has lost what it was. Where an output of such
a graph falls below it, the law's tolerance alone holds."""

LANES = {"cpu": 1, "cuda": 256}
"""Maxima of a band that are taken side by side: on a GPU, all threads would wait for one."""


_NOTHING = 1e-300
_POWERS = torch.exp2(torch.arange(BANDS - 1, dtype=torch.float64) - (BANDS // 2 - 1))
"""Powers of two below the numbers of each band but the last, of infinity and NaN."""


@dataclass(frozen=True)
class _Seen:
    """Elements of an output by band, and the largest difference in each."""

    counts: torch.Tensor
    errors: torch.Tensor


def bounds(expected: Expected, answers: Sequence[torch.Tensor], precision: Precision) -> torch.Tensor | None:
    """Return the most that a kernel may err by, by band; infinite where the law's tolerance alone holds.

    ``answers`` are those whose errors a kernel's are measured by. None where values are few, exact or absolute.
    """
    if expected.integral or expected.unit.centre is None or expected.values.numel() < MIN_SPREAD_ELEMENTS:
        return None
    seen = _seen(expected, answers)
    last = BANDS - 1  # of infinity and NaN
    counts = seen.counts[:last]
    below = counts.cumsum(0)
    # An answer may err as much as a smaller one does; and as those above it, where a band holds few.
    errors = seen.errors[:last].cummax(0).values
    enough = torch.searchsorted(below, below - counts + FEWEST)
    errors = torch.cat([errors, torch.tensor([torch.inf], dtype=torch.float64)])[enough]
    least = _least(_typical(counts, TYPICAL), precision)
    most = torch.maximum(MARGIN * precision.factor * errors, least)
    return torch.cat([most, torch.tensor([torch.inf], dtype=torch.float64)]).to(expected.values.device)


def _typical(counts: torch.Tensor, share: float) -> float:
    """Return the power of two below the element that this share of the others does not reach; zeros are left out."""
    sizes = counts[1:].cumsum(0)
    return float(_POWERS[1:][int(torch.searchsorted(sizes, share * float(sizes[-1])).clamp_max(len(sizes) - 1))])


def _least(typical: float, precision: Precision) -> torch.Tensor:
    """Return the least that a kernel may err by, by band, but for the last."""
    return (precision.floor * _POWERS).clamp_min(max(precision.floor * typical, SMALLEST))


def measured(
    reference: ReferenceLink, case: Case, precision: Precision, own: Sequence[torch.Tensor], near: NearTies
) -> Most:
    """Return the bounds of each output of a case, near ties left out; ``own`` is PyTorch's answer to it.

    Of products and convolutions, the inputs' roundings are taken to be as large as those of their largest values:
    Strassen's and Winograd's algorithms add up neighbours, and round what they make of small ones like the large ones.
    """
    if all(item.integral or item.unit.centre is None for item in case.expected):
        return tuple(None for _ in case.expected)
    try:
        nudged = reference.run_exact(
            case.given,
            rounded=True,
            nudge=precision.unit,
            seed=secrets.randbits(31),
            of_largest=products(reference.graph) > 0,
        )
    except UnusableReference as error:
        if out_of_memory(error):
            raise
        return tuple(None for _ in case.expected)  # no answer to inputs so near, as a matrix has no factor
    if [tensor.shape for tensor in nudged] != case.shapes:
        return tuple(None for _ in case.expected)
    regrows = any(base_name(node) in RUNNING_PRODUCTS for node in reference.graph.nodes)
    return tuple(
        None if regrows and _vanishes(expected) else bounds(expected, [mine, other], precision)
        for expected, mine, other in zip(case.expected, settled(own, near), settled(nudged, near), strict=True)
    )


def _vanishes(expected: Expected) -> bool:
    """Return whether a value that is not zero is below float32's range."""
    least = torch.finfo(torch.float32).tiny
    return not expected.integral and any(
        bool(((part != 0) & (part.abs() < least)).any()) for part in stretches(expected.values)
    )


class Limit:
    """Bounds on the error of one output by band, which are measured where an error could exceed one."""

    def __init__(self, least: torch.Tensor, measure: Callable[[], torch.Tensor | None]) -> None:
        """``least``, by band, is certainly no more than what will be measured."""
        self.least = least
        self._measure = measure
        self._most: torch.Tensor | None = None

    @property
    def most(self) -> torch.Tensor:
        """Most that a kernel may err by, by band. Asks the reference at first."""
        if self._most is None:
            most = self._measure()
            self._most = torch.full((BANDS,), torch.inf, dtype=torch.float64) if most is None else most
        return self._most

    @property
    def most_known(self) -> torch.Tensor:
        """The same, or next to nothing while it is not known. Asks nothing."""
        return torch.full((BANDS,), _NOTHING, dtype=torch.float64) if self._most is None else self._most


Limits: TypeAlias = tuple[Limit | None, ...]
"""Of each output; None where the law's tolerance alone holds."""


def widest(first: Limits, second: Most) -> Limits:
    """Return the larger of two bounds, band by band."""
    pairs = zip(first, second, strict=True)
    return tuple(None if one is None or other is None else _wider(one, other) for one, other in pairs)


def _wider(limit: Limit, most: torch.Tensor) -> Limit:
    return Limit(limit.least, lambda: torch.maximum(limit.most.to(most.device), most))


def held(expected: Expected, limit: Limit | None, tolerance: float, *, asking: bool = True) -> Expected:
    """Return the expected output with units in which the bounds are the tolerance.

    Without ``asking``, any error that they could forbid is too large while they are not known.
    """
    if limit is None:
        return expected

    device = expected.values.device

    def units() -> torch.Tensor:
        most = limit.most if asking else limit.most_known
        return (most / tolerance).to(device)

    return replace(expected, finest=Finest((limit.least / tolerance).to(device), tolerance, units))


def surely_allowed(expected: Expected, precision: Precision) -> torch.Tensor | None:
    """Return what a kernel may surely err by, by band, from a sample of an output; None where there are no bands."""
    if expected.integral or expected.unit.centre is None or expected.values.numel() < MIN_SPREAD_ELEMENTS:
        return None
    step = max(1, expected.values.numel() // SAMPLE) | 1  # odd: a power of two may see one column only
    counts = torch.bincount(band_of(expected.values.reshape(-1)[::step]), minlength=BANDS).cpu()[: BANDS - 1]
    least = _least(_typical(counts, SURELY), precision)
    return torch.cat([least, torch.tensor([torch.inf], dtype=torch.float64)])


def _seen(expected: Expected, answers: Sequence[torch.Tensor]) -> _Seen:
    device = expected.values.device
    lanes = LANES[device.type]
    counts = torch.zeros(BANDS, dtype=torch.int64, device=device)
    errors = torch.zeros(BANDS * lanes, dtype=expected.values.dtype, device=device)
    for got in answers:
        counts.zero_()
        for wanted, actual in chunks(expected, got):
            band = band_of(wanted)
            counts += torch.bincount(band, minlength=BANDS)
            if lanes > 1:
                band = band.mul_(lanes).add_(torch.arange(band.numel(), device=device).remainder_(lanes))
            errors.scatter_reduce_(0, band, difference(wanted, actual).nan_to_num_(), "amax")
    return _Seen(counts.cpu(), errors.view(BANDS, lanes).amax(1).double().cpu())


class Measured:
    """PyTorch's own errors under each law, and the bounds by magnitude, measured once an open problem."""

    def __init__(self, reference: ReferenceLink, cases: Cases, precision: Precision) -> None:
        self._reference = reference
        self._cases = cases
        self._precision = precision
        self._errors: dict[str, float] = {}
        self._limits: dict[str, Limits] = {}
        self._most: dict[str, Most] = {}

    def error(self, law: str) -> float:
        """Return the error of PyTorch's own answer; 1 where it is not finite."""
        if law not in self._errors:
            case = self._cases.get(law)
            near = neighbours(self._reference, case)
            error = largest(case.expected, settled(self._reference.run(case.given), near))
            self._errors[law] = error if math.isfinite(error) else 1.0
        return self._errors[law]

    def limits(self, law: str) -> Limits:
        """Return the bounds of each output."""
        if law not in self._limits:
            expected = self._cases.get(law).expected
            self._limits[law] = tuple(self._limit(law, index, item) for index, item in enumerate(expected))
        return self._limits[law]

    def _limit(self, law: str, index: int, expected: Expected) -> Limit | None:
        least = surely_allowed(expected, self._precision)
        return None if least is None else Limit(least, lambda: self._measured(law)[index])

    def _measured(self, law: str) -> Most:
        if law not in self._most:
            case = self._cases.get(law)
            own = self._reference.run(case.given)
            near = neighbours(self._reference, case)
            self._most[law] = measured(self._reference, case, self._precision, own, near)
        return self._most[law]
