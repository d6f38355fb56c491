"""Rounds values to fewer bits, or moves them by one rounding: by these a tolerance is measured."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from gpu_worker.judge import copies
from gpu_worker.judge.laws import largest_magnitude, with_noise
from gpu_worker.judge.structure import like

_MANTISSAS = {
    torch.float32: (torch.int32, 23),
    torch.float64: (torch.int64, 52),
    torch.float16: (torch.int16, 10),
    torch.bfloat16: (torch.int16, 7),
}


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


def nudge(tensors: Sequence[torch.Tensor], relative: float, seed: int, *, of_largest: bool = False) -> None:
    """Move each floating value by the share ``relative`` of itself, up or down at random, in place.

    With ``of_largest``, by that share of its tensor's largest value.
    """
    for index, tensor in enumerate(tensors):
        if tensor.is_floating_point() and tensor.numel():
            generator = torch.Generator(device=tensor.device).manual_seed(seed + index)
            values = copies.flat(tensor)
            if of_largest:
                step = relative * largest_magnitude(tensor)
                with_noise(values, generator, torch.Tensor.add_, partial(_steps, step=step))
            else:
                with_noise(values, generator, torch.Tensor.mul_, partial(_near_one, relative=relative))


def _steps(chance: torch.Tensor, *, step: float) -> torch.Tensor:
    return chance.sign_().mul_(step)


def _near_one(chance: torch.Tensor, *, relative: float) -> torch.Tensor:
    return chance.sign_().mul_(relative).add_(1.0)
