"""Graphs that are no template's, by name: what the compiler must cut into launches, with small inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.unit.agents.playbook.operators_under_test import Case


def _random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def _of(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Case:
    names = "abcdefgh"
    return Case(function, {names[n]: _random(*shape, seed=n, dtype=dtype) for n, shape in enumerate(shapes)})


def _module(module: nn.Module, *shape: int) -> Case:
    torch.manual_seed(1)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape) * 0.3
    state = {"m_" + name.replace(".", "_"): value for name, value in module.state_dict(keep_vars=True).items()}
    return Case(module, {"x": _random(*shape)}, state)


def _eval(module: nn.Module) -> nn.Module:
    return module.eval()


def maps() -> dict[str, Case]:
    """Shapes, indices, casts and pointwise calls beyond the templates'."""
    numbers = torch.tensor([[3, 0, 5], [1, 1, 4]])
    return {
        "transpose_add": _of(lambda a, b: a.T + b, (33, 21), (21, 33)),
        "transposed_result": _of(lambda a: (a * 2).T, (33, 21)),
        "permute_contiguous": _of(lambda a: a.permute(0, 2, 1, 3).contiguous(), (2, 3, 5, 7)),
        "merge_heads": _of(lambda a: a.transpose(1, 2).reshape(2, 5, 21) * 2, (2, 3, 5, 7)),
        "slices": _of(lambda a: a[:, 1:20:3] - a[:, :7], (5, 21)),
        "chunk_gate": _of(lambda a: F.silu(a.chunk(2, -1)[0]) * a.chunk(2, -1)[1], (5, 42)),
        "glu": _of(lambda a: F.glu(a, 1), (5, 42)),
        "cat": _of(lambda a, b: torch.cat([a, b * 2, a], 1), (5, 21), (5, 4)),
        "stack": _of(lambda a, b: torch.stack([a, b], -1), (5, 21), (5, 21)),
        "pad": _of(lambda a: F.pad(a, (1, 2, 0, 3), value=1.5), (5, 21)),
        "reflect": _of(lambda a: F.pad(a, (3, 2), mode="reflect"), (2, 5, 21)),
        "replicate": _of(lambda a: F.pad(a, (3, 2, 1, 1), mode="replicate"), (2, 5, 9, 11)),
        "flip": _of(lambda a: a.flip(0, 1), (5, 21)),
        "roll": _of(lambda a: torch.roll(a, (2, -3), (0, 1)), (5, 21)),
        "repeat": _of(lambda a: a.repeat(2, 3), (5, 7)),
        "repeat_interleave": _of(lambda a: a[:, :, None].expand(5, 7, 3).reshape(5, 21), (5, 7)),
        "reversed_difference": _of(lambda a, b: torch.rsub(a, b, alpha=2) + torch.rsub(a, 3, alpha=2), (5, 7), (5, 7)),
        "triangle": _of(lambda a: torch.tril(a) + torch.triu(a, 2), (9, 13)),
        "gather": Case(lambda a, i: torch.gather(a, 1, i), {"a": _random(2, 7), "i": numbers}),
        "index_select": Case(lambda a, i: a.index_select(1, i[0]), {"a": _random(5, 7), "i": numbers}),
        "advanced_index": Case(lambda a, i: a[:, i], {"a": _random(5, 7), "i": numbers}),
        "embedding": Case(lambda t, i: F.embedding(i, t) * 2, {"t": _random(9, 12), "i": numbers}),
        "masked": _of(lambda a, b: a.masked_fill(b > 0, -1.0) + torch.where(a > b, a, b), (5, 21), (21,)),
        "signs": _of(lambda a: torch.sign(a) * torch.trunc(a) + torch.remainder(a, 0.7), (5, 21)),
        "powers": _of(lambda a, b: torch.pow(a.abs() + 0.1, b) + torch.atan2(a, b), (5, 21), (5, 21)),
        "two_outputs": _of(lambda a, b: (a + b, torch.relu(a + b) * a), (5, 21), (5, 21)),
        "same_twice": _of(lambda a: (a * 2).repeat(1, 1).unbind(0), (2, 21)),
        "integers": Case(lambda i: (i * 3 - 1) // 2 + (i > 2), {"i": numbers}),
        "quantise": _of(lambda a: torch.clamp(torch.round(a / 0.05), -128, 127).to(torch.int8), (5, 21)),
        "dequantise": Case(
            lambda q, s: q.float() * s[:, None],
            {"q": torch.arange(-8, 8, dtype=torch.int8).view(2, 8), "s": _random(2)},
        ),
        "half_between": _of(lambda a, b: (a.bfloat16() * b.bfloat16()).float() * 3, (5, 21), (5, 21)),
        "half_product": _of(
            lambda a, b: ((a * 2).round().half() @ (b * 2).round().half()).mul(0.1).float().softmax(-1),
            (5, 21),
            (21, 30),
        ),
        "half_in_place": _of(lambda a, b: a.bfloat16().mul_(b).add_(1).float(), (5, 21), (5, 21)),
        "half_cast": _of(lambda a: a.half().float() + a.bfloat16().float(), (5, 21)),
        "positions": _of(lambda a: a + torch.arange(21) / 10000 ** (torch.arange(21) / 21), (5, 21)),
        "in_place_slice": _of(_filled_slice, (5, 21)),
        "in_place_view": _of(_doubled_through_view, (6, 4)),
        "pixel_shuffle": _of(lambda a: F.pixel_shuffle(a, 2), (2, 8, 3, 5)),
        "nearest": _of(lambda a: F.interpolate(a, scale_factor=2, mode="nearest"), (1, 2, 5, 7)),
        "bilinear": _of(lambda a: F.interpolate(a, size=(9, 11), mode="bilinear", align_corners=True), (1, 2, 5, 7)),
        "diagonal": _of(lambda a: torch.diagonal(a) * 2, (7, 7)),
        "outer": _of(torch.outer, (7,), (9,)),
        "unfold": _of(lambda a: a.unfold(1, 4, 2).contiguous(), (3, 21)),
        "rotary": _of(_rotary, (2, 3, 5, 8), (5, 8), (5, 8)),
        "scatter": Case(
            lambda a, i: a.scatter_add(1, i, torch.ones(2, 3, dtype=a.dtype)), {"a": _random(2, 7), "i": numbers}
        ),
        "one_hot": Case(lambda i: F.one_hot(i, 6).float(), {"i": numbers}),
    }


def _filled_slice(a: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(5, 30)
    out[:, 3:24] = a
    out[1:3] += 1
    return out


def _doubled_through_view(a: torch.Tensor) -> torch.Tensor:
    b = a * 1
    c = b.view(4, 6)[1]
    d = b.t()
    c.mul_(2)
    return d + b.t()


def _rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x[..., :4], x[..., 4:]
    return x * cos + torch.cat([-second, first], -1) * sin


def reductions() -> dict[str, Case]:
    """Reductions, norms, losses, scans and orders that no template takes."""
    labels = torch.arange(12) % 7
    return {
        "all_over_two": _of(lambda a: torch.all(a > -1, dim=(0, 2), keepdim=True), (5, 7, 3)),
        "all_over_every_one": _of(lambda a: torch.all(a, dim=(0, 1)), (5, 7)),
        "truths_over_no_axis": _of(lambda a: (torch.any(a > 0, dim=()), torch.all(a, dim=(), keepdim=True)), (5, 7)),
        "residual_norm": _of(lambda a, b: F.layer_norm(a + b, (40,)), (6, 40), (6, 40)),
        "residual_norm_both": _of(lambda a, b: (a + b, F.rms_norm(a + b, (40,))), (6, 40), (6, 40)),
        "two_axes": _of(lambda a: a.sum((0, 2)) / 3, (4, 9, 11)),
        "long_sum": _of(lambda a: a.sum(), (300, 401)),
        "long_argmax": _of(lambda a: a.argmax(), (300, 401)),
        "variance": _of(lambda a: torch.var_mean(a, (1, 2)), (4, 9, 11)),
        "product": _of(lambda a: a.prod(1), (4, 9)),
        "any_all": _of(lambda a: ((a > 2).any(1), (a > -2).all(1)), (40, 9)),
        "batch_norm": _module(nn.BatchNorm2d(3), 4, 3, 5, 7),
        "batch_norm_eval": _module(_eval(nn.BatchNorm2d(3)), 4, 3, 5, 7),
        "group_norm_silu": _module(nn.Sequential(nn.GroupNorm(2, 6), nn.SiLU()), 2, 6, 5, 7),
        "masked_softmax": _of(
            lambda a: torch.softmax(a.masked_fill(torch.ones(9, 9).triu(1) > 0, -math.inf), -1), (2, 9, 9)
        ),
        "softmax_chain": _of(lambda a: torch.softmax(F.gelu(a) * 0.5, -1) * 2, (6, 40)),
        "cross_entropy": Case(F.cross_entropy, {"x": _random(12, 7), "t": labels}),
        "smoothed": Case(lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), {"x": _random(12, 7), "t": labels}),
        "triplet": _of(nn.TripletMarginLoss(), (6, 40), (6, 40), (6, 40)),
        "cosine": _of(F.cosine_similarity, (6, 40), (6, 40)),
        "binary_loss": _of(lambda a, b: F.binary_cross_entropy_with_logits(a, torch.sigmoid(b)), (6, 40), (6, 40)),
        "cumsum_rows": _of(lambda a: torch.cumsum(a, 1), (6, 1400)),
        "cumsum_columns": _of(lambda a: torch.cumsum(a, 0) * 2, (50, 41)),
        "cumsum_exclusive": _of(lambda a: torch.cumsum(a, 1) - a, (6, 140)),
        "cumsum_reverse": _of(lambda a: a.flip(1).cumsum(1).flip(1), (6, 140)),
        "cumprod": _of(lambda a: torch.cumprod(1 + 0.1 * a, 1), (6, 140)),
        "topk": _of(lambda a: torch.topk(a, 5, -1), (6, 140)),
        "topk_softmax": _of(lambda a: torch.softmax(torch.topk(a, 5, -1)[0], -1), (6, 140)),
        "sort_middle": _of(lambda a: torch.sort(a, 1, descending=True), (3, 40, 4)),
        "logsumexp_last": _of(lambda a: torch.logsumexp(a * 2, -1), (6, 140)),
        "row_scale": _of(lambda a: (a / (a.abs().amax(1, keepdim=True) / 127)).round().to(torch.int8), (6, 140)),
        "standard": _of(lambda a: (a - a.mean(0)) / (a.std(0) + 1e-5), (50, 41)),
    }


def products() -> dict[str, Case]:
    """Products, convolutions, pooling and attention with what comes before and after."""
    mlp = nn.Sequential(nn.Linear(20, 33), nn.GELU(), nn.Linear(33, 17))
    block = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    return {
        "linear_relu": _of(lambda a, w, b: F.relu(F.linear(a, w, b)), (9, 20), (33, 20), (33,)),
        "bmm_add": _of(lambda a, b, c: torch.bmm(a, b) + c, (3, 9, 20), (3, 20, 11), (3, 9, 11)),
        "mlp": _module(mlp, 9, 20),
        "swiglu": _of(lambda a, b, c: F.silu(a @ b) * (a @ c), (9, 20), (20, 33), (20, 33)),
        "triangular": _of(lambda a, b: torch.tril(torch.tril(a) @ torch.tril(b)), (21, 21), (21, 21)),
        "diagonal_product": _of(lambda a, b: torch.diag(a) @ b, (21,), (21, 9)),
        "einsum": _of(lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b) / 4, (2, 3, 5, 8), (2, 3, 7, 8)),
        "vector_product": _of(lambda a, b: (a @ b, b @ b), (9, 20), (20,)),
        "attention": _of(F.scaled_dot_product_attention, (2, 3, 9, 8), (2, 3, 11, 8), (2, 3, 11, 8)),
        "causal": _of(lambda a, b, c: F.scaled_dot_product_attention(a, b, c, is_causal=True), *((2, 3, 9, 8),) * 3),
        "attention_by_hand": _of(
            lambda a, b, c: torch.softmax(a @ b.transpose(-1, -2) / 8**0.5, -1) @ c, *((2, 3, 9, 8),) * 3
        ),
        "grouped_heads": _of(
            lambda a, b, c: F.scaled_dot_product_attention(a, b.repeat_interleave(2, 1), c.repeat_interleave(2, 1)),
            (2, 4, 9, 8),
            (2, 2, 9, 8),
            (2, 2, 9, 8),
        ),
        "conv1d": _module(nn.Conv1d(4, 6, 3, stride=2, dilation=2), 2, 4, 31),
        "conv2d_grouped": _module(nn.Conv2d(4, 6, (3, 2), groups=2, padding=(1, 0)), 2, 4, 9, 11),
        "conv2d_depthwise": _module(nn.Conv2d(4, 4, 3, groups=4), 2, 4, 9, 11),
        "conv3d": _module(nn.Conv3d(3, 4, (3, 2, 2), padding=1), 1, 3, 5, 6, 7),
        "conv_relu": _module(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), 2, 3, 9, 11),
        "conv_block": _module(block, 2, 3, 8, 10),
        "conv_transpose1d": _module(nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1), 2, 4, 13),
        "conv_transpose2d": _module(nn.ConvTranspose2d(4, 6, 3, stride=(2, 3), dilation=2, groups=2), 1, 4, 5, 7),
        "conv_transpose3d": _module(nn.ConvTranspose3d(3, 4, 3, stride=2), 1, 3, 3, 4, 5),
        **{
            f"max_pool_{kind}": Case(
                lambda a: F.max_pool2d(a, 2, 2, 1, return_indices=True),
                {"a": (torch.arange(16).view(1, 1, 4, 4) + torch.iinfo(kind).min)[..., :3].to(kind)},
            )
            for kind in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
        },
        "unfolded_without_batch": _of(lambda a: F.unfold(a, (2, 3), padding=1), (3, 5, 6)),
        "max_pool_places": _of(lambda a: F.max_pool2d(a, 3, 2, 1, return_indices=True), (2, 3, 9, 11)),
        "avg_pool": _of(lambda a: F.avg_pool2d(a, 3, 2, 1, ceil_mode=True), (2, 3, 9, 12)),
        "avg_pool_inside": _of(lambda a: F.avg_pool2d(a, 3, 2, 1, count_include_pad=False), (2, 3, 9, 12)),
        "avg_pool_3d": _of(lambda a: F.avg_pool3d(a, 2), (1, 3, 4, 6, 8)),
        "adaptive": _of(lambda a: F.adaptive_avg_pool2d(a, (3, 4)), (2, 3, 8, 11)),
        "pooled_head": _of(lambda a, w: F.adaptive_avg_pool2d(a, 1).flatten(1) @ w, (2, 6, 8, 11), (6, 5)),
        "distances": _of(torch.cdist, (7, 5), (9, 5)),
    }


