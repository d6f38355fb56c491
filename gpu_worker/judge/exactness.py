"""Finds operators with exact answers: proves that small whole numbers give whole multiples of one quantum, whatever
the order of summation.

An operator that is affine in each of its floating tensors adds up terms c * x. For whole x the terms are multiples of a
quantum; as long as the sum of their absolute values stays below what the policy's precision counts exactly, every
partial sum of every order is exact, and a kernel that is off by one term is off by a quantum. Nothing here knows
operators by name: all is found by running the reference in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from cupilot.domain.problem import NumericsPolicy, TensorSpec
from gpu_worker.judge import laws
from gpu_worker.judge.counting import products
from gpu_worker.judge.reference_link import ReferenceLink
from gpu_worker.judge.refusal import UnusableReference, out_of_memory
from gpu_worker.judge.structure import like

ALLOWED_QUANTA = 0.25
"""Accepted error of the law ``integers``: no whole term hides in it, and no honest rounding comes near it."""

AFFINE = 1e-9
"""Relative residual of additivity in float64: rounding leaves 1e-13, an operator that is not affine leaves 1e-2."""

COUNTS_TO = {NumericsPolicy.FP32: 2.0**24, NumericsPolicy.TF32: 2.0**24, NumericsPolicy.HALF: 2.0**8}
"""Whole numbers up to here are exact: float32 sums (also those of tensor cores fed with TF32), bfloat16 sums."""

TF32_OPERAND = 2.0**11
"""A product of a product rounds its operand to TF32, which counts to here."""

ROUNDING = {NumericsPolicy.FP32: 2.0**-24, NumericsPolicy.TF32: 2.0**-11, NumericsPolicy.HALF: 2.0**-8}

ROUNDED_QUANTA = ALLOWED_QUANTA / 2
"""Sum of n roundings, for n terms, where the quantum is no power of two (means of 121 numbers)."""

SAMPLED = 4096
"""Output values that the quantum is found from."""

HEAVY_EXPONENT = 20.0

TOO_LITTLE_MEMORY = "there is too little memory to test for linearity"


class NotExact(Exception):
    """The operator has no provably exact answers; says why."""


def quantum(
    reference: ReferenceLink, inputs: Sequence[torch.Tensor], specs: Sequence[TensorSpec], policy: NumericsPolicy
) -> float:
    """Return the unit that all outputs are whole multiples of, for ``inputs`` drawn under the law ``integers``.

    ``specs`` are those of ``inputs``, in its order. Raises :class:`NotExact`.
    """
    try:
        return _Proof(reference, inputs, specs).quantum(policy)
    except (RuntimeError, MemoryError, UnusableReference) as error:
        if not out_of_memory(error):
            raise
        if reference.device.torch_device.type == "cuda":
            torch.cuda.empty_cache()
        raise NotExact(TOO_LITTLE_MEMORY) from error


class _Proof:
    """The reference in float64 around one draw of whole numbers."""

    def __init__(self, reference: ReferenceLink, inputs: Sequence[torch.Tensor], specs: Sequence[TensorSpec]) -> None:
        self._reference = reference
        self._given = list(inputs)
        self._specs = list(specs)
        self._floats = [place for place, tensor in enumerate(inputs) if tensor.is_floating_point()]
        self._values: list[float] = []
        self._shapes: list[torch.Size] = []

    def quantum(self, policy: NumericsPolicy) -> float:
        base = self._run({})
        if not all(tensor.is_floating_point() for tensor in base):
            raise NotExact("an output is not a floating-point tensor")
        self._remember(base)
        other = laws.apply(laws.INTEGERS, self._given, self._specs, seed=1)
        for place in self._floats:
            self._check_affine(place, base, other[place])
        self._check_signs()
        largest = max(_magnitude(tensor) for tensor in self._run(self._largest_numbers()))
        unit = _common_unit(self._values)
        terms = largest / unit
        self._check_range(terms, unit, policy)
        return unit

    def _run(self, replaced: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        outputs = self._reference.run_exact([replaced.get(place, tensor) for place, tensor in enumerate(self._given)])
        if not self._reference.exact:
            raise NotExact("the reference does not run in float64")
        if self._reference.short:
            raise NotExact(TOO_LITTLE_MEMORY)
        if any(tensor.dtype is torch.float32 for tensor in outputs):
            raise NotExact(TOO_LITTLE_MEMORY)
        shapes = [tensor.shape for tensor in outputs]
        if shapes != (self._shapes or shapes):
            raise NotExact("the shapes of its outputs depend on the values of its inputs")
        self._shapes = shapes
        return outputs

    def _check_affine(self, place: int, base: Sequence[torch.Tensor], other: torch.Tensor) -> None:
        """Check that f(a) + f(b) = f(a + b) + f(0) in this tensor, with all others fixed."""
        mine = self._given[place]
        total = [tensor.clone() for tensor in base]
        scale = max(_magnitude(tensor) for tensor in base)
        for sign, tensor in ((1, other), (-1, like(mine, mine + other)), (-1, like(mine, mine * 0))):
            values = self._run({place: tensor})
            scale = max(scale, *(_magnitude(value) for value in values))
            for sum_, value in zip(total, values, strict=True):
                sum_.add_(value, alpha=sign)
            if sign == 1:
                self._remember(values)
        residual = max(_magnitude(tensor) for tensor in total)
        if not residual <= AFFINE * scale:
            raise NotExact(f"not linear in {self._specs[place].name}")
        self._remember_one_step(place, base)

    def _remember_one_step(self, place: int, base: Sequence[torch.Tensor]) -> None:
        """Remember what one more unit in one element changes: single terms, which an output of one number hides."""
        mine = self._given[place]
        flat = mine.reshape(-1)
        nonzero = flat.nonzero().reshape(-1)
        if not nonzero.numel():
            return
        moved = flat.clone()
        moved[nonzero[nonzero.numel() // 2]] += 1
        changed = self._run({place: like(mine, moved.reshape(mine.shape))})
        self._remember([after - before for after, before in zip(changed, base, strict=True)])

    def _check_signs(self) -> None:
        """Refuse terms of both signs: sums of absolute values would exceed the output of absolute values.

        Positive numbers of very different sizes: a negative coefficient of the largest one shows.
        """
        generator = torch.Generator(device=self._given[0].device).manual_seed(2)
        heavy = {}
        for place in self._floats:
            mine = self._given[place]
            factors = laws.noise(mine, generator).add_(1).mul_(HEAVY_EXPONENT / 2).exp2_()
            heavy[place] = like(mine, mine.abs() * factors)
        for tensor in self._run(heavy):
            if not float(tensor.min()) >= -AFFINE * _magnitude(tensor):
                raise NotExact("its sums have terms of both signs, so that their partial sums are not bounded")

    def _largest_numbers(self) -> dict[int, torch.Tensor]:
        return {
            place: like(self._given[place], self._given[place].sign().abs() * laws.LARGEST_INTEGER)
            for place in self._floats
        }

    def _check_range(self, terms: float, unit: float, policy: NumericsPolicy) -> None:
        limit = COUNTS_TO[policy]
        if policy is NumericsPolicy.TF32 and products(self._reference.graph) > 1:
            limit = TF32_OPERAND
        if math.frexp(unit)[0] == 0.5:
            if terms > limit:
                raise NotExact(f"sums of up to {terms:.3g} units are not exact in {policy.value} (up to {limit:.0f})")
        elif terms**2 * ROUNDING[policy] > ROUNDED_QUANTA:
            raise NotExact(f"sums of {terms:.3g} terms of {unit:.3g}, no power of two, round by too much")

    def _remember(self, outputs: Sequence[torch.Tensor]) -> None:
        """Keep a sample of the magnitudes."""
        for tensor in outputs:
            values = tensor.reshape(-1)
            step = values.numel() // SAMPLED | 1  # odd: a power of two may see one column only, which may be zero
            self._values += values[::step][: 2 * SAMPLED].abs().tolist()


def _magnitude(tensor: torch.Tensor) -> float:
    """Return largest absolute value; NaN and infinity end the proof."""
    value = laws.largest_magnitude(tensor)
    if not math.isfinite(value):
        raise NotExact("the reference is not finite there")
    return value


def _common_unit(values: Sequence[float]) -> float:
    """Return greatest common divisor of float64 numbers, to a relative 1e-6 (Euclid's algorithm)."""
    smallest = max(values, default=0.0) * 2.0**-30
    left = sorted({value for value in values if value > smallest})
    if not left:
        raise NotExact("every output is zero")
    unit = left[0]
    for value in left:
        first, second = value, unit
        while second > 1e-6 * unit and second > smallest:
            first, second = second, abs(math.remainder(first, second))
        unit = first
        if unit <= smallest:
            raise NotExact("its outputs have no common unit")
    if abs(unit - round(unit)) < 1e-6 * unit:
        return 1.0  # whole terms may always come in pairs; partial sums are whole numbers all the same
    nearest = 2.0 ** round(math.log2(unit))
    return nearest if abs(unit / nearest - 1) < 1e-6 else unit
