"""Input laws: how the tensors that a kernel is given are drawn. Pure functions of an own draw and a generator.

Integers keep the problem's own values, since they mean something (labels, indices); structure by construction stays
(:mod:`gpu_worker.judge.structure`). Nothing stands at fixed places, so that only reading all of an input tells its law.
Laws change values in place, with small temporaries: inputs of 16 GB must leave room for a reference in float64.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from cupilot.domain.problem import Role, TensorSpec
from gpu_worker.judge.structure import Structure, like

OWN = "own"
PERTURBED = "perturbed"
INTEGERS = "integers"
WIDE_RANGE = "wide_range"
OFFSET = "offset"
ZEROS = "zeros"
PLANTED_EXTREMES = "planted_extremes"
PARAMETERS = "parameters"
NEGATED = "negated"
MOST_EXTREMES = "most_extremes"
""":data:`PLANTED_EXTREMES` with as many as it ever plants: no kernel is judged under it, but it shows what may come."""

EXTREME = 64.0
"""Planted values are this many times the largest own one: far outside, yet exp() of a few survives in float32."""

SMALLER = (4, 16)
"""Parts of its size at which a law is tried where it tells nothing at its whole size, as where outputs overflow, or a
row of zeros has no answer. Its name says so (``planted_extremes/4``)."""

EXTREME_SHARE = 1e-3
FEW_EXTREMES = 16

TINY = 2.0**-8
"""Of parameters: those that scale a branch (LayerScale) begin at 1e-4 or 1e-6, weights of 2^16 inputs at this."""

WIDE_EXPONENTS = 8.0
"""wide_range scales by 2^-8 to 2^8: five decimal digits of dynamic range."""

PARAMETER_EXPONENTS = (1.0, 4.0)
"""Parameters are scaled by 2 to 16: training takes them about as far from what a constructor gives."""

OFFSET_EXPONENTS = {torch.float64: (6.0, 9.0), torch.float32: (6.0, 9.0), torch.float16: (4.0, 6.0)}
"""The mean is so many powers of two times the spread: a variance as E[x^2] - E[x]^2 loses twice as many bits."""
OFFSET_EXPONENTS_OTHERWISE = (1.0, 3.0)
"""Of types with so few bits that a larger offset would leave nothing of the spread."""

SPREAD_SAMPLE = 2**20
"""First elements that an input's spread is measured on."""

NOISE_PERIOD = 2**20 + 7
"""A prime: rows of usual lengths do not see the same noise twice."""

CONSTANT_ROWS = (0.25, 0.75)
"""Least and largest share of rows that hold one value throughout."""

ROW_CONSTANTS = 64
"""Constants are random multiples of one over this, up to 1: sums of few bits are exact, so that equal rows test the
algorithm and not the order of summation."""

LARGEST_INTEGER = 2
"""The law ``integers`` draws from -2, -1, 1, 2: no term is silent, and sums stay exact for long."""

ZERO_SHARE = 1 / 8
"""Share of elements, and of rows, that are zero under the law ``zeros``."""

PERTURBED_ELEMENTS = 64
"""Single elements changed at once in each input: a kernel that skips 10 % of its input is missed once in 850 times."""

Transform = Callable[[torch.Tensor, torch.Generator], None]
"""Changes the values of a contiguous tensor in place."""


def signed(values: torch.Tensor, generator: torch.Generator) -> None:
    """Give values random signs."""
    with_noise(values, generator, torch.Tensor.mul_, torch.Tensor.sign_)


def wide_range(values: torch.Tensor, generator: torch.Generator, *, part: float = 1.0) -> None:
    """Multiply values by random powers of two."""
    _scale(values, generator, part * WIDE_EXPONENTS)


def parameters(values: torch.Tensor, generator: torch.Generator, *, part: float = 1.0) -> None:
    """Make values larger, each by its own amount, and give them random signs; a single number keeps its own."""
    least, most = (part * exponent for exponent in PARAMETER_EXPONENTS)
    _scale(values, generator, (most - least) / 2, (most + least) / 2)
    if values.numel() > 1:
        signed(values, generator)


def negated(values: torch.Tensor, generator: torch.Generator, *, part: float = 1.0) -> None:
    """Draw as :func:`parameters` does, but negate a single number."""
    parameters(values, generator, part=part)
    if values.numel() == 1:
        values.neg_()


