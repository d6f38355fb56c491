"""Structure that all draws of a tensor have by construction, and input laws keep: zeros, symmetry, order, strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cupilot.domain.problem import Role, TensorSpec
from gpu_worker.judge.deviation import stretches

STRUCTURAL_ZEROS = 0.1
"""More zeros than this share cannot be chance in floating-point draws."""

FEWEST_IN_ORDER = 8
CHANCE_IN_ORDER = 0.25
"""Of rows of eight truth values drawn at random, one in eighteen happens to be in order."""

LOOKED_AT = 2**22
"""Elements of a tensor that are enough to see whether it is sorted."""


@dataclass(frozen=True)
class Structure:
    """Structure of one tensor."""

    zeros: bool = False
    """True if zeros stay zero (triangular, masked): a kernel may rely on them. Not where all are zero, as biases begin:
    such a tensor is there to hold something else."""
    symmetric: bool = False
    """True if the last two dimensions are symmetric matrices."""
    ordered: bool = False
    """True if each row rises (boundaries, sorted values)."""

    @classmethod
    def of(cls, tensor: torch.Tensor, role: Role = Role.INPUT) -> Structure:
        """Return the structure of a draw; a parameter has none, since training gives it any values."""
        if role is Role.PARAMETER:
            return cls()
        zeros = STRUCTURAL_ZEROS < zero_share(tensor) < 1.0
        return cls(zeros=zeros, symmetric=symmetric(tensor), ordered=ordered(tensor))


def zero_share(tensor: torch.Tensor) -> float:
    """Share of elements that are zero."""
    return 1.0 - nonzeros(tensor) / tensor.numel()


def nonzeros(tensor: torch.Tensor) -> int:
    """Number of elements that are not zero; counted in parts, since a GPU makes an int64 of each to count it."""
    return sum(int(part.count_nonzero()) for part in stretches(tensor))


def zero_shares(specs: Sequence[TensorSpec], tensors: Sequence[torch.Tensor]) -> dict[str, float]:
    """Return the share of zeros of each floating input that is partly zero by construction."""
    inputs = [
        (spec.name, tensor)
        for spec, tensor in zip(specs, tensors, strict=False)
        if spec.role is Role.INPUT and tensor.is_floating_point()
    ]
    shares = {name: zero_share(tensor) for name, tensor in inputs}
    return {name: share for name, share in shares.items() if share > STRUCTURAL_ZEROS}


def symmetric(tensor: torch.Tensor) -> bool:
    """Return whether the last two dimensions form matrices that equal their transposes."""
    return tensor.dim() >= 2 and 1 < tensor.shape[-1] == tensor.shape[-2] and bool(torch.equal(tensor, tensor.mT))


def ordered(tensor: torch.Tensor) -> bool:
    """Return whether each row (of the last dimension) rises throughout, and is not one value."""
    if tensor.dim() == 0 or tensor.shape[-1] < FEWEST_IN_ORDER or tensor.numel() == 0:
        return False
    first = tensor[(0,) * (tensor.dim() - 1)]
    if not bool((first[1:] >= first[:-1]).all()):  # as of most: no need to read all
        return False
    rises = bool((tensor[..., 1:] >= tensor[..., :-1]).all())
    return rises and bool((tensor[..., 0] != tensor[..., -1]).all())


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
    in_order = ((before <= after).all(-1) | (before >= after).all(-1)) & (rows[:, 0] != rows[:, -1])
    return float(in_order.double().mean()) > CHANCE_IN_ORDER


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
