"""Graphs of derivatives that a forward takes, and of results written into given tensors, by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from tests.unit.agents.playbook.operators_under_test import Case


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator)


def _gradient(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Case:
    """Return the gradients with respect to all floating inputs of a weighted sum of a function's results."""

    def weighted(*given: torch.Tensor) -> torch.Tensor:
        result = function(*given)
        return (result * torch.linspace(-1, 2, result.numel(), dtype=result.dtype).view_as(result)).sum()

    floating = tuple(place for place, tensor in enumerate(inputs) if tensor.is_floating_point())
    return Case(torch.func.grad(weighted, argnums=floating), {f"x{at}": tensor for at, tensor in enumerate(inputs)})


def _of_given_tensors(x: torch.Tensor, w: torch.Tensor, room: torch.Tensor) -> tuple[torch.Tensor, ...]:
    product, values, places = x.new_empty(9, 6), x.new_empty(9), torch.empty(9, dtype=torch.int64)
    part = room.clone()
    torch.mm(x, w, out=product)
    torch.add(product, 1.0, out=product)
    torch.sigmoid(product, out=part[:, 2:])
    torch.max(product, 1, out=(values, places))
    return part * values[:, None], places


def _normalised_in_place(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    direction = v.clone()
    F.normalize(x.t() @ (x @ direction), dim=0, out=direction)
    return x @ torch.outer(direction, direction)


def _second(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    def squared(t: torch.Tensor) -> torch.Tensor:
        gradient = torch.func.grad(lambda inner: function(inner).sum())(t)
        return (gradient**2).sum()  # type: ignore[no-any-return]

    return torch.func.grad(squared)(x)  # type: ignore[no-any-return]


def _hessian(x: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, by PyTorch's own rules
        of_row = torch.func.hessian(lambda t: torch.tanh(t @ t.new_ones(3, 2)).square().sum())
        return torch.func.vmap(of_row)(x)  # type: ignore[no-any-return]


_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{"gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"), "silu": F.silu, "hardswish": F.hardswish},
    **{"leaky_relu": F.leaky_relu, "elu": F.elu, "selu": F.selu, "softplus": F.softplus, "hardtanh": F.hardtanh},
    **{
        "hardsigmoid": F.hardsigmoid,
        "log_softmax": partial(F.log_softmax, dim=1),
        "softmax": partial(F.softmax, dim=0),
    },
    **{"mish": F.mish, "log_sigmoid": F.logsigmoid, "softshrink": F.softshrink, "hardshrink": F.hardshrink},
    **{"glu": F.glu, "relu": F.relu, "topk": lambda x: x.topk(3, 1)[0], "columns": lambda x: x[:, 3:20:2] * x[2, 1]},
}


def gradients() -> dict[str, Case]:
    """Return all cases."""
    x, image = _random(6, 32) * 3, _random(2, 6, 8, 8)
    ids = torch.tensor([[0, 3, 1], [2, 2, 3]])

    def normalised(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, how: Any) -> torch.Tensor:
        return how(x, w, b)  # type: ignore[no-any-return]

    norms: dict[str, Callable[..., torch.Tensor]] = {
        "group_norm": lambda x, w, b: F.group_norm(x, 3, w, b),
        "batch_norm": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        "batch_norm_of_constants": lambda x, w, b: F.batch_norm(x, w.detach(), w.detach() ** 2, w, b),
    }
    return {
        **{f"gradient_{name}": _gradient(function, x) for name, function in _ACTIVATIONS.items()},
        **{
            f"gradient_{name}": _gradient(partial(normalised, how=how), image, _random(6), _random(6, seed=1))
            for name, how in norms.items()
        },
        "gradient_layer_norm": _gradient(
            lambda x, w, b: F.layer_norm(x, (32,), w, b), x, _random(32), _random(32, seed=1)
        ),
        "gradient_convolution": _gradient(
            lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=1, dilation=(1, 2), groups=2),
            image,
            _random(4, 3, 3, 3),
            _random(4),
        ),
        "gradient_transposed_convolution": _gradient(
            lambda x, w: F.conv_transpose1d(x, w, stride=3, padding=1, dilation=2, output_padding=1, groups=2),
            _random(2, 4, 5),
            _random(4, 3, 3),
        ),
        "gradient_average_pool": _gradient(lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), image),
        "gradient_average_of_rows": _gradient(lambda x: F.avg_pool1d(x, 3, 2, 1), _random(4, 11)),
        "gradient_adaptive_pool": _gradient(lambda x: F.adaptive_avg_pool2d(x, (2, 4)), image),
        "gradient_nearest": _gradient(lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), image),
        "gradient_bilinear": _gradient(lambda x: F.interpolate(x, size=(5, 11), mode="bilinear"), image),
        "gradient_attention": _gradient(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            *(_random(2, 3, 7, 4, seed=seed) for seed in range(3)),
        ),
        "gradient_max_pool": _gradient(lambda x: F.max_pool2d(x, 2), image),
        "gradient_embedding": _gradient(lambda w, i: F.embedding(i, w, padding_idx=2), _random(9, 4), ids),
        "gradient_cross_entropy": _gradient(lambda x, i: F.cross_entropy(x, i[0]), _random(3, 9), ids),
        "gradient_reflected": _gradient(lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), image),
        "vector_times_jacobian": Case(lambda x: torch.func.vjp(F.gelu, x)[1](x * 2)[0], {"x": x}),
        "second_gradient": Case(partial(_second, F.silu), {"x": x}),
        "hessian": Case(_hessian, {"x": _random(4, 3)}),
        "of_given_tensors": Case(_of_given_tensors, {"x": _random(9, 8), "w": _random(8, 6), "room": _random(9, 8)}),
        "normalised_in_place": Case(_normalised_in_place, {"x": _random(9, 5), "v": _random(5)}),
    }