def _scale(values: torch.Tensor, generator: torch.Generator, spread: float, middle: float = 0.0) -> None:
    """Multiply values by random powers of two, with exponents up to ``spread`` from the middle."""
    with_noise(values, generator, torch.Tensor.mul_, lambda chance: chance.mul_(spread).add_(middle).exp2_())


def integers(values: torch.Tensor, generator: torch.Generator) -> None:
    """Replace values by whole numbers from -:data:`LARGEST_INTEGER` to it, but no zeros."""

    def whole(chance: torch.Tensor) -> torch.Tensor:
        size = chance.abs().mul_(LARGEST_INTEGER).floor_().clamp_max_(LARGEST_INTEGER - 1).add_(1)
        return size.copysign_(chance)

    with_noise(values, generator, torch.Tensor.copy_, whole)


def planted_extremes(values: torch.Tensor, generator: torch.Generator, *, part: float = 1.0) -> None:
    """Put values far out of range at random places: one, a few, or one in a thousand."""
    chance = random.Random(generator.initial_seed())
    count = chance.choice([1, chance.randint(1, FEW_EXTREMES), _most_extremes(values)])
    _plant(values, count, part * EXTREME, generator, add=False)


def most_extremes(values: torch.Tensor, generator: torch.Generator, *, part: float = 1.0) -> None:
    """Put one value in a thousand far out of range, at random places."""
    _plant(values, _most_extremes(values), part * EXTREME, generator, add=False)


def _most_extremes(values: torch.Tensor) -> int:
    return max(1, int(values.numel() * EXTREME_SHARE))


def perturbed(values: torch.Tensor, generator: torch.Generator, *, step: float) -> None:
    """Move a few random elements by about ``step`` times the largest magnitude."""
    _plant(values, PERTURBED_ELEMENTS, step, generator, add=True)


def _plant(values: torch.Tensor, count: int, size: float, generator: torch.Generator, *, add: bool) -> None:
    flat = values.view(-1)
    count = min(count, flat.numel())
    places = torch.randint(0, flat.numel(), (count,), generator=generator, device=flat.device)
    factors = torch.rand(count, generator=generator, device=flat.device).add_(0.5).mul_(size)
    signs = torch.randint(0, 2, (count,), generator=generator, device=flat.device).mul_(2).sub_(1)
    largest = _largest(flat).to(factors.dtype)
    amounts = (factors * signs * torch.where(largest > 0, largest, 1.0)).to(flat.dtype)
    flat[places] = flat[places] + amounts if add else amounts


def constant_rows(values: torch.Tensor, generator: torch.Generator) -> None:
    """Fill a random share of the rows (of the last dimension) with one value each."""
    if values.dim() < 2:
        return
    rows = values.view(-1, values.shape[-1])
    share = random.Random(generator.initial_seed()).uniform(*CONSTANT_ROWS)
    order = torch.randperm(rows.shape[0], generator=generator, device=rows.device)
    chosen = order[: max(1, round(share * rows.shape[0]))]
    picks = torch.randint(1, ROW_CONSTANTS + 1, (chosen.numel(), 1), generator=generator, device=rows.device)
    signs = torch.randint(0, 2, picks.shape, generator=generator, device=rows.device).mul_(2).sub_(1)
    rows[chosen] = (picks * signs / ROW_CONSTANTS).to(rows.dtype).expand(-1, rows.shape[1])


def zeros(values: torch.Tensor, generator: torch.Generator, *, part: float = 1.0) -> None:
    """Set elements at random places to zero; at the law's whole size, also rows (of the last dimension)."""
    highest = 2 * part * ZERO_SHARE - 1
    with_noise(values, generator, lambda some, chance: some.masked_fill_(chance < highest, 0))
    if values.dim() > 1 and part == 1:
        rows = values.view(-1, values.shape[-1])
        order = torch.randperm(rows.shape[0], generator=generator, device=rows.device)
        rows[order[: round(ZERO_SHARE * rows.shape[0])]] = 0


def offset(values: torch.Tensor, generator: torch.Generator) -> None:
    """Shift all values by one amount that is large against their spread; upwards where none is negative."""
    exponents = OFFSET_EXPONENTS.get(values.dtype, OFFSET_EXPONENTS_OTHERWISE)
    chance = random.Random(generator.initial_seed())
    factor, sign = 2.0 ** chance.uniform(*exponents), chance.choice((-1.0, 1.0))
    sample = values.view(-1)[:SPREAD_SAMPLE].double()
    direction = torch.where((sample >= 0).all(), 1.0, sign)
    values.add_((factor * sample.std(correction=0) * direction).to(values.dtype))


