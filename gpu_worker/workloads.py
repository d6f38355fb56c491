"""Problems with workloads: each is prepared and judged as a problem of its own, and the results are combined.

The heaviest workload comes first: it alone has its tunables swept, and the others are judged with the values that it
chose. A kernel that fails at one is judged at no further ones. Measures nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, log, sqrt
from typing import Any

from cupilot.domain.evaluation import (
    MAX_LOG_CHARACTERS,
    Comparison,
    Evaluation,
    Failure,
    Interval,
    Phase,
    Preparation,
    PreparationResult,
    WorkloadPreparation,
    WorkloadResult,
)
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem
from cupilot.domain.roofline import Bounds, Placement
from cupilot.domain.value import digest
from cupilot.domain.workload import Workload, shares
from gpu_worker.stages import EvaluationInput

Prepare = Callable[[Problem], PreparationResult]
Evaluate = Callable[[EvaluationInput], Evaluation]


def prepare_each(problem: Problem, prepare: Prepare) -> PreparationResult:
    """Prepare a problem, at each of its workloads where it has any; the first failure is the problem's."""
    parts: dict[str, Preparation] = {}
    for workload in by_weight(problem.workloads()):
        result = prepare(problem.at(workload))
        if result.failure is not None:
            return PreparationResult(failure=_at(workload, result.failure))
        assert result.preparation is not None
        parts[workload.name] = result.preparation
    if not parts:
        return prepare(problem)
    heaviest = next(iter(parts.values()))
    facts = heaviest.facts.model_copy(update={"problem_hash": problem.content_hash()})
    workloads = tuple(_part(workload, parts[workload.name]) for workload in problem.workloads())
    host_bound = any(part.host_bound for part in parts.values())
    changes = {"facts": facts, "workloads": workloads, "host_bound": host_bound}
    return PreparationResult(preparation=heaviest.model_copy(update=changes))


def evaluate_each(subject: EvaluationInput, evaluate: Evaluate) -> Evaluation:
    """Evaluate a kernel, at each workload where the problem has any, until it fails at one."""
    parts = {part.workload.name: part for part in subject.preparation.workloads}
    if not parts:
        return evaluate(subject)
    results: dict[str, Evaluation] = {}
    for workload in by_weight(tuple(part.workload for part in parts.values())):
        evaluation = evaluate(_at_workload(subject, parts[workload.name], results))
        results[workload.name] = evaluation
        if not evaluation.verdict.counts:
            break
    return _combined(subject, tuple(part.workload for part in parts.values()), results)


def by_weight(workloads: Sequence[Workload]) -> list[Workload]:
    """Return the workloads, the heaviest first; of equal ones the first declared."""
    return sorted(workloads, key=lambda workload: -workload.weight)


def mean_interval(intervals: Sequence[Interval], weights: Sequence[float]) -> Interval:
    """Return the weighted geometric mean of independent medians, with its 95 % interval.

    Distances to the ends add up in quadrature, in logarithms. ``weights`` have a sum of one.
    """
    centre = sum(share * log(item.median) for share, item in zip(weights, intervals, strict=True))
    down = [share * log(item.median / item.low) for share, item in zip(weights, intervals, strict=True)]
    up = [share * log(item.high / item.median) for share, item in zip(weights, intervals, strict=True)]
    ends = exp(centre - sqrt(sum(part**2 for part in down))), exp(centre + sqrt(sum(part**2 for part in up)))
    return Interval(low=ends[0], median=exp(centre), high=ends[1])


def _part(workload: Workload, preparation: Preparation) -> WorkloadPreparation:
    names = set(WorkloadPreparation.model_fields) - {"workload"}
    return WorkloadPreparation(workload=workload, **{name: getattr(preparation, name) for name in names})


def _at_workload(subject: EvaluationInput, part: WorkloadPreparation, before: dict[str, Evaluation]) -> EvaluationInput:
    """Return what is evaluated at one workload: with the tunables that the first one chose, which are not varied."""
    own = {name: getattr(part, name) for name in WorkloadPreparation.model_fields if name != "workload"}
    preparation = subject.preparation.model_copy(update={**own, "workloads": ()})
    changed = replace(subject, problem=subject.problem.at(part.workload), preparation=preparation)
    if not before:
        return changed
    chosen = next(iter(before.values())).tunables
    return replace(changed, kernel=_pinned(subject.kernel, chosen), tunables={})


def _pinned(kernel: Kernel | ImportedKernel, values: dict[str, int]) -> Kernel | ImportedKernel:
    """Return a kernel whose tunables have these values and no other choice."""
    if isinstance(kernel, ImportedKernel):
        return kernel
    plan = kernel.plan.with_values(values)
    fixed = {name: item.model_copy(update={"choices": (item.value,)}) for name, item in plan.tunables.items()}
    return kernel.model_copy(update={"plan": plan.model_copy(update={"tunables": fixed})})


