"""The Manager's strategies are valid, different, deterministic, and learn from pool and parents."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agents.interface import Briefing, NoTemplate, StrategySource
from agents.playbook import agents
from agents.playbook.ladders import parse
from agents.playbook.translator import with_defaults
from cupilot.domain.evaluation import FailureKind
from cupilot.domain.pool import PoolMatch, operators, shapes
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.roofline import Zone
from cupilot.domain.strategy import Strategy, TechniqueUse, problems_with
from cupilot.domain.technique import catalogue
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.evaluations import attempt, audited, match
from tests.unit.agents.playbook.operators_under_test import everything
from tests.unit.agents.playbook.references import trace

PLAYBOOK = agents()
CASES = ["gelu", "softmax", "softmax_middle", "layer_norm", "sum_last", "argmax", "mm", "linear", "frobenius"]


def about(name: str, target: Target = Target.CUDA, zone: Zone | None = Zone.MEMORY, policy: str = "fp32") -> Briefing:
    case = everything()[name]
    facts, _ = trace(case.function, case.inputs, case.parameters, policy=NumericsPolicy(policy))
    return briefing(facts, target, zone)


@pytest.mark.parametrize("target", list(Target))
@pytest.mark.parametrize("name", CASES)
def test_first_strategies_are_valid_different_and_renderable(name: str, target: Target) -> None:
    brief = about(name, target)
    found = PLAYBOOK.manager.initial_strategies(brief, [], 16, 7)
    assert len(found) >= 8
    assert len({item.strategy.signature() for item in found}) == len(found)
    for item in found:
        assert item.source is StrategySource.IDEA
        assert item.strategy.rationale
        assert problems_with(item.strategy, catalogue(), target, brief.facts.policy) == []
        PLAYBOOK.translator.translate(brief, item.strategy, (), 0)


def test_equal_seeds_give_equal_strategies_and_others_do_not() -> None:
    brief = about("softmax")
    ladder = len(PLAYBOOK.manager.initial_strategies(brief, [], 12, 0))
    first = PLAYBOOK.manager.initial_strategies(brief, [], 40, 1)
    assert first == PLAYBOOK.manager.initial_strategies(brief, [], 40, 1)
    assert first[ladder:] != PLAYBOOK.manager.initial_strategies(brief, [], 40, 2)[ladder:]


def test_fewer_strategies_come_back_where_the_space_is_small() -> None:
    facts, _ = trace(lambda x: x * 2, {"x": torch.zeros(2, 2)})
    found = PLAYBOOK.manager.initial_strategies(briefing(facts, Target.CPU), [], 200, 0)
    assert 1 < len(found) < 200


def test_a_problem_without_template_is_refused() -> None:
    facts, _ = trace(torch.i0, {"x": torch.zeros(4, 4)})
    with pytest.raises(NoTemplate, match="i0"):
        PLAYBOOK.manager.initial_strategies(briefing(facts, Target.CPU), [], 4, 0)


def test_pool_entries_come_first_best_first_and_adapted() -> None:
    brief = about("softmax_odd")
    good = match(parse("vector_loads(width=4), register_rows, warp_shuffle_reduction: "), number=1, score=5.0)
    other = match(parse("warp_per_row(warps=8), register_rows: "), number=2, score=9.0)
    found = PLAYBOOK.manager.initial_strategies(brief, [good, other], 8, 0)
    assert [item.pool_entry for item in found[:2]] == ["entry-2", "entry-1"]
    assert found[0].source is StrategySource.POOL
    assert found[1].strategy.ids() == ("register_rows", "warp_shuffle_reduction")
    assert "without vector_loads" in found[1].strategy.rationale
    assert "2.00 times eager" in found[0].strategy.rationale
    assert all(item.source is StrategySource.IDEA for item in found[2:])


def test_on_a_cpu_what_is_left_of_a_pool_entry_still_has_threads_and_vectors() -> None:
    entry = match(parse("threads, micro_kernel(rows=8, vectors=2), hoisted_division: "), number=1, target=Target.CPU)
    brief = about("softmax", Target.CPU, zone=None)
    (found,) = PLAYBOOK.manager.initial_strategies(brief, [entry], 1, 0)
    assert found.source is StrategySource.POOL
    assert found.strategy.ids() == ("threads", "hoisted_division", "simd", "polynomial_exp")
    assert "without micro_kernel, which cannot be applied here; with simd, polynomial_exp" in found.strategy.rationale
    whole = match(parse("threads, hoisted_division: "), number=1, target=Target.CPU)
    (found,) = PLAYBOOK.manager.initial_strategies(brief, [whole], 1, 0)
    assert found.strategy.ids() == ("threads", "hoisted_division")


def test_the_pool_takes_at_most_half_of_the_places() -> None:
    brief = about("softmax")
    entries = [match(parse(f"grid_stride(blocks_per_unit={n}): "), number=n) for n in (2, 4, 8, 16)]
    found = PLAYBOOK.manager.initial_strategies(brief, entries, 6, 0)
    assert sum(item.source is StrategySource.POOL for item in found) == 3


def test_strategies_that_failed_on_this_problem_are_avoided() -> None:
    brief = about("softmax")
    best = PLAYBOOK.manager.initial_strategies(brief, [], 4, 0)[0].strategy
    same = match(best, failure=FailureKind.WRONG_VALUE, problem_hash=brief.facts.problem_hash)
    elsewhere = match(best, failure=FailureKind.WRONG_VALUE)
    blameless = match(best, failure=FailureKind.INFRASTRUCTURE, problem_hash=brief.facts.problem_hash)

    def signatures(entry: object) -> set[str]:
        found = PLAYBOOK.manager.initial_strategies(brief, [entry], 8, 0)  # type: ignore[list-item]
        return {item.strategy.signature() for item in found}

    assert best.signature() not in signatures(same)
    assert best.signature() in signatures(elsewhere)
    assert best.signature() in signatures(blameless)


def test_where_all_there_is_has_failed_before_it_is_tried_again() -> None:
    facts, _ = trace(lambda x: (x / x.abs().amax(-1, keepdim=True)).round().to(torch.int8), {"x": torch.rand(4, 64)})
    brief = briefing(facts, Target.CPU)
    first = PLAYBOOK.manager.initial_strategies(brief, [], 8, 0)
    failures = [
        match(item.strategy, number=at, speedup=None, failure=FailureKind.WRONG_VALUE, target=Target.CPU,
              problem_hash=facts.problem_hash, operators=operators(facts), shapes=shapes(facts))
        for at, item in enumerate(first)
    ]  # fmt: skip
    again = PLAYBOOK.manager.initial_strategies(brief, failures, 8, 0)
    assert again
    assert PLAYBOOK.manager.initial_strategies(brief, failures, 8, 0, taken=[item.strategy for item in again]) == []


def test_what_failed_or_was_slow_on_the_same_work_is_avoided_under_any_name() -> None:
    """The same calls on the same shapes are the same work, whatever the file is called."""
    brief = about("softmax")
    first, second, *_ = (item.strategy for item in PLAYBOOK.manager.initial_strategies(brief, [], 4, 0))
    same: dict[str, Any] = {"operators": operators(brief.facts), "shapes": shapes(brief.facts)}
    failed = match(first, number=1, failure=FailureKind.TIMEOUT, **same)
    fast = match(parse("grid_stride(blocks_per_unit=4): "), number=2, score=1.0, speedup=4.0, **same)
    slow = match(second, number=3, score=9.0, speedup=0.9, **same)

    def signatures(*entries: PoolMatch) -> list[str]:
        found = PLAYBOOK.manager.initial_strategies(brief, entries, 8, 0)
        return [item.strategy.signature() for item in found]

    known = signatures(failed, fast, slow)
    assert first.signature() not in known
    assert second.signature() not in known
    assert second.signature() in signatures(failed, slow), "slow only beside something fast"
    other = match(first, number=1, failure=FailureKind.TIMEOUT, operators=operators(brief.facts), shapes=((2, 2),))
    assert first.signature() in signatures(other)


def test_what_won_on_the_same_work_comes_before_what_won_elsewhere() -> None:
    brief = about("softmax")
    here = match(parse("grid_stride(blocks_per_unit=4): "), number=1, score=1.0, problem_hash=brief.facts.problem_hash)
    elsewhere = match(parse("grid_stride(blocks_per_unit=8): "), number=2, score=9.0)
    found = PLAYBOOK.manager.initial_strategies(brief, [elsewhere, here], 8, 0)
    assert [item.pool_entry for item in found[:2]] == ["entry-1", "entry-2"]


def test_entries_of_another_target_and_unknown_techniques_are_left_out() -> None:
    brief = about("softmax")
    novel = Strategy(techniques=(TechniqueUse(id="my_new_trick"), TechniqueUse(id="fast_exp")))
    entries = [match(parse("threads, simd: "), number=1, target=Target.CPU), match(novel, number=2)]
    found = [item for item in PLAYBOOK.manager.initial_strategies(brief, entries, 8, 0) if item.pool_entry]
    assert [(item.pool_entry, item.strategy.ids()) for item in found] == [("entry-2", ("fast_exp",))]


def test_the_policy_bounds_what_is_proposed() -> None:
    strict = PLAYBOOK.manager.initial_strategies(about("mm_aligned", zone=Zone.COMPUTE), [], 30, 0)
    loose = PLAYBOOK.manager.initial_strategies(about("mm_aligned", zone=Zone.COMPUTE, policy="tf32"), [], 30, 0)
    assert not any("tensor_cores" in item.strategy.ids() for item in strict)
    assert any("tensor_cores" in item.strategy.ids() for item in loose)


def test_without_guidance_the_zone_plays_no_part() -> None:
    blind = PLAYBOOK.manager.initial_strategies(about("gelu", zone=None), [], 20, 3)
    assert len(blind) == 20


def parents() -> tuple[Strategy, Strategy]:
    first = with_defaults(parse("vector_loads(width=4), register_rows, warp_shuffle_reduction: "))
    second = with_defaults(parse("vector_loads(width=2), online_softmax, fast_exp, streaming_access: "))
    return first, second


def test_crossover_combines_both_parents_and_says_so() -> None:
    brief = about("softmax")
    first, second = parents()
    seen: set[str] = set()
    for seed in range(40):
        child = PLAYBOOK.manager.crossover(brief, attempt(first), attempt(second), [first, second], seed)
        assert child == PLAYBOOK.manager.crossover(brief, attempt(first), attempt(second), [first, second], seed)
        assert child.signature() not in (first.signature(), second.signature())
        assert problems_with(child, catalogue(), Target.CUDA, NumericsPolicy.FP32) == []
        assert child.rationale.startswith("Crossover: ")
        PLAYBOOK.translator.translate(brief, child, (), 0)
        for name in child.ids():
            assert name in child.rationale, (child.ids(), child.rationale)
        seen.add(child.signature())
    assert len(seen) > 10
    inherited = set(first.ids()) | set(second.ids())
    children = [
        PLAYBOOK.manager.crossover(brief, attempt(first), attempt(second), [], seed).ids() for seed in range(20)
    ]
    assert any(set(ids) <= inherited and "register_rows" in ids and "fast_exp" in ids for ids in children)


def test_conflicts_are_settled_for_the_fitter_parent() -> None:
    brief = about("softmax")
    fitter = with_defaults(parse("shared_rows, warp_shuffle_reduction: "))
    other = with_defaults(parse("warp_per_row, vector_loads: "))
    for seed in range(20):
        child = PLAYBOOK.manager.crossover(brief, attempt(fitter), attempt(other), [], seed)
        ids = set(child.ids())
        assert not {"shared_rows", "warp_per_row"} <= ids
        assert not {"warp_shuffle_reduction", "warp_per_row"} <= ids


def test_crossover_avoids_what_the_job_already_has_until_nothing_is_left() -> None:
    facts, _ = trace(lambda x: x * 2, {"x": torch.zeros(2, 2)})
    brief = briefing(facts, Target.CPU)
    plain = Strategy(techniques=())
    threads = with_defaults(parse("threads: "))
    taken = [plain, threads]
    for seed in range(12):
        child = PLAYBOOK.manager.crossover(brief, attempt(threads), attempt(plain), taken, seed)
        assert child.signature() not in {item.signature() for item in taken}
        taken.append(child)


def test_parents_from_elsewhere_are_fitted_to_the_problem() -> None:
    brief = about("softmax_odd")
    first, second = parents()
    for seed in range(10):
        child = PLAYBOOK.manager.crossover(brief, attempt(first), attempt(second), [], seed)
        assert "vector_loads" not in child.ids(), "rows of odd length have no aligned packs"


def test_mutation_follows_the_diagnosis() -> None:
    brief = about("softmax")
    slow = audited({"floor_pct": 20.0, "memory_throughput_pct": 20.0, "compute_throughput_pct": 1.0}, brief.placement)
    bare = Strategy(techniques=())
    children = [
        PLAYBOOK.manager.crossover(brief, attempt(bare, slow), attempt(bare, slow), [bare], seed) for seed in range(30)
    ]
    assert any("as advised" in child.rationale for child in children)
    blind = brief.model_copy(update={"placement": None})
    for seed in range(30):
        child = PLAYBOOK.manager.crossover(blind, attempt(bare, slow), attempt(bare, slow), [bare], seed)
        assert "as advised" not in child.rationale
