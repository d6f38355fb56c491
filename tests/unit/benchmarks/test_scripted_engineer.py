"""The scripted engineer: one idea a strategy, and kernels of one or of all that build and are right."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from agents.interface import Briefing
from agents.playbook.search import Space
from agents.playbook.translator import PlaybookTranslator, operator_of
from benchmarks.scripted_engineer import ScriptedEngineer, crossed, ideas
from cupilot.domain.problem import ProblemFacts, Target
from cupilot.domain.strategy import Strategy
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.references import run_cpu, trace

LONG, WIDE = 393_216, 512
"""Row lengths: of ``softmax`` at full size, and one that a test can compute."""


def _softmax(rows: int, columns: int) -> tuple[ProblemFacts, torch.Tensor]:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
    facts, _ = trace(lambda x: torch.softmax(x, dim=1), {"x": x}, op_class="softmax")
    return facts, x


def _space(about: Briefing) -> Space:
    return Space(about, operator_of(about))


def _crossed(engineer: ScriptedEngineer, first: Strategy, second: Strategy) -> Strategy:
    """Return the engineer's answer to a request to combine two strategies."""
    data = "\n".join(f'<data name="candidate">\n{each.model_dump_json()}\n</data>' for each in (first, second))
    request: dict[str, Any] = {"messages": [{"content": ""}, {"content": f"You combine two\n{data}"}]}
    return Strategy(techniques=tuple(json.loads(engineer(request).text or "")["techniques"]))


@pytest.mark.parametrize(("target", "columns"), [(Target.CUDA, LONG), (Target.CPU, WIDE)])
def test_first_strategies_are_single_ideas_that_combine(target: Target, columns: int) -> None:
    about = briefing(_softmax(8, columns)[0], target)
    found = ideas(_space(about))
    assert len({item.ids() for item in found}) == len(found) >= 6
    assert found[-1] == Strategy(techniques=())
    assert max(len(item.techniques) for item in found) <= 2, "a companion only where an idea cannot stand alone"
    engineer = ScriptedEngineer(lambda: about)
    larger = [_crossed(engineer, item, other) for item, other in combinations(found[:4], 2)]
    assert max(len(item.techniques) for item in larger) > 2
    assert all(_space(about).valid(item) for item in larger)


def test_a_combination_that_the_job_has_had_gets_one_idea_more() -> None:
    space = _space(briefing(_softmax(8, LONG)[0], Target.CUDA))
    first, second = ideas(space)[:2]
    both = crossed(space, first, second, ())
    more = crossed(space, first, second, {both.signature()})
    assert set(both.ids()) == {*first.ids(), *second.ids()} < set(more.ids())


def test_on_long_rows_the_first_ideas_are_those_that_save_traffic() -> None:
    found = ideas(_space(briefing(_softmax(8, LONG)[0], Target.CUDA)))[:6]
    first = {name for item in found for name in item.ids()}
    assert {"vector_loads", "online_softmax", "cluster_rows", "shared_rows"} <= first


def test_every_idea_and_all_of_them_together_build_as_cuda() -> None:
    facts, _ = _softmax(8, LONG)
    about = briefing(facts, Target.CUDA)
    found = ideas(_space(about))
    engineer = ScriptedEngineer(lambda: about)
    everything = found[0]
    for item in found[1:-1]:
        everything = _crossed(engineer, everything, item)
    assert {"vector_loads", "online_softmax", "cluster_rows"} <= set(everything.ids())
    for item in (*found, everything):
        compile_cuda(PlaybookTranslator().translate(about, item, (), 0), facts)


def test_every_idea_is_right_on_a_cpu(builds: Path) -> None:
    facts, x = _softmax(37, WIDE)
    about = briefing(facts, Target.CPU)
    exact = torch.softmax(x.double(), dim=1)
    for idea in ideas(_space(about)):
        kernel = PlaybookTranslator().translate(about, idea, (), 0)
        (result,) = run_cpu(kernel, facts, {"x": x}, builds)
        assert (result - exact).abs().max() <= 1e-6 * exact.max(), idea.ids()
