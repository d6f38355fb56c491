"""Graphs of the kind that users bring and that once ended without a kernel, or with a wrong one, by name."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.unit.agents.playbook.operators_under_test import Case


def _random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def _attention_over_valid_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    mask = torch.arange(k.shape[2]) < length[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])


def _appended(cache: torch.Tensor, new: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return cache.clone().index_copy_(2, places, new)


def _segment_means(x: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    sums = x.new_zeros(4, x.shape[1]).index_add(0, segments, x)
    counts = x.new_zeros(4).index_add(0, segments, x.new_ones(x.shape[0]), alpha=2)
    return sums / counts.clamp(min=1)[:, None]


def _weighted_loss(x: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    positives = torch.tensor(2.5, dtype=x.dtype)
    return F.binary_cross_entropy_with_logits(x, targets, weight=weights, pos_weight=positives)


def _gate(module: nn.GRUCell) -> Case:
    torch.manual_seed(1)
    state = {f"m_{name}": torch.randn(value.shape) * 0.3 for name, value in module.state_dict().items()}
    for name, parameter in module.named_parameters():
        parameter.data = state[f"m_{name}"]
    state = {f"m_{name}": value for name, value in module.state_dict(keep_vars=True).items()}
    return Case(module, {"x": _random(5, module.input_size)}, state)


def _eight_bits(kind: torch.dtype, largest: float) -> Any:
    def quantised(x: torch.Tensor) -> torch.Tensor:
        scale = x.float().abs().amax(-1, keepdim=True) / largest
        return (x.float() / scale).to(kind).float() * scale

    return quantised


def brought() -> dict[str, Case]:
    """Return the graphs."""
    segments = torch.tensor([0, 2, 2, 1, 0, 2, 3, 2, 0])
    numbers = torch.tensor(
        [-900.0, -448.0, 464.0, 465.0, 61439.0, 2.0**-9, 2.0**-10, 3 * 2.0**-10, 1.0625, 1.1875, 0.0]
    )
    return {
        "masked_decode": Case(
            _attention_over_valid_keys,
            {
                **{"q": _random(2, 3, 1, 8), "k": _random(2, 3, 9, 8, seed=1), "v": _random(2, 3, 9, 8, seed=2)},
                "length": torch.tensor([4, 9]),
            },
        ),
        "cache_append": Case(
            _appended,
            {"cache": _random(2, 3, 9, 4), "new": _random(2, 3, 2, 4, seed=1), "places": torch.tensor([4, 7])},
        ),
        "segment_means": Case(_segment_means, {"x": _random(9, 7), "segments": segments}),
        "weighted_loss": Case(
            _weighted_loss,
            {"x": _random(6, 21), "targets": (_random(6, 21, seed=1) > 0).float(), "weights": _random(21).abs()},
        ),
        "running_maximum": Case(lambda x: torch.cummax(x.round(), -1), {"x": _random(6, 40)}),
        "running_minimum": Case(lambda x: torch.cummin(x, 0), {"x": _random(40, 6)}),
        "gru_cell": _gate(nn.GRUCell(10, 12)),
        "buckets": Case(lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), {"x": _random(6, 21).round()}),
        "buckets_right": Case(
            lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0]), right=True), {"x": _random(6, 21).round()}
        ),
        "third_smallest": Case(lambda x: x.kthvalue(3, 1), {"x": _random(6, 21)}),
        "median": Case(lambda x: x.median(0), {"x": _random(20, 6)}),
        "mean_of_numbers": Case(lambda x: torch.nanmean(x.masked_fill(x > 1, float("nan")), -1), {"x": _random(6, 21)}),
        "entropy": Case(
            lambda x: torch.special.entr(torch.relu(torch.softmax(x, -1) - 0.02)).sum(-1), {"x": _random(6, 21)}
        ),
        "degrees_and_sinc": Case(
            lambda x: torch.rad2deg(torch.sinc(torch.deg2rad(x * 90).round())), {"x": _random(6, 21)}
        ),
        "logaddexp2": Case(lambda x: torch.logaddexp2(x, x.flip(0)), {"x": _random(6, 21)}),
        "xlog1py": Case(lambda x: torch.special.xlog1py(torch.relu(x), torch.exp(x)), {"x": _random(6, 21)}),
        "signed_infinities": Case(
            lambda x: torch.isposinf(1 / torch.relu(x)).float() - torch.isneginf(torch.log(torch.relu(x))).float() * 3,
            {"x": _random(6, 21)},
        ),
        "eight_bits_e4m3": Case(_eight_bits(torch.float8_e4m3fn, 448.0), {"x": _random(6, 21)}),
        "eight_bits_e5m2": Case(_eight_bits(torch.float8_e5m2, 57344.0), {"x": _random(6, 21)}),
        "eight_bits_edges": Case(
            lambda x: (x.to(torch.float8_e4m3fn).float(), x.clamp(-4e4, 4e4).to(torch.float8_e5m2).float()),
            {"x": numbers},
        ),
    }
