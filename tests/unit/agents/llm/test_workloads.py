"""Prompts of a problem with several workloads, and plans that fit only one of them."""

from __future__ import annotations

import json

import pytest

from agents.interface import Briefing
from agents.llm import prompt
from agents.llm.answers import AnswerError, kernel
from cupilot.domain.problem import ProblemFacts
from cupilot.domain.workload import Workload


def at_rows(facts: ProblemFacts, rows: int) -> ProblemFacts:
    tensors = tuple(spec.model_copy(update={"shape": (rows, 256)}) for spec in facts.tensors)
    return facts.model_copy(update={"tensors": tensors})


@pytest.fixture
def several(briefing: Briefing) -> Briefing:
    workloads = tuple(
        (Workload(name=f"rows {rows}", values={"ROWS": rows}), at_rows(briefing.facts, rows)) for rows in (64, 2)
    )
    return briefing.model_copy(update={"workloads": workloads})


def test_the_header_says_what_differs_between_workloads(briefing: Briefing, several: Briefing) -> None:
    text = prompt.header(several)
    assert text.startswith(prompt.header(briefing))
    assert "each of 2 workloads" in text
    assert "rows 64 (weight 1): as above" in text
    (line,) = [line for line in text.splitlines() if line.startswith("rows 2 ")]
    assert "constexpr long long X_DIM0 = 2LL;" in line
    assert "X_COLS" not in line


def test_a_plan_has_to_fit_every_workload(briefing: Briefing, several: Briefing) -> None:
    source = 'extern "C" void k(const float* x, float* out) {}'
    plan = {"launches": [{"kernel": "k", "args": ["x", "out", "part"]}]}
    plan["workspace"] = [{"name": "part", "bytes": "X_ROWS / 4 * 4 - 4"}]
    answer = f"```cpp\n{source}\n```\n```json\n{json.dumps(plan)}\n```"
    assert kernel(answer, briefing).source
    with pytest.raises(AnswerError, match="does not fit"):
        kernel(answer, several)