def _compared(kind: torch.dtype, other: float | torch.Tensor) -> Case:
    """Return all comparisons of numbers that a type rounds with a number, or with a tensor of no dimensions."""
    values = torch.tensor([0.1, 0.7, 1 / 3, 2049.0, 44.0, 16777216.0], dtype=torch.float64)
    values = values if kind.is_floating_point else values.clamp(max=100)
    calls = (torch.gt, torch.ge, torch.lt, torch.le, torch.eq, torch.ne)
    if isinstance(other, torch.Tensor):
        return Case(lambda a, b: [call(a, b) for call in calls], {"a": values.to(kind), "b": other})
    return Case(lambda a: [call(a, other) for call in calls], {"a": values.to(kind)})


def compared() -> dict[str, Case]:
    """Comparisons, whose operands PyTorch rounds to the type that they are promoted to."""
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    double, whole = (torch.tensor(0.1, dtype=torch.float64), torch.tensor(2049))
    return {
        **{f"compared_{kind}_{number}": _compared(kind, number) for kind in floats for number in (0.1, 0.7, 2049)},
        **{f"compared_{kind}_double": _compared(kind, double) for kind in floats},
        **{f"compared_{kind}_whole": _compared(kind, whole) for kind in floats},
        "compared_int8_300": _compared(torch.int8, 300),
        "compared_int8_whole": _compared(torch.int8, torch.tensor(300)),
        "compared_uint8_half": _compared(torch.uint8, torch.tensor(0.1, dtype=torch.float16)),
        "compared_int64_number": _compared(torch.int64, 0.7),
        "compared_truths": _of(lambda a, b: (a > 0) < (b > 0), (5, 7), (7,)),
        "compared_in_place": _of(lambda a: (a * 2).gt_(0.1), (5, 7)),
    }


