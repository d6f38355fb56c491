"""Windows on CUDA: pools and depthwise convolutions in strips, of which a thread reads once what its results share."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from agents.playbook.compiler.cuda import strips
from agents.playbook.compiler.cuda.windows import window_of
from agents.playbook.compiler.program import program_of
from tests.unit.agents.playbook.emulation import run_cuda
from tests.unit.agents.playbook.graphs_under_test import _module, _of
from tests.unit.agents.playbook.nvrtc import compile_cuda, opcodes
from tests.unit.agents.playbook.operators_under_test import Case
from tests.unit.agents.playbook.references import trace
from tests.unit.agents.playbook.test_compiler import compare_all
from tests.unit.agents.playbook.test_cuda_maps import BF16, F16, F64, I64, kernel_of, of, random

pytestmark = pytest.mark.builds


def special(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values with NaN, infinities, and windows of minus infinity alone."""
    values = random(*shape, dtype=dtype)
    flat = values.view(-1)
    flat[3::97], flat[5::71], flat[11::53] = torch.nan, torch.inf, -torch.inf
    values[..., -9:] = -torch.inf
    return values


def depthwise(rank: int, shape: tuple[int, ...], size: int | tuple[int, ...] = 3, **options: object) -> Case:
    """Return a depthwise convolution."""
    kind, channels = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1], shape[1]
    return _module(kind(channels, channels, size, groups=channels, **options), *shape)  # type: ignore[arg-type]


