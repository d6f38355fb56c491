"""Attention of the compiler in one launch computes what the reference does: compiled for sm_90a, and emulated."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from agents.playbook import agents
from agents.playbook.ladders import parse
from agents.playbook.translator import NotApplicable
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import NumericsPolicy, ProblemFacts, Target
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.emulation import run_cuda
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.operators_under_test import Case
from tests.unit.agents.playbook.references import trace

pytestmark = pytest.mark.builds

B16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
PRECISION = {B16: "bfloat16", F16: "half"}
ERROR = {B16: 2.0**-7, F16: 2.0**-10, F32: 2.0**-19}
"""Largest deviation from float64, of the largest result."""

sdpa = F.scaled_dot_product_attention


def _of(function: Callable[..., torch.Tensor], dtype: torch.dtype, *shapes: tuple[int, ...]) -> Case:
    generator = torch.Generator().manual_seed(7)
    tensors = {n: torch.randn(*s, generator=generator).to(dtype) for n, s in zip("abcd", shapes, strict=False)}
    return Case(function, tensors)


def _by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v


def _capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(2 * torch.tanh(q @ k.transpose(-1, -2) / 2), -1) @ v


def _biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias, -1) @ v


def _masked_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Of the mask, the second row has no key."""
    keep = (mask > 0) & (torch.arange(mask.shape[0]) != 1)[:, None]
    return sdpa(q, k, v, attn_mask=keep)


