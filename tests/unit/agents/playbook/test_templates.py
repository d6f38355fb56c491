"""Generated kernels compute what the reference does: compiled with g++ and run; CUDA ones compiled for sm_90a."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from agents.interface import Briefing
from agents.playbook import agents
from agents.playbook.ladders import parse
from agents.playbook.rules import SERIALISED
from agents.playbook.translator import NotApplicable
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.roofline import Zone
from cupilot.domain.strategy import Strategy
from cupilot.domain.tensor_map import Swizzle
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.operators_under_test import Case, everything, pointwise, products, rows
from tests.unit.agents.playbook.references import run_cpu, trace

pytestmark = pytest.mark.builds

PLAYBOOK = agents()
SAMPLE = 4
"""Strategies for each operator and target; every one is compiled."""


def strategies(about: Briefing, case: str) -> list[Strategy]:
    """The plain kernel, the best rung of the ladder, and a draw that differs from case to case."""
    seed = sum(case.encode())
    found = [item.strategy for item in PLAYBOOK.manager.initial_strategies(about, [], 24, seed)]
    plain = Strategy(techniques=())
    step = max(1, (len(found) - 1) // (SAMPLE - 2))
    return [plain, found[0], *found[1 + seed % step :: step][: SAMPLE - 2]]


def translated(about: Briefing, strategy: Strategy) -> Kernel:
    return PLAYBOOK.translator.translate(about, strategy, (), 0)


def check_cpu(case: Case, chosen: Sequence[Strategy], builds: Path) -> None:
    """Run kernels and compare them with float64, allowing some multiple of PyTorch's own error."""
    facts, own = trace(case.function, case.inputs, case.parameters)
    exacts = case.exact()
    for strategy in chosen:
        kernel = translated(briefing(facts, Target.CPU), strategy)
        results = run_cpu(kernel, facts, {**case.inputs, **case.parameters}, builds)
        for result, mine, exact in zip(results, own, exacts, strict=True):
            if result.dtype == torch.int64:
                assert torch.equal(result.view(mine.shape), mine), strategy
                continue
            spread = exact.std().item() if exact.numel() > 1 else exact.abs().item()
            error = (result.view(exact.shape) - exact).abs().max().item() / spread
            torch_error = (mine - exact).abs().max().item() / spread
            assert error <= 4 * torch_error + 5e-7, (strategy, error, torch_error)


@pytest.mark.parametrize("name", list(everything()))
def test_cpu_kernels_compute_the_reference(name: str, builds: Path) -> None:
    case = everything()[name]
    facts, _ = trace(case.function, case.inputs, case.parameters)
    check_cpu(case, strategies(briefing(facts, Target.CPU), name), builds)


@pytest.mark.parametrize("name", [*list(pointwise())[::3], *list(rows())[::2], *list(products())[::3]])
def test_cuda_kernels_compile(name: str) -> None:
    case = everything()[name]
    facts, _ = trace(case.function, case.inputs, case.parameters)
    about = briefing(facts, Target.CUDA, Zone.COMPUTE if name in products() else Zone.MEMORY)
    for strategy in strategies(about, name):
        assert compile_cuda(translated(about, strategy), facts) == "", strategy


CUDA_RUNGS = [
    ("softmax", "vector_loads, register_rows, warp_shuffle_reduction, fast_exp, hoisted_division: "),
    ("softmax", "vector_loads(width=2), warp_per_row, rows_per_warp(rows=2), online_softmax: "),
    ("softmax", "vector_loads, shared_rows, streaming_access(scope=both): "),
    ("softmax", "vector_loads, cluster_rows(blocks=4), register_rows, warp_shuffle_reduction: "),
    ("softmax", "vector_loads, split_rows(parts=16), online_softmax, loop_unrolling: "),
    ("softmax", "grid_stride, warp_shuffle_reduction, launch_bounds(min_blocks=4), read_only_cache: "),
    ("norm", "vector_loads, rows_per_block(rows=2), register_rows: "),
    ("norm", "vector_loads, split_rows(parts=4), one_pass_moments(method=sum_of_squares): "),
    ("norm", "one_pass_moments(method=welford), warp_shuffle_reduction: "),
    ("columns", "vector_loads, column_slices(slices=8), register_rows: "),
    ("columns", "column_slices(slices=16), online_softmax, grid_stride: "),
]


@pytest.mark.parametrize(("kind", "text"), CUDA_RUNGS)
def test_cuda_row_techniques_compile_where_they_apply(kind: str, text: str) -> None:
    wide = "cluster" in text or "split" in text
    shape = (1024, 40960) if wide else (1024, 1024)
    x = torch.zeros(8, 64, 128) if kind == "columns" else torch.zeros(shape)
    function = {
        "softmax": lambda x: torch.softmax(x, 1),
        "norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]),
        "columns": lambda x: torch.softmax(x, 1),
    }[kind]
    facts, _ = trace(function, {"x": x})
    kernel = translated(briefing(facts, Target.CUDA), parse(text))
    assert compile_cuda(kernel, facts) == ""


