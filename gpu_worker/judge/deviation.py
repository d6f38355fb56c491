"""Measures how far an output is from the expected one, in units of its spread. Describes, does not judge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from gpu_worker.judge.fused_errors import WORTHWHILE, errors_and_shares

CHUNK_ELEMENTS = {"cpu": 2**17, "cuda": 2**26}
"""Elements compared at once, by device: on a CPU the temporaries stay in the cache, on a GPU launches stay few."""

MIN_SPREAD_ELEMENTS = 8
"""Fewer elements have no meaningful spread; their magnitude is the unit then."""

FLAT = 1e-5
"""An output whose spread is below this share of its magnitude is constant for float32's purposes."""

COARSE = 1e-4
COARSE_LEAST = 1e-25
"""Variances above these, relative to the square of the mean and absolute, are exact enough in float32."""

VANISHING = 1e-31
"""Below this, float32 begins to lose bits and then the value: an output that is smaller everywhere is held to this."""


_HALF_STEPS = {torch.float16: (2.0**-11, 2.0**-25), torch.bfloat16: (2.0**-8, 2.0**-134)}
"""Types of so few bits that writing an answer down may cost more than a kernel may err by: half of the distance between
two neighbours, as a share of the power of two below them, and at least. That much is no error of a kernel's."""

_EXPONENTS = {torch.float64: (torch.int64, 0x7FF << 52), torch.float32: (torch.int32, 0xFF << 23)}
"""An integer type of the same width, and the bits that hold a number's exponent: alone, they are a power of two."""

BANDS = 2**11
"""Magnitudes by powers of two, as float64's exponents count them: zero in the first, infinity and NaN in the last."""

