"""Input laws: how the tensors that a kernel is given are drawn. Pure functions of an own draw and a generator.

Integers keep the problem's own values, since they mean something (labels, indices). Zeros that the problem's own inputs
have by construction (triangular, masked) stay zero, and symmetric matrices stay symmetric: a kernel may rely on such
structure. Temporaries are small: inputs of 16 GB must leave room for a reference in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from cupilot.domain.problem import Role, TensorSpec

OWN = "own"
PERTURBED = "perturbed"
INTEGERS = "integers"
WIDE_RANGE = "wide_range"

STRUCTURAL_ZEROS = 0.1
"""More zeros than this share cannot be chance in floating-point draws."""

EXTREME = 64.0
"""Planted values are this many times the largest own one: far outside, yet exp() of a few survives in float32."""

EXTREME_SHARE = 1e-3
TINY = 2.0**-8
"""Of parameters: those that scale a branch (LayerScale) begin at 1e-4 or 1e-6, weights of 2^16 inputs at this."""

WIDE_EXPONENTS = 8.0
"""wide_range scales by 2^-8 to 2^8: five decimal digits of dynamic range."""

NOISE_PERIOD = 2**20 + 7
"""A prime: rows of usual lengths do not see the same noise twice."""

NOISE_PERIODS = 64
"""So many are combined with a tensor at once: few launches on a GPU, and temporaries of 256 MB."""

_MANTISSAS = {
    torch.float32: (torch.int32, 23),
    torch.float64: (torch.int64, 52),
    torch.float16: (torch.int16, 10),
    torch.bfloat16: (torch.int16, 7),
}

ROW_CONSTANTS = (-1.0, -0.5, 0.25, 0.5, 1.0)
"""Few mantissa bits: sums of them are exact, so that equal rows test the algorithm and not the order of summation."""

LARGEST_INTEGER = 2
"""The law ``integers`` draws from -2, -1, 1, 2: no term is silent, and sums stay exact for long."""

FEWEST_IN_ORDER = 8
CHANCE_IN_ORDER = 0.25
"""Of rows of eight truth values drawn at random, one in eighteen happens to be in order."""

LOOKED_AT = 2**22
"""Elements of a tensor that are enough to see whether it is sorted."""

Transform = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def signed(own: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return own magnitudes with random signs."""
    return _with_noise(own, generator, lambda values, chance: chance.sign_().mul_(values))