def halves() -> dict[str, Case]:
    """Tensors of 16 and 64 bits."""
    b16, f16, f64 = torch.bfloat16, torch.float16, torch.float64
    return {
        "bf16_gelu": _of(F.gelu, (5, 21), dtype=b16),
        "f16_softmax": _of(lambda a: torch.softmax(a, -1), (5, 140), dtype=f16),
        "bf16_rms": _of(lambda a, w: F.rms_norm(a, (40,), w), (6, 40), (40,), dtype=b16),
        "bf16_linear": _of(lambda a, w, b: F.relu(F.linear(a, w, b)), (9, 40), (33, 40), (33,), dtype=b16),
        "f16_conv": _of(lambda a, w: F.conv2d(a, w, padding=1), (1, 3, 9, 11), (4, 3, 3, 3), dtype=f16),
        "bf16_attention": _of(F.scaled_dot_product_attention, *((2, 3, 9, 8),) * 3, dtype=b16),
        "f64_norm": _of(lambda a: F.layer_norm(a, (40,)), (6, 40), dtype=f64),
        "bf16_float_sum": _of(lambda a: a.float().sum(-1), (6, 140), dtype=b16),
    }


def tiled() -> dict[str, Case]:
    """Products large enough for tiles, none of whose sizes is a multiple of a tile's."""
    return {
        "conv2d_tiled": _module(nn.Sequential(nn.Conv2d(5, 35, 3, padding=1), nn.ReLU()), 2, 5, 9, 11),
        "conv1d_tiled": _module(nn.Conv1d(6, 18, 5, stride=2), 3, 6, 41),
        "conv_transpose2d_tiled": _module(nn.ConvTranspose2d(5, 18, 3, stride=2), 1, 5, 7, 9),
        "attention_tiled": _of(F.scaled_dot_product_attention, (2, 33, 20), (2, 35, 20), (2, 35, 18)),
        "linear_relu": _of(lambda a, w, b: F.relu(F.linear(a, w, b)), (37, 300), (70, 300), (70,)),
    }


def graphs() -> dict[str, Case]:
    """All of them."""
    return {**maps(), **reductions(), **products(), **compared(), **halves()}
