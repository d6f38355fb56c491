"""A matrix becomes matched jobs: each cell once, blocks whole, turns fair, budgets within their total."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupilot.domain.errors import InvalidInput
from cupilot.domain.experiments.matrix import (
    MAX_ARMS,
    METHODS,
    Arm,
    Total,
    at_most,
    cells,
    check_arms,
    configuration,
    crossed,
    merged,
    own_answers,
    shared,
)
from cupilot.domain.job import AgentKind, Budgets

small = st.integers(1, 6)


def arm(name: str = "sce", agents: AgentKind = AgentKind.PLAYBOOK, **method: Any) -> Arm:
    return Arm(name=name, method=configuration({"name": "sce", **method}, "method"), agents=agents)


@given(small, small, small)
@settings(max_examples=60, deadline=None)
def test_every_cell_comes_once_in_whole_blocks(arms: int, problems: int, seeds: int) -> None:
    order = cells(arms, problems, seeds)
    assert len(set(order)) == len(order) == arms * problems * seeds
    for start in range(0, len(order), arms):
        block = order[start : start + arms]
        assert {(item.problem, item.seed) for item in block} == {(block[0].problem, block[0].seed)}
        assert {item.arm for item in block} == set(range(arms))


@given(small, small, small)
@settings(max_examples=60, deadline=None)
def test_arms_take_turns_at_being_first_on_every_problem(arms: int, problems: int, rounds: int) -> None:
    order = cells(arms, problems, arms * rounds)
    first = Counter((item.problem, item.arm) for item in order[::arms])
    assert set(first.values()) == {rounds}


@given(st.integers(1, 400), st.integers(1, 10_000), st.just(0.0) | st.floats(1e-6, 1_000))
@settings(max_examples=60, deadline=None)
def test_shares_never_exceed_their_total(jobs: int, candidates: int, cost: float) -> None:
    total = Total(candidates=candidates, cost_usd=cost)
    if candidates < jobs:
        with pytest.raises(InvalidInput, match="is too few for"):
            shared(Budgets(), total, jobs)
        return
    each = shared(Budgets(), total, jobs)
    assert each.candidates * jobs <= candidates
    assert each.cost_usd * jobs <= cost * (1 + 1e-9)
    assert each.candidates <= Budgets().candidates
    assert each.wall_seconds == Budgets().wall_seconds


@pytest.mark.parametrize(
    ("asked", "reuses"), [({}, False), ({"reuse_answers": True}, True), ({"reuse_answers": False}, False)]
)
def test_jobs_pay_for_their_own_answers_unless_the_request_says_otherwise(asked: dict[str, bool], reuses: bool) -> None:
    budgets = own_answers(Budgets(candidates=12, **asked))
    assert (budgets.candidates, budgets.reuse_answers) == (12, reuses)
    assert shared(budgets, Total(candidates=120), 12).reuse_answers is reuses


def test_only_arms_that_may_call_models_cost_money() -> None:
    budgets = Budgets(candidates=10, wall_seconds=60, cost_usd=2)
    bound = at_most([arm(), arm("model", AgentKind.LLM)], budgets, 6)
    assert bound == Total(candidates=120, wall_seconds=720, cost_usd=12)


def test_switches_cross_every_arm() -> None:
    found = crossed([arm("a"), arm("b", population=4)], {"pool": [True, False], "generations": [1, 2]})
    assert [item.name for item in found[:4]] == [
        "a pool=on generations=1",
        "a pool=on generations=2",
        "a pool=off generations=1",
        "a pool=off generations=2",
    ]
    assert found[-1].method["population"] == 4
    assert (found[-1].method["pool"], found[-1].method["generations"]) == (False, 2)
    check_arms(found)


def test_an_unknown_switch_is_refused_by_the_method_itself() -> None:
    with pytest.raises(InvalidInput) as refused:
        crossed([arm()], {"luck": [True]})
    assert "luck" in str(refused.value)
    with pytest.raises(InvalidInput):
        configuration({"name": "sce", "population": 1}, "method")


def test_common_settings_count_for_arms_of_the_same_method() -> None:
    base = {"name": "sce", "population": 4}
    assert merged(base, {"pool": False}) == {"name": "sce", "population": 4, "pool": False}
    assert merged(base, {"name": "sce", "pool": False})["population"] == 4
    assert merged(base, {"name": "another"}) == {"name": "another"}


def test_arms_differ() -> None:
    with pytest.raises(InvalidInput, match="called"):
        check_arms([arm(), arm(population=4)])
    with pytest.raises(InvalidInput, match="are the same"):
        check_arms([arm("a"), arm("b")])
    with pytest.raises(InvalidInput, match="arms"):
        check_arms([])
    with pytest.raises(InvalidInput, match="arms"):
        check_arms([arm(str(number), population=number + 3) for number in range(MAX_ARMS + 1)])


@pytest.mark.parametrize(
    "name", ["sce", "evoengineer-free", "evoengineer-insight", "evoengineer-full", "ai-cuda-engineer"]
)
def test_every_method_of_a_job_can_be_an_arm(name: str) -> None:
    written = configuration({"name": name}, "method")
    assert METHODS.validate_python(written).model_dump(mode="json") == written


def test_errors_name_the_field_and_nothing_of_the_machinery() -> None:
    with pytest.raises(InvalidInput) as refused:
        configuration({"name": "sce", "population": 1}, "body.arms.0.method")
    assert refused.value.where == "body.arms.0.method.population"
