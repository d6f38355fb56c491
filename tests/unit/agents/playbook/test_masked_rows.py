"""Rows that a mask selects: a kernel of all rows computes the reference, however many rows a mask selects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from agents.interface import NoTemplate
from agents.playbook import agents
from agents.playbook.compiler.program import rendered
from agents.playbook.templates.launches import as_launches
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Target
from cupilot.domain.strategy import Strategy
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.masked_graphs import MASKED, masked_inputs
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.operators_under_test import Case
from tests.unit.agents.playbook.references import run_cpu, trace
from tests.unit.agents.playbook.test_compiler import compare_all

pytestmark = pytest.mark.builds
SEEDS = (0, 1, 2)
"""The first is traced; under the others, masks select other numbers of rows."""


@pytest.mark.parametrize("name", list(MASKED))
def test_launches_compute_the_reference_whatever_masks_select(name: str, builds: Path) -> None:
    function = MASKED[name]
    facts, _ = trace(function, masked_inputs(SEEDS[0]))
    source, plan = rendered(facts, Target.CPU)
    kernel = Kernel(target=Target.CPU, source=source, plan=plan)
    for seed in SEEDS:
        inputs = masked_inputs(seed)
        compare_all(run_cpu(kernel, facts, inputs, builds), Case(function, inputs))
    on_cuda = agents().translator.translate(briefing(facts, Target.CUDA), Strategy(techniques=()), None, 0)
    assert compile_cuda(on_cuda, facts) == ""


def _refused(result: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], reason: str) -> None:
    """Check the refusal of a function of rows, of which there are as many as a mask selects, and of all rows."""
    facts, _ = trace(lambda x, _, __, mask: result(x[mask], x), masked_inputs(SEEDS[0]))
    with pytest.raises(NoTemplate, match=reason):
        as_launches(facts, Target.CPU)


def test_rows_as_a_result_are_refused_by_the_call_that_selects_them() -> None:
    _refused(lambda rows, _: rows * 2, r"kernel for aten.index.Tensor \(result \[.*only known when it runs")


@pytest.mark.parametrize(
    "result",
    [
        lambda rows, _: rows[0],
        lambda rows, _: rows.median(0).values,
        lambda rows, x: (rows - x[x[..., 0] > 0][: len(rows)].sum(0)).sum(),
        lambda rows, _: (rows @ rows.t()).sum(),
        lambda rows, x: x.index_put((x[..., 0] > 0,), rows[:1]),
    ],
)
def test_what_cannot_be_made_of_all_rows_is_refused(
    result: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    _refused(result, "only known when it runs")


def test_operations_on_rows_that_are_not_selected_are_not_counted() -> None:
    """A kernel need not make them, so that no roofline bound may hold them against it."""
    inputs = masked_inputs(SEEDS[0])
    facts, _ = trace(lambda x, w, _, mask: (x[mask] @ w).sum(0), inputs)
    assert facts.matmul_flops == 2 * int(inputs["mask"].sum()) * 5 * 5