_SIZED: Mapping[str, Callable[..., None]] = {
    ZEROS: zeros,
    WIDE_RANGE: wide_range,
    PLANTED_EXTREMES: planted_extremes,
    MOST_EXTREMES: most_extremes,
    PARAMETERS: parameters,
    NEGATED: negated,
}
"""Laws that have sizes (:data:`SMALLER`). Not :data:`OFFSET`: a smaller one says little of cancellation, and refuses
honest formulas for their smallest answers, as log(1 + exp(x))."""

TRIED = ("signed", WIDE_RANGE, PLANTED_EXTREMES, "constant_rows", ZEROS, OFFSET)
"""Laws that are tried on every reference; the others have conditions of their own."""


def sizes(law: str) -> Sequence[str]:
    """Return the names of a law at each of its sizes, the largest first."""
    return [law, *(f"{law}/{part}" for part in SMALLER)] if law in _SIZED else [law]


def kind(law: str) -> str:
    """Return the name of a law without its size."""
    return law.partition("/")[0]


def at_size_of(law: str, other: str) -> str:
    """Return the name of the law ``other`` at the size of ``law``."""
    return other + law.removeprefix(kind(law))


def transform(law: str, step: float) -> Transform | None:
    """Return what a law does to values; ``step`` is for :data:`PERTURBED`. None for :data:`OWN`, which keeps them."""
    if law == OWN:
        return None
    if law == PERTURBED:
        return partial(perturbed, step=step)
    if kind(law) in _SIZED:
        return partial(_SIZED[kind(law)], part=1 / int(law.partition("/")[2] or 1))
    return {"signed": signed, "constant_rows": constant_rows, OFFSET: offset, INTEGERS: integers}[law]


def change(law: Transform, tensor: torch.Tensor, structure: Structure, generator: torch.Generator) -> None:
    """Draw a tensor of any strides under a law, in place; its structure stays."""
    for axis, stride in enumerate(tensor.stride()):
        if stride == 0:  # expanded: several elements share a place
            tensor = tensor.narrow(axis, 0, 1)
    values = tensor if tensor.is_contiguous() else tensor.contiguous()
    zeros = values == 0 if structure.zeros else None
    law(values, generator)
    if zeros is not None:
        values.masked_fill_(zeros, 0)
    if structure.symmetric:
        values.copy_(values.triu() + values.triu(1).mT)
    if structure.ordered:
        values.copy_(values.sort(-1).values)
    if values is not tensor:
        tensor.copy_(values)


def apply(
    law: str, own: Sequence[torch.Tensor], specs: Sequence[TensorSpec], seed: int, step: float = 1.0
) -> list[torch.Tensor]:
    """Return the given tensors under a law, from an own draw; strides and dtypes are kept.

    Parameters and buffers move a little with most laws (:func:`moved_state`); of a problem whose inputs are integers
    throughout, the law draws the parameters. Those of :data:`OWN` and :data:`PERTURBED` stay what they are.
    """
    action = transform(law, step)
    if action is None:
        return list(own)
    generator = torch.Generator(device=own[0].device).manual_seed(seed)
    drawn = drawn_role(specs)
    result = []
    for tensor, spec in zip(own, specs, strict=True):
        if not tensor.is_floating_point():
            result.append(tensor)
            continue
        moves = spec.role is not Role.INPUT and law != PERTURBED
        structure = Structure.of(tensor, spec.role)
        values = moved_state(law, tensor, spec.role, structure, generator) if moves else copied(tensor)
        if spec.role is drawn and not draws_parameters(law):
            change(action, values, structure, generator)
        result.append(values)
    return result


def moved_state(
    law: str, state: torch.Tensor, role: Role, structure: Structure, generator: torch.Generator
) -> torch.Tensor:
    """Return a parameter or buffer as laws other than the problem's own give it.

    Under :data:`INTEGERS` it holds whole numbers, under :data:`WIDE_RANGE` none is tiny; :data:`PARAMETERS` and
    :data:`NEGATED` draw parameters.
    """
    moved = copied(enlarged(state) if kind(law) == WIDE_RANGE else state)
    change(integers if law == INTEGERS else jittered, moved, structure, generator)
    action = transform(law, 1.0)
    if draws_parameters(law) and role is Role.PARAMETER and action is not None:
        change(action, moved, structure, generator)
    return moved


def draws_state(law: str, *, tiny: bool) -> bool:
    """Return whether a law has parameters and buffers of its own; ``tiny``: some are tiny throughout."""
    return law == INTEGERS or draws_parameters(law) or (kind(law) == WIDE_RANGE and tiny)


