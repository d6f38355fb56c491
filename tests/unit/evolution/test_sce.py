"""The method sce: sizes, parents, survivors and stops, for every population."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupilot.domain.evolution.methods import method_for
from cupilot.domain.evolution.population import Member, Operator, StopReason
from cupilot.domain.evolution.sce import Sce, SceConfig
from cupilot.domain.evolution.selection import ranked
from tests.unit.evolution.populations import make_member, populations

configs = st.integers(2, 12).flatmap(
    lambda population: st.builds(
        SceConfig,
        population=st.just(population),
        elites=st.integers(0, population - 1),
        tournament=st.integers(1, 8),
        generations=st.integers(1, 10),
    )
)


@pytest.mark.parametrize(("population", "elites"), [(2, 1), (3, 2), (8, 2)])
def test_elites_that_are_not_given_fit_into_a_small_population(population: int, elites: int) -> None:
    assert SceConfig.model_validate({"population": population}).elites == elites


@given(configs, populations(), st.integers())
def test_the_first_generation_is_all_ideas(config: SceConfig, population: list[Member], seed: int) -> None:
    proposals = Sce(config).propose(population, 0, Random(seed))
    assert [proposal.operator for proposal in proposals] == [Operator.INITIAL] * config.population


@given(configs, populations(), st.integers(1, 5), st.integers())
def test_elites_and_proposals_fill_the_population(
    config: SceConfig, population: list[Member], generation: int, seed: int
) -> None:
    proposals = Sce(config).propose(population, generation, Random(seed))
    assert len(proposals) == config.population - min(config.elites, len(ranked(population)))


@given(configs, populations(), st.integers(1, 5), st.integers())
def test_parents_are_two_that_count_the_fitter_first(
    config: SceConfig, population: list[Member], generation: int, seed: int
) -> None:
    rank = {one.candidate: place for place, one in enumerate(ranked(population))}
    proposals = Sce(config).propose(population, generation, Random(seed))
    for proposal in proposals:
        if len(rank) < 2:
            assert (proposal.operator, proposal.parents) == (Operator.INITIAL, ())
        else:
            assert proposal.operator is Operator.CROSSOVER
            first, second = proposal.parents
            assert rank[first] < rank[second]


@given(configs, populations(), st.integers(1, 5), st.integers())
def test_parents_differ_in_strategy_where_any_two_do(
    config: SceConfig, population: list[Member], generation: int, seed: int
) -> None:
    signature = {member.candidate: member.strategy.signature() for member in ranked(population)}
    if len(set(signature.values())) > 1:
        for proposal in Sce(config).propose(population, generation, Random(seed)):
            assert len({signature[parent] for parent in proposal.parents}) == 2


@given(configs, st.integers(2, 6), st.integers())
def test_no_pair_is_crossed_again_while_another_is_untried(config: SceConfig, size: int, seed: int) -> None:
    population = [make_member(ordinal, float(ordinal)) for ordinal in range(size)]
    used = Counter(proposal.parents for proposal in Sce(config).propose(population, 1, Random(seed)))
    possible = size * (size - 1) // 2
    counts = [*used.values(), *[0] * (possible - len(used))]
    assert max(counts) - min(counts) <= 1


@given(configs, populations(), st.integers(1, 5), st.integers(), st.randoms(use_true_random=False))
def test_proposals_depend_on_seed_and_members_only(
    config: SceConfig, population: list[Member], generation: int, seed: int, shuffler: Random
) -> None:
    shuffled = list(population)
    shuffler.shuffle(shuffled)
    method = Sce(config)
    assert method.propose(population, generation, Random(seed)) == method.propose(shuffled, generation, Random(seed))
    assert method.select(population) == method.select(shuffled)


@given(configs, populations())
def test_survivors_count_are_bounded_and_best_first(config: SceConfig, population: list[Member]) -> None:
    survivors = Sce(config).select(population)
    by_id = {member.candidate: member for member in population}
    assert len(set(survivors)) == len(survivors) <= config.population
    fitnesses = [by_id[candidate].fitness for candidate in survivors]
    assert all(fitness is not None for fitness in fitnesses)
    assert all(high >= low for high, low in pairwise(fitnesses))  # type: ignore[operator]


@given(configs, populations())
def test_the_elites_survive_and_beyond_them_only_the_newest(config: SceConfig, population: list[Member]) -> None:
    order = ranked(population)
    newest = max((member.generation for member in population), default=0)
    survivors = Sce(config).select(population)
    assert set(survivors) >= {member.candidate for member in order[: config.elites]}
    elder = [member for member in order if member.candidate in survivors and member.generation < newest]
    assert all(member in order[: config.elites] for member in elder)


@given(configs, st.data())
def test_with_elites_the_best_fitness_never_falls(config: SceConfig, data: st.DataObject) -> None:
    config = config.model_copy(update={"elites": max(config.elites, 1)})
    method = Sce(config)
    population: list[Member] = []
    best = float("-inf")
    for generation in range(4):
        proposals = method.propose(population, generation, Random(generation))
        offspring = [
            make_member(100 * generation + place, data.draw(st.none() | st.floats(-3, 3)), generation=generation)
            for place, _ in enumerate(proposals)
        ]
        everyone = population + offspring
        survivors = method.select(everyone)
        population = [member for member in everyone if member.candidate in survivors]
        now = max((member.fitness for member in population if member.fitness is not None), default=float("-inf"))
        assert now >= best
        best = now


@given(configs, populations(), st.integers(0, 12))
def test_it_stops_when_all_generations_are_done_and_not_before(
    config: SceConfig, population: list[Member], generation: int
) -> None:
    stop = Sce(config).should_stop(population, generation)
    assert stop is (StopReason.GENERATIONS if generation >= config.generations - 1 else None)


def test_it_stops_near_the_floor() -> None:
    method = Sce(SceConfig(generations=50))
    assert method.should_stop([make_member(0, 1.0, floor_share=0.949)], 0) is None
    assert method.should_stop([make_member(0, 1.0, floor_share=0.95)], 0) is StopReason.NEAR_FLOOR


def test_a_kernel_that_does_not_count_never_stops_a_job() -> None:
    tricked = make_member(0, None).model_copy(update={"floor_share": 3.0})
    assert Sce(SceConfig(generations=50)).should_stop([tricked], 0) is None


def test_the_registry_knows_sce() -> None:
    method = method_for(SceConfig(population=5))
    assert isinstance(method, Sce)
    assert len(method.propose([], 0, Random(0))) == 5