PRODUCT_RUNGS = [
    (
        NumericsPolicy.FP32,
        "shared_tiling(tile_m=64, tile_n=64, tile_k=16), register_blocking(rows=4, cols=4), async_copy: ",
    ),
    (
        NumericsPolicy.TF32,
        "shared_tiling(tile_k=32), tensor_cores, async_copy(stages=3), bank_padding, block_swizzle: ",
    ),
    (
        NumericsPolicy.TF32,
        "shared_tiling(tile_m=256, tile_k=32), tensor_cores, warpgroup_mma, tma_loads, cluster_multicast: ",
    ),
    (
        NumericsPolicy.HALF,
        "shared_tiling(tile_k=32), tensor_cores(precision=bfloat16), double_buffering, split_k(parts=2): ",
    ),
]


@pytest.mark.parametrize(("policy", "text"), PRODUCT_RUNGS)
def test_tiled_products_compile_under_their_policy(policy: NumericsPolicy, text: str) -> None:
    facts, _ = trace(torch.matmul, {"a": torch.zeros(512, 384), "b": torch.zeros(384, 512)}, policy=policy)
    about = briefing(facts, Target.CUDA, Zone.COMPUTE)
    kernel = translated(about, parse(text))
    assert compile_cuda(kernel, facts) == ""


WARPGROUPS = "tensor_cores(precision=tf32), warpgroup_mma, tma_loads(stages=4)"
WARPGROUP_RUNGS: list[tuple[Callable[..., torch.Tensor], dict[str, tuple[int, ...]], str]] = [
    (lambda a, b: a @ b.T, {"a": (500, 384), "b": (252, 384)}, "shared_tiling(tile_m=256, tile_n=64, tile_k=32)"),
    (lambda a, b: a.T @ b.T, {"a": (384, 500), "b": (252, 384)}, "shared_tiling(tile_m=128, tile_n=256, tile_k=32)"),
    (torch.bmm, {"a": (3, 512, 64), "b": (3, 64, 128)}, "cluster_multicast, shared_tiling(tile_n=64, tile_k=32)"),
    (
        torch.addmm,
        {"c": (128,), "a": (512, 64), "b": (64, 128)},
        "cluster_multicast(blocks=4), shared_tiling(tile_k=32)",
    ),
    (torch.matmul, {"a": (256, 8192), "b": (8192, 256)}, "shared_tiling(tile_k=32), split_k(parts=32)"),
]


@pytest.mark.parametrize(("function", "shapes", "text"), WARPGROUP_RUNGS)
def test_products_by_warpgroups_compile(
    function: Callable[..., torch.Tensor], shapes: dict[str, tuple[int, ...]], text: str
) -> None:
    facts, _ = trace(function, {name: torch.zeros(shape) for name, shape in shapes.items()}, policy=NumericsPolicy.TF32)
    kernel = translated(briefing(facts, Target.CUDA, Zone.COMPUTE), parse(f"{text}, {WARPGROUPS}: "))
    assert compile_cuda(kernel, facts) == ""
    assert SERIALISED not in compile_cuda(kernel, facts, "--ptxas-options=-v")
    assert [tensor_map.swizzle for tensor_map in kernel.plan.tensor_maps] == [Swizzle.B128] * 2
    many = "cluster_multicast" in text
    assert bool(kernel.plan.launches[0].cluster) is many
    assert ("multicast::cluster" in kernel.source) is many


def test_no_second_block_takes_the_registers_that_warpgroups_are_handed() -> None:
    facts, _ = trace(torch.matmul, {"a": torch.zeros(512, 64), "b": torch.zeros(64, 512)}, policy=NumericsPolicy.TF32)
    about = briefing(facts, Target.CUDA, Zone.COMPUTE)
    tiles = f"shared_tiling(tile_m=256, tile_k=32), {WARPGROUPS}"
    assert "setmaxnreg.inc" in translated(about, parse(f"{tiles}, launch_bounds(min_blocks=1): ")).source
    with pytest.raises(NotApplicable, match="do not fit the registers"):
        translated(about, parse(f"{tiles}, launch_bounds(min_blocks=2): "))
    small = f"shared_tiling(tile_m=128, tile_n=64, tile_k=32), {WARPGROUPS}, launch_bounds(min_blocks=2): "
    kernel = translated(about, parse(small))
    assert "setmaxnreg" not in kernel.source
    assert SERIALISED not in compile_cuda(kernel, facts, "--ptxas-options=-v")


