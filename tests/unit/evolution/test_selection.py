"""Elitism and tournament: order, determinism, and nothing that does not count."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from cupilot.domain.evolution.population import Member
from cupilot.domain.evolution.selection import elite, ranked, tournament
from tests.unit.evolution.populations import make_member, populations


@given(populations())
def test_ranking_is_total_and_leaves_out_what_does_not_count(population: list[Member]) -> None:
    order = ranked(population)
    assert {member.candidate for member in order} == {
        member.candidate for member in population if member.fitness is not None
    }
    keys = [(-(member.fitness or 0.0), member.ordinal) for member in order]
    assert keys == sorted(keys)


@given(populations(), st.integers(0, 10))
def test_no_member_outside_the_elite_beats_one_inside(population: list[Member], count: int) -> None:
    kept = elite(population, count)
    rest = [member for member in ranked(population) if member not in kept]
    assert len(kept) == min(count, len(ranked(population)))
    assert all((inside.fitness or 0) >= (outside.fitness or 0) for inside in kept for outside in rest)


@given(populations(), st.integers(1, 30), st.integers(), st.randoms(use_true_random=False))
def test_a_tournament_depends_on_seed_and_members_only(
    population: list[Member], size: int, seed: int, shuffler: Random
) -> None:
    winner = tournament(population, size, Random(seed))
    shuffled = list(population)
    shuffler.shuffle(shuffled)
    assert tournament(shuffled, size, Random(seed)) == winner
    assert (winner is None) == (not ranked(population))
    assert winner is None or winner.fitness is not None


@given(populations(), st.integers())
def test_a_tournament_of_everyone_has_the_best_win(population: list[Member], seed: int) -> None:
    best = next(iter(ranked(population)), None)
    assert tournament(population, len(population) + 1, Random(seed)) == best


@given(populations(), st.integers(1, 8), st.integers())
def test_the_worst_never_win_a_tournament_that_is_larger_than_their_number(
    population: list[Member], size: int, seed: int
) -> None:
    order = ranked(population)
    winner = tournament(population, size, Random(seed))
    if winner is not None:
        assert order.index(winner) <= max(len(order) - size, 0)


def test_ties_go_to_the_smaller_ordinal() -> None:
    population = [make_member(3, 1.0), make_member(1, 1.0), make_member(2, 1.0)]
    assert [member.ordinal for member in ranked(population)] == [1, 2, 3]


def test_a_small_tournament_lets_others_than_the_best_win() -> None:
    population = [make_member(ordinal, float(ordinal)) for ordinal in range(8)]
    winners = {one.ordinal for seed in range(100) if (one := tournament(population, 2, Random(seed)))}
    assert len(winners) > 3