def draws_parameters(law: str) -> bool:
    """Return whether a law draws parameters in the place of inputs."""
    return kind(law) in (PARAMETERS, NEGATED)


def of_parameters(specs: Sequence[TensorSpec]) -> Sequence[str]:
    """Return the laws of parameters that a problem has: none without floating ones behind inputs that laws draw."""
    sizes = [
        math.prod(spec.shape)
        for spec in specs
        if spec.role is Role.PARAMETER and spec.dtype.value.startswith(("float", "bfloat"))
    ]
    if not sizes or drawn_role(specs) is not Role.INPUT:
        return []
    return [PARAMETERS, NEGATED] if 1 in sizes else [PARAMETERS]


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides, gaps included."""
    return like(tensor, tensor.clone(memory_format=torch.contiguous_format))


def drawn_role(specs: Sequence[TensorSpec]) -> Role | None:
    """Return the role of the tensors whose values laws draw: floating inputs, else parameters, else buffers.

    Of token ids no law can make large activations, nor can perturbing single ones; the weights behind them can.
    """
    floating = {spec.role for spec in specs if spec.dtype.value.startswith(("float", "bfloat"))}
    return next((role for role in (Role.INPUT, Role.PARAMETER, Role.BUFFER) if role in floating), None)


def enlarged(state: torch.Tensor) -> torch.Tensor:
    """Return a parameter that is tiny throughout at the size of one: what it scales would be below every tolerance."""
    return state / largest_magnitude(state) if tiny(state) else state


def tiny(state: torch.Tensor) -> bool:
    """Return whether all values of a parameter are tiny, and some are not zero."""
    return state.is_floating_point() and 0 < largest_magnitude(state) < TINY


def jittered(values: torch.Tensor, generator: torch.Generator) -> None:
    """Move values by amounts of their own, in place."""
    values.copy_(jitter(values, generator))


def jitter(state: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a parameter or buffer with every element moved by its own amount, so that a kernel must read it.

    Values that are all positive (variances, scales) stay positive.
    """
    moved = state * torch.exp(0.3 * noise(state, generator))
    if bool((state > 0).all()):
        return moved
    spread = float(state.std()) if state.numel() > 1 else 0.0
    if not math.isfinite(spread) or spread == 0.0:
        spread = 0.5  # constant, e.g. zero biases: half of a unit shows in every output
    return moved + 0.3 * spread * noise(state, generator)


def noise(pattern: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw numbers in [-1, 1) in the shape and dtype of ``pattern``, of which no two stretches are alike.

    Larger tensors hold means of two numbers, which repeat after periods of their own.
    """
    result = torch.empty(pattern.shape, dtype=pattern.dtype, device=pattern.device)
    with_noise(result, generator, torch.Tensor.copy_)
    if result.numel() > NOISE_PERIOD:
        with_noise(result, generator, torch.Tensor.add_, period=NOISE_PERIOD - 1)
        result.mul_(0.5)
    return result


def with_noise(
    values: torch.Tensor,
    generator: torch.Generator,
    combine: Callable[[torch.Tensor, torch.Tensor], object],
    prepare: Callable[[torch.Tensor], torch.Tensor] | None = None,
    period: int = NOISE_PERIOD,
) -> None:
    """Call ``combine(part, noise)`` over stretches of a contiguous tensor; it changes the part in place.

    PyTorch draws random numbers on one thread (9 ns each): whole tensors of them would be most of a preparation's time.
    So they repeat; ``prepare`` makes of them, once and in place, what is combined with each period.
    """
    flat = values.view(-1)
    block = torch.rand(min(flat.numel(), period), generator=generator, device=flat.device).mul_(2).sub_(1)
    block = block.to(flat.dtype)
    if prepare is not None:
        block = prepare(block)
    periods = flat.numel() // max(1, block.numel())
    whole = periods * block.numel()
    if whole:
        combine(flat[:whole].view(periods, -1), block)
    if whole < flat.numel():
        combine(flat[whole:], block[: flat.numel() - whole])


def largest_magnitude(tensor: torch.Tensor) -> float:
    """Return largest absolute value; NaN where there is one."""
    return float(_largest(tensor))


def _largest(tensor: torch.Tensor) -> torch.Tensor:
    """Return the largest absolute value: ``vector_norm`` takes twenty times as long on one thread."""
    least, most = torch.aminmax(tensor)
    return torch.maximum(-least, most)