def wide_range(own: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return own values times random powers of two."""
    return _with_noise(own, generator, lambda values, chance: chance.mul_(WIDE_EXPONENTS).exp2_().mul_(values))


def noise(pattern: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw uniform numbers in [-1, 1) in the shape and dtype of ``pattern``; they repeat after :data:`NOISE_PERIOD`."""
    return _with_noise(pattern, generator, lambda _, chance: chance)


def _with_noise(
    own: torch.Tensor,
    generator: torch.Generator,
    combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return ``combine(values, noise)`` over stretches of the flattened tensor, contiguous, in its shape.

    PyTorch draws random numbers on one thread (9 ns each): whole tensors of them would be most of a preparation's time.
    """
    dtype = dtype or own.dtype
    flat = own.reshape(-1)
    block = torch.rand(min(flat.numel(), NOISE_PERIOD), generator=generator, device=own.device).mul_(2).sub_(1)
    block = block.to(dtype)
    result = torch.empty_like(flat, dtype=dtype)
    size = NOISE_PERIODS * NOISE_PERIOD
    for values, place in zip(torch.split(flat, size), torch.split(result, size), strict=True):
        chance = block.repeat(-(-values.numel() // block.numel()))[: values.numel()]
        place.copy_(combine(values, chance))
    return result.reshape(own.shape)


def planted_extremes(own: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return own values, but about one in a thousand, and always the first and the last, is far out of range."""
    flat = own.flatten().clone()
    count = max(2, int(flat.numel() * EXTREME_SHARE))
    places = torch.randint(0, flat.numel(), (count,), generator=generator, device=own.device)
    places[0], places[1] = 0, flat.numel() - 1
    magnitude = EXTREME * largest_magnitude(own)
    factors = 0.5 + torch.rand(count, generator=generator, device=own.device)
    signs = torch.randint(0, 2, (count,), generator=generator, device=own.device) * 2 - 1
    flat[places] = (factors * signs * magnitude).to(own.dtype)
    return flat.reshape(own.shape)


def constant_rows(own: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return own values, but every other row (of the last dimension, in random order) holds one value throughout."""
    if own.dim() < 2:
        return own.clone()
    rows = own.reshape(-1, own.shape[-1]).clone()
    chosen = torch.randperm(rows.shape[0], generator=generator, device=own.device)[: (rows.shape[0] + 1) // 2]
    values = torch.tensor(ROW_CONSTANTS, dtype=own.dtype, device=own.device)
    picks = torch.randint(0, len(ROW_CONSTANTS), (chosen.numel(), 1), generator=generator, device=own.device)
    rows[chosen] = values[picks].expand(-1, rows.shape[1])
    return rows.reshape(own.shape)


def integers(own: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return whole numbers from -:data:`LARGEST_INTEGER` to it, but no zeros."""

    def whole(_: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
        size = chance.abs().mul_(LARGEST_INTEGER).floor_().clamp_max_(LARGEST_INTEGER - 1).add_(1)
        return torch.where(chance < 0, -size, size)

    return _with_noise(own, generator, whole)


LAWS: dict[str, Transform] = {
    "signed": signed,
    WIDE_RANGE: wide_range,
    "planted_extremes": planted_extremes,
    "constant_rows": constant_rows,
}
"""Laws that are tried on every reference; :data:`INTEGERS` and :data:`PERTURBED` have conditions of their own."""


def apply(law: str, own: Sequence[torch.Tensor], specs: Sequence[TensorSpec], seed: int) -> list[torch.Tensor]:
    """Return the given tensors under a law, from an own draw; strides and dtypes are kept.

    Parameters and buffers move a little with every law; under :data:`INTEGERS` they are whole numbers too, and under
    :data:`WIDE_RANGE` none is tiny. Of a problem whose inputs are integers throughout, the parameters are drawn so.
    """
    if law == OWN:
        return list(own)
    generator = torch.Generator(device=own[0].device).manual_seed(seed)
    transform = integers if law == INTEGERS else LAWS[law]
    drawn = drawn_role(specs)
    result = []
    for tensor, spec in zip(own, specs, strict=True):
        if not tensor.is_floating_point():
            result.append(tensor)
        elif spec.role is Role.INPUT:
            result.append(like(tensor, keep_structure(tensor, transform(tensor, generator))))
        elif law == INTEGERS:
            result.append(like(tensor, integers(tensor, generator)))
        else:
            moved = jitter(enlarged(tensor) if law == WIDE_RANGE else tensor, generator)
            result.append(like(tensor, transform(moved, generator) if spec.role is drawn else moved))
    return result


def drawn_role(specs: Sequence[TensorSpec]) -> Role | None:
    """Return the role of the tensors whose values laws draw: floating inputs, else parameters, else buffers.

    Of token ids no law can make large activations, nor can perturbing single ones; the weights behind them can.
    """
    floating = {spec.role for spec in specs if spec.dtype.value.startswith(("float", "bfloat"))}
    return next((role for role in (Role.INPUT, Role.PARAMETER, Role.BUFFER) if role in floating), None)


def enlarged(state: torch.Tensor) -> torch.Tensor:
    """Return a parameter that is tiny throughout at the size of one: what it scales would be below every tolerance."""
    size = largest_magnitude(state)
    return state / size if 0 < size < TINY else state


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


def keep_structure(own: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return ``new`` with the structural zeros and the symmetry of ``own``."""
    if zero_share(own) > STRUCTURAL_ZEROS:
        new = new.masked_fill(own == 0, 0)
    if symmetric(own):
        new = new.triu() + new.triu(1).mT
    return new


def zero_share(tensor: torch.Tensor) -> float:
    """Share of elements that are zero."""
    return 1.0 - int(tensor.count_nonzero()) / tensor.numel()


def zero_shares(specs: Sequence[TensorSpec], tensors: Sequence[torch.Tensor]) -> dict[str, float]:
    """Return the share of zeros of each floating input that is partly zero by construction."""
    inputs = [
        (spec.name, tensor)
        for spec, tensor in zip(specs, tensors, strict=False)
        if spec.role is Role.INPUT and tensor.is_floating_point()
    ]
    shares = {name: zero_share(tensor) for name, tensor in inputs}
    return {name: share for name, share in shares.items() if share > STRUCTURAL_ZEROS}


def largest_magnitude(tensor: torch.Tensor) -> float:
    """Return largest absolute value; NaN where there is one."""
    return float(torch.linalg.vector_norm(tensor.reshape(-1), math.inf))


def symmetric(tensor: torch.Tensor) -> bool:
    """Return whether the last two dimensions form matrices that equal their transposes."""
    return tensor.dim() >= 2 and 1 < tensor.shape[-1] == tensor.shape[-2] and bool(torch.equal(tensor, tensor.mT))


def belong_together(draws: Sequence[torch.Tensor]) -> bool:
    """Return whether an element cannot come from another draw than its neighbours: where rows or columns are in order
    (offsets, sorted labels, masks of lengths), or are the same integers in each draw (permutations, one-hot rows).
    """
    first, second = draws[:2]
    for dim in {0, max(first.dim() - 1, 0)} if first.dim() else ():
        first_rows, second_rows = (draw.movedim(dim, -1) for draw in (first, second))
        if _in_order(first_rows) or (not first_rows.is_floating_point() and _same_values(first_rows, second_rows)):
            return True
    return False


def _in_order(tensor: torch.Tensor) -> bool:
    """Return whether some rows (chance makes few) rise or fall throughout; of a large tensor, a part is looked at."""
    length = min(tensor.shape[-1], LOOKED_AT)
    if length < FEWEST_IN_ORDER:
        return False
    while tensor.dim() > 2:
        tensor = tensor[: max(1, LOOKED_AT // tensor[0].numel())].flatten(0, 1)
    rows = tensor.reshape(-1, tensor.shape[-1])[: max(1, LOOKED_AT // length), :length]
    before, after = rows[:, :-1], rows[:, 1:]
    ordered = ((before <= after).all(-1) | (before >= after).all(-1)) & (rows[:, 0] != rows[:, -1])
    return float(ordered.double().mean()) > CHANCE_IN_ORDER


def _same_values(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether each row of integers holds the same ones."""
    return torch.equal(first.sum(-1), second.sum(-1)) and torch.equal(first.sort(-1).values, second.sort(-1).values)


def like(pattern: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Give ``values`` (a fresh tensor, which may be returned itself) storage of its own, with ``pattern``'s strides.

    Gaps hold what the pattern has there.
    """
    if pattern.is_contiguous() and values.is_contiguous():
        return values
    span = 1 + sum((size - 1) * stride for size, stride in zip(pattern.shape, pattern.stride(), strict=True))
    flat = pattern.as_strided((span,), (1,), pattern.storage_offset()).clone()
    result = flat.as_strided(pattern.shape, pattern.stride())
    if 0 in pattern.stride():  # expanded: several elements share a place; all must agree
        for axis, stride in enumerate(pattern.stride()):
            if stride == 0:
                values = values.narrow(axis, 0, 1)
                result = result.narrow(axis, 0, 1)
    result.copy_(values)
    return flat.as_strided(pattern.shape, pattern.stride())


def round_mantissa(tensor: torch.Tensor, bits: int) -> torch.Tensor:
    """Round each value to ``bits`` explicit mantissa bits (10: TF32 or fp16, 7: bf16, 3: fp8 e4m3); keep the range."""
    if tensor.dtype not in _MANTISSAS:
        return tensor
    words, mantissa = _MANTISSAS[tensor.dtype]
    dropped = mantissa - bits
    if dropped <= 0:
        return tensor
    rounded = tensor.contiguous().view(words).add(1 << (dropped - 1)).bitwise_and_(-(1 << dropped))
    return like(tensor, rounded.view(tensor.dtype))


def nudge(tensor: torch.Tensor, relative: float, seed: int) -> torch.Tensor:
    """Move each value by the share ``relative`` of itself, up or down at random, in float64 (for conditioning)."""
    if not tensor.is_floating_point():
        return tensor
    generator = torch.Generator(device=tensor.device).manual_seed(seed)

    def moved(values: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
        return chance.sign_().mul_(relative).add_(1.0).mul_(values)

    nudged = _with_noise(tensor, generator, moved, torch.float64)
    return nudged if tensor.is_contiguous() else torch.empty_like(tensor, dtype=torch.float64).copy_(nudged)
