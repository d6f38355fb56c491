"""Mixes two draws of a tensor element by element, near one of them each, by random numbers that begin anywhere.

Knows flat storages, no problems and no laws. Large tensors are mixed one by one; of small ones, whose calls take longer
than their work, those of many slots at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cupilot.domain.problem import TensorSpec
from gpu_worker.judge.laws import NOISE_PERIOD

NEAREST = 0.25
"""Mixed values lie at most this share of the way from one draw to the other: ranges and spreads stay as they are."""

PERIOD = NOISE_PERIOD
"""Random numbers repeat after so many elements, and begin at one of as many places."""

AT_ONCE = 2**18
"""Elements that are mixed in one call where tensors are smaller: they stay in a cache."""


class Mixer:
    """Random numbers, and mixtures by them."""

    def __init__(self, generator: torch.Generator, device: torch.device) -> None:
        near = torch.rand(2 * PERIOD, generator=generator, device=device).mul_(NEAREST)
        second = torch.rand(2 * PERIOD, generator=generator, device=device) < 0.5
        self._weights = torch.where(second, 1 - near, near)
        """Near 0 or near 1, of two periods: stretches of one begin anywhere."""

    def mix(self, into: torch.Tensor, first: torch.Tensor, second: torch.Tensor, begin: int, *, smooth: bool) -> None:
        """Mix flat tensors in one call for all whole periods of the numbers and one for the rest.

        Where values between two draws mean nothing, each element is of either draw.
        """
        weights = self._weights[begin : begin + PERIOD]
        chosen = weights.to(first.dtype) if smooth else weights < 0.5

        def part(place: slice, shape: tuple[int, ...]) -> None:
            near, far, target = (tensor[place].view(shape) for tensor in (first, second, into))
            factors = chosen[: shape[-1]]
            if smooth:
                torch.lerp(near, far, factors.expand(shape), out=target)
            else:
                torch.where(factors, near, far, out=target)

        whole = into.numel() // PERIOD * PERIOD
        if whole:
            part(slice(0, whole), (whole // PERIOD, PERIOD))
        if whole < into.numel():
            part(slice(whole, into.numel()), (into.numel() - whole,))

    def mix_rows(
        self,
        into: torch.Tensor,
        rows: Sequence[int],
        pool: Sequence[torch.Tensor],
        pairs: Sequence[Sequence[int]],
        begins: Sequence[int],
        *,
        smooth: bool,
    ) -> None:
        """Write a mixture into each of some rows of a matrix: of a pair of the pool's draws, from a place to begin."""
        draws, device = torch.stack(list(pool)), into.device
        first, second = (draws[torch.tensor(side, device=device)] for side in zip(*pairs, strict=True))
        weights = self._weights.unfold(0, into.shape[1], 1)[torch.tensor(begins, device=device)]
        mixed = torch.lerp(first, second, weights.to(first.dtype)) if smooth else first.where(weights < 0.5, second)
        into[torch.tensor(rows, device=device)] = mixed

    def mix_symmetric(
        self,
        into: torch.Tensor,
        first: torch.Tensor,
        second: torch.Tensor,
        begin: int,
        spec: TensorSpec,
        *,
        smooth: bool,
    ) -> None:
        """Mix symmetric matrices by numbers that are symmetric too."""
        into.copy_(first)  # what lies between rows too
        near, far, target = (tensor.as_strided(spec.shape, spec.strides) for tensor in (first, second, into))
        rows = self._weights[begin : begin + spec.shape[-1]]
        if smooth:
            torch.lerp(near, far, (rows[:, None] * rows).to(near.dtype).expand(spec.shape), out=target)
        else:
            near_second = rows < 0.5
            torch.where(near_second[:, None] == near_second, near, far, out=target)
