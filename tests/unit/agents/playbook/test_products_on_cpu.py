"""Products of compiled graphs under a micro-kernel on ``cpu``, convolutions among them, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from agents.playbook import agents
from agents.playbook.compiler import program
from agents.playbook.compiler.cpu.tiling import Rectangle, Tiling, Vectors, product_of
from agents.playbook.compiler.parameters import Pointers
from agents.playbook.compiler.program import program_of, refusal_of_vectors, rendered, tiled_program
from agents.playbook.compiler.tensors import Reduce
from agents.playbook.ladders import ladder, parse
from agents.playbook.search import Space
from agents.playbook.translator import NotApplicable, operator_of
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import ProblemFacts, Target
from cupilot.domain.roofline import Zone
from cupilot.domain.strategy import Strategy
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.convolution_graphs import convolutions, other_products, strided_transposed
from tests.unit.agents.playbook.graphs_under_test import _module, _of
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.operators_under_test import Case
from tests.unit.agents.playbook.references import run_cpu, trace
from tests.unit.agents.playbook.test_compiler import compare_all

pytestmark = pytest.mark.builds

GRAPHS = {**convolutions(), **other_products()}
RECTANGLE = Rectangle(8, 2, 16)
FIRST = "simd(width=16), micro_kernel(rows=8, vectors=2): "
NARROW = "simd(width=8), micro_kernel(rows=6, vectors=3): "


def facts_of(case: Case) -> ProblemFacts:
    return trace(case.function, case.inputs, case.parameters)[0]


def judged(case: Case, strategy: str, builds: Path) -> None:
    facts = facts_of(case)
    kernel = agents().translator.translate(briefing(facts, Target.CPU), parse(strategy), None, 0)
    assert "static void multiply" in kernel.source
    compare_all(run_cpu(kernel, facts, {**case.inputs, **case.parameters}, builds), case)


@pytest.mark.parametrize("name", list(GRAPHS))
def test_products_under_a_micro_kernel_compute_the_reference(name: str, builds: Path) -> None:
    judged(GRAPHS[name], FIRST, builds)


@pytest.mark.parametrize("name", ["mixed", "grouped", "transposed_3d", "wide_rows", "channels_last", "linear"])
def test_narrow_vectors_that_fill_no_tile_evenly_do_as_well(name: str, builds: Path) -> None:
    judged(GRAPHS[name], NARROW, builds)


@pytest.mark.parametrize("name", list(strided_transposed()))
def test_transposed_convolutions_as_loops_compute_the_reference(name: str, builds: Path) -> None:
    case = GRAPHS[name]
    facts = facts_of(case)
    source, plan = rendered(facts, Target.CPU)
    kernel = Kernel(target=Target.CPU, source=source, plan=plan)
    compare_all(run_cpu(kernel, facts, {**case.inputs, **case.parameters}, builds), case)


@pytest.mark.parametrize("name", ["transposed_grouped", "transposed_3d", "grouped"])
def test_products_with_split_axes_are_tiled_on_cuda(name: str) -> None:
    facts = facts_of(GRAPHS[name])
    tiles = parse("shared_tiling(tile_m=32, tile_n=64, tile_k=8): ")
    kernel = agents().translator.translate(briefing(facts, Target.CUDA), tiles, None, 0)
    assert "tile_a" in kernel.source
    assert compile_cuda(kernel, facts) == ""


@pytest.mark.parametrize(
    ("stride", "dilation", "kernel", "taps"),
    [(1, 1, 3, 3), (2, 1, 3, 2), (3, 1, 3, 1), (2, 2, 3, 3), (4, 6, 5, 3), (2, 1, 4, 2)],
)
def test_an_output_of_a_transposed_convolution_sums_no_more_taps_than_hit(
    stride: int, dilation: int, kernel: int, taps: int
) -> None:
    case = _module(torch.nn.ConvTranspose1d(4, 4, kernel, stride=stride, dilation=dilation), 1, 4, 9)
    (reduction,) = (group.source for group in program_of(facts_of(case)).groups)
    assert isinstance(reduction, Reduce)
    assert reduction.extents == (4, taps)


@pytest.mark.parametrize("strategy", [Strategy(techniques=()), parse(FIRST)])
def test_taps_that_hit_nothing_do_not_count(strategy: Strategy, builds: Path) -> None:
    """Infinity of a weight reaches the outputs that it hits, and makes no other one a NaN."""
    case = _module(torch.nn.ConvTranspose1d(8, 16, 3, stride=2), 1, 8, 32)
    weight = case.parameters["m_weight"].data
    weight[:, :, 1] = torch.inf
    case.inputs["x"].abs_()
    facts = facts_of(case)
    kernel = agents().translator.translate(briefing(facts, Target.CPU), strategy, None, 0)
    (result,) = run_cpu(kernel, facts, {**case.inputs, **case.parameters}, builds)
    assert torch.isinf(result[..., 1::2]).all()
    assert torch.isfinite(result[..., ::2]).all()


def tilings(case: Case) -> list[Tiling]:
    facts = facts_of(case)
    program = tiled_program(facts, Vectors(RECTANGLE))
    found = [(group, product_of(group)) for group in program.groups]
    pointers = Pointers(program, "workspace")
    return [Tiling(group, product, RECTANGLE, pointers) for group, product in found if product is not None]


def test_windows_are_copied_where_they_overlap_and_rows_lie_side_by_side() -> None:
    direct = {name: [tiling.direct for tiling in tilings(case)] for name, case in GRAPHS.items()}
    assert direct["even"] == direct["transposed_3d"] == direct["activated_before"] == direct["mixed"] == [True]
    assert direct["pointwise"] == direct["one_dimension"] == direct["linear"] == [False]


def test_short_rows_share_vectors() -> None:
    narrow = _module(torch.nn.Conv2d(8, 16, 3), 2, 8, 20, 20)
    (tiling,) = tilings(narrow)
    assert tiling.layout.rows == 18
    assert tiling.layout.filled > 0.85
    (tiling,) = tilings(GRAPHS["even"])
    assert tiling.layout.filled == 1


def test_a_micro_kernel_comes_first_and_loops_are_left_for_later() -> None:
    facts = facts_of(GRAPHS["even"])
    about = briefing(facts, Target.CPU, Zone.COMPUTE)
    ideas = [idea.strategy.ids() for idea in agents().manager.initial_strategies(about, [], 60, 0)]
    assert ideas[0] == ("simd", "micro_kernel")
    assert () in ideas[1:]


def test_micro_kernels_asked_for_again_are_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = facts_of(GRAPHS["linear"])
    micro_kernels = [Vectors(Rectangle(8, rows, vectors)) for rows in range(2, 8) for vectors in (1, 2, 3, 4)]
    refusals = [refusal_of_vectors(facts, vectors) for vectors in micro_kernels]
    monkeypatch.setattr(program, "rendered", None)
    assert [refusal_of_vectors(facts, vectors) for vectors in micro_kernels] == refusals


def test_without_a_product_there_is_no_micro_kernel() -> None:
    facts = facts_of(_of(lambda a, b: a.T + b, (33, 21), (21, 33)))
    about = briefing(facts, Target.CPU, Zone.MEMORY)
    space = Space(about, operator_of(about))
    assert all(not space.fitted(rung)[0].techniques for rung in ladder(space.operator, Target.CPU))
    with pytest.raises(NotApplicable, match="no loop is a product with at least 8 rows"):
        agents().translator.translate(about, parse(FIRST), None, 0)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "expm1": torch.expm1,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "log": torch.log,
    "log1p": torch.log1p,
}
EDGES = (0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-30, -1e-30, 88.9, -103.5, -1.0, 1e38, 1e-45)


@pytest.mark.parametrize("degree", [5, 6])
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_polynomials_are_the_functions_to_a_few_units_in_the_last_place(name: str, degree: int, builds: Path) -> None:
    function = FUNCTIONS[name]
    x = torch.cat([torch.linspace(-9, 9, 4001), torch.tensor(EDGES), torch.logspace(-20, 20, 51)])
    case = Case(lambda x, y: function(x) + y.T, {"x": x.view(-1, 8), "y": torch.zeros(8, len(x) // 8)})
    facts = facts_of(case)
    strategy = parse(f"simd, polynomial_exp(degree={degree}): ")
    kernel = agents().translator.translate(briefing(facts, Target.CPU), strategy, None, 0)
    assert f"__builtin_{name}f" not in kernel.source
    (result,) = run_cpu(kernel, facts, case.inputs, builds)
    exact = function(x.double())
    own = exact.float()
    assert torch.equal(torch.isnan(result.flatten()), torch.isnan(own))
    finite = torch.isfinite(own)
    assert torch.equal(result.flatten()[~finite & ~torch.isnan(own)], own[~finite & ~torch.isnan(own)])
    error = (result.flatten().double() - exact)[finite].abs()
    unit = torch.maximum(exact[finite].abs() * 2.0**-23, torch.tensor(2.0**-149, dtype=torch.float64))
    assert (error / unit).max() <= (16 if degree == 5 else 3)


def test_without_a_function_there_is_no_polynomial() -> None:
    about = briefing(facts_of(GRAPHS["even"]), Target.CPU)
    with pytest.raises(NotApplicable, match="no value has an exponential"):
        agents().translator.translate(about, parse("simd, polynomial_exp: "), None, 0)


@pytest.mark.parametrize("extreme", [torch.amax, torch.amin])
def test_extremes_in_vectors_keep_nan_and_infinities(
    extreme: Callable[[torch.Tensor, int], torch.Tensor], builds: Path
) -> None:
    x = torch.randn(9, 77)
    x[1, 70], x[2, 3], x[3], x[4] = torch.nan, torch.nan, torch.inf, -torch.inf
    case = Case(lambda x: extreme(x.relu() - x.sigmoid(), 1), {"x": x})
    facts = facts_of(case)
    source, plan = rendered(facts, Target.CPU)
    assert "#pragma omp declare reduction" in source
    (result,) = run_cpu(Kernel(target=Target.CPU, source=source, plan=plan), facts, case.inputs, builds)
    torch.testing.assert_close(result, case.function(x), equal_nan=True)


def test_vectors_alone_are_what_loops_have_anyway() -> None:
    about = briefing(facts_of(GRAPHS["even"]), Target.CPU)
    with pytest.raises(NotApplicable, match="compilers make vectors of plain loops"):
        agents().translator.translate(about, parse("simd: "), None, 0)
