"""Tensors of 16 bits in the templates for maps and rows: recognised, rendered, compiled, and right when run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from agents.interface import NoTemplate
from agents.playbook import agents
from agents.playbook.cost import predicted
from agents.playbook.cost.rates import rates_of
from agents.playbook.ladders import ladder, parse
from agents.playbook.operators import Launches, Pointwise, Rows
from agents.playbook.recognition import recognise
from agents.playbook.search import Space
from agents.playbook.translator import NotApplicable, operator_of
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import DType, ProblemFacts, Target
from cupilot.domain.strategy import Strategy
from tests.unit.agents.playbook import operators_under_test
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.emulation import run_cuda
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.references import trace

PLAYBOOK = agents()
B16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
ROUNDING = {B16: 2.0**-8, F16: 2.0**-11, F32: 2.0**-24}
"""Largest relative error of one rounding."""

Function = Callable[..., torch.Tensor]
Inputs = dict[str, torch.Tensor]


def random(*shape: int, dtype: torch.dtype = B16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=generator) * 2).to(dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As models have it: statistics in float32, and a cast before the weight."""
    wide = x.float() if x.dtype != torch.float64 else x
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


CASES: dict[str, tuple[Function, Inputs]] = {
    "gelu": (F.gelu, {"x": random(33, 1037)}),
    "gelu_float16": (F.gelu, {"x": random(32, 1024, dtype=F16)}),
    "bias": (lambda x, b: torch.relu(x + b), {"x": random(32, 64), "b": random(64)}),
    "wide_result": (lambda x, y: x * 0.5 + y, {"x": random(31, 65), "y": random(31, 65, dtype=F32)}),
    "both_halves": (
        lambda x, y, s: x * y.to(x.dtype) * s,
        {"x": random(31, 64), "y": random(31, 64, dtype=F16), "s": random(1)},
    ),
    "softmax": (lambda x: torch.softmax(x, 1), {"x": random(8, 1024)}),
    "softmax_odd": (lambda x: torch.softmax(x, 1), {"x": random(8, 1021, dtype=F16)}),
    "softmax_wide_result": (lambda x: torch.softmax(x, 1, dtype=F32), {"x": random(8, 512)}),
    "rms_norm": (rms_norm, {"x": random(8, 512), "w": random(512)}),
    "narrow_weight": (
        lambda x, w: torch.softmax(x, 1) * w.to(x.dtype),
        {"x": random(8, 512, dtype=F32), "w": random(512)},
    ),
    "narrow_result": (
        lambda x, w, y: (torch.softmax(x, 1) * w + y).to(y.dtype),
        {"x": random(8, 512, dtype=F32), "w": random(512, dtype=F32), "y": random(8, 512, dtype=F16)},
    ),
    "group_norm": (lambda x, w: F.group_norm(x, 4, w), {"x": random(2, 8, 64), "w": random(8)}),
    "row_scales": (lambda x, s: torch.softmax(x * s, 1), {"x": random(8, 512), "s": random(8, 1)}),
    "columns": (lambda x, w: torch.softmax(x * w[:, None], 1), {"x": random(4, 64, 72), "w": random(64)}),
    "mean": (lambda x: x.mean(1), {"x": random(16, 1000)}),
    "matrix_and_vector": (torch.mv, {"a": random(16, 1024), "b": random(1024)}),
}

ARGMAX: tuple[Function, Inputs] = (lambda x: torch.argmax(x, 1), {"x": random(16, 1000)})


def facts_of(case: tuple[Function, Inputs]) -> ProblemFacts:
    return trace(*case)[0]


def kernel_of(facts: ProblemFacts, strategy: Strategy) -> Kernel:
    return PLAYBOOK.translator.translate(briefing(facts, Target.CUDA), strategy, (), 0)


def in_small_blocks(kernel: Kernel) -> Kernel:
    size = kernel.plan.tunables.get("K_BLOCK")
    return kernel if size is None else kernel.tuned({"K_BLOCK": min(size.choices)})


def rungs(facts: ProblemFacts, seed: int) -> list[Strategy]:
    """The plain kernel, the best rung that emulation knows, and one more."""
    about = briefing(facts, Target.CUDA)
    space = Space(about, operator_of(about))
    fitted = [space.fitted(rung)[0] for rung in ladder(space.operator, Target.CUDA)]
    fitted = [rung for rung in fitted if rung.techniques and not rung.use("cluster_rows")]
    return [Strategy(techniques=()), fitted[0], fitted[1 + seed % (len(fitted) - 1)]]