_BAND_BITS = {torch.float64: (52, 0), torch.float32: (23, BANDS // 2 - 2**7)}
"""Bits behind the exponent, and the band of the least exponent."""


@dataclass(frozen=True)
class Selection:
    """Source that an index output selects from (``argmax``, ``topk``). Any index of a value as good is right."""

    values: torch.Tensor
    """Values that were selected from: float64, or float32 where there is much of it."""
    dim: int | None
    """None: over all elements."""
    keepdim: bool
    distinct: bool = False
    """Each index along ``dim`` stands once, as in ``topk`` and ``sort``."""
    running: bool = False
    """No index along ``dim`` is beyond its own place, as in ``cummax``."""
    error: float = 0.0
    """PyTorch's own error in ``values``, which are results of a calculation more often than inputs."""


@dataclass(frozen=True)
class Unit:
    """Unit of an output's errors: its spread; for elements further from the centre, their distance to it.

    So a heavy tail is held to its own size; what is far below the spread is held to the spread.
    """

    spread: float = 1.0
    centre: float | None = 0.0
    """None: errors are absolute, all measured in ``spread``."""


ABSOLUTE = Unit(centre=None)


@dataclass(frozen=True)
class Finest:
    """Units of errors by band, where they are smaller than the output's."""

    least: torch.Tensor
    """Units that are certainly no larger than those of the bands."""
    enough: float
    """Error in those that no band forbids: where there is none larger, the output's unit tells enough."""
    units: Callable[[], torch.Tensor]
    """Asked where there is a larger one."""


@dataclass(frozen=True)
class Expected:
    """One expected output."""

    values: torch.Tensor
    """Contiguous, in logical order; float64, or float32 for very large outputs."""
    unit: Unit
    selection: Selection | None = None
    rounding: float = 0.0
    """Relative difference of selected values that one rounding of the policy explains."""
    factor: float = 0.0
    """Multiple of PyTorch's error in selected values that they may differ by besides."""
    finest: Finest | None = None
    """None: all elements are held to the output's unit."""

    @property
    def integral(self) -> bool:
        """Return whether values must be equal."""
        return not self.values.is_floating_point()

    @cached_property
    def has_nan(self) -> bool:
        """Return whether a value is expected to be NaN."""
        return not self.integral and any(bool(part.max().isnan()) for part in stretches(self.values) if part.numel())


def unit_of(values: torch.Tensor) -> Unit:
    """Return the unit for these expected values; their magnitude where a spread says nothing."""
    if not values.is_floating_point():
        return Unit()
    mean, deviation = moments(values)
    magnitude = math.hypot(mean, deviation)
    if 0 < magnitude < VANISHING:
        return Unit(VANISHING)
    if values.numel() >= MIN_SPREAD_ELEMENTS and deviation > FLAT * magnitude:
        return Unit(deviation, mean)
    return Unit(magnitude) if magnitude > 0 and math.isfinite(magnitude) else Unit()


def flat(values: torch.Tensor) -> bool:
    """Return whether an output is the same everywhere, so that a constant would pass for it."""
    if values.numel() < MIN_SPREAD_ELEMENTS:
        return False
    if not values.is_floating_point():
        return bool((values == values.reshape(-1)[0]).all())
    mean, deviation = moments(values)
    return deviation <= FLAT * math.hypot(mean, deviation)


def finite(values: torch.Tensor) -> bool:
    """Return whether no value is NaN or infinite."""
    bounds = (torch.aminmax(part) for part in stretches(values) if part.numel())
    return all(math.isfinite(float(low)) and math.isfinite(float(high)) for low, high in bounds)  # NaN is in both


def unreadable(values: torch.Tensor) -> bool:
    """Return whether an output holds no finite value at all."""
    return values.is_floating_point() and not any(bool(part.isfinite().any()) for part in stretches(values))


def disagreement(error: float) -> str:
    """Say how PyTorch's own answer differs from the float64 reference, where it is too far off to judge by."""
    if math.isfinite(error):
        return f"PyTorch itself errs by {error:.2g} of the output's spread"
    return (
        "PyTorch's own answer under the policy differs from the float64 reference where both must be equal: in whole"
        " numbers, as a quantiser rounds them, or in where values are NaN or infinite"
    )


def moments(values: torch.Tensor) -> tuple[float, float]:
    """Return mean and standard deviation of the finite values, merged from stretches (Chan, Golub, LeVeque 1979)."""
    count, mean, squares = 0, 0.0, 0.0
    for part in stretches(values):
        mine, middle, variance = _moments_of(part) if part.numel() else (0, 0.0, 0.0)
        if not mine:
            continue
        distance = middle - mean
        total = count + mine
        squares += variance * mine + distance * distance * count * mine / total
        mean += distance * mine / total
        count = total
    return mean, math.sqrt(squares / count) if count else 0.0


def _moments_of(part: torch.Tensor) -> tuple[int, float, float]:
    """Return count, mean and variance of the finite values; float32's own arithmetic is five times as fast."""
    if part.dtype is torch.float32:
        mean, variance = _mean_and_variance(part)
        if COARSE_LEAST < variance < math.inf and variance > COARSE * mean * mean:
            return part.numel(), mean, variance
    exact = part.double()
    mean, variance = _mean_and_variance(exact)
    if not math.isfinite(variance):
        exact = exact[exact.isfinite()]
        mean, variance = _mean_and_variance(exact) if exact.numel() else (0.0, 0.0)
    return exact.numel(), mean, variance


def _mean_and_variance(values: torch.Tensor) -> tuple[float, float]:
    """Return both; in two passes on a CPU, where ``var_mean`` takes seven times as long."""
    if values.device.type != "cpu":
        variance, mean = torch.var_mean(values, correction=0)
        return float(mean), float(variance)
    mean = values.mean()
    distances = values - mean
    return float(mean), float(torch.dot(distances, distances)) / len(values)


def deviation(expected: Expected, got: torch.Tensor, enough: float = math.inf) -> float:
    """Return largest difference in units of the output; infinite for NaN, misplaced infinities and wrong integers.

    The comparison ends early above ``enough``.
    """
    worst = 0.0
    for wanted, actual in chunks(expected, got):
        if expected.integral:
            if not torch.equal(wanted, actual):
                return 0.0 if _equally_good(expected, got) else math.inf
            continue
        error = _largest_error(wanted, actual, expected)
        if not math.isfinite(error):
            error = _finite_error(wanted, actual, expected)
        worst = max(worst, error)
        if worst > enough:
            break
    return worst


def _largest_error(wanted: torch.Tensor, actual: torch.Tensor, expected: Expected) -> float:
    unit, finest = expected.unit, expected.finest
    fusible = wanted.is_cuda and wanted.numel() >= WORTHWHILE and actual.dtype not in _HALF_STEPS
    if fusible and unit.centre is not None:
        errors, shares = errors_and_shares(wanted, actual, unit.centre, unit.spread)
        if finest is None or float(errors.max()) <= finest.enough * float(finest.least.min()):
            return float(shares.max())
    return float(_errors(wanted, actual, expected).max())


def _errors(wanted: torch.Tensor, actual: torch.Tensor, expected: Expected) -> torch.Tensor:
    unit = expected.unit
    if unit.centre is None:
        return (actual.to(wanted.dtype) - wanted).abs_().div_(unit.spread)
    error = difference(wanted, actual)
    units = (wanted - unit.centre).abs_().clamp_min_(unit.spread)
    finest = expected.finest
    if finest is None or float(error.max()) <= finest.enough * float(finest.least.min()):
        return error.div_(units)
    bands = band_of(wanted)
    if not float((error / finest.least.to(wanted.dtype)[bands]).max()) <= finest.enough:
        units = torch.minimum(units, finest.units().to(wanted.dtype)[bands], out=units)
    return error.div_(units)


def difference(wanted: torch.Tensor, actual: torch.Tensor) -> torch.Tensor:
    """Return absolute differences, less what rounding to a short type explains."""
    error = (actual.to(wanted.dtype) - wanted).abs_()
    if actual.dtype in _HALF_STEPS and wanted.dtype in _EXPONENTS:
        error = error.sub_(_rounding(wanted, actual.dtype)).clamp_min_(0.0)
    return error


def band_of(values: torch.Tensor) -> torch.Tensor:
    """Return the band of each value's magnitude, of :data:`BANDS`."""
    (words, exponent), (behind, first) = _EXPONENTS[values.dtype], _BAND_BITS[values.dtype]
    bands = values.contiguous().view(words).bitwise_and(exponent).bitwise_right_shift_(behind).long()
    if first:  # in place: a stretch of a large output takes half a gigabyte here
        zero, special = bands == 0, bands == 2**8 - 1
        bands.add_(first).masked_fill_(zero, 0).masked_fill_(special, BANDS - 1)
    return bands


def _rounding(wanted: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the most that rounding to a short type moves each value by."""
    (words, exponent), (share, least) = _EXPONENTS[wanted.dtype], _HALF_STEPS[dtype]
    powers = wanted.contiguous().view(words).bitwise_and(exponent).view(wanted.dtype)
    return powers.mul_(share).clamp_min_(least)


def largest(expected: Sequence[Expected], got: Sequence[torch.Tensor], enough: float = math.inf) -> float:
    """Return largest deviation over all outputs; not the exact one above ``enough``."""
    return max(deviation(wanted, values, enough=enough) for wanted, values in zip(expected, got, strict=True))


def wrong_mask(expected: Expected, got: torch.Tensor, tolerance: float) -> torch.Tensor:
    """Mark the elements of the flattened output that are wrong."""
    parts = []
    for wanted, actual in chunks(expected, got):
        if expected.integral:
            parts.append(wanted != actual)
            continue
        same = (wanted == actual.to(wanted.dtype)) | (wanted.isnan() & actual.isnan())
        parts.append(~(_errors(wanted, actual, expected) <= tolerance) & ~same)
    return torch.cat(parts)


def chunks(expected: Expected, got: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield stretches of the expected values beside those of an output."""
    yield from zip(stretches(plain(expected.values)), stretches(plain(got)), strict=True)


def plain(values: torch.Tensor) -> torch.Tensor:
    """View truth values as bytes: PyTorch takes every byte but 0 for true, and so poison too."""
    return values.view(torch.uint8) if values.dtype is torch.bool else values


def stretches(values: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the flattened tensor in parts of :data:`CHUNK_ELEMENTS`."""
    return torch.split(values.reshape(-1), CHUNK_ELEMENTS[values.device.type])


def _finite_error(wanted: torch.Tensor, actual: torch.Tensor, expected: Expected) -> float:
    """Return largest error where the expected value is finite; infinite if NaNs or infinities are misplaced."""
    finite = wanted.isfinite()
    special, same_nans = ~finite, torch.equal(wanted.isnan(), actual.isnan())
    if not same_nans or not torch.equal(wanted[special].nan_to_num(), actual[special].to(wanted.dtype).nan_to_num()):
        return math.inf
    if not bool(actual[finite].isfinite().all()):
        return math.inf
    return float(_errors(wanted[finite], actual[finite], expected).max()) if bool(finite.any()) else 0.0


def _equally_good(expected: Expected, got: torch.Tensor) -> bool:
    selection = expected.selection
    if selection is None:
        return False
    values, dim = selection.values, selection.dim
    wanted = expected.values
    if dim is None:
        values, dim = values.reshape(-1), 0
        wanted, got = wanted.reshape(1), got.reshape(1)
    elif not selection.keepdim:
        wanted, got = wanted.unsqueeze(dim), got.unsqueeze(dim)
    got, wanted = got.to(torch.int64), wanted.to(torch.int64)
    for indices in (got, wanted):  # on a GPU, an index out of range would end this process's context
        if bool((indices < 0).any()) or bool((indices >= values.shape[dim]).any()):
            return False
    if selection.distinct and bool((got.sort(dim).values.diff(dim=dim) == 0).any()):
        return False
    if selection.running and bool((got > _places(got, dim)).any()):
        return False
    mine, its = values.gather(dim, got).double(), values.gather(dim, wanted).double()
    allowed = expected.rounding * torch.maximum(mine.abs(), its.abs()) + expected.factor * selection.error
    near = (mine - its).abs() <= allowed
    return bool((near | (mine == its)).all())  # infinities are equal, and no number apart


def _places(indices: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the place of each element along a dimension, in a shape that broadcasts."""
    count = indices.shape[dim]
    return torch.arange(count, device=indices.device).view(-1, *[1] * (indices.dim() - 1 - dim % indices.dim()))
