"""Standing of a technique: the effect within problems, its shrinkage, and what is promoted or demoted by it."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

import pytest

from cupilot.domain.pool import FAILURE_GAIN
from cupilot.domain.standing import GainSums, Place, Record, Standing, effect_of
from cupilot.domain.strategy import Strategy, TechniqueUse


def sums(speedups: Sequence[float | None]) -> GainSums:
    gains = [FAILURE_GAIN if one is None else log(one) for one in speedups]
    return GainSums(len(gains), sum(gains), sum(one * one for one in gains))


def place(used: Sequence[float | None], without: Sequence[float | None]) -> Place:
    return Place(sums(used), sums(without))


def record(*places: Place, wins: int, problems: int, tries: int = 9) -> Record:
    return Record(tries=tries, wins=wins, problems=problems, effect=effect_of(places))


GOOD = [place([2.0, 2.1], [1.2, 1.3, 1.25]), place([6.0, 5.8], [4.0, 4.1])]


def test_the_effect_is_within_problems_so_that_easy_ones_praise_nobody() -> None:
    easy, hard = place([6.0] * 5, [6.0] * 5), place([1.1], [1.1] * 9)
    effect = effect_of([easy, hard])
    assert effect is not None
    assert effect.factor == pytest.approx(1.0)
    assert effect.places == 2


def test_the_effect_is_shrunk_the_more_the_less_is_known() -> None:
    one, many = effect_of([place([2.0], [1.0])]), effect_of([place([2.0] * 9, [1.0] * 9)] * 4)
    assert one is not None
    assert many is not None
    assert 0 < one.gain < many.gain < log(2)
    assert one.deviation > many.deviation
    low, high = many.interval
    assert low < many.factor < high


def test_places_without_a_kernel_on_either_side_say_nothing() -> None:
    assert effect_of([]) is None
    assert effect_of([place([2.0], [])]) is None
    assert effect_of([place([2.0], []), *GOOD]) == effect_of(GOOD)


def test_places_that_disagree_make_the_effect_uncertain() -> None:
    agreeing = effect_of([place([1.5] * 4, [1.0] * 4)] * 2)
    opposed = effect_of([place([3.0] * 4, [1.0] * 4), place([0.75] * 4, [1.0] * 4)])
    assert agreeing is not None
    assert opposed is not None
    assert opposed.deviation > 2 * agreeing.deviation


@pytest.mark.parametrize(
    ("known", "standing"),
    [
        (Record(), Standing.NOVEL),
        (Record(tries=9, wins=9, problems=3), Standing.NOVEL),
        (record(*GOOD, wins=4, problems=2), Standing.PROMOTED),
        (record(*GOOD, wins=2, problems=2), Standing.NOVEL),
        (record(*GOOD, wins=4, problems=1), Standing.NOVEL),
        (record(place([None, None, None], [2.0, 2.0]), wins=0, problems=0, tries=3), Standing.DEMOTED),
        (record(place([None, None], [2.0, 2.0]), wins=0, problems=0, tries=2), Standing.NOVEL),
        (record(place([1.0, 1.0], [1.4, 1.4]), place([1.0, 1.0], [1.5, 1.5]), wins=4, problems=2), Standing.DEMOTED),
        (record(place([1.2, 1.2], [1.2, 1.2]), wins=4, problems=2), Standing.NOVEL),
    ],
)
def test_results_promote_and_demote(known: Record, standing: Standing) -> None:
    assert known.standing is standing


def test_words_tell_counts_and_effect() -> None:
    told = record(*GOOD, wins=4, problems=2).words()
    effect = effect_of(GOOD)
    assert effect is not None
    assert told.startswith("4 of 9 kernels count, on 2 problems")
    assert f"{exp(effect.gain):.2f}x against kernels without it" in told


def test_a_meaning_is_prose_and_makes_no_other_strategy() -> None:
    plain = Strategy(techniques=(TechniqueUse(id="my_trick"),))
    told = Strategy(techniques=(TechniqueUse(id="my_trick", meaning="does this"),))
    assert plain.signature() == told.signature()
    assert plain.content_hash() == told.content_hash()