@pytest.mark.parametrize("dtype", [B16, F16])
@pytest.mark.parametrize("name", [*operators_under_test.pointwise(), *operators_under_test.rows()])
def test_what_is_recognised_in_float32_is_recognised_in_half_precision(name: str, dtype: torch.dtype) -> None:
    case = operators_under_test.everything()[name]
    wide = recognise(trace(case.function, case.inputs, case.parameters)[0])
    if isinstance(case.function, torch.nn.Module):
        case.function.to(dtype)
    inputs = {key: value.to(dtype) for key, value in case.inputs.items()}
    parameters = {key: value.to(dtype) for key, value in case.parameters.items()}
    facts, _ = trace(case.function, inputs, parameters)
    found = recognise(facts)
    assert type(found) is type(wide)
    assert isinstance(found, Pointwise | Rows)
    floats = [spec.name for spec in facts.tensors if spec.dtype is not DType.INT64]
    assert set(found.halves) == set(floats)
    assert isinstance(operator_of(briefing(facts, Target.CPU)), Launches), "templates for the CPU are float32"


@pytest.mark.builds
@pytest.mark.parametrize("name", [*CASES])
def test_kernels_round_once(name: str, builds: Path) -> None:
    function, inputs = CASES[name]
    facts, own = trace(function, inputs)
    exact = function(*(value.double() for value in inputs.values())).double()
    unit = ROUNDING[own[0].dtype]
    allowed = unit * 1.001 * exact.abs() + 2e-6 * exact.abs().max()
    for strategy in rungs(facts, sum(name.encode())):
        (result,) = run_cuda(in_small_blocks(kernel_of(facts, strategy)), facts, inputs, builds)
        assert result.dtype is own[0].dtype
        assert bool(((result.view(exact.shape).double() - exact).abs() <= allowed).all()), strategy


@pytest.mark.builds
def test_infinities_nans_and_the_smallest_numbers_are_rounded_as_pytorch_does(builds: Path) -> None:
    inf, nan = float("inf"), float("nan")
    values = torch.tensor([inf, -inf, nan, 0.0, -0.0, 3.4e38, 65504.0, 65520.0, 1e-8, 6e-8, 1e-40, 1.0039, 1.0117] * 5)
    for dtype in (B16, F16):
        inputs = {"x": values, "y": torch.zeros_like(values, dtype=dtype)}
        facts, own = trace(lambda x, y: (x * 1.0 + y).to(y.dtype), inputs)
        for text in ("vector_loads(width=4): ", "vector_loads(width=2): "):
            (result,) = run_cuda(kernel_of(facts, parse(text)), facts, inputs, builds)
            assert torch.equal(result.isnan(), own[0].isnan())
            assert torch.equal(result[~result.isnan()], own[0][~own[0].isnan()])


@pytest.mark.builds
def test_an_index_is_that_of_the_first_extreme(builds: Path) -> None:
    facts, own = trace(*ARGMAX)
    for strategy in rungs(facts, 0):
        (result,) = run_cuda(in_small_blocks(kernel_of(facts, strategy)), facts, ARGMAX[1], builds)
        assert torch.equal(result, own[0])


@pytest.mark.builds
@pytest.mark.parametrize("name", [*CASES, "argmax"])
def test_kernels_compile(name: str) -> None:
    facts = facts_of(ARGMAX if name == "argmax" else CASES[name])
    about = briefing(facts, Target.CUDA)
    space = Space(about, operator_of(about))
    fitted = [space.fitted(rung)[0] for rung in ladder(space.operator, Target.CUDA)]
    seed = sum(name.encode())
    for strategy in [fitted[0], *fitted[1 + seed % 5 :: 5]]:
        assert compile_cuda(kernel_of(facts, strategy), facts) == "", strategy


HINTS = [
    "vector_loads(width=4), streaming_access(scope=both)",
    "vector_loads(width=2), streaming_access(scope=stores), read_only_cache",
    "vector_loads(width=4), read_only_cache",
    "streaming_access(scope=both), read_only_cache",
]


@pytest.mark.builds
@pytest.mark.parametrize("text", HINTS)
@pytest.mark.parametrize("name", ["both_halves", "bias", "wide_result", "narrow_weight", "narrow_result", "mean"])
def test_cache_hints_compile_with_every_width(name: str, text: str) -> None:
    facts = facts_of(CASES[name])
    about = briefing(facts, Target.CUDA)
    strategy, _ = Space(about, operator_of(about)).fitted(parse(f"{text}: "))
    kernel = kernel_of(facts, strategy)
    assert compile_cuda(kernel, facts) == ""
    for use in strategy.techniques:
        hint = {"read_only_cache": "__ldg", "streaming_access": "__ldcs" if "both" in text else "__stcs"}.get(use.id)
        assert hint is None or hint in kernel.source or name == "mean" or "both" in text


@pytest.mark.builds
@pytest.mark.parametrize("text", ["register_rows", "shared_rows"])
def test_rows_shared_by_a_cluster_compile(text: str) -> None:
    facts = facts_of((lambda x: torch.softmax(x, 1), {"x": random(4, 65536)}))
    kernel = kernel_of(facts, parse(f"vector_loads, cluster_rows(blocks=4), {text}, warp_shuffle_reduction: "))
    assert compile_cuda(kernel, facts) == ""