@pytest.mark.parametrize(
    ("shapes", "function", "reason"),
    [
        ({"a": (512, 381), "b": (381, 512)}, torch.matmul, "16-byte"),
        ({"a": (384, 512), "b": (384, 512)}, lambda a, b: a.T @ b, "depth of one operand"),
    ],
)
def test_products_by_warpgroups_say_why_they_do_not_apply(
    shapes: dict[str, tuple[int, ...]], function: Callable[..., torch.Tensor], reason: str
) -> None:
    facts, _ = trace(function, {name: torch.zeros(shape) for name, shape in shapes.items()}, policy=NumericsPolicy.TF32)
    with pytest.raises(NotApplicable, match=reason):
        translated(briefing(facts, Target.CUDA, Zone.COMPUTE), parse(f"shared_tiling(tile_k=32), {WARPGROUPS}: "))


@pytest.mark.parametrize(
    "text",
    ["vector_loads, register_rows", "warp_per_row, rows_per_warp", "vector_loads, split_rows(parts=4)", "shared_rows"],
)
def test_channel_weights_compile_with_every_way_of_sharing_rows(text: str) -> None:
    module = torch.nn.GroupNorm(4, 8)
    parameters = dict(module.named_parameters())
    size = 64 if "split" in text else 16
    facts, _ = trace(module, {"x": torch.zeros(16, 8, size, 16)}, parameters)
    kernel = translated(briefing(facts, Target.CUDA), parse(f"{text}: "))
    assert compile_cuda(kernel, facts) == ""


CPU_STRATEGIES = [
    ("softmax", "threads, simd, polynomial_exp(degree=5), multiple_accumulators, fused_passes, hoisted_division: "),
    ("softmax", "threads, simd(width=8), polynomial_exp, online_softmax, nontemporal_stores, prefetch: "),
    ("softmax_odd", "threads, simd, split_rows(parts=4), loop_unrolling: "),
    ("layer_norm", "threads, simd(width=4), one_pass_moments(method=welford), loop_unrolling(factor=2): "),
    ("group_norm_aligned", "threads, simd, multiple_accumulators, one_pass_moments: "),
    ("layer_norm", "simd, one_pass_moments(method=sum_of_squares), multiple_accumulators(count=8): "),
    ("standardised", "threads, simd, one_pass_moments, column_tiles(columns=64): "),
    ("sum_all", "threads(schedule=dynamic), simd, multiple_accumulators(count=8), split_rows(parts=64): "),
    ("gelu", "threads, simd(width=8), polynomial_exp, loop_unrolling(factor=4), nontemporal_stores, prefetch: "),
    ("mm", "threads, simd, cache_blocking(block_m=48, block_k=128), micro_kernel(rows=12), packing(operands=both): "),
    ("linear", "simd(width=8), cache_blocking, micro_kernel(rows=4, vectors=3), packing(operands=b), loop_unrolling: "),
    ("deep", "threads, simd, split_k(parts=32): "),
]


@pytest.mark.parametrize(("name", "text"), CPU_STRATEGIES)
def test_cpu_techniques_compute_the_reference(name: str, text: str, builds: Path) -> None:
    if name == "standardised":
        case = Case(everything()[name].function, {"x": torch.randn(3, 300, 90)})
    else:
        case = everything()[name]
    check_cpu(case, [parse(text)], builds)


@pytest.mark.parametrize(
    "text",
    ["", "simd, threads", "simd, polynomial_exp, fused_passes, multiple_accumulators", "simd, online_softmax"],
)
def test_softmax_treats_infinities_and_nan_as_pytorch_does(text: str, builds: Path) -> None:
    x = torch.randn(6, 100)
    x[0, 3] = float("nan")
    x[1, 7] = float("inf")
    x[2, 50:] = float("-inf")
    x[3, :] = float("-inf")
    x[4] *= 1e4
    x[5, 99] = 3e38
    facts, (expected,) = trace(lambda x: torch.softmax(x, 1), {"x": x})
    kernel = translated(briefing(facts, Target.CPU), parse(f"{text}: "))
    (result,) = run_cpu(kernel, facts, {"x": x}, builds)
    torch.testing.assert_close(result, expected, equal_nan=True, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["relu", "hardtanh", "gelu", "gelu_tanh", "softplus", "elu", "sigmoid", "logsigmoid"])
