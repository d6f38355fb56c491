"""Statements about two candidates, and what is not stated."""

from __future__ import annotations

from typing import Any

import pytest

from cupilot.domain.evaluation import Verdict
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.reports.comparison import compare, difference, relative_speedup
from cupilot.schemas import CandidateView
from tests.unit.cupilot.factories import comparison
from tests.unit.exports.winners import GELU_CPU, evaluation_of, facts_of, report_of, source

TEXT = source("return torch.nn.functional.gelu(x)", "torch.randn(8, 32)")
FACTS = facts_of(TEXT)


def _candidate(speedup: float = 1.5, kernel: Any = GELU_CPU, **environment: Any) -> CandidateView:
    evaluation = evaluation_of(kernel, FACTS, Verdict.AUDITED)
    assert evaluation.environment is not None
    changed = evaluation.environment.model_copy(update=environment)
    evaluation = evaluation.model_copy(update={"comparisons": (comparison(speedup),), "environment": changed})
    return report_of("gelu", TEXT, kernel, FACTS, evaluation).candidate


def _strategy(*uses: tuple[str, dict[str, Any]]) -> Strategy:
    return Strategy(techniques=tuple(TechniqueUse(id=name, parameters=given) for name, given in uses))


def test_the_relative_speedup_is_the_ratio_with_a_wider_interval() -> None:
    found = compare(_candidate(1.5), _candidate(3.0))
    relative = found.relative_speedup
    assert relative is not None
    assert relative.median == pytest.approx(2.0)
    assert relative.low < 2.0 < relative.high
    assert "not timed side by side" in found.relative_note
    assert found.source_diff == ""
    assert found.plan == []


@pytest.mark.parametrize(("change", "word"), [({"driver": "1"}, "driver"), ({"torch": "9"}, "torch")])
def test_what_was_measured_differently_is_not_divided(change: dict[str, Any], word: str) -> None:
    found = compare(_candidate(1.5), _candidate(3.0, **change))
    assert found.relative_speedup is None
    assert word in found.relative_note


def test_a_kernel_that_does_not_count_has_no_speedup() -> None:
    relative, note = relative_speedup(_candidate().evaluation, None)
    assert relative is None
    assert "count" in note


def test_strategies_differ_by_technique_parameter_and_order() -> None:
    first = _strategy(("aa", {"width": 4}), ("bb", {}), ("cc", {}))
    second = _strategy(("cc", {}), ("aa", {"width": 2, "depth": 1}), ("dd", {}))
    found = difference(first, second)
    assert (found.added, found.removed, found.reordered) == (["dd"], ["bb"], True)
    assert found.changed[0].model_dump() == {"id": "aa", "parameters": {"depth": [None, 1], "width": [4, 2]}}
    assert difference(first, first).model_dump() == {"added": [], "removed": [], "changed": [], "reordered": False}


def test_plans_differ_by_their_leaves_and_measured_tunables() -> None:
    other = GELU_CPU.model_copy(
        update={"source": GELU_CPU.source + "// more\n", "plan": GELU_CPU.plan.with_values({"STEP": 33})}
    )
    found = compare(_candidate(), _candidate(kernel=other))
    assert [(one.where, one.first, one.second) for one in found.plan] == [("tunables.STEP", 32, 33)]
    assert "+// more" in found.source_diff
