"""Products on the scalar units of ``cuda``: tiles of every shape, elements found by parts, sums that nobody uses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from agents.playbook import agents
from agents.playbook.compiler.cuda import tiles
from agents.playbook.compiler.cuda.gathers import parts_of
from agents.playbook.compiler.cuda.scalar import Scalar, threads_of
from agents.playbook.compiler.cuda.tiles import Tiles, arithmetic_of
from agents.playbook.compiler.products import bare, products
from agents.playbook.compiler.program import program_of
from agents.playbook.ladders import parse
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import ProblemFacts, Target
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.convolution_graphs import convolutions, other_products
from tests.unit.agents.playbook.emulation import run_cuda
from tests.unit.agents.playbook.graphs_under_test import _module, _of
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.operators_under_test import Case
from tests.unit.agents.playbook.references import trace
from tests.unit.agents.playbook.test_compiler import compare_all

pytestmark = pytest.mark.slow

CASES = {**convolutions(), **other_products()}
NARROW = {
    "sixteen_columns": _module(nn.Conv2d(3, 16, 3, padding=1), 1, 3, 24, 40),
    "twenty_four_columns": _module(nn.ConvTranspose2d(4, 24, 3), 1, 4, 23, 25),
    "many_columns": _module(nn.Conv1d(8, 96, 5, padding=2), 3, 8, 90),
    "few_rows": _of(lambda a, w, b: F.gelu(F.linear(a, w, b)), (20, 48), (200, 48), (200,)),
    "long_sums": _of(lambda a, w, b: F.gelu(F.linear(a, w, b)), (20, 4400), (24, 4400), (24,)),
}


def facts_of(case: Case) -> ProblemFacts:
    facts, _ = trace(case.function, case.inputs, case.parameters)
    return facts


def in_tiles(facts: ProblemFacts, text: str) -> Kernel:
    return agents().translator.translate(briefing(facts, Target.CUDA), parse(f"shared_tiling({text}): "), None, 0)


def arithmetics(case: Case, largest: Tiles) -> list[Scalar]:
    found = [arithmetic_of(*each, largest) for each in products(program_of(facts_of(case)).groups)]
    return [each for each in found if isinstance(each, Scalar)]


@pytest.mark.parametrize("name", [*NARROW, "mixed", "three_dimensions", "channels_last", "activated_before", "rolled"])
def test_large_tiles_compute_the_reference_when_emulated(
    name: str, builds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "ENOUGH_BLOCKS", 1)
    case = {**CASES, **NARROW}[name]
    facts = facts_of(case)
    kernel = in_tiles(facts, "tile_m=128, tile_n=128, tile_k=8")
    assert "tile_a" in kernel.source
    assert compile_cuda(kernel, facts) == ""
    compare_all(run_cuda(kernel, facts, {**case.inputs, **case.parameters}, builds), case)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("sixteen_columns", (512, 16)), ("twenty_four_columns", (512, 24)), ("many_columns", (128, 96))],
)
def test_tiles_are_as_narrow_as_their_product(
    name: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "ENOUGH_BLOCKS", 1)
    (made,) = arithmetics(NARROW[name], Tiles(128, 128, 8))
    assert (made.first.width, made.second.width) == shape


def test_threads_have_rectangles_near_to_squares() -> None:
    assert threads_of(128, 128) == (16, 16)
    assert threads_of(256, 64) == (32, 8)
    assert threads_of(512, 24) == (64, 4)


def test_borders_of_an_image_are_bits_of_its_taps() -> None:
    (made,) = arithmetics(CASES["even"], Tiles(128, 128, 8))
    load = bare(made.first.factor)
    assert load is not None
    parts = parts_of(load, made.group.inner)
    assert parts is not None
    assert [index.high + 1 for index, _ in parts.taps] == [3, 3]
    assert not parts.of_line
    assert not parts.of_depth


def test_elements_of_an_image_are_found_without_divisions() -> None:
    kernel = in_tiles(facts_of(CASES["even"]), "tile_m=128, tile_n=128, tile_k=8")
    fetch = kernel.source.split("auto fetch")[1].split("auto put")[0]
    assert "/" not in fetch
    assert "%" not in fetch


def test_blocks_beyond_a_triangle_multiply_nothing(builds: Path) -> None:
    case = _of(lambda a, b: torch.tril(a @ b), (70, 40), (40, 70))
    facts = facts_of(case)
    kernel = in_tiles(facts, "tile_m=32, tile_n=32, tile_k=8")
    assert len(kernel.plan.launches) == 1
    assert "__syncthreads_or" in kernel.source
    compare_all(run_cuda(kernel, facts, dict(case.inputs), builds), case)


def test_indices_from_memory_are_not_put_in_tables(builds: Path) -> None:
    """Places that a depth's index is read from may not exist beyond the last depth."""
    table = torch.randint(0, 50, (37,))
    case = Case(
        lambda a, w, places: torch.relu(a[:, places] @ w),
        {"a": torch.randn(40, 50), "w": torch.randn(37, 33), "places": table},
    )
    facts = facts_of(case)
    kernel = in_tiles(facts, "tile_m=32, tile_n=32, tile_k=8")
    compare_all(run_cuda(kernel, facts, dict(case.inputs), builds), case)