def fused(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return F.silu(F.conv2d(F.relu(x), w, padding=1, groups=3) + c)


def causal(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(F.conv1d(F.pad(x, (3, 0)), w, b, groups=4))


def images(x: torch.Tensor) -> torch.Tensor:
    """Pool images whose channels lie side by side."""
    return F.max_pool2d(x.permute(0, 3, 1, 2), 3, 1).permute(0, 2, 3, 1).contiguous()


WINDOWS = {
    "max_1d": (of(lambda a: F.max_pool1d(a, 8, 1, 4, 3), special(3, 5, 500)), 4, "1][4", True),
    "max_1d_odd": (of(lambda a: F.max_pool1d(a, 5, 2, 1), special(3, 5, 61)), 1, "1][1", False),
    "max_2d": (of(lambda a: F.max_pool2d(a, 4, 1, 1), special(2, 3, 21, 128)), 4, "4][4", True),
    "max_2d_strided": (of(lambda a: F.max_pool2d(a, 3, 2, 1), special(2, 3, 21, 64)), 4, "2][2", False),
    "max_2d_ceil": (of(lambda a: F.max_pool2d(a, (3, 5), 2, (1, 2), 1, True), special(2, 3, 16, 20)), 2, "2][1", False),
    "max_2d_dilated": (
        of(lambda a: F.max_pool2d(a, (2, 3), (3, 1), (1, 0), (2, 4)), special(2, 3, 19, 132)),
        *(4, "7][4", False),
    ),
    "max_2d_bfloat16": (of(lambda a: F.max_pool2d(a, 3, 1, 1), special(2, 3, 9, 64, dtype=BF16)), 8, "2][8", False),
    "min_of_integers": (of(lambda a: -F.max_pool2d(-a, 3, 1), (random(2, 3, 9, 10) * 9).to(I64)), 2, "7][2", False),
    "max_3d": (of(lambda a: F.max_pool3d(a, 3, 2, 1, 3), special(1, 2, 17, 18, 64)), 4, "7][2", False),
    "mean_1d": (of(lambda a: F.avg_pool1d(a, 8, 1, 4), random(3, 5, 512)), 4, "1][4", True),
    "mean_of_some": (
        of(lambda a: F.avg_pool2d(F.relu(a), 3, 1, 1, count_include_pad=False), random(2, 3, 9, 32)),
        *(4, "2][4", False),
    ),
    "mean_2d_ceil": (of(lambda a: F.avg_pool2d(a, 3, 2, 1, ceil_mode=True), random(2, 3, 8, 10)), 2, "5][1", False),
    "mean_2d_float64": (of(lambda a: F.avg_pool2d(a, 3, 1), random(2, 3, 9, 66, dtype=F64)), 2, "7][2", False),
    "mean_3d": (of(lambda a: F.avg_pool3d(a, 3, 2, 1), random(1, 2, 8, 7, 32)), 4, "4][2", False),
    "channels_side_by_side": (of(images, special(2, 9, 7, 8)), 1, "7][1", False),
    "square": (depthwise(2, (2, 3, 21, 128)), 4, "4][4", True),
    "rectangular": (depthwise(2, (2, 3, 9, 24), (3, 7), padding=(0, 3), bias=False), 4, "7][4", False),
    "column": (depthwise(2, (2, 3, 9, 20), (3, 1)), 4, "7][4", False),
    "strided": (depthwise(2, (2, 3, 9, 64), stride=2, padding=1), 4, "5][2", False),
    "dilated": (depthwise(2, (2, 3, 9, 23), padding=2, dilation=2), 1, "2][1", False),
    "volume": (depthwise(3, (1, 2, 5, 6, 16), padding=1), 4, "5][4", False),
    "few_rows": (depthwise(2, (2, 3, 5, 16), padding=(0, 1)), 4, "3][4", False),
    "fused": (_of(fused, (2, 3, 9, 32), (3, 1, 3, 3), (2, 3, 9, 32)), 4, "2][4", False),
    "apart": (of(lambda a: F.max_pool2d(a, 2), special(2, 3, 9, 32)), 4, "4][2", False),
    "apart_bfloat16": (of(lambda a: F.avg_pool2d(a, 3), random(2, 3, 12, 48, dtype=BF16)), 8, "4][8", False),
    "causal": (_of(causal, (2, 4, 64), (4, 1, 4), (4,), dtype=BF16), 8, "1][8", False),
    "causal_odd": (_of(causal, (2, 4, 61), (4, 1, 4), (4,), dtype=F16), 1, "1][1", False),
}
"""Cases, the elements of a pack, the results of a thread, and whether these go through shared memory."""


@pytest.mark.parametrize("name", list(WINDOWS))
def test_windows_are_reduced_as_the_reference_does(name: str, builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, width, results, staged = WINDOWS[name]
    monkeypatch.setattr(strips, "ENOUGH_THREADS", 1)
    kernel, facts = kernel_of(case)
    body = kernel.source.split('extern "C"')[1]
    assert {int(item) for item in re.findall(r"fetch(?:_if)?<(\d+)>", body)} == {width}
    assert f"totals[{results}]" in kernel.source
    assert ("kept[" in kernel.source) is staged
    assert compile_cuda(kernel, facts) == ""
    compare_all(run_cuda(kernel, facts, {**case.inputs, **case.parameters}, builds), case)


def test_threads_of_small_windows_have_one_row() -> None:
    kernel, _ = kernel_of(of(lambda a: F.max_pool2d(a, 3, 1, 1), special(2, 3, 9, 68)))
    assert "totals[1][4]" in kernel.source


@pytest.mark.parametrize(
    "case",
    [
        of(lambda a: F.avg_pool2d(a, 5), random(2, 3, 15, 15)),
        of(lambda a: F.adaptive_avg_pool2d(a, (5, 7)), random(2, 3, 12, 12)),
        of(lambda a: F.max_pool2d(a, 3, 1, return_indices=True)[1], random(2, 3, 9, 9)),
        of(lambda a: F.avg_pool1d(F.pad(a, (2, 2), mode="reflect"), 3, 1), random(2, 3, 9)),
        _module(nn.Conv2d(4, 4, 3, groups=2), 2, 4, 9, 9),
        of(lambda a: a.sum(1), random(9, 40)),
        of(lambda a: a.view(6, 32).sum(0), random(192)),
    ],
)
def test_what_is_no_window_keeps_its_kernel(case: Case) -> None:
    facts, _ = trace(case.function, case.inputs, case.parameters)
    assert all(window_of(group) is None for group in program_of(facts).groups)


def test_windows_are_found_with_their_strides_and_dilations() -> None:
    case = of(lambda a: F.max_pool2d(a, (2, 3), (3, 2), (1, 1), (2, 4)), random(2, 3, 19, 33))
    facts, _ = trace(case.function, case.inputs, {})
    (window,) = [window for group in program_of(facts).groups if (window := window_of(group))]
    axes = (*window.others, window.columns)
    assert [(axis.taps, axis.stride, axis.dilation) for axis in axes] == [(2, 3, 2), (3, 2, 4)]
    assert window.weight is None


def test_loads_of_padded_rows_do_not_wait_for_each_other() -> None:
    """A load in a branch cannot be made before what stands in front of it."""
    kernel, facts = kernel_of(of(lambda a: F.max_pool2d(a, 3, 1, 1), random(64, 64, 64, 64)))
    made = opcodes(kernel, facts)
    loads = [place for place, name in enumerate(made) if name.startswith("LDG")]
    assert len(loads) >= 12
    assert not any(name.startswith("BSSY") for name in made[loads[0] : loads[-1]])
