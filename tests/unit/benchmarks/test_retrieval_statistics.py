"""The report on retrieval: transfer, places and hits, on problems small enough to reckon by hand."""

from __future__ import annotations

import pytest

from benchmarks.retrieval_statistics import Left, Measured, Transfer, judge, readable, spearman


def measured(key: str, *gains: float) -> Measured:
    """Strategies ``s0``, ``s1``... of these gains, each with a technique of its own."""
    signatures = [f"s{place}" for place in range(len(gains))]
    return Measured(
        key, key, dict(zip(signatures, gains, strict=True)), {name: (f"technique of {name}",) for name in signatures}
    )


def left(problem: Measured, others: list[Measured], shown: str) -> Left:
    similar = {one.key: 1 / (1 + place) for place, one in enumerate(others) if one is not problem}
    return Left(problem, similar, (f"unknown to {problem.key}", shown), (f"technique of {shown}",))


def test_the_report_says_where_what_was_shown_stands() -> None:
    problems = [measured("a", 0.1, 0.2, 0.3), measured("b", 0.3, 0.1, 0.2), measured("c", 0.0, 0.0, 0.5)]
    report = judge([left(problem, problems, "s2") for problem in problems], problems)
    # s2 is the best of a and c and the middle one of b; s0, the first of equally popular ones, worst, best, and tied.
    assert report["places"]["shown"]["median"] == pytest.approx((1 + 0.5 + 1) / 3)
    assert report["places"]["popular"]["median"] == pytest.approx((0 + 1 + 0.25) / 3)
    assert report["hit_rates"]["similar"]["median"] == pytest.approx(2 / 3)
    transfers = {(transfer["problem"], transfer["other"]): transfer["transfer"] for transfer in report["transfers"]}
    assert transfers["b", "a"] == 0.5, "a's best strategy, s2, is b's second"
    assert transfers["a", "b"] == 0.0
    assert "place of one strategy" in readable(report)


def test_too_few_problems_say_nothing() -> None:
    report = judge([left(measured("a", 0.1, 0.2), [], "s0")], [measured("a", 0.1, 0.2)])
    assert (report["spearman"], report["places"]["shown"]) == (None, None)
    assert "too little to say" in readable(report)


@pytest.mark.parametrize(("transfers", "expected"), [((0.0, 0.5, 1.0), 1.0), ((1.0, 0.5, 0.0), -1.0)])
def test_the_correlation_is_of_ranks(transfers: tuple[float, ...], expected: float) -> None:
    similarities = (0.1, 0.2, 0.9)
    pairs = [Transfer("a", "b", one, other, 1.0, 2) for one, other in zip(similarities, transfers, strict=True)]
    assert spearman(pairs) == pytest.approx(expected)