def test_activations_treat_infinities_and_nan_as_pytorch_does(name: str, builds: Path) -> None:
    x = torch.tensor([0.0, -0.0, 1e-30, -1e-40, 5.0, -5.0, 88.0, -88.0, 120.0, -120.0, 1e38, -1e38]).repeat(3)
    x = torch.cat([x, torch.tensor([float("nan"), float("inf"), float("-inf"), 0.5])])
    if name == "gelu":
        x = torch.clamp(x, -1e38, 1e38)  # PyTorch's float32 answers NaN for infinity here, its float64 does not
    facts, (expected,) = trace(pointwise()[name].function, {"x": x})
    vectorised = "simd" if name in ("relu", "hardtanh") else "simd, polynomial_exp"
    for text in ("", vectorised):
        kernel = translated(briefing(facts, Target.CPU), parse(f"{text}: "))
        (result,) = run_cpu(kernel, facts, {"x": x}, builds)
        torch.testing.assert_close(result, expected, equal_nan=True, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["max_both", "min_last", "argmin_last"])
def test_nan_wins_in_extremes_and_equals_keep_their_first_place(name: str, builds: Path) -> None:
    case = rows()[name]
    x = torch.randint(0, 4, case.inputs["x"].shape).float()
    x.view(-1)[123] = float("nan")
    changed = Case(case.function, {"x": x})
    facts, own = trace(case.function, {"x": x})
    for strategy in strategies(briefing(facts, Target.CPU), name):
        kernel = translated(briefing(facts, Target.CPU), strategy)
        results = run_cpu(kernel, facts, changed.inputs, builds)
        for result, mine in zip(results, own, strict=True):
            torch.testing.assert_close(result.view(mine.shape), mine, equal_nan=True, rtol=0, atol=0)


def test_techniques_change_the_code() -> None:
    facts, _ = trace(lambda x: torch.softmax(x, 1), {"x": torch.zeros(64, 1024)})
    about = briefing(facts, Target.CUDA)
    plain = translated(about, Strategy(techniques=())).source
    for text, mark in [
        ("vector_loads", "alignas(4 * 4)"),
        ("warp_shuffle_reduction", "__shfl_xor_sync"),
        ("register_rows", "x_x[K_ITEMS]"),
        ("shared_rows", "extern __shared__"),
        ("online_softmax", "struct Online"),
        ("streaming_access", "__stcs"),
        ("read_only_cache", "__ldg"),
        ("fast_exp", "__expf"),
        ("grid_stride", "gridDim.x"),
        ("warp_per_row", "threadIdx.x & 31"),
        ("hoisted_division", "1.0f / m1"),
    ]:
        source = translated(about, parse(f"{text}: ")).source
        assert mark in source, text
        assert mark not in plain, text
        assert f"// Techniques: {text}" in source


@pytest.mark.parametrize(
    ("target", "shape", "text", "reason"),
    [
        (Target.CUDA, (64, 1021), "vector_loads: ", "not a multiple of 4"),
        (Target.CUDA, (64, 1024), "tensor_cores, shared_tiling: ", "no template"),
        (Target.CUDA, (64, 100000), "shared_rows: ", "bytes of shared memory"),
        (Target.CUDA, (64, 100000), "register_rows: ", "registers a thread"),
        (Target.CUDA, (64, 1024), "column_slices: ", "rows are contiguous"),
        (Target.CUDA, (64, 1024), "cluster_rows, register_rows: ", "fewer than 8192"),
        (Target.CUDA, (64, 1024), "team_rows: ", "fit a block's registers"),
        (Target.CUDA, (4, 4_000_000), "team_rows: ", "hold no team of 163"),
        (Target.CUDA, (8, 100000), "team_rows: ", "8 rows do not keep"),
        (Target.CUDA, (200, 100000), "team_rows, vector_loads(width=2): ", "packs of 16 bytes"),
        (Target.CUDA, (200, 100000), "team_rows, streaming_access: ", "bulk copies"),
        (Target.CUDA, (64, 1024), "split_rows(parts=64): ", "fewer than 256"),
        (Target.CUDA, (64, 1024), "rows_per_warp, warp_per_row, grid_stride: ", "conflicts"),
        (Target.CUDA, (64, 1024), "one_pass_moments: ", "mean and variance"),
        (Target.CPU, (64, 1024), "vector_loads: ", "no template"),
        (Target.CPU, (64, 1024), "polynomial_exp: ", "requires simd"),
        (Target.CPU, (64, 1024), "simd(width=5): ", "is not one of"),
        (Target.CPU, (64, 1021), "simd, nontemporal_stores: ", "not a multiple"),
    ],
)
def test_what_does_not_apply_is_refused_with_the_reason(
    target: Target, shape: tuple[int, int], text: str, reason: str
) -> None:
    facts, _ = trace(lambda x: torch.softmax(x, 1), {"x": torch.zeros(shape)})
    with pytest.raises(NotApplicable, match=reason) as caught:
        translated(briefing(facts, target), parse(text))
    assert caught.value.code == "technique_not_applicable"
