"""Graphs of the kind that users bring and that once ended without a kernel, or with a wrong one, by name."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.unit.agents.playbook.operators_under_test import Case

SEEN = torch.tensor([[True, True, False], [False] * 3, [True] * 3, [False, False, True]])


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


def _with_slices(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 1::2, -3:] = 0.0
    y[0].fill_(2.0)
    return y * x


def _views_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = y[1:]
    y.unsqueeze_(0).transpose_(1, 2)
    z.add_(1.0)
    return y.squeeze_(0) + x.t()


def _layer(module: nn.Module, *shape: int) -> Case:
    """A module outside of training on one input."""
    return _gate(module.eval(), _random(*shape))


def _gate(module: nn.Module, given: torch.Tensor | None = None) -> Case:
    torch.manual_seed(1)
    state = {
        f"m_{name.replace('.', '_')}": torch.randn(value.shape) * 0.3 for name, value in module.state_dict().items()
    }
    for name, parameter in module.named_parameters():
        parameter.data = state[f"m_{name.replace('.', '_')}"]
    state = {f"m_{name.replace('.', '_')}": value for name, value in module.state_dict(keep_vars=True).items()}
    return Case(module, {"x": _random(5, 10) if given is None else given}, state)


class _Attends(nn.Module):
    """Self-attention without its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.attention(x, x, x, need_weights=False)[0]
        return result


class _Recurrent(nn.Module):
    """A recurrent layer without its states."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(10, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)[0]
        return result


def _deep_network() -> nn.Module:
    """Layers enough for more groups than a plan has launches, with whole blocks and single threads a result."""
    blocks = [nn.Sequential(nn.Linear(70, 70), nn.LayerNorm(70), nn.GELU()) for _ in range(17)]
    return nn.Sequential(*blocks).eval()


class _Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(3, 5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x[:, :3], x[:, 3:])
        return result


def _mean_and_hidden(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = F.gelu(x) + 1
    return hidden.mean(1), hidden


def _running_statistics(x: torch.Tensor, mean: torch.Tensor, spread: torch.Tensor) -> tuple[torch.Tensor, ...]:
    mean, spread = mean.clone(), spread.clone()
    F.batch_norm(x, mean, spread, training=True, momentum=0.3)
    return F.batch_norm(x + 1, mean, spread, training=True) - mean, F.batch_norm(x, mean, spread), spread


def _largest_and_scores(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scores = torch.sigmoid(x @ x.t())
    return (*scores.max(1), scores, scores.t())


def _averages_of_lists(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Steps of an optimiser over lists of tensors."""
    means = torch._foreach_lerp([x, y], [x + 1, y * y], 0.1)
    torch._foreach_addcmul_(means, [x, y], [x, y], 0.5)
    torch._foreach_mul_(means, [2.0, 3.0])
    roots = torch._foreach_sqrt(torch._foreach_add(torch._foreach_abs(means), 0.1))
    return [*torch._foreach_div(means, roots), *torch._foreach_norm(torch._foreach_addcdiv(means, [x, y], roots, 0.3))]


