"""The compiler's launches compute what the reference does: run on the CPU, compiled for sm_90a on CUDA."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest
import torch

from agents.playbook import agents
from agents.playbook.compiler import program
from agents.playbook.compiler.program import program_of, rendered
from agents.playbook.compiler.tensors import Reduce, Scatter
from agents.playbook.ladders import parse
from agents.playbook.translator import NotApplicable
from cupilot.domain.kernel import MAX_LAUNCHES, Kernel
from cupilot.domain.problem import Target
from cupilot.domain.strategy import Strategy
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.brought_graphs import brought
from tests.unit.agents.playbook.complex_graphs import complex_graphs
from tests.unit.agents.playbook.emulation import run_cuda
from tests.unit.agents.playbook.gradient_graphs import gradients
from tests.unit.agents.playbook.graphs_under_test import graphs, tiled
from tests.unit.agents.playbook.matrix_graphs import matrix_graphs
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.operators_under_test import Case, everything
from tests.unit.agents.playbook.references import run_cpu, trace
from tests.unit.agents.playbook.written_graphs import written

pytestmark = pytest.mark.builds

EPSILON = {torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float64: 2.0**-52}
GRAPHS = {**graphs(), **brought(), **written(), **complex_graphs(), **matrix_graphs(), **gradients()}
ALL = {**GRAPHS, **{f"template_{name}": case for name, case in list(everything().items())[::5]}}
"""The compiler must compute what templates do as well: it takes over where a template refuses a size."""


def compare(result: torch.Tensor, own: torch.Tensor, exact: torch.Tensor) -> None:
    """Compare with float64, allowing some multiple of PyTorch's own error; integers exactly."""
    assert result.shape == own.shape
    assert result.dtype == own.dtype
    if own.dtype not in EPSILON:
        assert torch.equal(result, own)
        return
    exact = exact.double()
    finite = torch.isfinite(exact)
    assert torch.equal(torch.isnan(result), torch.isnan(own))
    infinite = torch.isinf(exact)
    assert torch.equal(result[infinite], own[infinite])
    if not finite.any():
        return
    spread = max(exact[finite].abs().max().item(), 1e-30)
    error, torch_error = ((item.double() - exact)[finite].abs().max().item() / spread for item in (result, own))
    assert error <= 4 * torch_error + 4 * EPSILON[own.dtype], (error, torch_error)


def own_results(case: Case, *, exact: bool = False) -> list[torch.Tensor]:
    """PyTorch's results, without the tracer's rules; exact ones in float64, of inputs that keep their integers."""
    inputs = [item.double() if exact and item.is_floating_point() else item for item in case.inputs.values()]
    function = case.function
    if exact and isinstance(function, torch.nn.Module):
        function.double()
    try:
        with torch.no_grad():
            result = function(*inputs)
    finally:
        if exact and isinstance(function, torch.nn.Module):
            function.float()
    return list(result) if isinstance(result, tuple | list) else [result]


def compare_all(results: list[torch.Tensor], case: Case) -> None:
    """Compare each of a kernel's results with PyTorch's."""
    for result, own, exact in zip(results, own_results(case), own_results(case, exact=True), strict=True):
        compare(result, own.contiguous(), exact)


@pytest.mark.parametrize("name", list(ALL))
def test_launches_on_the_cpu_compute_the_reference(name: str, builds: Path) -> None:
    case = ALL[name]
    facts, _ = trace(case.function, case.inputs, case.parameters)
    source, plan = rendered(facts, Target.CPU)
    kernel = Kernel(target=Target.CPU, source=source, plan=plan)
    results = run_cpu(kernel, facts, {**case.inputs, **case.parameters}, builds)
    compare_all(results, case)


@pytest.mark.parametrize("name", list(GRAPHS))
def test_launches_compile_for_cuda(name: str) -> None:
    case = GRAPHS[name]
    facts, _ = trace(case.function, case.inputs, case.parameters)
    about = briefing(facts, Target.CUDA)
    kernel = agents().translator.translate(about, Strategy(techniques=()), None, 0)
    assert compile_cuda(kernel, facts) == ""


