"""Compare two candidates for the same problem: strategy, source, plan, numbers. Says only what was measured.

A relative speedup is given only where both were timed against the same baseline on the same model of device with the
same driver: the ratio of both speedups then is the ratio of the kernels' times, whatever the clocks were.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from cupilot.domain.attribution import credit_factor
from cupilot.domain.evaluation import Baseline, Evaluation, Interval
from cupilot.domain.strategy import Strategy
from cupilot.schemas import (
    CandidateComparison,
    CandidateView,
    ChangedTechnique,
    ComparedCandidate,
    MetricPair,
    PlanChange,
    StrategyDifference,
)


def compare(first: CandidateView, second: CandidateView) -> CandidateComparison:
    """Compare the first candidate with the second; they must be for the same problem."""
    relative, note = relative_speedup(first.evaluation, second.evaluation)
    before, after = _strategy(first), _strategy(second)
    return CandidateComparison(
        first=_side(first),
        second=_side(second),
        relative_speedup=relative,
        relative_note=note,
        strategy=difference(before, after) if before and after else None,
        source_diff=_source_diff(first, second),
        plan=list(_changes("", _plan(first), _plan(second))),
        metrics=_metrics(first.evaluation, second.evaluation),
    )


def relative_speedup(first: Evaluation | None, second: Evaluation | None) -> tuple[Interval | None, str]:
    """Return how many times as fast the second is, and how that is known or why it is not."""
    if first is None or second is None or not (first.verdict.counts and second.verdict.counts):
        return None, "only audited and reproduced kernels have times that count"
    eager, other_eager = first.comparison(), second.comparison()
    if eager is None or other_eager is None:
        return None, "one of them was not timed against PyTorch eager"
    here, there = first.environment, second.environment
    if here is None or there is None or here.device.name != there.device.name:
        return None, "they were measured on different models of device"
    different = [name for name in ("driver", "cuda", "torch", "threads") if getattr(here, name) != getattr(there, name)]
    if different:
        return None, f"they were measured with different {', '.join(different)}, so their baselines differ too"
    same = "the same device" if here.device.uid == there.device.uid else "two devices of one model"
    note = f"ratio of both speedups over PyTorch eager, measured on {same}; the kernels were not timed side by side"
    # The same method of combining two intervals as for the credit of a technique (MOVER, in logarithms).
    return credit_factor(other_eager.speedup, eager.speedup), note


def difference(first: Strategy, second: Strategy) -> StrategyDifference:
    """Return the techniques added, removed and changed."""
    before, after = first.ids(), second.ids()
    both = [name for name in before if name in after]
    changed = []
    for name in both:
        old, new = first.use(name), second.use(name)
        assert old is not None
        assert new is not None
        names = sorted({*old.parameters, *new.parameters})
        pairs = {key: [old.parameters.get(key), new.parameters.get(key)] for key in names}
        differing = {key: list(pair) for key, pair in pairs.items() if pair[0] != pair[1]}
        if differing:
            changed.append(ChangedTechnique.model_validate({"id": name, "parameters": differing}))
    return StrategyDifference(
        added=[name for name in after if name not in before],
        removed=[name for name in before if name not in after],
        changed=changed,
        reordered=both != [name for name in after if name in before],
    )


def _strategy(candidate: CandidateView) -> Strategy | None:
    return candidate.aligned_strategy or candidate.strategy


def _side(candidate: CandidateView) -> ComparedCandidate:
    evaluation = candidate.evaluation
    eager = evaluation.comparison() if evaluation else None
    compiled = evaluation.comparison(Baseline.COMPILE) if evaluation else None
    environment = evaluation.environment if evaluation else None
    counts = evaluation is not None and evaluation.verdict.counts
    return ComparedCandidate(
        job=candidate.job,
        candidate=candidate.id,
        ordinal=candidate.ordinal,
        verdict=candidate.verdict,
        device=environment.device.name if environment else None,
        driver=environment.driver if environment else None,
        kernel_us=eager.kernel_us if eager else None,
        speedup=eager.speedup if eager and counts else None,
        speedup_over_compile=compiled.speedup if compiled and counts else None,
        strategy=_strategy(candidate),
    )


def _source_diff(first: CandidateView, second: CandidateView) -> str:
    before, after = ((side.kernel.source if side.kernel else "").splitlines() for side in (first, second))
    names = f"candidate {first.ordinal}", f"candidate {second.ordinal}"
    return "\n".join(difflib.unified_diff(before, after, names[0], names[1], lineterm=""))


def _plan(candidate: CandidateView) -> dict[str, Any]:
    if candidate.kernel is None:
        return {}
    plan = candidate.kernel.plan
    if plan is None:
        return {}
    if candidate.evaluation is not None and set(candidate.evaluation.tunables) <= set(plan.tunables):
        plan = plan.with_values(candidate.evaluation.tunables)
    data: dict[str, Any] = plan.model_dump(mode="json")
    data["tunables"] = plan.values()
    return data


def _changes(where: str, first: Any, second: Any) -> Iterator[PlanChange]:
    """Yield every leaf that differs; lists of scalars are leaves."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in [*first, *(key for key in second if key not in first)]:
            yield from _changes(f"{where}.{key}".lstrip("."), first.get(key), second.get(key))
    elif _nested(first) and _nested(second):
        for index in range(max(len(first), len(second))):
            pair = [side[index] if index < len(side) else None for side in (first, second)]
            yield from _changes(f"{where}.{index}", *pair)
    elif first != second:
        yield PlanChange(where=where, first=first, second=second)


def _nested(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _metrics(first: Evaluation | None, second: Evaluation | None) -> list[MetricPair]:
    sides = [_numbers(first), _numbers(second)]
    names = [*sides[0], *(name for name in sides[1] if name not in sides[0])]
    return [MetricPair(name=name, first=sides[0].get(name), second=sides[1].get(name)) for name in names]


def _numbers(evaluation: Evaluation | None) -> dict[str, float]:
    if evaluation is None:
        return {}
    numbers: dict[str, float] = {}
    if evaluation.build is not None:
        for name in ("registers", "spill_bytes", "shared_bytes"):
            value = getattr(evaluation.build, name)
            if value is not None:
                numbers[name] = float(value)
        numbers |= {f"instructions.{name}": float(count) for name, count in evaluation.build.instructions.items()}
    if evaluation.profile is not None:
        numbers |= evaluation.profile.metrics
    numbers |= {f"error.{law.law}": law.error for law in evaluation.laws}
    return numbers