def _combined(subject: EvaluationInput, workloads: tuple[Workload, ...], results: dict[str, Evaluation]) -> Evaluation:
    """Return the evaluation of the whole problem: the lowest verdict, and means where each workload counts."""
    first = next(iter(results.values()))
    name, decisive = min(results.items(), key=lambda item: item[1].verdict.rank)
    changes: dict[str, Any] = {
        "kernel_hash": subject.kernel.content_hash(),
        "problem_hash": subject.problem.content_hash(),
        "workloads": tuple(_result(workload, results.get(workload.name)) for workload in workloads),
        "tunables": first.tunables,
        "sweep": first.sweep,
        "seconds": sum(evaluation.seconds for evaluation in results.values()),
        "phases": _phases(list(results.values())),
        "measurement": digest([evaluation.measurement for evaluation in results.values()]),
        "reused": all(evaluation.reused for evaluation in results.values()),
        "comparisons": (),
    }
    if decisive.failure is not None:
        changes["failure"] = _at(next(item for item in workloads if item.name == name), decisive.failure)
    if decisive.verdict.counts:
        changes |= _means(list(zip(shares(workloads), (results[item.name] for item in workloads), strict=True)))
    return Evaluation.model_validate(dict(decisive) | changes)


def _result(workload: Workload, evaluation: Evaluation | None) -> WorkloadResult:
    if evaluation is None:
        return WorkloadResult(workload=workload)
    names = set(WorkloadResult.model_fields) - {"workload"}
    return WorkloadResult(workload=workload, **{name: getattr(evaluation, name) for name in names})


def _means(parts: Sequence[tuple[float, Evaluation]]) -> dict[str, Any]:
    """Return times, speedups and bounds over all workloads, each with its share."""
    weights = [share for share, _ in parts]
    baselines = [item.baseline for item in parts[0][1].comparisons]
    tables = [[evaluation.comparison(baseline) for _, evaluation in parts] for baseline in baselines]
    whole = [[item for item in table if item is not None] for table in tables if None not in table]
    placements = [evaluation.placement for _, evaluation in parts if evaluation.placement is not None]
    handovers = [evaluation.handover_us for _, evaluation in parts if evaluation.handover_us]
    return {
        "comparisons": tuple(_comparison(table, weights) for table in whole),
        "placement": _placement(placements, weights) if len(placements) == len(parts) else None,
        "handover_us": _mean(handovers, weights) if len(handovers) == len(parts) else None,
    }


def _comparison(parts: Sequence[Comparison], weights: Sequence[float]) -> Comparison:
    """Return one comparison for all workloads; conditions of the device stand beside each workload's own."""
    return parts[0].model_copy(
        update={
            "kernel_us": mean_interval([part.kernel_us for part in parts], weights),
            "baseline_us": mean_interval([part.baseline_us for part in parts], weights),
            "speedup": mean_interval([part.speedup for part in parts], weights),
            "pairs": sum(part.pairs for part in parts),
            "launches": sum(part.launches for part in parts),
            "graphs": all(part.graphs for part in parts),
            "conditions": None,
        }
    )


def _placement(parts: Sequence[Placement], weights: Sequence[float]) -> Placement:
    """Return a placement whose times are means; zone and intensities are the first workload's."""
    times = ("memory_floor_us", "compute_floor_us", "floor_us", "direct_us", "limit_us")
    known = {name: [getattr(part, name) for part in parts] for name in times}
    means = {name: _mean(values, weights) for name, values in known.items() if None not in values}
    stated = [part.stated for part in parts if part.stated is not None]
    if len(stated) == len(parts):
        by_maker = {name: _mean([getattr(item, name) for item in stated], weights) for name in Bounds.model_fields}
        means["stated"] = Bounds(**by_maker)
    return parts[0].model_copy(update=means)


def _mean(values: Sequence[float], weights: Sequence[float]) -> Any:
    if min(values) <= 0:
        return 0.0
    return exp(sum(share * log(value) for share, value in zip(weights, values, strict=True)))


def _phases(evaluations: Sequence[Evaluation]) -> tuple[Phase, ...]:
    """Return the phases of all evaluations, one evaluation after the other."""
    phases: list[Phase] = []
    begun = 0.0
    for evaluation in evaluations:
        phases += [phase.model_copy(update={"start": begun + phase.start}) for phase in evaluation.phases]
        begun += evaluation.seconds
    return tuple(phases)


def _at(workload: Workload, failure: Failure) -> Failure:
    """Return a failure that says at which workload it came up."""
    message = f"workload {workload.name!r} ({workload.text}): {failure.message}"
    details = {**failure.details, "workload": workload.name}
    return failure.model_copy(update={"message": message[:MAX_LOG_CHARACTERS], "details": details})