@pytest.mark.parametrize("name", ["gelu_float16", "bias", "both_halves", "softmax", "rms_norm", "mean"])
def test_the_first_strategy_moves_16_bytes_a_load(name: str) -> None:
    facts = facts_of(CASES[name])
    about = briefing(facts, Target.CUDA)
    first = PLAYBOOK.manager.initial_strategies(about, [], 1, 0)[0].strategy
    kernel = kernel_of(facts, first)
    assert "constexpr int K_VEC = 8;" in kernel.source
    assert re.search(r"reinterpret_cast<const uint4\*>", kernel.source)


@pytest.mark.parametrize("dtype", [B16, F16, F32])
@pytest.mark.parametrize("function", [torch.sigmoid, lambda x: torch.softmax(x, 1)], ids=["sigmoid", "softmax"])
def test_what_is_rounded_to_16_bits_begins_with_approximate_functions(function: Function, dtype: torch.dtype) -> None:
    facts = facts_of((function, {"x": torch.zeros(4096, 1024, dtype=dtype)}))
    first = PLAYBOOK.manager.initial_strategies(briefing(facts, Target.CUDA), [], 1, 0)[0].strategy
    assert (first.use("fast_exp") is None) == (dtype is F32)


def test_wide_loads_need_rows_of_whole_packs() -> None:
    facts = facts_of((lambda x: torch.softmax(x, 1), {"x": random(8, 1020)}))
    with pytest.raises(NotApplicable, match="1020 is not a multiple of 8"):
        kernel_of(facts, parse("vector_loads(width=4): "))
    assert "constexpr int K_VEC = 4;" in kernel_of(facts, parse("vector_loads(width=2): ")).source
    wide = facts_of((lambda x: torch.softmax(x, 1), {"x": random(8, 1020, dtype=F32)}))
    assert "constexpr int K_VEC = 4;" in kernel_of(wide, parse("vector_loads(width=4): ")).source


def test_rows_that_wide_packs_do_not_fit_begin_with_narrow_ones() -> None:
    for length, packs in ((1020, 4), (1024, 8), (1021, 1)):
        facts = facts_of((lambda x: torch.softmax(x, 1), {"x": torch.zeros(4096, length, dtype=B16)}))
        first = PLAYBOOK.manager.initial_strategies(briefing(facts, Target.CUDA), [], 1, 0)[0].strategy
        assert f"constexpr int K_VEC = {packs};" in kernel_of(facts, first).source


REFUSED: dict[str, tuple[Function, Inputs]] = {
    "a cast to whole numbers": (lambda x: (x * 2).to(torch.int32).to(B16) * x, {"x": random(6, 32)}),
    "a cast to float64": (lambda x: (x.double() * 2).to(B16), {"x": random(6, 32)}),
    "a rounding on the way to float32": (lambda x: (x * 2).to(B16).float() * 3, {"x": random(6, 32, dtype=F32)}),
    "a rounding to fewer bits": (lambda x: (x * 2).to(B16).to(F16) * 3, {"x": random(6, 32, dtype=F16)}),
    "an input rounded": (lambda x: x.to(B16).float() * 3, {"x": random(6, 32, dtype=F32)}),
    "a cast to bits": (lambda x: (x * 2).to(torch.float8_e5m2).to(B16) * 3, {"x": random(6, 32)}),
    "a product of matrices": (torch.mm, {"a": random(64, 32), "b": random(32, 16)}),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_a_rounding_changes_is_left_to_the_compiler(name: str) -> None:
    with pytest.raises(NoTemplate):
        recognise(facts_of(REFUSED[name]))


def test_truths_and_wider_types_are_cast_without_a_trace() -> None:
    facts = facts_of((lambda x: ((x > 0).to(x.dtype) * x).float() + 1, {"x": random(6, 32)}))
    operator = recognise(facts)
    assert isinstance(operator, Pointwise)
    assert operator.halves == {"x": DType.BFLOAT16}


@pytest.mark.parametrize("function", [torch.relu, lambda x: torch.softmax(x, 1)])
def test_half_of_the_bytes_cost_half_of_the_time(function: Function) -> None:
    seconds = {}
    for dtype in (B16, F32):
        facts = facts_of((function, {"x": torch.zeros(8192, 4096, dtype=dtype)}))
        about = briefing(facts, Target.CUDA)
        rates = rates_of(about)
        assert rates is not None
        strategy = PLAYBOOK.manager.initial_strategies(about, [], 1, 0)[0].strategy
        seconds[dtype] = predicted(operator_of(about), strategy, facts, rates).memory
    assert 0.4 < seconds[B16] / seconds[F32] < 0.6
