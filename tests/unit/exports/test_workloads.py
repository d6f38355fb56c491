"""A kernel for several shapes is exported for the heaviest, and says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cupilot.domain.evaluation import Verdict, WorkloadResult
from cupilot.domain.workload import Workload
from cupilot.exports import Winner, texts
from cupilot.exports.modelnew import files as modelnew
from cupilot.exports.reproduction import files as bundle
from cupilot.exports.torch_package import files as package
from tests.unit.cupilot.factories import comparison
from tests.unit.exports.winners import GELU_CPU, evaluation_of, facts_of, source, winner

BEFORE = """
ROWS = 4
WORKLOADS = [
    {"name": "one", "values": {"ROWS": 1}},
    {"name": "many", "values": {"ROWS": 64}, "weight": 3},
]
"""
GELU = source("return torch.nn.functional.gelu(x)", "torch.randn(ROWS, 96)", before=BEFORE)
ONE, MANY = Workload(name="one", values={"ROWS": 1}), Workload(name="many", values={"ROWS": 64}, weight=3)


@pytest.fixture(scope="module")
def made() -> Winner:
    facts = facts_of(GELU.replace("ROWS = 4", "ROWS = 64"))
    evaluation = evaluation_of(GELU_CPU, facts, Verdict.REPRODUCED)
    parts = tuple(
        WorkloadResult(
            workload=workload, verdict=Verdict.REPRODUCED, laws=evaluation.laws, comparisons=(comparison(speedup),)
        )
        for workload, speedup in ((ONE, 9.0), (MANY, 1.25))
    )
    mean = evaluation.model_copy(update={"comparisons": (comparison(2.05),), "workloads": parts})
    return winner("gelu", GELU, GELU_CPU, facts=facts, evaluation=mean)


def test_the_headline_is_the_heaviest_workloads(made: Winner) -> None:
    assert made.workload == MANY
    headline = texts.headline(made)
    assert "1.25x" in headline
    assert headline.endswith("at workload many")
    assert "| workload | many: ROWS 64; the heaviest" in texts.evidence(made)


@pytest.mark.parametrize("form", [modelnew, package])
def test_the_reference_has_the_shapes_that_the_kernel_was_proven_for(
    made: Winner, form: Callable[[Winner], dict[str, str]]
) -> None:
    texts_of_files = "\n".join(form(made).values())
    assert "ROWS = 64" in texts_of_files
    assert "ROWS = 4\n" not in texts_of_files
    assert "WORKLOADS = ()" in texts_of_files


def test_the_bundle_keeps_the_whole_measurement_with_a_table(made: Winner) -> None:
    kept = bundle(made)
    assert "| one | ROWS 1 | 1 | reproduced" in kept["REPORT.md"]
    assert "| **all** | weighted geometric mean" in kept["REPORT.md"]
    assert '"name": "one"' in kept["evaluation.json"]
    assert "ROWS = 4" in kept["problem.py"]
