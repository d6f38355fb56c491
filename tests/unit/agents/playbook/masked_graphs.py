"""Graphs in which values of tensors select rows, by name: functions of ``x``, weights ``w``, labels and a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Function = Callable[..., Any]


def masked_inputs(seed: int) -> dict[str, torch.Tensor]:
    """Return arguments of every graph; how many rows a mask selects differs by the seed."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 5, (4, 6), generator=generator)
    labels[torch.rand(4, 6, generator=generator) > 0.7 - 0.1 * seed] = -100
    return {
        "x": torch.randn(4, 6, 5, generator=generator),
        "w": torch.randn(5, 5, generator=generator),
        "labels": labels,
        "mask": torch.rand(4, 6, generator=generator) > 0.3 + 0.1 * seed,
    }


def _token_loss(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    active = labels.view(-1) != -100
    scores = F.linear(x.view(-1, x.size(-1))[active], w)
    return F.cross_entropy(scores, labels.view(-1)[labels.view(-1) != -100])


def _experts(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """The loop over experts of published models, by places."""
    tokens, chosen = x.reshape(-1, 5), labels.reshape(-1).clamp(min=0)
    result = torch.zeros_like(tokens)
    for expert in range(3):
        choice, token = torch.where(F.one_hot(chosen % 3, 3).t()[expert : expert + 1])
        part = F.silu(tokens[None, token].reshape(-1, 5) @ w) * tokens[token, choice, None]
        result.index_add_(0, token, part.to(x.dtype))
    return result


def _experts_by_masks(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    result = torch.zeros_like(x)
    for expert in range(3):
        theirs = labels % 3 == expert
        result[theirs] = torch.tanh(x[theirs] @ w) * x[theirs].sum(-1).unsqueeze(-1)
    return result


def _errors(x: torch.Tensor, _: torch.Tensor, __: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Metrics of depths: logarithms only of what is valid."""
    first, second = torch.masked_select(x, (x > 0) & mask.unsqueeze(-1)), x[(x > 0) & mask.unsqueeze(-1)]
    away = first.log() - second.sqrt()
    return (away.square().mean() - 0.85 * away.mean() ** 2).sqrt(), (away.abs() < 0.5).float().mean(), away.max()


def _distances(x: torch.Tensor, _: torch.Tensor, __: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    least = torch.full((4, 6), 1e10, dtype=x.dtype)
    for axis in range(3):
        new = x[..., axis].abs()
        nearer = (new < least) & mask
        least[nearer] = new[nearer]
    return least


def _statistics(x: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = x[rest[2]]
    largest, places = rows.max(0)
    return rows.mean(0), rows.std(), rows.var(0, correction=0), largest, places, rows.norm(), rows[:, 1].argmin()


def _kept_axis(x: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = x[rest[2]]
    shares = rows.softmax(0) + rows.cumsum(0)
    return shares.square().sum(0), rows.t() @ rows, F.layer_norm(rows, (5,)).view(-1).topk(3).values


def _written(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    tokens, places = x.reshape(-1, 5), torch.nonzero(mask.reshape(-1)).squeeze(1)
    put, added, scattered = torch.zeros_like(tokens), torch.ones_like(tokens), x.new_zeros(5)
    put[places] = tokens[places] * 2
    put[places - 24, 0] = 3.0
    added.index_put_((places,), tokens[places], accumulate=True)
    scattered.scatter_add_(0, labels.reshape(-1)[places].clamp(min=0), w.reshape(-1)[:24][places])
    return put, added, scattered


def _changed(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    """Rows that are changed in place, and a tensor that is changed after rows were taken from it."""
    changing = x * 1
    rows = changing[rest[2]]
    changing += 1
    rows *= 2
    rows.add_(1).clamp_(min=0)
    return rows.sum() + changing.sum(0)


def _twice(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    rows = x[rest[2]]
    few = rows[rows[:, 0] > 0]
    return few.sum(0) + torch.cat([few, x[:, 0]]).mean(0) + torch.cat([rows, rows], 1).amax(1).sum()


def _hard_examples(x: torch.Tensor, _: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    loss = F.smooth_l1_loss(x[mask], labels.float()[mask][:, None].expand(-1, 5), reduction="none").mean(1)
    hardest, places = loss.sort(descending=True)
    return hardest.cumsum(0).sum() + F.mse_loss(x[..., 0][mask], x[..., 1][mask]) + (places >= 0).sum()


def _read_at_places(x: torch.Tensor, w: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows where another tensor of one number says, as a greedy suppression of boxes reads them."""
    best = x[:, 0, 0].argmax()
    row = x[best]
    column = row[:, 2].argmin()
    return row * w[column % 5], x[best, column], x[None, ..., best - 3, 1:3], x[-1 - best, 2][None]


def _written_at_places(x: torch.Tensor, w: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    best = x[:, 0, 0].argmax()
    result = x.clone()
    result[best] = w[0]
    result[:, best] = 2.0
    result[1, best + 1, 1:3] = w[best, :2]
    result[best] += x[0]
    result[..., best] = x[:, :, 0]
    return result


MASKED: dict[str, Function] = {
    "token_loss": _token_loss,
    "experts": _experts,
    "experts_by_masks": _experts_by_masks,
    "errors": _errors,
    "distances": _distances,
    "statistics": _statistics,
    "kept_axis": _kept_axis,
    "written": _written,
    "changed": _changed,
    "twice": _twice,
    "hard_examples": _hard_examples,
    "read_at_places": _read_at_places,
    "written_at_places": _written_at_places,
}
