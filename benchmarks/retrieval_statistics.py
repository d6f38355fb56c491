"""Does similarity predict transfer? The pool's retrieval, judged on what it already knows. Pure.

Leave one problem out: its measured strategies are hidden from retrieval, and then show what the retrieval would have
been worth. A *pair* is a hidden problem and another one; its similarity is the retrieval's, its transfer says where the
other's best strategy stands among all that the hidden problem has measured (1 best, 0 worst). The rank
correlation is Spearman's. What jobs are shown is the list of strategies: the *place* of the first of it that the hidden
problem has measured says what that list is worth, beside the strategy that the other problems measured most often.
Intervals are percentile bootstraps over hidden problems, not over pairs, since the pairs
of one problem are not independent (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, sections 8 and 13).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, sqrt
from random import Random
from statistics import mean
from typing import Any, TypeVar

Item = TypeVar("Item")

BOOTSTRAPS = 1_000
BEST_SHARE = 0.25
"""Techniques of a hidden problem's best quarter of strategies are what a recommendation should name."""
RECOMMENDED = 3
"""Techniques that are recommended."""


@dataclass(frozen=True)
class Measured:
    """The pool's measurements of one problem on one target."""

    key: str
    name: str
    gains: Mapping[str, float]
    """Mean ln speedup of each strategy, by signature; failures as the ranking counts them."""
    techniques: Mapping[str, tuple[str, ...]]
    """Of each strategy, by signature."""


@dataclass(frozen=True)
class Transfer:
    """Outcome of another problem's best strategy on a hidden one."""

    problem: str
    other: str
    similarity: float
    transfer: float
    """Its place among all strategies of the hidden problem: 1 best, 0 worst."""
    speedup: float
    common: int
    """Strategies that both problems measured: among these the other's best was chosen."""


@dataclass(frozen=True)
class Left:
    """The retrieval's answer for a problem that it does not know."""

    problem: Measured
    similar: Mapping[str, float]
    """Similarity of the other problems, by key."""
    strategies: Sequence[str]
    """Signatures of those that jobs are shown as promising, the best first."""
    recommended: Sequence[str]
    """Techniques, the best first."""


def judge(left: Sequence[Left], problems: Sequence[Measured], seed: int = 0) -> dict[str, Any]:
    """Return the report as JSON; numbers are None if there are too few problems to say anything."""
    by_key = {problem.key: problem for problem in problems}
    pairs = [_pairs(answer, by_key) for answer in left]
    return {
        "problems": len(problems),
        "strategies": sum(len(problem.gains) for problem in problems),
        "pairs": sum(len(transfers) for transfers in pairs),
        "spearman": _interval(pairs, spearman, seed),
        "places": _places(left, by_key, seed),
        "hit_rates": _hit_rates(left, by_key, seed),
        "transfers": [asdict(transfer) for transfers in pairs for transfer in transfers],
    }


def readable(report: Mapping[str, Any]) -> str:
    """Return the report as a table."""
    lines = [
        f"{report['problems']} problems, {report['strategies']} strategies measured on them, {report['pairs']} pairs",
        "",
        f"similarity against transfer, Spearman: {_interval_text(report['spearman'])}",
        "",
        "place of one strategy among all that a problem measured (1 best, 0 worst, 0.5 a random one's):",
        *(f"  {name:<9}{_interval_text(place)}" for name, place in report["places"].items()),
        "",
        f"share of {RECOMMENDED} recommended techniques that the best quarter of strategies use:",
        *(f"  {name:<9}{_interval_text(rate)}" for name, rate in report["hit_rates"].items()),
        "",
        f"{'problem':<20}{'best of':<20}{'similarity':>10}{'transfer':>10}{'speedup':>9}{'common':>8}",
    ]
    for transfer in sorted(report["transfers"], key=lambda transfer: (transfer["problem"], -transfer["similarity"])):
        lines.append(
            f"{transfer['problem'][:19]:<20}{transfer['other'][:19]:<20}{transfer['similarity']:>10.2f}{transfer['transfer']:>10.2f}"
            f"{transfer['speedup']:>8.2f}x{transfer['common']:>8}"
        )
    return "\n".join(lines) + "\n"


def _interval_text(interval: Mapping[str, float] | None) -> str:
    if interval is None:
        return "too little to say"
    return f"{interval['median']:.2f} (95 % interval {interval['low']:.2f} to {interval['high']:.2f})"


def best_techniques(problem: Measured) -> set[str]:
    """Return the techniques that the best quarter of a problem's strategies use."""
    ranked = sorted(problem.gains, key=lambda strategy: (-problem.gains[strategy], strategy))
    best = ranked[: max(1, round(BEST_SHARE * len(ranked)))]
    return {technique for strategy in best for technique in problem.techniques[strategy]}


