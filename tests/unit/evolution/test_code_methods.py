"""EvoEngineer and The AI CUDA Engineer: sizes, parents, what is shown, survivors and stops, for every population."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupilot.domain.evolution.agentic import AgenticConfig
from cupilot.domain.evolution.ai_cuda_engineer import AiCudaEngineer, AiCudaEngineerConfig
from cupilot.domain.evolution.eoh import OPERATORS, EohConfig
from cupilot.domain.evolution.evoengineer import (
    EvoEngineerFreeConfig,
    EvoEngineerFull,
    EvoEngineerFullConfig,
    EvoEngineerInsightConfig,
)
from cupilot.domain.evolution.funsearch import FunSearch, FunSearchConfig
from cupilot.domain.evolution.methods import CONFIGS, MethodConfig, method_for, read_config
from cupilot.domain.evolution.pipeline import Stage
from cupilot.domain.evolution.population import Member, Operator, StopReason
from cupilot.domain.evolution.sce import CupilotPaperConfig, SceConfig
from cupilot.domain.evolution.selection import ranked
from tests.unit.evolution.populations import make_member, populations

sizes = {"generations": st.integers(1, 12), "samplers": st.integers(1, 6), "samples": st.integers(1, 60)}
free = st.builds(EvoEngineerFreeConfig, **sizes)
insight = st.builds(EvoEngineerInsightConfig, **sizes, population=st.integers(1, 8), insights=st.integers(0, 5))
full = st.builds(
    EvoEngineerFullConfig,
    **sizes,
    population=st.integers(2, 8),
    insights=st.integers(0, 5),
    valid_required=st.integers(2, 4),
)
ai_cuda = st.builds(
    AiCudaEngineerConfig,
    generations=st.integers(0, 6),
    proposals=st.integers(1, 6),
    shown=st.integers(1, 6),
    compositions=st.integers(0, 6),
)
sce = st.builds(
    SceConfig,
    epochs=st.integers(1, 3),
    generations=st.integers(1, 4),
    crossover=st.sampled_from(["strategy", "code"]),
    agentic=st.integers(0, 9),
)
eoh = st.builds(EohConfig, **sizes, population=st.integers(2, 8), parents=st.integers(2, 4))
funsearch = st.builds(FunSearchConfig, **sizes, islands=st.integers(1, 4), shown=st.integers(1, 3))
agentic = st.builds(AgenticConfig, generations=st.integers(1, 4), agents=st.integers(1, 5))
configs = free | insight | full | ai_cuda | sce | eoh | funsearch | agentic


def whole_run(config: MethodConfig, counts: bool) -> tuple[list[list[Operator]], StopReason]:
    """Operators of each generation, where all that is proposed counts, or nothing does; and why it stopped."""
    method = method_for(config)
    population: list[Member] = []
    made: list[list[Operator]] = []
    while True:
        number = len(made)
        proposals = method.propose(population, number, Random(number))
        made.append([proposal.operator for proposal in proposals])
        first = sum(map(len, made[:-1]))
        born = [
            make_member(first + place, 0.1 if counts else None, generation=number) for place in range(len(proposals))
        ]
        everyone = population + born
        kept = method.select(everyone)
        stop = method.should_stop(everyone, number)
        population = [member for member in everyone if member.candidate in kept]
        if stop is not None:
            return made, stop


@given(configs, st.booleans())
def test_every_method_ends_within_the_rounds_that_it_names(config: MethodConfig, counts: bool) -> None:
    made, stop = whole_run(config, counts)
    assert len(made) <= config.rounds
    assert len(made) == config.rounds or stop is StopReason.NO_START
    assert all(made)


@given(configs, populations(), st.integers(0, 5), st.integers(), st.randoms(use_true_random=False))
def test_equal_populations_give_equal_answers_in_any_order(
    config: MethodConfig, population: list[Member], generation: int, seed: int, shuffler: Random
) -> None:
    shuffled = list(population)
    shuffler.shuffle(shuffled)
    method = method_for(config)
    assert method.propose(population, generation, Random(seed)) == method.propose(shuffled, generation, Random(seed))
    assert method.select(population) == method.select(shuffled)


@given(configs, populations(), st.integers(0, 5), st.integers())
def test_parents_count_are_different_and_the_fitter_comes_first(
    config: MethodConfig, population: list[Member], generation: int, seed: int
) -> None:
    rank = {one.candidate: place for place, one in enumerate(ranked(population))}
    members = {member.candidate for member in population}
    for proposal in method_for(config).propose(population, generation, Random(seed)):
        places = [rank[parent] for parent in proposal.parents]
        assert places == sorted(set(places))
        assert set(proposal.inspirations) <= members
        assert 0 <= proposal.place < proposal.places


@given(configs, populations())
def test_survivors_are_members_each_once(config: MethodConfig, population: list[Member]) -> None:
    kept = method_for(config).select(population)
    assert len(set(kept)) == len(kept)
    assert set(kept) <= {member.candidate for member in population}


@given(free | insight | full | eoh | funsearch)
def test_no_more_is_proposed_than_the_samples(config: MethodConfig) -> None:
    made, _ = whole_run(config, counts=True)
    assert not isinstance(config, SceConfig | AiCudaEngineerConfig)
    assert sum(map(len, made)) <= config.samples


def test_the_published_sizes_are_the_defaults() -> None:
    made, stop = whole_run(EvoEngineerFreeConfig(), counts=True)
    assert (sum(map(len, made)), len(made), stop) == (40, 10, StopReason.GENERATIONS)
    made, stop = whole_run(EvoEngineerFullConfig(), counts=True)
    assert (sum(map(len, made)), made[0], stop) == (40, [Operator.REWRITE] * 4, StopReason.GENERATIONS)
    assert Counter(made[1]) == {Operator.CODE_CROSSOVER: 2, Operator.MUTATION: 2}
    made, _ = whole_run(AiCudaEngineerConfig(), counts=True)
    assert [len(item) for item in made] == [1, *[4] * 10, 5]
    assert {operator for item in made[1:11] for operator in item} == {Operator.OPTIMISATION}
    assert set(made[11]) == {Operator.COMPOSITION}


def test_the_baselines_have_the_sizes_that_evoengineer_ran_them_with() -> None:
    made, stop = whole_run(EohConfig(), counts=True)
    assert (sum(map(len, made)), len(made), stop) == (40, 10, StopReason.GENERATIONS)
    assert made[:2] == [[Operator.REWRITE] * 4] * 2
    assert made[2] == list(OPERATORS)
    made, stop = whole_run(FunSearchConfig(), counts=True)
    assert (sum(map(len, made)), len(made), stop) == (45, 9, StopReason.SAMPLES)
    assert {operator for generation in made[1:] for operator in generation} == {Operator.NEXT_VERSION}


@pytest.mark.parametrize("samplers", [1, 2, 3])
@pytest.mark.parametrize("config", [EohConfig, EvoEngineerFullConfig])
def test_few_samplers_use_every_operator_in_turn(
    config: type[EohConfig] | type[EvoEngineerFullConfig], samplers: int
) -> None:
    method = method_for(config(samplers=samplers))
    best = [make_member(ordinal, 1.0) for ordinal in range(6)]
    generations = [method.propose(best, generation, Random(0)) for generation in range(12)]
    used = [proposal.operator for generation in generations for proposal in generation]
    wanted = OPERATORS if config is EohConfig else (Operator.CODE_CROSSOVER, Operator.MUTATION)
    assert used[: len(wanted) * 2] == list(wanted) * 2


def test_the_papers_preset_is_sce_at_the_papers_size() -> None:
    config = CupilotPaperConfig()
    assert (config.population, config.epochs) == (50, 2)
    assert config.model_dump(exclude={"name", "population", "epochs"}) == SceConfig().model_dump(
        exclude={"name", "population", "epochs"}
    )
    assert [item.operator for item in method_for(config).propose([], 0, Random(0))] == [Operator.INITIAL] * 50


def test_funsearch_draws_from_the_generations_island_the_better_ones_more_often() -> None:
    method = FunSearch(FunSearchConfig(islands=2, shown=1, samplers=1, samples=5_000))
    population = [
        make_member(0, 0.1, generation=0),
        make_member(1, 0.9, generation=1),
        make_member(2, 0.2, generation=2),
    ]
    drawn = Counter(method.propose(population, 4, Random(seed))[0].parents for seed in range(2_000))
    assert set(drawn) == {("c0",), ("c2",)}
    assert drawn["c2",] / 2_000 == pytest.approx(0.731, abs=0.04)  # e / (1 + e)
    assert method.propose(population[:1], 1, Random(0))[0].parents == ("c0",)


def test_full_pads_its_population_with_the_newest_that_do_not_count() -> None:
    population = [make_member(0, 0.5), make_member(1, None), make_member(2, None), make_member(3, 0.7)]
    method = EvoEngineerFull(EvoEngineerFullConfig(population=3))
    assert method.select(population) == ("c3", "c0", "c2")


def test_parents_are_drawn_by_rank() -> None:
    population = [make_member(ordinal, -float(ordinal)) for ordinal in range(5)]
    method = EvoEngineerFull(EvoEngineerFullConfig(samplers=2, samples=5_000))
    drawn = Counter(method.propose(population, 1, Random(seed))[1].parents[0] for seed in range(3_000))
    # Weights 1/5, 1/6, 1/7, 1/8, 1/9 of their sum, 0.7456.
    assert [drawn[f"c{place}"] / 3_000 for place in range(5)] == pytest.approx(
        [1 / (place + 5) / 0.7456 for place in range(5)], abs=0.04
    )


def test_an_optimiser_is_shown_the_best_from_slow_to_fast() -> None:
    population = [make_member(ordinal, float(ordinal)) for ordinal in range(7)]
    proposal = AiCudaEngineer(AiCudaEngineerConfig()).propose(population, 1, Random(0))[0]
    assert proposal.parents == ("c6",)
    assert proposal.inspirations == ("c2", "c3", "c4", "c5", "c6")


def test_only_the_translation_is_converted_and_mended() -> None:
    method = method_for(AiCudaEngineerConfig())
    assert method.pipeline(Operator.TRANSLATION).opening is Stage.CONVERT
    assert method.pipeline(Operator.TRANSLATION).repair_rounds == 10
    assert [method.pipeline(operator).repair_rounds for operator in (Operator.OPTIMISATION, Operator.COMPOSITION)] == [
        0,
        0,
    ]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_read_back_by_its_name(name: str) -> None:
    config = CONFIGS[name]()
    assert read_config(config.model_dump(mode="json")) == config
    assert config.name == name


def test_parameters_without_a_name_are_those_of_sce() -> None:
    assert read_config({"population": 3}) == SceConfig(population=3)


@given(populations(), st.integers(0, 5), st.integers())
def test_crossover_of_code_changes_the_operator_and_nothing_else(
    population: list[Member], generation: int, seed: int
) -> None:
    plain = method_for(SceConfig()).propose(population, generation, Random(seed))
    code = method_for(SceConfig(crossover="code")).propose(population, generation, Random(seed))  # type: ignore[arg-type]
    assert [(item.parents, item.operator is Operator.INITIAL) for item in plain] == [
        (item.parents, item.operator is Operator.INITIAL) for item in code
    ]
    assert Operator.CROSSOVER not in {item.operator for item in code}


@given(populations(), st.integers())
def test_an_epoch_begins_from_the_elites_in_turn(population: list[Member], seed: int) -> None:
    config = SceConfig(population=5, generations=2, epochs=2, elites=2)
    elites = [member.candidate for member in ranked(population)[:2]]
    proposals = method_for(config).propose(population, 2, Random(seed))
    assert {proposal.operator for proposal in proposals} == {Operator.INITIAL}
    assert len(proposals) == 5 - len(elites)
    expected = [(elites[place % len(elites)],) if elites else () for place in range(len(proposals))]
    assert [proposal.parents for proposal in proposals] == expected