def _segments(kind: str, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
    offsets = torch.cat([lengths[:1] * 0, lengths.cumsum(0)])
    by_offsets = torch.segment_reduce(x[:, 0].contiguous(), kind, offsets=offsets, unsafe=True)
    return torch.segment_reduce(x, kind, lengths=lengths, unsafe=True), by_offsets


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
        "running_statistics": Case(
            _running_statistics, {"x": _random(5, 3), "mean": _random(3), "spread": _random(3).exp()}
        ),
        "mean_and_hidden": Case(_mean_and_hidden, {"x": _random(6, 8)}),
        "largest_and_scores": Case(_largest_and_scores, {"x": _random(6, 8)}),
        **{
            f"rows_without_keys_{name}": Case(
                partial(F.scaled_dot_product_attention, attn_mask=mask),
                {"q": _random(1, 2, 4, 8), "k": _random(1, 2, 3, 8), "v": _random(1, 2, 3, 8, seed=1)},
            )
            for name, mask in (("of_truths", SEEN), ("of_numbers", torch.zeros(4, 3).masked_fill(~SEEN, -math.inf)))
        },
        "ignored_infinite_score": Case(
            lambda x, labels: F.cross_entropy(x, labels, x[0].exp() + 1, ignore_index=0),
            {"x": torch.tensor([[-math.inf, 1.0, 2.0]]).repeat(4, 1), "labels": torch.tensor([0, 1, 2, 0])},
        ),
        "deep_network": _gate(_deep_network(), _random(1, 70)),
        "long_recurrence": _gate(_Recurrent().eval(), _random(17, 2, 10)),
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
        "slices_that_are_written": Case(_with_slices, {"x": _random(3, 6, 7)}),
        "views_in_place": Case(_views_in_place, {"x": _random(6, 7)}),
        "quantiles": Case(
            lambda x: torch.quantile(x, torch.tensor([0.25, 0.5], dtype=x.dtype), dim=1), {"x": _random(6, 21)}
        ),
        "attention_layer": _layer(_Attends(), 2, 5, 16),
        "encoder_layer": _layer(nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 2, 5, 16),
        "recurrent_layer": _layer(_Recurrent(), 4, 3, 10),
        "gated_layer_batch_first": _layer(nn.GRU(10, 6, batch_first=True), 3, 4, 10),
        "bilinear_layer": _layer(_Bilinear(), 5, 8),
        "bags_of_rows": Case(
            lambda table, rows: F.embedding_bag(rows.long(), table, mode="mean"),
            {"table": _random(9, 4), "rows": torch.tensor([[1, 2, 3], [8, 0, 1]])},
        ),
        "bags_maximised": Case(
            lambda table, rows: F.embedding_bag(rows.long(), table, mode="max"),
            {"table": _random(9, 4), "rows": torch.tensor([[1, 2, 3], [8, 0, 1]])},
        ),
        "bags_of_any_length": Case(
            lambda table, rows, starts, weights: F.embedding_bag(
                rows.long(), table, starts.long(), mode="sum", per_sample_weights=weights, padding_idx=2
            ),
            {
                "table": _random(9, 4),
                "rows": torch.tensor([1, 2, 3, 8, 0, 1, 5]),
                "starts": torch.tensor([0, 2, 2, 5]),
                "weights": _random(7),
            },
        ),
        "rows_repeated": Case(
            lambda x, times: x.repeat_interleave(times.long(), 0, output_size=9),
            {"x": _random(4, 6), "times": torch.tensor([3, 0, 4, 2])},
        ),
        "quantised_channels": Case(
            lambda x: torch.fake_quantize_per_channel_affine(
                x.float(), torch.tensor([0.1, 0.2, 0.05]), torch.tensor([0, 3, -2], dtype=torch.int32), 1, -20, 20
            ),
            {"x": _random(5, 3, 7)},
        ),
        "quantised_tensor": Case(
            lambda x: torch.fake_quantize_per_tensor_affine(x.float(), 0.1, 4, -16, 15), {"x": _random(5, 21)}
        ),
        **{
            f"distances_of_power_{power}": Case(
                partial(torch.cdist, p=power), {"x": _random(2, 5, 7).round(decimals=1), "y": _random(2, 6, 7)}
            )
            for power in (0.0, 1.0, 2.0, 3.0, math.inf)
        },
        "distances_of_batches": Case(torch.cdist, {"x": _random(2, 1, 5, 7), "y": _random(3, 6, 7)}),
        "digamma": Case(
            torch.digamma, {"x": torch.cat([_random(200) * 5, torch.tensor([0.0, -2.0, 1.0, 0.25, 30.0])])}
        ),
        "inverse_error_function": Case(
            torch.erfinv, {"x": torch.cat([_random(200).tanh(), torch.tensor([0.0, 1.0, -1.0, 2.0])])}
        ),
        "distances_of_pairs": Case(lambda x: F.pdist(x, 2), {"x": _random(7, 5)}),
        "middle_slope": Case(lambda x: F.rrelu(x, 0.1, 0.4, training=False), {"x": _random(5, 21)}),
        "weights_of_one_norm": Case(
            lambda g, v: torch._weight_norm(v, g, 0) * 2, {"g": _random(5, 1), "v": _random(5, 8)}
        ),
        "blocks_on_the_diagonal": Case(torch.block_diag, {"x": _random(2, 3), "y": _random(4, 2)}),
        "windows_added_up": Case(lambda x: F.fold(x, (6, 7), 3, stride=2, padding=1), {"x": _random(2, 18, 12)}),
        "unpooled": Case(
            lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), {"x": _random(2, 3, 6, 8)}
        ),
        "margins": Case(
            lambda x, labels: F.multi_margin_loss(x, labels.long()),
            {"x": _random(4, 6), "labels": torch.tensor([0, 5, 2, 1])},
        ),
        **{
            f"margins_of_labels_{reduction}": Case(
                lambda x, labels, how=reduction: F.multilabel_margin_loss(x, labels.long(), reduction=how),
                {"x": _random(3, 4), "labels": torch.tensor([[3, 0, -1, 1], [2, -1, -1, -1], [-1, 0, 1, 2]])},
            )
            for reduction in ("none", "mean")
        },
        "soft_margin": Case(lambda x: F.soft_margin_loss(x, torch.sign(x.flip(0))), {"x": _random(4, 6)}),
        "rows_of_bounded_norm": Case(lambda x: torch.renorm(x, 2.0, 0, 1.0), {"x": _random(4, 6)}),
        "pairs_of_features": Case(
            lambda x: (x @ x.transpose(1, 2))[:, *torch.tril_indices(5, 5, -1)], {"x": _random(3, 5, 4)}
        ),
        "histogram": Case(lambda x: torch.histc(x, 7, -1.0, 1.0), {"x": _random(6, 21)}),
        "counts": Case(
            lambda x: torch.bincount(x.long(), minlength=9).to(torch.float32), {"x": torch.tensor([1, 2, 2, 7, 0, 2])}
        ),
        "among_others": Case(
            lambda x: x * torch.isin(x.round(), torch.tensor([0.0, 2.0], dtype=x.dtype)), {"x": _random(6, 21)}
        ),
        "eight_bits_e4m3": Case(_eight_bits(torch.float8_e4m3fn, 448.0), {"x": _random(6, 21)}),
        "eight_bits_e5m2": Case(_eight_bits(torch.float8_e5m2, 57344.0), {"x": _random(6, 21)}),
        **{
            f"resized_smoothly_{mode}_{size[0]}": Case(
                partial(F.interpolate, size=size, mode=mode, antialias=True), {"x": _random(2, 3, 17, 12)}
            )
            for mode in ("bilinear", "bicubic")
            for size in ((7, 15), (30, 5))
        },
        "resized_smoothly_by_a_factor": Case(
            partial(F.interpolate, scale_factor=0.4, mode="bilinear", antialias=True, align_corners=True),
            {"x": _random(1, 2, 13, 21)},
        ),
        "averages_of_lists": Case(_averages_of_lists, {"x": _random(4, 5), "y": _random(7)}),
        **{
            f"segments_{kind}": Case(
                partial(_segments, kind), {"x": _random(9, 4), "lengths": torch.tensor([3, 0, 5, 1])}
            )
            for kind in ("sum", "mean", "max", "min", "prod")
        },
        "medians_of_numbers": Case(
            lambda x: (*torch.nanmedian(x.masked_fill(x > 1, math.nan), 1, keepdim=True), torch.nanmedian(x.sqrt())),
            {"x": _random(6, 20)},
        ),
        "bits_of_floats": Case(
            lambda x: (
                (x.float().view(torch.int32) >> 23) & 255,
                x.half().view(torch.int16),
                x.bfloat16().view(torch.int32),
                ((x > 0).view(torch.int8) + 126).int().bitwise_left_shift(23).view(torch.float32),
            ),
            {"x": _random(6, 20)},
        ),
        "bytes_that_are_joined": Case(
            lambda x: (x.view(torch.int64), x.view(torch.int32).view(torch.int16), x.view(torch.bfloat16)[:8]),
            {"x": torch.arange(256, dtype=torch.uint8).flip(0)[8:]},
        ),
        "eight_bits_given": Case(
            lambda x: (x.view(torch.float8_e4m3fn).t().float(), x.view(torch.float8_e5m2).bfloat16()),
            {"x": torch.arange(256, dtype=torch.uint8).view(16, 16)},
        ),
        "eight_bits_returned": Case(
            lambda x: tuple(
                (x.float() * scale).to(kind).view(torch.uint8)
                for scale in (1e-4, 1e-2, 1.0, 100.0)
                for kind in (torch.float8_e4m3fn, torch.float8_e5m2)
            ),
            {"x": _random(6, 21)},
        ),
        "eight_bits_edges": Case(
            lambda x: (x.to(torch.float8_e4m3fn).float(), x.clamp(-4e4, 4e4).to(torch.float8_e5m2).float()),
            {"x": numbers},
        ),
    }