def spearman(transfers: Sequence[Transfer]) -> float | None:
    """Return the rank correlation of similarity and transfer."""
    return rank_correlation(
        [transfer.similarity for transfer in transfers], [transfer.transfer for transfer in transfers]
    )


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's coefficient: Pearson's correlation of mid-ranks; None where it is not defined."""
    xs, ys = _ranks(first), _ranks(second)
    if len(xs) < 3:
        return None
    mx, my = mean(xs), mean(ys)
    spread = sqrt(sum((x - mx) ** 2 for x in xs) * sum((y - my) ** 2 for y in ys))
    if spread == 0:
        return None
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)) / spread


def _pairs(left: Left, problems: Mapping[str, Measured]) -> list[Transfer]:
    own = left.problem.gains
    transfers = []
    for key, similarity in sorted(left.similar.items()):
        other = problems[key]
        common = [strategy for strategy in other.gains if strategy in own]
        if len(common) < 2 or len(own) < 3:
            continue
        best = max(common, key=lambda strategy: (other.gains[strategy], strategy))
        transfers.append(
            Transfer(
                problem=left.problem.name,
                other=other.name,
                similarity=similarity,
                transfer=_place(own, best),
                speedup=exp(own[best]),
                common=len(common),
            )
        )
    return transfers


def _place(gains: Mapping[str, float], strategy: str) -> float:
    """Rank a strategy among all of a problem, at least two: 1 best, 0 worst, ties in between."""
    own = gains[strategy]
    worse = sum(gain < own for gain in gains.values()) + 0.5 * (sum(gain == own for gain in gains.values()) - 1)
    return worse / (len(gains) - 1)


def _places(left: Sequence[Left], problems: Mapping[str, Measured], seed: int) -> dict[str, Any]:
    """Rank the first strategy that is shown, and the one that others measured most often."""
    rows: dict[str, list[float]] = {"shown": [], "popular": []}
    for answer in left:
        own = answer.problem.gains
        others = Counter(
            name for key, problem in problems.items() if key != answer.problem.key for name in problem.gains
        )
        shown = next((name for name in answer.strategies if name in own), None)
        popular = min((name for name in others if name in own), key=lambda name: (-others[name], name), default=None)
        if shown is None or popular is None or len(own) < 3:
            continue
        rows["shown"].append(_place(own, shown))
        rows["popular"].append(_place(own, popular))
    return {name: _interval([[place] for place in places], _mean, seed) for name, places in rows.items()}


def _hit_rates(left: Sequence[Left], problems: Mapping[str, Measured], seed: int) -> dict[str, Any]:
    rows: dict[str, list[float]] = {"similar": [], "popular": [], "random": []}
    for answer in left:
        truth = best_techniques(answer.problem)
        others = [problem for key, problem in problems.items() if key != answer.problem.key]
        used = Counter(technique for problem in others for names in problem.techniques.values() for technique in names)
        if not truth or not used or not answer.recommended:
            continue
        popular = sorted(used, key=lambda name: (-used[name], name))
        rows["similar"].append(_precision(answer.recommended, truth))
        rows["popular"].append(_precision(popular, truth))
        rows["random"].append(len(truth & set(used)) / len(used))
    return {name: _interval([[rate] for rate in rates], _mean, seed) for name, rates in rows.items()}


def _precision(recommended: Sequence[str], truth: set[str]) -> float:
    shown = recommended[:RECOMMENDED]
    return sum(name in truth for name in shown) / len(shown)


def _mean(rates: Sequence[float]) -> float | None:
    return mean(rates) if rates else None


def _interval(
    groups: Sequence[Sequence[Item]], statistic: Callable[[Sequence[Item]], float | None], seed: int
) -> dict[str, float] | None:
    """Return the statistic over all groups, with its 95 % interval from resampled groups."""
    groups = [group for group in groups if group]
    centre = statistic([item for group in groups for item in group])
    if centre is None or len(groups) < 3:
        return None
    rng = Random(seed)
    values = []
    for _ in range(BOOTSTRAPS):
        drawn = rng.choices(groups, k=len(groups))
        value = statistic([item for group in drawn for item in group])
        if value is not None:
            values.append(value)
    values.sort()
    low, high = values[int(0.025 * len(values))], values[min(int(0.975 * len(values)), len(values) - 1)]
    return {"low": min(low, centre), "median": centre, "high": max(high, centre)}


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda place: values[place])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in order[start : end + 1]:
            ranks[place] = (start + end) / 2
        start = end + 1
    return ranks
