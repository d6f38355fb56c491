"""References with inputs, by name: one for each shape of operator that recognition and templates must handle."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Case:
    """A reference, its inputs and, for a module, its parameters."""

    function: Callable[..., Any]
    inputs: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)

    def exact(self) -> list[torch.Tensor]:
        """The reference's results in float64."""
        if isinstance(self.function, nn.Module):
            self.function.double()
        try:
            with torch.no_grad():
                result = self.function(*(item.double() for item in self.inputs.values()))
        finally:
            if isinstance(self.function, nn.Module):
                self.function.float()
        return list(result) if isinstance(result, tuple | list) else [result]


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator) * 2


def _of(function: Callable[..., Any], *shape: int) -> Case:
    return Case(function, {"x": _random(*shape)})


def _module(module: nn.Module, *shape: int) -> Case:
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    parameters = {name.replace(".", "_"): value for name, value in module.named_parameters()}
    return Case(module, {"x": _random(*shape) + 3}, parameters)


def _pair(function: Callable[..., Any], first: tuple[int, ...], second: tuple[int, ...]) -> Case:
    return Case(function, {"a": _random(*first, seed=1), "b": _random(*second, seed=2)})


def _new_gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def _rms(x: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-5)


def pointwise() -> dict[str, Case]:
    """Activations and other expressions; sizes that no vector width divides among them."""
    odd = (33, 1037)
    return {
        "relu": _of(torch.relu, *odd),
        "leaky_relu": _of(lambda x: F.leaky_relu(x, 0.2), *odd),
        "sigmoid": _of(torch.sigmoid, *odd),
        "tanh": _of(torch.tanh, *odd),
        "swish": _of(lambda x: x * torch.sigmoid(x), *odd),
        "silu": _of(F.silu, *odd),
        "gelu": _of(F.gelu, *odd),
        "gelu_tanh": _of(lambda x: F.gelu(x, approximate="tanh"), *odd),
        "new_gelu": _of(_new_gelu, 32, 1024),
        "selu": _of(F.selu, *odd),
        "elu": _of(lambda x: F.elu(x, 0.7), *odd),
        "hardsigmoid": _of(F.hardsigmoid, *odd),
        "hardswish": _of(F.hardswish, *odd),
        "hardtanh": _of(F.hardtanh, *odd),
        "softplus": _of(F.softplus, *odd),
        "softsign": _of(F.softsign, *odd),
        "mish": _of(F.mish, *odd),
        "logsigmoid": _of(F.logsigmoid, *odd),
        "in_place": _of(lambda x: x.clone().add_(1).mul_(2).relu_(), *odd),
        "times_number": _of(lambda x: x * 3.14, *odd),
        "clamped_exp": _of(lambda x: torch.clamp(torch.exp(x), max=5.0), *odd),
        "two_inputs": _pair(lambda a, b: torch.where(a > b, a - b, torch.sqrt(b - a)), odd, odd),
        "row_vector": _pair(lambda a, b: a + b, odd, (1037,)),
        "diagonal": _pair(lambda a, b: a[:, None] * b, (33,), odd),
        "channels": _pair(torch.maximum, (4, 6, 5, 7), (6, 1, 1)),
        "one_number": _pair(lambda a, b: a / b, odd, (1,)),
    }


