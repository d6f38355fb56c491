"""Ranking of pool entries: similarity times gain, few observations shrunk, failures kept as warnings."""

from __future__ import annotations

from math import log

from hypothesis import given
from hypothesis import strategies as st

from cupilot.storage.pool.ranking import Ranked
from workers.local.pool import Neighbour, rank


def near(
    key: str, signature: str, speedup: float | None, *, similarity: float = 0.9, device: str = "sm_90"
) -> Neighbour:
    return Neighbour(key, signature, similarity, device, None if speedup is None else log(speedup))


def ids(ranked: list[Ranked]) -> list[str]:
    return [item.id for item in ranked]


neighbours = st.lists(
    st.builds(
        Neighbour,
        id=st.uuids().map(str),
        signature=st.sampled_from("abcdefghijkl"),
        similarity=st.floats(0, 1),
        device_class=st.sampled_from(["sm_90", "cpu"]),
        gain=st.none() | st.floats(-3, 3),
    ),
    max_size=40,
    unique_by=lambda one: one.id,
)


@given(neighbours, st.integers(1, 12))
def test_each_strategy_appears_once_and_places_are_filled(found: list[Neighbour], limit: int) -> None:
    ranked = rank(found, "sm_90", limit)
    signature = {item.id: item.signature for item in found}
    shown = [signature[item.id] for item in ranked]
    assert len(set(shown)) == len(shown) == min(limit, len(set(signature.values())))


@given(neighbours, st.integers(1, 12))
def test_order_of_arrival_does_not_matter(found: list[Neighbour], limit: int) -> None:
    ranked = rank(found, "sm_90", limit)
    again = rank(reversed(found), "sm_90", limit)
    assert ids(ranked) == ids(again)


@given(neighbours, st.integers(1, 12))
def test_failures_come_last_and_stand_only_for_strategies_that_never_counted(
    found: list[Neighbour], limit: int
) -> None:
    by_id = {item.id: item for item in found}
    good = {item.signature for item in found if item.gain is not None}
    shown = [by_id[item.id] for item in rank(found, "sm_90", limit)]
    counting = [item.gain is not None for item in shown]
    assert counting == sorted(counting, reverse=True)
    assert all((item.gain is not None) == (item.signature in good) for item in shown)


def test_the_larger_gain_of_equally_similar_problems_comes_first() -> None:
    assert ids(rank([near("slow", "a", 1.5), near("fast", "b", 3.0)], "sm_90", 2)) == ["fast", "slow"]


def test_the_more_similar_problem_of_equal_gains_comes_first() -> None:
    found = [near("far", "a", 2.0, similarity=0.4), near("close", "b", 2.0, similarity=0.9)]
    assert ids(rank(found, "sm_90", 2)) == ["close", "far"]


def test_a_gain_seen_once_counts_less_than_one_seen_often() -> None:
    often = [near(f"often{place}", "often", 2.0) for place in range(5)]
    once = near("once", "once", 2.3)
    assert ids(rank([once, *often], "sm_90", 2)) == ["often0", "once"]


def test_a_gain_on_another_device_counts_less() -> None:
    found = [near("elsewhere", "a", 2.2, device="sm_80"), near("here", "b", 2.0)]
    assert ids(rank(found, "sm_90", 2)) == ["here", "elsewhere"]


def test_failures_of_a_strategy_lower_its_score() -> None:
    clean = rank([near("a", "s", 2.0)], "sm_90", 1)[0]
    mixed = rank([near("a", "s", 2.0), near("b", "s", None)], "sm_90", 1)[0]
    assert (mixed.id, clean.id) == ("a", "a")
    assert mixed.score < clean.score


def test_the_fastest_entry_stands_for_its_strategy() -> None:
    found = [near("slow", "s", 1.2), near("fast", "s", 4.0), near("failed", "s", None, similarity=1.0)]
    assert ids(rank(found, "sm_90", 1)) == ["fast"]


def test_warnings_keep_a_share_of_the_places() -> None:
    gains = [near(f"gain{place}", f"gain{place}", 2.0 + place) for place in range(10)]
    failures = [near(f"bad{place}", f"bad{place}", None, similarity=place / 10) for place in range(10)]
    shown = ids(rank(gains + failures, "sm_90", 8))
    assert shown == ["gain9", "gain8", "gain7", "gain6", "gain5", "gain4", "bad9", "bad8"]


def test_nothing_found_ranks_to_nothing() -> None:
    assert rank([], "sm_90", 8) == []