def test_loops_over_a_mask_are_vectorised_on_the_cpu(builds: Path) -> None:
    inputs = {"x": torch.randn(8, 64), "mask": torch.rand(8, 64) < 0.5}

    def masked_softmax(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(mask, -1e9).softmax(-1)

    facts, _ = trace(masked_softmax, inputs)
    about = briefing(facts, Target.CPU)
    kernel = agents().translator.translate(about, parse("simd(width=16), polynomial_exp: vectors"), None, 0)
    source = kernel.source.replace('#include "problem.h"', "")
    command = ["g++", "-O3", "-march=x86-64-v4", "-fopenmp", "-std=c++17", "-S", "-o", "-", "-x", "c++", "-"]
    assembly = subprocess.run(command, input=source, check=True, capture_output=True, text=True).stdout
    assert re.search(r"vdivps.*%zmm", assembly)
    compare_all(run_cpu(kernel, facts, inputs, builds), Case(masked_softmax, inputs))


EMULATED = ["transpose_add", "cat", "residual_norm", "two_axes", "long_sum", "long_argmax", "topk", "batch_norm"]
EMULATED += ["cumsum_rows", "cumsum_columns", "cumprod", "conv2d_grouped", "conv_transpose2d", "causal", "avg_pool"]
EMULATED += ["logcumsumexp", "logcumsumexp_columns", "scatter_mean", "index_put_added", "masked_scatter", "four_bits"]
EMULATED += ["rotary_complex", "deep_network", "mean_and_hidden"]
EMULATED += ["add_pairs_of_rows", "put_pairs", "scattered", "sent_mean_alone", "sent_amax", "sent_amin_alone"]


@pytest.mark.parametrize("name", EMULATED)
def test_cuda_launches_compute_the_reference_when_emulated(name: str, builds: Path) -> None:
    case = GRAPHS[name]
    facts, _ = trace(case.function, case.inputs, case.parameters)
    source, plan = rendered(facts, Target.CUDA)
    kernel = Kernel(target=Target.CUDA, source=source, plan=plan)
    results = run_cuda(kernel, facts, {**case.inputs, **case.parameters}, builds)
    compare_all(results, case)


def test_terms_of_a_sum_that_are_zero_for_all_neighbours_are_passed_over(builds: Path) -> None:
    """Messages over the edges of a graph: most edges do not end at a node."""
    inputs = {"x": torch.randn(6, 16), "edges": torch.randint(0, 6, (2, 40)), "weight": torch.rand(40)}

    def messages(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.zeros(6, 16, dtype=x.dtype).index_add(0, edges[1], weight.unsqueeze(1) * x[edges[0]])

    facts, _ = trace(messages, inputs)
    source, plan = rendered(facts, Target.CPU)
    assert ")) continue;" in source
    results = run_cpu(Kernel(target=Target.CPU, source=source, plan=plan), facts, inputs, builds)
    compare_all(results, Case(messages, inputs))


@pytest.mark.parametrize("function", [torch.erf, lambda x: x.amax(1), lambda x: torch.erf(x).cumsum(1)])
def test_groups_of_little_work_wake_no_threads(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Waking them and waiting for them takes longer; the same group of more elements is shared."""
    for rows, shared in ((8, False), (4096, True)):
        facts, _ = trace(function, {"x": torch.randn(rows, 64)})
        source, _ = rendered(facts, Target.CPU)
        assert ("#pragma omp parallel for" in source) is shared


@pytest.mark.parametrize("name", ["unpooled_image", "put_pairs", "add_pairs", "scattered_down", "scattered"])
def test_many_writes_by_index_are_no_more_work_than_elements_and_writes(name: str) -> None:
    case = GRAPHS[name]
    facts, _ = trace(case.function, case.inputs, case.parameters)
    groups = program_of(facts).groups
    scatters = [group for group in groups if isinstance(group.source, Scatter)]
    assert scatters
    writes = prod(scatters[0].shape)
    assert all(prod(group.source.extents) <= 4 for group in groups if isinstance(group.source, Reduce))
    assert all(prod(group.shape) <= max(writes, *(prod(spec.shape) for spec in facts.tensors)) for group in groups)


TILED = ["conv2d_tiled", "conv1d_tiled", "conv_transpose2d_tiled", "attention_tiled", "linear_relu"]


@pytest.mark.parametrize("name", TILED)
def test_products_in_tiles_compute_the_reference_when_emulated(name: str, builds: Path) -> None:
    case = tiled()[name]
    facts, _ = trace(case.function, case.inputs, case.parameters)
    about = briefing(facts, Target.CUDA)
    kernel = agents().translator.translate(about, parse("shared_tiling(tile_m=32, tile_n=64, tile_k=8): "), None, 0)
    assert "tile_a" in kernel.source
    assert compile_cuda(kernel, facts) == ""
    results = run_cuda(kernel, facts, {**case.inputs, **case.parameters}, builds)
    compare_all(results, case)


def test_tiles_whose_source_would_be_too_long_are_not_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = tiled()["linear_relu"]
    facts, _ = trace(case.function, case.inputs, case.parameters)
    about = briefing(facts, Target.CUDA)
    plain, _ = rendered(facts, Target.CUDA)
    monkeypatch.setattr(program, "MAX_SOURCE_BYTES", len(plain.encode()))
    ideas = agents().manager.initial_strategies(about, [], 4, 0)
    assert [idea.strategy.ids() for idea in ideas] == [()]
    with pytest.raises(NotApplicable, match=r"shared_tiling: with tiles, its source takes \d+ bytes; \d+ are allowed"):
        agents().translator.translate(about, parse("shared_tiling: "), None, 0)


@pytest.mark.parametrize("name", ["deep_network", "long_recurrence"])
def test_what_takes_too_many_launches_shares_some(name: str) -> None:
    """Blocks of a shared launch wait for each other, so that its grid is one that a card holds at once."""
    case = GRAPHS[name]
    facts, _ = trace(case.function, case.inputs, case.parameters)
    assert len(program_of(facts).groups) > MAX_LAUNCHES
    _, plan = rendered(facts, Target.CUDA)
    assert len(plan.launches) == MAX_LAUNCHES
    shared = [launch for launch in plan.launches if launch.cooperative]
    assert shared
    assert all(launch.grid == ("BLOCKS",) for launch in shared)
    assert plan.values() == {"BLOCKS": 108}