def _heads_last(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out = sdpa(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)
    return out.reshape(*out.shape[:2], -1)


def _window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    row, column = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    scores = q @ k.transpose(-1, -2)
    return torch.softmax(scores.masked_fill((column > row + 3) | (column < row - 9), float("-inf")), -1) @ v


def cases() -> dict[str, Case]:
    return {
        "plain": _of(sdpa, B16, *((1, 2, 70, 32),) * 3),
        "causal": _of(lambda a, b, c: sdpa(a, b, c, is_causal=True), F16, *((1, 2, 150, 64),) * 3),
        "more_keys": _of(_by_hand, B16, (1, 2, 70, 96), (1, 2, 200, 96), (1, 2, 200, 96)),
        "wide": _of(lambda a, b, c: sdpa(a, b, c, is_causal=True), B16, *((1, 1, 140, 128),) * 3),
        "grouped": _of(
            lambda a, b, c: sdpa(a, b.repeat_interleave(2, 1), c.repeat_interleave(2, 1)),
            F16,
            (1, 4, 40, 32),
            (1, 2, 40, 32),
            (1, 2, 40, 32),
        ),
        "one_head_of_keys": _of(
            lambda a, b, c: sdpa(a, b, c, enable_gqa=True, is_causal=True), B16, (2, 3, 20, 32), *((2, 1, 20, 32),) * 2
        ),
        "bias": _of(_biased, B16, *((2, 2, 33, 32),) * 3, (2, 33, 33)),
        "masked_rows": _of(_masked_rows, F16, *((2, 2, 33, 32),) * 3, (33, 33)),
        "soft_cap": _of(_capped, F16, *((1, 2, 40, 32),) * 3),
        "decode": _of(_by_hand, B16, (2, 2, 1, 64), (2, 2, 300, 64), (2, 2, 300, 64)),
        "many_blocks": _of(_by_hand, F16, (1, 130, 100, 16), (1, 130, 40, 16), (1, 130, 40, 16)),
        "odd_width": _of(_by_hand, F16, (1, 2, 40, 20), (1, 2, 90, 20), (1, 2, 90, 40)),
        "heads_last": _of(_heads_last, B16, *((2, 40, 2, 32),) * 3),
        "scalar_causal": _of(lambda a, b, c: sdpa(a, b, c, is_causal=True), F32, *((1, 2, 150, 64),) * 3),
        "scalar_bias": _of(_biased, F32, *((2, 2, 33, 32),) * 3, (2, 33, 33)),
        "scalar_masked_rows": _of(_masked_rows, F32, *((2, 2, 33, 16),) * 3, (33, 33)),
        "scalar_decode": _of(_by_hand, F32, (2, 2, 1, 128), (2, 2, 100, 128), (2, 2, 100, 128)),
        "scalar_many_blocks": _of(_by_hand, F32, (1, 130, 100, 128), (1, 130, 30, 128), (1, 130, 30, 20)),
        "window": _of(_window, F16, *((1, 2, 60, 32),) * 3),
    }


def _kernel(case: Case) -> tuple[Kernel, ProblemFacts]:
    dtype = next(iter(case.inputs.values())).dtype
    if dtype is F32:
        policy, units = NumericsPolicy.FP32, "shared_tiling(tile_m=128, tile_n=64, tile_k=16)"
    else:
        policy, units = NumericsPolicy.HALF, "shared_tiling(tile_m=128, tile_n=128, tile_k=32), "
        units += f"tensor_cores(precision={PRECISION[dtype]}, warp_m=64, warp_n=32)"
    facts, _ = trace(case.function, case.inputs, policy=policy)
    text = f"{units}, async_copy(stages=4), online_softmax: "
    return agents().translator.translate(briefing(facts, Target.CUDA), parse(text), (), 0), facts


@pytest.mark.parametrize("name", list(cases()))
def test_attention_in_one_launch_computes_the_reference_when_emulated(name: str, builds: Path) -> None:
    exact = cases()[name].exact()[0]
    case = cases()[name]
    kernel, facts = _kernel(case)
    log = compile_cuda(kernel, facts, "--ptxas-options=-v")
    assert set(re.findall(r"(\d+) bytes spill", log)) == {"0"}
    assert kernel.source.count("__global__") == (2 if name == "heads_last" else 1)
    (result,) = run_cuda(kernel, facts, case.inputs, builds)
    dtype = next(iter(case.inputs.values())).dtype
    assert (result.double() - exact).abs().max() <= ERROR[dtype] * exact.abs().max()


def test_tiles_of_keys_that_are_wholly_masked_are_skipped() -> None:
    source = _kernel(cases()["causal"])[0].source
    assert "const int end = m0 + 64;" in source
    assert "+ own >= m0 + row + 16) continue;" in source
    assert "const long long o = blockIdx.x % 2;" in source, "the longest blocks of all heads come first"
    assert "const int end = m0 + 67;" in _kernel(cases()["window"])[0].source
    assert "const int steps = 4;" in _kernel(cases()["more_keys"])[0].source


@pytest.mark.parametrize(
    ("dtype", "heads", "length"), [(B16, 264, 1), (F16, 264, 1), (F32, 264, 1), (B16, 4, 256), (F16, 4, 256)]
)
def test_attention_begins_in_one_launch(dtype: torch.dtype, heads: int, length: int) -> None:
    case = _of(_by_hand, dtype, (1, heads, length, 64), *((1, heads, 256, 64),) * 2)
    facts, _ = trace(case.function, case.inputs, policy=NumericsPolicy.FP32 if dtype is F32 else NumericsPolicy.HALF)
    about = briefing(facts, Target.CUDA)
    (first, *_) = agents().manager.initial_strategies(about, [], 4, 0)
    assert "online_softmax" in first.strategy.ids()
    assert len(agents().translator.translate(about, first.strategy, (), 0).plan.launches) == 1


def _with_weights(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights = torch.softmax(q @ k.transpose(-1, -2), -1)
    return weights @ v, weights


def _scaled_twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Of other scores than those whose maximum is subtracted."""
    scores = q @ k.transpose(-1, -2)
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (powers / (2 * powers).sum(-1, keepdim=True)) @ v


@pytest.mark.parametrize(
    ("function", "width", "techniques", "reason"),
    [
        (_with_weights, 64, "shared_tiling, online_softmax", "no launches are attention"),
        (_scaled_twice, 64, "shared_tiling, online_softmax", "no launches are attention"),
        (_by_hand, 256, "shared_tiling, online_softmax", "heads of 16 to 128"),
        (_by_hand, 64, "online_softmax", "written for tiles"),
        (
            _by_hand,
            64,
            "shared_tiling, tensor_cores(precision=tf32), online_softmax",
            "not written for operands of tf32",
        ),
    ],
)
def test_what_is_no_attention_in_one_launch_is_refused(
    function: Callable[..., torch.Tensor], width: int, techniques: str, reason: str
) -> None:
    case = _of(function, F32, *((2, 32, width),) * 3)
    facts, _ = trace(case.function, case.inputs, policy=NumericsPolicy.TF32)
    with pytest.raises(NotApplicable, match=reason):
        agents().translator.translate(briefing(facts, Target.CUDA), parse(f"{techniques}: "), (), 0)
