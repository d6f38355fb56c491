"""Graphs that write, choose and sample by index, and the rarer scans and reductions, by name."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from tests.unit.agents.playbook.operators_under_test import Case

PLACES = torch.tensor([[0, 3, 1], [4, 2, 2]])
ROWS = torch.tensor([3, -1, 3])
NOT_NUMBERS = torch.tensor([[1.0, -0.0, 0.0, float("nan"), -float("inf"), float("inf"), 2.0]])

DIVISORS = torch.tensor([0.1, -0.1, 0.0, float("inf"), -0.3]).repeat(8)


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator)


def _of(function: Callable[..., Any], *shapes: tuple[int, ...], **more: torch.Tensor) -> Case:
    inputs = {
        name: _random(*shape, seed=place) for place, (name, shape) in enumerate(zip("abcd", shapes, strict=False))
    }
    return Case(function, {**inputs, **more})


def _set(*where: Any) -> Callable[..., torch.Tensor]:
    """Return a function that writes its second argument at these places of a copy of its first."""

    def function(a: torch.Tensor, value: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        result = a.clone()
        result[tuple(more[0] if item is ROWS else item for item in where)] = value
        return result

    return function


def _zeroed(a: torch.Tensor) -> torch.Tensor:
    result = a * 2
    result[result < 0] = 0
    return result


def _smallest_of_those_left(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    largest = torch.iinfo(torch.int64).max
    masked = torch.where(a < 2, largest, a.masked_fill(a > 3, largest))
    return torch.minimum(masked, torch.full_like(a, largest)).amin(1), masked.sub(1)


def _truths(a: torch.Tensor) -> torch.Tensor:
    result = torch.full(a.shape, True)
    result[:, 1] = False
    return result & torch.full_like(a, True, dtype=torch.bool).fill_(True)


def _index_reduced(a: torch.Tensor, b: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is in beta
        return a.index_reduce(1, places, b, "amin")


def _scatter_reduced(name: str, own: bool) -> Case:
    return _of(lambda a, b, i: a.scatter_reduce(1, i, b, name, include_self=own), (3, 7), (2, 4), i=PLACES)


def writes() -> dict[str, Case]:
    """Scatter, put, index_put and what writes into views."""
    everything = slice(None)
    mask = torch.tensor([True, False, True, True, False])
    return {
        "index_put_rows": _of(_set(ROWS), (7, 5), (3, 5), i=ROWS),
        "index_put_one_value": _of(_set(ROWS), (7, 5), (1,), i=ROWS),
        "index_put_middle": _of(_set(everything, ROWS), (5, 7, 3), (5, 3, 3), i=ROWS),
        "index_put_pairs": _of(_set(ROWS, PLACES), (7, 5), (2, 3), i=ROWS),
        "index_put_apart": _of(_set(ROWS, everything, ROWS), (7, 4, 6), (3, 4), i=ROWS),
        "index_put_added": _of(lambda a, b, i: a.index_put((i,), b, accumulate=True), (7, 5), (3, 5), i=ROWS),
        "index_put_mask": _of(_zeroed, (5, 7)),
        "index_put_mask_of_rows": _of(lambda a, b, m: _set(m)(a, b), (5, 7), (7,), m=mask),
        "index_fill": _of(lambda a, i: a.index_fill(1, i, -1.5), (5, 7), i=ROWS),
        "index_fill_tensor": _of(lambda a, i, v: a.index_fill(0, i, v), (5, 7), i=ROWS, v=torch.tensor(2.5)),
        "index_reduce": _of(_index_reduced, (5, 7), (5, 3), i=ROWS.abs()),
        **{
            f"scatter_{name}{'' if own else '_alone'}": _scatter_reduced(name, own)
            for name in ("sum", "prod", "mean", "amax", "amin")
            for own in (True, False)
        },
        "scatter_integers": Case(
            lambda a, i: a.scatter_reduce(1, i, i, "amax", include_self=False), {"a": -PLACES - 7, "i": PLACES % 3}
        ),
        "scatter_in_place": _of(lambda a, b, i: (a * 2).scatter_reduce_(1, i, b, "prod"), (3, 7), (2, 4), i=PLACES),
        "scatter_add_in_place": _of(lambda a, b, i: (a * 2).scatter_add_(1, i, b), (3, 7), (2, 4), i=PLACES),
        "scatter_value": _of(lambda a, i: a.scatter(1, i, 2.5), (3, 7), i=PLACES),
        "scatter_source": _of(lambda a, b, i: a.scatter(0, i, b), (7, 3), (2, 4), i=PLACES),
        "scatter_multiplied": _of(lambda a, i: a.scatter(1, i, 2.5, reduce="multiply"), (3, 7), i=PLACES),
        "put": _of(lambda a, b, i: a.put(i, b), (5, 7), (2, 3), i=PLACES * 5 - 3),
        "put_added": _of(lambda a, b, i: a.put(i, b, accumulate=True), (5, 7), (2, 3), i=PLACES),
        "masked_scatter": _of(lambda a, b: a.masked_scatter(a[:, :1] > -0.3, b), (5, 7), (6, 7)),
        "diagonal_scatter": _of(lambda a, b: torch.diagonal_scatter(a, b, 1), (5, 7), (5,)),
        "select_scatter": _of(lambda a, b: torch.select_scatter(a, b, 0, -2), (5, 7), (7,)),
        "slice_scatter": _of(lambda a, b: torch.slice_scatter(a, b, 1, 1, 6, 2), (5, 7), (5, 3)),
    }


def sent() -> dict[str, Case]:
    """Calls with more writes than an element looks through, which go to their places themselves."""
    generator = torch.Generator().manual_seed(5)
    places = torch.randint(-40, 40, (12, 10), generator=generator)
    rows = torch.randint(0, 9, (200,), generator=generator)
    across = torch.randint(0, 9, (3, 150), generator=generator)
    wide = torch.randn(150, generator=generator).mul(12).exp()
    special = torch.cat([NOT_NUMBERS.reshape(-1), wide])[:150].expand(3, 150)

    def paired(a: torch.Tensor, b: torch.Tensor, i: torch.Tensor, j: torch.Tensor, *, add: bool) -> torch.Tensor:
        return a.index_put((i, j), b, accumulate=add)

    def indexed(*, wrap: bool) -> dict[str, torch.Tensor]:
        return {"i": places.remainder(7), "j": places if wrap else places.remainder(40)}

    cases = {
        "put_pairs": _of(partial(paired, add=False), (7, 40), (12, 10), **indexed(wrap=True)),
        "put_pairs_of_rows": _of(partial(paired, add=False), (7, 40, 6), (10, 6), **indexed(wrap=False)),
        "add_pairs": _of(partial(paired, add=True), (7, 40), (12, 10), **indexed(wrap=True)),
        "add_pairs_of_rows": _of(partial(paired, add=True), (7, 40, 6), (12, 10, 6), **indexed(wrap=False)),
        "add_apart": _of(
            lambda a, b, i: torch.ops.aten.index_put(a, [i, None, i], b, True) * 2, (9, 4, 9), (200, 4), i=rows
        ),
        "add_integers": Case(
            lambda a, i: a.new_zeros(9).index_put((i,), a, accumulate=True), {"a": rows * 3 - 7, "i": rows}
        ),
        "put_truths": Case(
            lambda a, i: torch.zeros(9, dtype=torch.bool).index_put((i,), a > 0), {"a": rows - 4, "i": rows}
        ),
        "rows_added": _of(lambda a, b, i: a.index_add(0, i, b, alpha=2), (90, 5), (200, 5), i=rows),
        "rows_added_in_bfloat16": _of(
            lambda a, b, i: a.to(torch.bfloat16).index_add(0, i, b.to(torch.bfloat16)), (90, 5), (200, 5), i=rows
        ),
        "columns_copied": _of(lambda a, b, i: a.index_copy(1, i, b), (5, 90), (5, 200), i=rows),
        "columns_filled": _of(lambda a, i: a.index_fill(1, i, -1.5), (5, 90), i=rows),
        "scattered": _of(lambda a, b, i: a.scatter(1, i, b), (5, 9), (3, 150), i=across),
        "scattered_down": _of(lambda a, b, i: a.scatter_add(0, i, b), (9, 4), (150, 3), i=across.T),
        "put_flat": _of(lambda a, b, i: a.put(i, b, accumulate=True), (8, 10), (12, 10), i=places),
        "wide_range_added": Case(
            lambda b, i: b.new_zeros(3, 9).scatter_add(1, i, b), {"b": wide * across, "i": across}
        ),
        "histogram_of_many": _of(lambda a: torch.histc(a, 50, -2, 2), (300,)),
        "unpooled_image": _of(lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), (2, 3, 16, 12)),
    }
    for name in ("sum", "mean", "amax", "amin"):
        for own in (True, False):
            function = partial(torch.scatter_reduce, dim=1, reduce=name, include_self=own)
            cases[f"sent_{name}{'' if own else '_alone'}"] = Case(
                lambda a, i, b, function=function: function(a, index=i, src=b),
                {"a": _random(3, 12), "i": across, "b": special if name[0] == "a" else _random(3, 150)},
            )
    return cases


def moves() -> dict[str, Case]:
    """Calls that only move elements."""
    return {
        "diag": _of(lambda a: torch.diag(a, -1) * 2, (5, 7)),
        "pixel_unshuffle": _of(lambda a: F.pixel_unshuffle(a, 2), (2, 3, 4, 6)),
        "channel_shuffle": _of(lambda a: F.channel_shuffle(a, 3), (2, 6, 4, 5)),
        "repeat_interleave": _of(lambda a: a.repeat_interleave(3, 1), (5, 7)),
        "roll_twice": _of(lambda a: a.roll((1, 3), (0, 0)), (5, 7)),
        "index_apart": _of(lambda a, i: a[i, :, 1:, i.abs()], (7, 2, 3, 6), i=ROWS),
        "index_apart_in_the_middle": _of(lambda a, i, j: a[:, i, :, j], (3, 7, 2, 6), i=ROWS, j=PLACES[:, :, None]),
        "places_of_lowest_windows": _of(
            lambda a: F.max_pool2d(a[0] - math.inf, 3, 2, 1, return_indices=True)[1], (1, 2, 6, 6)
        ),
        "places_of_lowest_windows_apart": _of(
            lambda a: F.max_pool2d(a[0] - math.inf, 3, 2, 1, dilation=2, return_indices=True)[1], (1, 2, 9, 8)
        ),
        "roll_all": _of(lambda a: a.roll(9), (5, 7)),
        "take": _of(torch.take, (5, 7), i=PLACES * 5 - 3),
        **{f"rot90_{turns}": _of(lambda a, k=turns: torch.rot90(a, k, (0, 2)), (3, 4, 5)) for turns in (-1, 0, 1, 2)},
        "diagonal_filled": _of(lambda a: (a * 2).fill_diagonal_(-1.5).sum(-1), (5, 7)),
        "diagonal_filled_of_a_product": _of(lambda a: torch.softmax((a @ a.mT).fill_diagonal_(-math.inf), -1), (5, 7)),
        "diagonal_filled_of_a_cube": _of(lambda a: a.clone().fill_diagonal_(3), (4, 4, 4)),
        "as_strided": _of(lambda a: a.as_strided((3, 5), (7, 1), 2) * 2, (5, 7)),
        "as_strided_windows": _of(lambda a: a.as_strided((2, 9, 4), (17, 2, 1)).amax(-1), (2, 21)),
    }


def chosen() -> dict[str, Case]:
    """Signs, counts, extremes, scans, searches and small products."""
    edges = torch.tensor([-1.0, -0.2, 0.0, 0.0, 1.5])
    unordered = torch.tensor([2.0, -1.0, 0.5, 0.0, -2.0, 1.0])
    return {
        "copysign": _of(torch.copysign, (5, 7), (7,)),
        "copysign_number": Case(lambda a: torch.copysign(a, -0.0), {"a": NOT_NUMBERS}),
        "signbit": Case(torch.signbit, {"a": NOT_NUMBERS}),
        "signbit_whole": Case(torch.signbit, {"a": PLACES - 2}),
        "shifts": Case(lambda a: ((a << 3) + (a >> 1), a << 70, (a - 9) >> 70), {"a": PLACES * 7}),
        "four_bits": Case(
            lambda q: torch.stack(((q & 15).float(), (q >> 4).float()), -1).flatten(1) - 8,
            {"q": torch.arange(0, 256, 9, dtype=torch.uint8).view(1, -1)},
        ),
        "rounded_down": Case(
            lambda a, b: (torch.div(a, b, rounding_mode="floor"), a // b),
            {"a": torch.arange(-20, 20) * 0.1, "b": DIVISORS},
        ),
        "rounded_down_whole": Case(
            lambda a: (torch.div(a - 9, 4, rounding_mode="floor"), torch.div(a - 9, -4, rounding_mode="trunc")),
            {"a": torch.arange(18)},
        ),
        "largest_whole_number": Case(_smallest_of_those_left, {"a": PLACES}),
        "whole_numbers_without_floats": Case(
            lambda a: (a * 6364136223846793005 ^ 0x7FFFFFFFFFFFFFF1) & 0xFFFFFF, {"a": PLACES}
        ),
        "filled_with_truths": Case(_truths, {"a": PLACES}),
        **{
            f"numbers_for_infinities_{kind}": Case(
                lambda a, kind=kind: torch.nan_to_num(a.to(getattr(torch, kind))), {"a": NOT_NUMBERS}
            )
            for kind in ("float64", "float16", "bfloat16", "int64")
        },
        "infinities_of_whole_numbers": Case(lambda a: (torch.isposinf(a), torch.isneginf(a)), {"a": PLACES}),
        "logsumexp_of_whole_numbers": Case(lambda a: torch.logsumexp(a, 1), {"a": PLACES}),
        "mean_in_float64": _of(lambda a: a.mean(1, dtype=torch.float64), (2, 21)),
        "whole_powers": Case(lambda a: torch.pow(a - 2, a.flip(0) - 3), {"a": PLACES.abs()}),
        "signs_of_nan": Case(torch.sign, {"a": NOT_NUMBERS}),
        "large_hypotenuse": _of(lambda a, b: torch.hypot(a * 1e25, b * 1e25), (5,), (5,)),
        "present_whole_numbers": Case(torch.nansum, {"a": torch.full((3,), 2**30, dtype=torch.int32)}),
        "rounded_to_decimals": _of(lambda a: torch.stack([a.round(decimals=2), (a * 99).round(decimals=-1)]), (5, 7)),
        "powers_at_equal_distances": _of(lambda a: torch.logspace(-1, 2, 7, base=2.0, dtype=a.dtype) * a, (5, 7)),
        "distance_of_tensors": _of(lambda a, b: torch.dist(a, b, 3.0), (5, 7), (7,)),
        "numbers_searched": Case(
            lambda e: (torch.bucketize(-0.2, e), torch.searchsorted(e, -0.2, right=True)), {"e": edges}
        ),
        "sum_without_axes": Case(lambda a: a.sum(0), {"a": torch.tensor(2.5)}),
        "empty_slices": _of(lambda a: (a.sum(1) + a[:, :0].sum(1), (a[:, :0] > 0).all(1), a[:0].prod(0)), (5, 7)),
        "cross": _of(lambda a, b: torch.linalg.cross(a, b, dim=1), (5, 3, 4), (5, 3, 1)),
        "median_of_all": _of(torch.median, (5, 8)),
        "median_of_all_nan": Case(torch.median, {"a": NOT_NUMBERS}),
        "trace": _of(torch.trace, (5, 7)),
        "count_nonzero": Case(lambda a: torch.count_nonzero(a, 1), {"a": NOT_NUMBERS}),
        "count_nonzero_all": _of(lambda a: torch.count_nonzero(a > 0), (5, 7)),
        "aminmax": _of(lambda a: torch.aminmax(a, dim=1, keepdim=True), (5, 7)),
        "aminmax_all": _of(torch.aminmax, (5, 7)),
        "addr": _of(lambda a, b, c: torch.addr(a, b, c, beta=0.5, alpha=2), (7,), (5,), (7,)),
        "addr_in_place": _of(lambda a, b, c: (a * 2).addr_(b, c, beta=0.5), (5, 7), (5,), (7,)),
        "addbmm_in_place": _of(lambda a, b, c: (a * 2).addbmm_(b, c), (5, 6), (3, 5, 9), (3, 9, 6)),
        "addbmm": _of(lambda a, b, c: torch.addbmm(a, b, c, beta=0.5, alpha=2), (5, 6), (3, 5, 9), (3, 9, 6)),
        "addbmm_alone": Case(
            lambda a, b, c: torch.addbmm(a, b, c, beta=0),
            {"a": torch.full((5, 6), float("nan")), "b": _random(3, 5, 9), "c": _random(3, 9, 6)},
        ),
        "logcumsumexp": _of(lambda a: torch.logcumsumexp(a * 9, 1), (6, 1400)),
        "logcumsumexp_columns": _of(lambda a: torch.logcumsumexp(a.clamp(max=0).log(), 0), (50, 7)),
        "logcumsumexp_infinite": Case(
            lambda a: torch.logcumsumexp(a, 0), {"a": torch.tensor([-1.0, 2.0, 3.0, -2.0]).log().abs() * float("-inf")}
        ),
        "searchsorted": _of(lambda a, b: torch.searchsorted(a.sort(-1)[0], b), (5, 9), (5, 4)),
        "searchsorted_right": Case(
            lambda e, a: torch.searchsorted(e, a, side="right", out_int32=True), {"e": edges, "a": edges.view(5, 1) + 0}
        ),
        "searchsorted_unordered": _of(lambda a, e: torch.searchsorted(e, a), (5, 7), e=unordered),
        "searchsorted_nan": Case(torch.searchsorted, {"e": edges, "a": NOT_NUMBERS}),
    }


def sampled() -> dict[str, Case]:
    """Sampling and resizing."""
    cases = {
        f"grid_{mode}_{padding}{'_aligned' if aligned else ''}": _of(
            lambda a, b, m=mode, p=padding, c=aligned: F.grid_sample(a, b * 1.2, m, p, align_corners=c),
            (2, 3, 4, 6),
            (2, 3, 5, 2),
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for aligned in (False, True)
    }
    return {
        **cases,
        "grid_volume": _of(lambda a, b: F.grid_sample(a, b, align_corners=False), (1, 2, 3, 4, 5), (1, 2, 3, 3, 3)),
        "affine_grid": _of(lambda a: F.affine_grid(a, (2, 3, 4, 5), align_corners=False), (2, 2, 3)),
        "affine_grid_volume": _of(lambda a: F.affine_grid(a, (1, 1, 3, 4, 2), align_corners=True), (1, 3, 4)),
        "spatial_transformer": _of(
            lambda a, t: F.grid_sample(a, F.affine_grid(t, (2, 3, 5, 4), align_corners=True), align_corners=True),
            (2, 3, 4, 6),
            (2, 2, 3),
        ),
        "linear_by_scale": _of(lambda a: F.interpolate(a, scale_factor=1.3, mode="linear"), (1, 2, 21)),
        "bilinear_by_scale": _of(lambda a: F.interpolate(a, scale_factor=(1.3, 2), mode="bilinear"), (1, 2, 21, 5)),
        "nearest_by_scale": _of(lambda a: F.interpolate(a, scale_factor=1.3), (1, 2, 21)),
        "nearest_exact": _of(lambda a: F.interpolate(a, size=(9, 27), mode="nearest-exact"), (1, 2, 5, 21)),
        "nearest_exact_by_scale": _of(lambda a: F.interpolate(a, scale_factor=1.3, mode="nearest-exact"), (1, 2, 21)),
        "bicubic": _of(lambda a: F.interpolate(a, size=(9, 4), mode="bicubic", align_corners=True), (1, 2, 5, 7)),
        "bicubic_by_scale": _of(lambda a: F.interpolate(a, scale_factor=1.7, mode="bicubic"), (1, 2, 5, 7)),
        "nearest_by_size": _of(lambda a: F.interpolate(a, size=(27, 14)), (1, 2, 21, 5)),
    }


def written() -> dict[str, Case]:
    """Return the graphs."""
    return {**writes(), **sent(), **moves(), **chosen(), **sampled()}
