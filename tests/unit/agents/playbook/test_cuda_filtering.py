"""Convolutions by minimal filtering on ``cuda``: exact at points, right at edges, offered where they save enough."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from agents.interface import Briefing
from agents.playbook import agents
from agents.playbook.compiler.cuda import filtering
from agents.playbook.compiler.cuda.filters import Filter
from agents.playbook.cost import predicted
from agents.playbook.cost.rates import rates_of
from agents.playbook.ladders import parse
from agents.playbook.translator import complaints, operator_of
from cupilot.domain.problem import Target
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.emulation import run_cuda
from tests.unit.agents.playbook.graphs_under_test import _of
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.operators_under_test import Case
from tests.unit.agents.playbook.references import trace
from tests.unit.agents.playbook.test_compiler import compare_all

DIRECT = "shared_tiling(tile_m=128, tile_n=128, tile_k=16)"
CASES: dict[str, tuple[Case, int, int]] = {
    "padded": (_of(lambda x, w: F.conv2d(x, w, padding=1), (1, 16, 12, 20), (16, 16, 3, 3)), 2, 3),
    "activated": (
        _of(lambda x, w, b: F.relu(F.conv2d(x, w, b)), (2, 8, 13, 30), (16, 8, 3, 3), (16,)),
        4,
        3,
    ),
    "five columns": (_of(lambda x, w: F.conv2d(x, w, padding=(1, 2)), (1, 8, 8, 24), (16, 8, 3, 5)), 2, 5),
    "transposed": (_of(F.conv_transpose2d, (2, 9, 10, 16), (9, 70, 3, 5)), 4, 5),
    "transposed in parts": (_of(F.conv_transpose2d, (1, 8, 10, 16), (8, 16, 3, 7)), 4, 5),
    "odd rows in parts": (
        _of(lambda x, w: F.conv_transpose2d(x, w, padding=(2, 1)), (1, 8, 10, 15), (8, 16, 4, 7)),
        2,
        3,
    ),
    "thirty tiles": (_of(F.conv2d, (1, 8, 12, 26), (16, 8, 3, 3)), 4, 3),
}


def strategy(outputs: int, taps: int) -> str:
    return f"{DIRECT}, minimal_filtering(outputs={outputs}, taps={taps})"


def about(*shapes: tuple[int, ...], transposed: bool = False, **options: Any) -> Briefing:
    """Return a briefing on a convolution."""
    convolution: Any = F.conv_transpose2d if transposed else F.conv2d
    facts, _ = trace(
        lambda x, w: convolution(x, w, **options), {name: torch.zeros(*s) for name, s in zip("xw", shapes, strict=True)}
    )
    return briefing(facts, Target.CUDA)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_filtered_convolutions_are_the_references(name: str, builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few blocks, which do several pieces of work one after the other."""
    monkeypatch.setattr(filtering, "LEAST_GAIN", 0)
    monkeypatch.setattr(filtering, "PERSISTENT", 1)
    case, outputs, taps = CASES[name]
    facts, _ = trace(case.function, case.inputs, case.parameters)
    kernel = agents().translator.translate(briefing(facts, Target.CUDA), parse(f"{strategy(outputs, taps)}: "), (), 0)
    assert "panels" in kernel.source
    assert compile_cuda(kernel, facts) == ""
    compare_all(run_cuda(kernel, facts, {**case.inputs, **case.parameters}, builds), case)


@pytest.mark.parametrize(("outputs", "taps"), [(2, 3), (4, 3), (2, 5), (4, 5)])
def test_filters_are_exact_in_fractions(outputs: int, taps: int) -> None:
    made = Filter(outputs, taps)
    inputs = [Fraction(3 * place * place - 7 * place + 2) for place in range(made.points)]
    weights = [Fraction(5 - 4 * tap, tap + 1) for tap in range(taps)]
    transformed = [sum(a * b for a, b in zip(row, weights, strict=True)) for row in made.filter_rows()]
    values = _computed(made.inputs("d", "v"), "v", made.points, d=inputs)
    sums = [a * b for a, b in zip(transformed, values, strict=True)]
    results = _computed(made.results("m", "y"), "y", outputs, m=sums)
    assert results == [sum(weights[tap] * inputs[at + tap] for tap in range(taps)) for at in range(outputs)]


@pytest.mark.parametrize(("outputs", "taps", "most"), [(2, 3, 1.6), (4, 3, 3.7), (2, 5, 3.9), (4, 5, 8.4)])
def test_one_large_input_costs_results_beside_it_little(outputs: int, taps: int, most: float) -> None:
    """With the usual points 1 and 2, F(4, 3) was refused under planted extremes: 6.6 in place of 3.7."""
    made = Filter(outputs, taps)
    units = [[Fraction(place == own) for place in range(made.points)] for own in range(made.points)]
    sizes = [math.hypot(*row) for row in made.filter_rows()]
    results = [_computed(made.results("m", "y"), "y", outputs, m=unit) for unit in units]
    for unit in units:
        transformed = _computed(made.inputs("d", "v"), "v", made.points, d=unit)
        for output in range(outputs):
            parts = zip(results, transformed, sizes, strict=True)
            assert math.hypot(*(to[output] * value * size for to, value, size in parts)) <= most


def _computed(lines: list[str], made: str, count: int, **given: list[Fraction]) -> list[Fraction]:
    """Return what C++ statements compute, in fractions."""
    names: dict[str, Any] = {
        **given,
        made: [Fraction(0)] * count,
        "fmaf": lambda a, b, c: a * b + c,
        "Fraction": Fraction,
    }
    for line in lines:
        for statement in re.split(r", (?=(?:odd|other)\d+ =)", line.removeprefix("const float ").rstrip(";")):
            exec(re.sub(r"([\d.]+)f\b", r"Fraction('\1')", statement), names)
    results: list[Fraction] = names[made]
    return results


@pytest.mark.parametrize(
    ("brief", "outputs", "taps", "reason"),
    [
        (about((2, 3, 64, 64), (64, 3, 3, 3)), 2, 3, "no launch is"),
        (about((2, 64, 64, 64), (64, 64, 1, 1)), 2, 3, "no launch is"),
        (about((2, 64, 64, 64), (64, 64, 3, 3), stride=2), 2, 3, "no launch is"),
        (about((2, 64, 64, 64), (64, 64, 3, 3), dilation=2), 2, 3, "no launch is"),
        (about((2, 64, 64, 64), (64, 32, 3, 3), groups=2), 2, 3, "no launch is"),
        (about((2, 64, 64, 64), (64, 64, 3, 3)), 4, 5, "no launch is"),
        (about((2, 64, 64, 64), (64, 64, 3, 3)), 2, 3, None),
        (about((2, 64, 64, 64), (64, 64, 3, 5), transposed=True), 4, 5, None),
    ],
)
def test_minimal_filtering_is_offered_where_it_saves_enough(
    brief: Briefing, outputs: int, taps: int, reason: str | None
) -> None:
    found = complaints(brief, operator_of(brief), parse(f"{strategy(outputs, taps)}: ")).get("minimal_filtering")
    assert found is None if reason is None else reason in (found or "")


def test_the_cost_model_tries_minimal_filtering_first() -> None:
    brief = about((64, 64, 64, 64), (128, 64, 3, 3))
    rate = rates_of(brief)
    assert rate is not None
    operator = operator_of(brief)
    texts = (strategy(4, 3), strategy(2, 3), DIRECT)
    times = [predicted(operator, parse(f"{text}: "), brief.facts, rate).seconds for text in texts]
    assert times == sorted(times)