def rows() -> dict[str, Case]:
    """Softmax, norms, reductions and losses, along the last axis, a middle one and all of them."""
    return {
        "softmax": _of(lambda x: torch.softmax(x, dim=1), 33, 1040),
        "softmax_odd": _of(lambda x: torch.softmax(x, dim=-1), 33, 1037),
        "softmax_weighted": _pair(lambda a, b: torch.softmax(a, dim=1) * b, (33, 1040), (1040,)),
        "softmax_middle": _of(lambda x: torch.softmax(x, dim=1), 3, 50, 77),
        "log_softmax": _of(lambda x: torch.log_softmax(x, dim=1), 33, 1040),
        "logsumexp": _of(lambda x: torch.logsumexp(x, dim=1), 33, 1037),
        "layer_norm": _module(nn.LayerNorm(1040), 33, 1040),
        "layer_norm_plain": _of(lambda x: F.layer_norm(x, (1037,), eps=1e-3), 33, 1037),
        "layer_norm_3d": _module(nn.LayerNorm((3, 16, 24)), 5, 3, 16, 24),
        "rms_norm_channels": _of(_rms, 3, 48, 10, 13),
        "rms_norm_module": _module(nn.RMSNorm(1040), 33, 1040),
        "group_norm": _module(nn.GroupNorm(3, 6), 4, 6, 8, 15),
        "group_norm_aligned": _module(nn.GroupNorm(4, 8), 8, 8, 16, 16),
        "instance_norm": _module(nn.InstanceNorm2d(6), 4, 6, 9, 13),
        "norm_with_channel_weights": Case(
            lambda x, w: F.layer_norm(x, x.shape[1:]) * w, {"x": _random(4, 6, 8, 16), "w": _random(6, 1, 1)}
        ),
        "l1_norm": _of(lambda x: x / torch.mean(torch.abs(x), dim=1, keepdim=True), 33, 1037),
        "l2_norm": _of(lambda x: x / torch.norm(x, p=2, dim=1, keepdim=True), 33, 1040),
        "normalize": _of(lambda x: F.normalize(x, dim=1), 33, 1037),
        "frobenius": _of(lambda x: x / torch.norm(x, p="fro"), 4, 12, 16, 64),
        "standardised": _of(lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True), 3, 300, 21),
        "sum_last": _of(lambda x: torch.sum(x, dim=2, keepdim=True), 5, 40, 1037),
        "sum_middle": _of(lambda x: torch.sum(x, dim=1), 5, 600, 39),
        "mean_first": _of(lambda x: torch.mean(x, dim=0), 200, 130),
        "columns_scaled_by_a_number": Case(
            lambda x, s: (x - x.mean(0)) * torch.cos(s), {"x": _random(40, 130), "s": torch.tensor(0.3)}
        ),
        "max_middle": _of(lambda x: torch.max(x, dim=1)[0], 5, 60, 40),
        "max_both": _of(lambda x: torch.max(x, dim=1), 5, 60, 40),
        "min_last": _of(lambda x: torch.min(x, dim=-1)[0], 40, 1037),
        "argmax": _of(lambda x: torch.argmax(x, dim=1), 5, 60, 40),
        "argmin_last": _of(lambda x: torch.argmin(x, dim=-1), 40, 1037),
        "sum_all": _of(torch.sum, 50, 1041),
        "mse": _pair(F.mse_loss, (64, 700), (64, 700)),
        "mse_by_hand": _pair(lambda a, b: torch.mean((a - b) ** 2), (64, 700), (64, 700)),
        "huber": _pair(F.smooth_l1_loss, (64, 700), (64, 700)),
        "kl_div": Case(
            lambda a, b: F.kl_div(torch.log(a), b, reduction="batchmean"),
            {"a": torch.softmax(_random(40, 130), 1), "b": torch.softmax(_random(40, 130, seed=3), 1)},
        ),
        "hinge": _pair(lambda a, b: torch.mean(torch.clamp(1 - a * b, min=0)), (64, 700), (64, 700)),
        "matrix_vector": _pair(torch.matmul, (33, 3001), (3001, 1)),
        "vector_matrix": _pair(torch.matmul, (1, 301), (301, 75)),
    }


def products() -> dict[str, Case]:
    """Matrix products with every way of storing operands, and with odd sizes."""
    linear = nn.Linear(260, 68)
    return {
        "mm": _pair(torch.matmul, (101, 300), (300, 75)),
        "mm_aligned": _pair(torch.matmul, (96, 256), (256, 128)),
        "first_transposed": _pair(lambda a, b: torch.matmul(a.T, b), (300, 101), (300, 75)),
        "second_transposed": _pair(lambda a, b: torch.matmul(a, b.T), (101, 300), (75, 300)),
        "both_transposed": _pair(lambda a, b: torch.matmul(a.T, b.T), (300, 101), (75, 300)),
        "batched": _pair(torch.bmm, (3, 33, 40), (3, 40, 50)),
        "einsum": _pair(lambda a, b: torch.einsum("bijl,lk->bijk", a, b), (2, 3, 11, 40), (40, 50)),
        "three_axes": _pair(torch.matmul, (3, 33, 40), (40, 50)),
        "linear": Case(linear, {"x": _random(36, 260)}, dict(linear.named_parameters())),
        "addmm": Case(
            lambda c, a, b: torch.addmm(c, a, b, alpha=0.5, beta=2.0),
            {"c": _random(101, 75), "a": _random(101, 300), "b": _random(300, 75)},
        ),
        "deep": _pair(torch.matmul, (16, 4100), (4100, 24)),
    }


def everything() -> dict[str, Case]:
    """All cases."""
    return {**pointwise(), **rows(), **products()}
