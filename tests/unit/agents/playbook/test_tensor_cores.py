"""Products of the compiler on tensor cores compute what the reference does: compiled for sm_90a, and emulated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from agents.playbook import agents
from agents.playbook.compiler.cuda import joint, relaid
from agents.playbook.ladders import parse
from agents.playbook.translator import NotApplicable
from cupilot.domain.kernel import Kernel, resolve
from cupilot.domain.problem import NumericsPolicy, ProblemFacts, Target
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.emulation import run_cuda
from tests.unit.agents.playbook.graphs_under_test import tiled
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.operators_under_test import Case
from tests.unit.agents.playbook.references import trace

pytestmark = pytest.mark.builds

B16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
ERROR = {B16: 2.0**-7, F16: 2.0**-10, F32: 2.0**-9}
"""Largest deviation from float64, of the largest result; operands of float32 are rounded to float16."""


def _of(function: object, dtype: torch.dtype, *shapes: tuple[int, ...]) -> Case:
    assert callable(function)
    generator = torch.Generator().manual_seed(7)
    return Case(
        function, {n: torch.randn(*s, generator=generator).to(dtype) for n, s in zip("abcd", shapes, strict=False)}
    )


def _conv(dtype: torch.dtype) -> Case:
    case = tiled()["conv2d_tiled"]
    module = case.function
    assert isinstance(module, nn.Module)
    module.to(dtype)
    state = {"m_" + name.replace(".", "_"): value for name, value in module.state_dict(keep_vars=True).items()}
    return Case(module, {"x": case.inputs["x"].to(dtype)}, state)


@dataclass(frozen=True)
class Product:
    """A case, what its operands are rounded to, and how many operands are copied asynchronously."""

    case: Case
    precision: str
    copied: int


def cases() -> dict[str, Product]:
    return {
        "through_registers": Product(_of(F.linear, B16, (40, 72), (56, 72), (56,)), "bfloat16", 0),
        "both_by_depth": Product(_of(F.linear, B16, (40, 72), (56, 72), (56,)), "bfloat16", 2),
        "second_by_line": Product(_of(torch.matmul, F16, (40, 72), (72, 64)), "half", 2),
        "first_by_line": Product(_of(lambda a, b: a.T @ b, B16, (72, 40), (72, 64)), "bfloat16", 2),
        "odd_depth": Product(_of(lambda a, b: F.gelu(a @ b.T), B16, (37, 75), (70, 75)), "bfloat16", 0),
        "odd_columns": Product(_of(lambda a, b: a @ b * 2, F16, (37, 80), (80, 70)), "half", 1),
        "batches": Product(_of(lambda a, b, c: torch.baddbmm(c, a, b), B16, (2, 33, 24), (2, 24, 40), (2, 33, 40)),
                           "bfloat16", 2),
        "transposed_result": Product(_of(lambda a, b: (a @ b).T.contiguous(), F16, (40, 32), (32, 64)), "half", 2),
        "convolution": Product(_conv(B16), "bfloat16", 0),
        "float32": Product(_of(lambda a, b: F.relu(a @ b), F32, (40, 72), (72, 64)), "half", 0),
        "tf32": Product(_of(lambda a, b: F.relu(a @ b.T), F32, (40, 76), (68, 76)), "tf32", 2),
        "tf32_by_line": Product(_of(lambda a, b: F.relu(a @ b), F32, (37, 75), (75, 68)), "tf32", 1),
    }  # fmt: skip


def _kernel(product: Product) -> tuple[Kernel, ProblemFacts]:
    wide = product.precision == "tf32"
    policy = NumericsPolicy.TF32 if wide else NumericsPolicy.HALF
    facts, _ = trace(product.case.function, product.case.inputs, product.case.parameters, policy=policy)
    copies = ", async_copy(stages=3)" if product.copied else ""
    tensor = f"tensor_cores(precision={product.precision}, warp_m=64, warp_n=32)"
    text = f"shared_tiling(tile_m=128, tile_n=128, tile_k={16 if wide else 32}), {tensor}{copies}: "
    return agents().translator.translate(briefing(facts, Target.CUDA), parse(text), (), 0), facts


@pytest.mark.parametrize("name", list(cases()))
def test_products_on_tensor_cores_compute_the_reference_when_emulated(name: str, builds: Path) -> None:
    product = cases()[name]
    exact = product.case.exact()
    product = cases()[name]
    kernel, facts = _kernel(product)
    assert compile_cuda(kernel, facts) == ""
    assert kernel.source.count("copy_pack(tile") == product.copied
    results = run_cuda(kernel, facts, {**product.case.inputs, **product.case.parameters}, builds)
    for result, right in zip(results, exact, strict=True):
        dtype = next(iter(product.case.inputs.values())).dtype
        assert (result.double() - right).abs().max() <= ERROR[dtype] * right.abs().max()


_WARPGROUPS = "shared_tiling(tile_m=128, tile_n=256, tile_k=64), tensor_cores(precision=bfloat16), warpgroup_mma"


def by_warpgroups() -> dict[str, Case]:
    return {
        "both_by_depth": _of(F.linear, B16, (70, 136), (136, 136), (136,)),
        "second_by_line": _of(lambda a, b: F.relu(a @ b), F16, (72, 72), (72, 200)),
        "first_by_line": _of(lambda a, b: F.relu(a.T @ b.T), B16, (72, 136), (136, 72)),
        "both_by_line": _of(lambda a, b: F.relu(a.T @ b), B16, (200, 72), (200, 136)),
        "batches": _of(lambda a, b, c: torch.baddbmm(c, a, b), F16, (2, 130, 64), (2, 64, 136), (2, 130, 136)),
        "one_operand_is_computed": _of(lambda a, b: (a @ b) @ F.relu(b), B16, (64, 64), (64, 64)),
    }


@pytest.mark.parametrize("name", list(by_warpgroups()))
def test_products_by_warpgroups_compute_the_reference_when_emulated(name: str, builds: Path) -> None:
    case = by_warpgroups()[name]
    exact = case.exact()
    facts, _ = trace(case.function, case.inputs, policy=NumericsPolicy.HALF)
    dtype = next(iter(case.inputs.values())).dtype
    precision = "bfloat16" if dtype is B16 else "half"
    text = f"shared_tiling(tile_m=128, tile_n=256, tile_k=64), tensor_cores(precision={precision}), warpgroup_mma"
    about = briefing(facts, Target.CUDA)
    kernel = agents().translator.translate(about, parse(f"{text}, async_copy(stages=4): "), (), 0)
    assert compile_cuda(kernel, facts) == ""
    assert "wgmma.mma_async" in kernel.source
    (result,) = run_cuda(kernel, facts, case.inputs, builds)
    assert (result.double() - exact[0]).abs().max() <= 2 * ERROR[dtype] * exact[0].abs().max()


@pytest.mark.parametrize("name", ["both_by_depth", "second_by_line", "first_by_line", "both_by_line", "batches"])
def test_tiles_that_tensor_maps_describe_hold_what_is_copied(name: str, builds: Path) -> None:
    case = by_warpgroups()[name]
    exact = case.exact()
    facts, _ = trace(case.function, case.inputs, policy=NumericsPolicy.HALF)
    dtype = next(iter(case.inputs.values())).dtype
    text = f"{_WARPGROUPS.replace('bfloat16', 'bfloat16' if dtype is B16 else 'half')}, tma_loads(stages=4): "
    kernel = agents().translator.translate(briefing(facts, Target.CUDA), parse(text), (), 0)
    assert compile_cuda(kernel, facts) == ""
    assert len(kernel.plan.tensor_maps) == 2
    (result,) = run_cuda(kernel, facts, case.inputs, builds)
    assert (result.double() - exact[0]).abs().max() <= 2 * ERROR[dtype] * exact[0].abs().max()


def test_a_sum_that_is_a_factor_is_rounded_where_it_is_made(builds: Path) -> None:
    case = _of(lambda x, a, b: F.linear(F.linear(x, a), b), B16, (70, 136), (16, 136), (64, 16))
    exact = case.exact()
    facts, _ = trace(case.function, case.inputs, policy=NumericsPolicy.HALF)
    text = f"{_WARPGROUPS}, async_copy(stages=4): "
    kernel = agents().translator.translate(briefing(facts, Target.CUDA), parse(text), (), 0)
    assert compile_cuda(kernel, facts) == ""
    assert len(kernel.plan.launches) == 2
    (result,) = run_cuda(kernel, facts, case.inputs, builds)
    assert (result.double() - exact[0]).abs().max() <= 2 * ERROR[B16] * exact[0].abs().max()


def test_products_skip_tiles_that_nothing_uses(builds: Path) -> None:
    case = _of(lambda a, b: torch.tril(a @ b.T), B16, (130, 64), (136, 64))
    (exact,) = case.exact()
    facts, _ = trace(case.function, case.inputs, policy=NumericsPolicy.HALF)
    about, translator = briefing(facts, Target.CUDA), agents().translator
    with pytest.raises(NotApplicable, match="used as a whole"):
        translator.translate(about, parse(f"{_WARPGROUPS}, tma_loads(stages=4): "), (), 0)
    kernel = translator.translate(about, parse(f"{_WARPGROUPS}, async_copy(stages=4): "), (), 0)
    assert "__syncthreads_or" in kernel.source
    (result,) = run_cuda(kernel, facts, case.inputs, builds)
    assert (result.double() - exact).abs().max() <= 2 * ERROR[B16] * exact.abs().max()


def _projection(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    q, k, v = F.linear(x, weight, bias).view(2, 70, 3, 3, 16).permute(2, 0, 3, 1, 4).unbind(0)
    return q * 0.5 + k - v


@pytest.mark.parametrize(("name", "maps"), [("by_depth", 3), ("by_line", 3), ("biased", 3), ("projection", 4)])
def test_products_of_the_same_rows_are_one_launch(
    name: str, maps: int, builds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint, "FEWEST_TILES", 1)
    monkeypatch.setattr(joint, "BLOCKS", 1)
    case = {
        "by_depth": _of(lambda x, a, b: F.silu(F.linear(x, a)) * F.linear(x, b), B16, (150, 136), *((96, 136),) * 2),
        "by_line": _of(lambda x, a, b: torch.tanh(x @ a) + x @ b, B16, (136, 136), *((136, 64),) * 2),
        "biased": _of(
            lambda x, a, b, c: F.linear(x, a, c) * F.linear(x, b).relu(), B16, (130, 72), (72, 72), (72, 72), (72,)
        ),
        "projection": _of(_projection, B16, (2, 70, 72), (3 * 48, 72), (3 * 48,)),
    }[name]
    exact = case.exact()
    facts, _ = trace(case.function, case.inputs, policy=NumericsPolicy.HALF)
    kernel = agents().translator.translate(
        briefing(facts, Target.CUDA), parse(f"{_WARPGROUPS}, tma_loads(stages=4): "), (), 0
    )
    assert compile_cuda(kernel, facts) == ""
    assert [len(launch.tensor_maps) for launch in resolve(kernel, facts).launches] == [maps]
    (result,) = run_cuda(kernel, facts, case.inputs, builds)
    assert (result.double() - exact[0]).abs().max() <= 2 * ERROR[B16] * exact[0].abs().max()


def convolutions_by_warpgroups() -> dict[str, tuple[Case, int]]:
    """Return convolutions, and how many launches each has: those that lay out factors anew come first."""
    wide = _of(
        lambda x, w: F.conv2d(x, w, padding=(2, 1), groups=2, dilation=(2, 1)), F16, (1, 48, 9, 11), (64, 24, 3, 3)
    )
    return {
        "one_dimension": (
            _of(lambda x, w: F.conv1d(x, w, padding=2, stride=2, dilation=3), B16, (2, 16, 77), (24, 16, 5)), 3),
        "residual": (_of(lambda x, w, c: F.relu(F.conv2d(x, w, padding=1) + c), B16,
                         (2, 8, 10, 17), (24, 8, 3, 3), (2, 24, 10, 17)), 3),
        "groups": (wide, 3),
        "channels_in_no_packs": (
            _of(lambda x, w: F.conv2d(x, w, padding=1, stride=2), B16, (2, 5, 19, 23), (40, 5, 3, 3)), 3),
        "three_dimensions": (
            _of(lambda x, w: F.gelu(F.conv3d(x, w, padding=(1, 0, 1))), B16, (1, 8, 5, 6, 7), (32, 8, 3, 2, 3)), 3),
        "float32": (_of(lambda x, w: F.conv2d(x, w, padding=1), F32, (1, 8, 9, 11), (24, 8, 3, 3)), 3),
        "channels_last": (
            _of(lambda x, w: F.conv2d(x.permute(0, 3, 1, 2), w, padding=1), B16, (1, 9, 11, 8), (24, 8, 3, 3)), 2),
        "transposed": (
            _of(lambda x, w: F.conv_transpose2d(x, w, padding=1), B16, (16, 16, 4, 5), (16, 32, 3, 3)),
            3,
        ),
        "image_twice": (
            _of(lambda x, w, v: F.conv2d(x, w, padding=1) * F.conv2d(x, v, padding=1), F16,
                (1, 8, 9, 11), (24, 8, 3, 3), (24, 8, 3, 3)), 5),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(convolutions_by_warpgroups()))
def test_convolutions_are_laid_out_anew_for_warpgroups(name: str, builds: Path) -> None:
    case, launches = convolutions_by_warpgroups()[name]
    exact = case.exact()
    facts, _ = trace(case.function, case.inputs, policy=NumericsPolicy.HALF)
    dtype = next(iter(case.inputs.values())).dtype
    text = f"{_WARPGROUPS.replace('bfloat16', 'bfloat16' if dtype is B16 else 'half')}, async_copy(stages=4): "
    kernel = agents().translator.translate(briefing(facts, Target.CUDA), parse(text), (), 0)
    assert compile_cuda(kernel, facts) == ""
    assert "wgmma.mma_async" in kernel.source
    assert len(kernel.plan.launches) == launches
    (result,) = run_cuda(kernel, facts, case.inputs, builds)
    assert (result.double() - exact[0]).abs().max() <= 2 * ERROR[dtype] * exact[0].abs().max()


def test_factors_stay_as_they_are_where_they_would_take_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaid, "MAX_WORKSPACE_BYTES", 2**10)
    case, _ = convolutions_by_warpgroups()["residual"]
    facts, _ = trace(case.function, case.inputs, policy=NumericsPolicy.HALF)
    strategy = parse(f"{_WARPGROUPS}, async_copy(stages=4): ")
    with pytest.raises(NotApplicable, match="no operand lies in packs"):
        agents().translator.translate(briefing(facts, Target.CUDA), strategy, (), 0)


def test_convolutions_of_16_bits_begin_by_warpgroups() -> None:
    case = _of(lambda x, w: F.relu(F.conv2d(x, w, padding=1)), B16, (8, 64, 32, 32), (64, 64, 3, 3))
    facts, _ = trace(case.function, case.inputs, policy=NumericsPolicy.HALF)
    (first, *_) = agents().manager.initial_strategies(briefing(facts, Target.CUDA), [], 4, 0)
    assert first.strategy.ids() == ("shared_tiling", "tensor_cores", "warpgroup_mma", "async_copy")


def test_tiles_of_warpgroups_follow_the_size_of_the_result(builds: Path) -> None:  # noqa: ARG001
    text = "shared_tiling(tile_m=128, tile_n=256, tile_k=64), tensor_cores(precision=bfloat16), warpgroup_mma"
    for rows, columns, blocks in ((4096, 128, 2), (1024, 256, 1), (512, 128, 1), (64, 128, 1)):
        case = _of(F.linear, B16, (rows, 64), (4096, 64), (4096,))
        facts, _ = trace(case.function, case.inputs, policy=NumericsPolicy.HALF)
        about = briefing(facts, Target.CUDA)
        kernel = agents().translator.translate(about, parse(f"{text}, async_copy(stages=4): "), (), 0)
        assert f"blockIdx.x % {4096 // columns}" in kernel.source
        assert ("__launch_bounds__(256, 2)" in kernel.source) == (blocks == 2)


@pytest.mark.parametrize(
    ("techniques", "policy", "reason"),
    [
        ("tensor_cores(precision=half, warp_m=64, warp_n=32)", NumericsPolicy.HALF, "operands are bfloat16"),
        ("tensor_cores(precision=tf32, warp_m=64, warp_n=32)", NumericsPolicy.HALF, "operands have 16 bits"),
        ("tensor_cores(precision=bfloat16, warp_m=64, warp_n=32)", NumericsPolicy.TF32, "16-bit operands are not"),
        ("tensor_cores(precision=bfloat16, warp_m=32, warp_n=32)", NumericsPolicy.HALF, "computes 64 by 32"),
        ("async_copy(stages=4)", NumericsPolicy.HALF, "written for tensor cores"),
        ("tensor_cores(precision=bfloat16, warp_m=64, warp_n=32), async_copy(stages=2)", NumericsPolicy.HALF, "ahead"),
    ],
)
def test_what_cannot_be_multiplied_so_is_refused(techniques: str, policy: NumericsPolicy, reason: str) -> None:
    case = cases()["both_by_depth"].case
    facts, _ = trace(case.function, case.inputs, policy=policy)
    about = briefing(facts, Target.CUDA)
    strategy = parse(f"shared_tiling(tile_m=128, tile_n=128, tile_k=32), {techniques}: ")
    with pytest.raises(NotApplicable, match=reason):
        agents().translator.translate(about, strategy, (), 0)


@pytest.mark.parametrize(("dtype", "precision"), [(B16, "bfloat16"), (F16, "half")])
def test_products_of_16_bits_begin_on_tensor_cores(dtype: torch.dtype, precision: str) -> None:
    case = _of(lambda a, b: F.relu(a @ b), dtype, (512, 256), (256, 512))
    facts, _ = trace(case.function, case.inputs, policy=NumericsPolicy.HALF)
    (first, *_) = agents().manager.initial_strategies(briefing(facts, Target.CUDA), [], 4, 0)
    assert first.strategy.ids() == ("shared_tiling", "tensor_cores", "warpgroup_mma", "tma_loads")
    use = first.strategy.use("tensor_cores")
    assert use is not None
    assert use.parameters["precision"] == precision


def deep() -> dict[str, tuple[Case, NumericsPolicy, str]]:
    half, fp32 = NumericsPolicy.HALF, NumericsPolicy.FP32
    warps = "shared_tiling(tile_m=128, tile_n=128, tile_k=32), tensor_cores(precision=bfloat16, warp_m=64, warp_n=32)"
    groups = "shared_tiling(tile_m=128, tile_n=256, tile_k=64), tensor_cores(precision=bfloat16), warpgroup_mma"
    convolution = _of(lambda a, w: F.relu(F.conv2d(a, w, padding=1)), F32, (1, 64, 7, 9), (18, 64, 3, 3))
    linear = _of(lambda a, w, b: F.relu(F.linear(a, w, b)), B16, (70, 1024), (40, 1024), (40,))
    return {
        "scalar": (convolution, fp32, "shared_tiling(tile_m=64, tile_n=64, tile_k=16)"),
        "warps": (linear, half, f"{warps}, async_copy(stages=4)"),
        "warpgroups": (linear, half, f"{groups}, async_copy(stages=4)"),
    }


@pytest.mark.parametrize("name", list(deep()))
def test_the_depth_of_a_product_with_few_tiles_is_divided(name: str, builds: Path) -> None:
    case, policy, text = deep()[name]
    exact = case.exact()
    facts, _ = trace(case.function, case.inputs, policy=policy)
    kernel = agents().translator.translate(briefing(facts, Target.CUDA), parse(f"{text}: "), (), 0)
    assert compile_cuda(kernel, facts) == ""
    product, _ = kernel.plan.launches
    assert int(product.grid[0]) % 2 == 0
    (result,) = run_cuda(kernel, facts, case.inputs, builds)
    dtype = next(iter(case.inputs.values())).dtype
    error = 1e-6 if dtype is F32 else ERROR[dtype]
    assert (result.double() - exact[0]).abs().max() <= error * exact[0].abs().max()
