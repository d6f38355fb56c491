"""From outcomes of jobs to a report: medians, paired comparisons, convergence; and what they do not show.

How each number is made, for readers: ``docs/experiments.md``. A job that ended without a proven kernel has no speedup:
it is a loss in the sign test against a matched job that has one, and is left out of medians and ratios.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from statistics import fmean, median

from cupilot.domain.evaluation import Interval
from cupilot.domain.experiments.matrix import Arm
from cupilot.domain.experiments.statistics import (
    CONFIDENCE,
    MIN_SAMPLES,
    hodges_lehmann,
    hodges_lehmann_interval,
    holm,
    median_interval,
    ratio_interval,
    sign_test,
    signed_rank_test,
)
from cupilot.reports.outcomes import JobOutcome, Standing
from cupilot.schemas import (
    ArmReport,
    CellReport,
    ComparisonReport,
    ConvergencePoint,
    ExperimentReport,
    ExperimentView,
)

Block = tuple[str, int]
"""A problem and a seed."""


def summarise(experiment: ExperimentView, outcomes: Sequence[JobOutcome]) -> ExperimentReport:
    """Return the report, from what the jobs have come to so far."""
    names = [arm.name for arm in experiment.arms]
    return ExperimentReport(
        experiment=experiment,
        arms=[_arm(name, _of(outcomes, name)) for name in names],
        cells=[
            _cell(name, problem, [one for one in _of(outcomes, name) if one.problem == problem])
            for problem in experiment.problems
            for name in names
        ],
        comparisons=[*_between_arms(experiment, outcomes), *_between_switches(experiment.arms, outcomes)],
        convergence=[
            point
            for problem in experiment.problems
            for name in names
            for point in _convergence(name, problem, outcomes)
        ],
        notes=_notes(experiment, outcomes),
        outcomes=list(outcomes),
    )


def switches_of(arms: Sequence[Arm]) -> list[str]:
    """Return the fields of the method that differ between arms, where all arms have the same method and the same
    agents.
    """
    methods = [arm.method for arm in arms]
    if len({method.get("name") for method in methods}) != 1 or len({arm.agents for arm in arms}) != 1:
        return []
    return [name for name in methods[0] if any(method.get(name) != methods[0][name] for method in methods)]


def _of(outcomes: Iterable[JobOutcome], arm: str) -> list[JobOutcome]:
    return [one for one in outcomes if one.arm == arm]


def _finished(outcomes: Iterable[JobOutcome]) -> list[JobOutcome]:
    return [one for one in outcomes if _is_finished(one)]


def _is_finished(outcome: JobOutcome) -> bool:
    return outcome.standing in (Standing.SOLVED, Standing.UNSOLVED)


def _speed(outcome: JobOutcome) -> float | None:
    return outcome.speedup.median if outcome.speedup and outcome.standing is Standing.SOLVED else None


def _speeds(outcomes: Iterable[JobOutcome]) -> list[float]:
    return [speed for one in outcomes if (speed := _speed(one)) is not None]


def _arm(name: str, jobs: Sequence[JobOutcome]) -> ArmReport:
    done = _finished(jobs)
    judged = sum(one.judged for one in done)
    return ArmReport(
        arm=name,
        jobs=len(jobs),
        finished=len(done),
        solved=len(_speeds(done)),
        lost=sum(one.standing is Standing.LOST for one in jobs),
        too_few=len(done) < MIN_SAMPLES,
        validity=sum(one.valid for one in done) / judged if judged else None,
        validity_interval=ratio_interval([(one.valid, one.judged) for one in done]),
        judged=judged,
        failures=dict(sorted(sum((Counter(one.failures) for one in done), Counter[str]()).items())),
        cost_usd=sum(one.cost_usd for one in done),
        prompt_tokens=sum(one.prompt_tokens for one in done),
        completion_tokens=sum(one.completion_tokens for one in done),
        gpu_seconds=sum(one.gpu_seconds for one in done),
        wall_seconds=sum(one.wall_seconds for one in done),
        wall_seconds_median=median(one.wall_seconds for one in done) if done else None,
        left_out_usd=sum(one.cost_usd for one in jobs if not _is_finished(one)),
        reserved_usd=sum(one.reserved_usd for one in jobs),
    )


def _cell(arm: str, problem: str, jobs: Sequence[JobOutcome]) -> CellReport:
    done = _finished(jobs)
    speeds = _speeds(done)
    return CellReport(
        arm=arm,
        problem=problem,
        jobs=len(done),
        solved=len(speeds),
        speedup=median(speeds) if speeds else None,
        low=min(speeds, default=None),
        high=max(speeds, default=None),
        interval=median_interval(speeds),
        too_few=len(speeds) < MIN_SAMPLES,
    )


def _between_arms(experiment: ExperimentView, outcomes: Sequence[JobOutcome]) -> list[ComparisonReport]:
    blocks = {arm.name: _by_block(_of(outcomes, arm.name)) for arm in experiment.arms}
    reference = blocks[experiment.reference]
    return _adjusted(
        [
            _compare("arm", name, experiment.reference, _matched(mine, reference))
            for name, mine in blocks.items()
            if name != experiment.reference
        ]
    )


def _between_switches(arms: Sequence[Arm], outcomes: Sequence[JobOutcome]) -> list[ComparisonReport]:
    """Return each two-valued switch over all arms that differ in nothing else; one value a block, so that blocks are
    samples.

    Nothing where there is one switch only: the arms' own comparison says the same.
    """
    names = switches_of(arms)
    if len(names) < 2:
        return []
    found = []
    for name in names:
        values = list(dict.fromkeys(_text(arm.method[name]) for arm in arms))
        if len(values) == 2:
            pairs = _switched(arms, name, values, outcomes)
            found.append(_compare("switch", f"{name}={values[1]}", f"{name}={values[0]}", pairs))
    return _adjusted(found)


def _switched(
    arms: Sequence[Arm], switch: str, values: Sequence[str], outcomes: Sequence[JobOutcome]
) -> list[tuple[float | None, float | None]]:
    """Return for each block the mean log speedup with the second value and with the first, over the other switches."""
    by_arm = {arm.name: _by_block(_of(outcomes, arm.name)) for arm in arms}
    rest = {arm.name: {key: value for key, value in arm.method.items() if key != switch} for arm in arms}
    twins = [
        (two.name, one.name)
        for one in arms
        for two in arms
        if rest[one.name] == rest[two.name]
        and [_text(two.method[switch]), _text(one.method[switch])] == [values[1], values[0]]
    ]
    sides: dict[Block, list[tuple[float | None, float | None]]] = {}
    for mine, other in twins:
        for block, pair in _matched_blocks(by_arm[mine], by_arm[other]).items():
            sides.setdefault(block, []).append(pair)
    whole = [pairs for pairs in sides.values() if len(pairs) == len(twins)]
    return [(_mean(one for one, _ in pairs), _mean(other for _, other in pairs)) for pairs in whole]


def _mean(logs: Iterable[float | None]) -> float | None:
    known = list(logs)
    return None if any(one is None for one in known) else fmean(one for one in known if one is not None)


def _by_block(outcomes: Iterable[JobOutcome]) -> dict[Block, JobOutcome]:
    return {(one.problem, one.seed): one for one in _finished(outcomes)}


def _matched_blocks(
    mine: Mapping[Block, JobOutcome], others: Mapping[Block, JobOutcome]
) -> dict[Block, tuple[float | None, float | None]]:
    """Log speedups of both sides where both are finished on the same class of devices."""
    return {
        block: (_log(mine[block]), _log(others[block]))
        for block in mine
        if block in others and mine[block].device_class == others[block].device_class
    }


def _matched(
    mine: Mapping[Block, JobOutcome], others: Mapping[Block, JobOutcome]
) -> list[tuple[float | None, float | None]]:
    return list(_matched_blocks(mine, others).values())


def _log(outcome: JobOutcome) -> float | None:
    speed = _speed(outcome)
    return None if speed is None else log(speed)


def _compare(
    kind: str, subject: str, reference: str, pairs: Sequence[tuple[float | None, float | None]]
) -> ComparisonReport:
    differences = [mine - other for mine, other in pairs if mine is not None and other is not None]
    wins = sum(one > 0 for one in differences) + sum(mine is not None and other is None for mine, other in pairs)
    losses = sum(one < 0 for one in differences) + sum(mine is None and other is not None for mine, other in pairs)
    interval = hodges_lehmann_interval(differences)
    sign_p = sign_test(wins, losses)
    return ComparisonReport(
        kind=kind,
        subject=subject,
        reference=reference,
        blocks=len(pairs),
        wins=wins,
        losses=losses,
        ties=len(pairs) - wins - losses,
        ratio=exp(hodges_lehmann(differences)) if differences else None,
        interval=Interval(low=exp(interval.low), median=exp(interval.median), high=exp(interval.high))
        if interval
        else None,
        sign_p=sign_p,
        signed_rank_p=signed_rank_test(differences),
        adjusted_p=sign_p,
        too_few=interval is None,
        claim="",
    )


def _adjusted(comparisons: Sequence[ComparisonReport]) -> list[ComparisonReport]:
    adjusted = holm([one.signed_rank_p for one in comparisons])
    return [
        one.model_copy(update={"adjusted_p": probability, "claim": _claim(one, probability)})
        for one, probability in zip(comparisons, adjusted, strict=True)
    ]


def _claim(comparison: ComparisonReport, adjusted: float) -> str:
    """Return what may be said: an interval that excludes 1, and a probability that holds beside the other
    comparisons.
    """
    if comparison.interval is None:
        return "too few pairs to say"
    if adjusted <= 1 - CONFIDENCE and comparison.interval.low > 1:
        return "faster"
    if adjusted <= 1 - CONFIDENCE and comparison.interval.high < 1:
        return "slower"
    return "no difference shown"


def _convergence(arm: str, problem: str, outcomes: Sequence[JobOutcome]) -> list[ConvergencePoint]:
    """Return a point for each generation; a job that stopped early keeps its best."""
    lines = [one.best_by_generation for one in _finished(_of(outcomes, arm)) if one.problem == problem]
    points = []
    for number in range(max(map(len, lines), default=0)):
        known = [line[min(number, len(line) - 1)] for line in lines if line]
        speeds = [one for one in known if one is not None]
        if speeds:
            points.append(
                ConvergencePoint(
                    arm=arm,
                    problem=problem,
                    generation=number + 1,
                    jobs=len(speeds),
                    speedup=median(speeds),
                    low=min(speeds),
                    high=max(speeds),
                )
            )
    return points


def _notes(experiment: ExperimentView, outcomes: Sequence[JobOutcome]) -> list[str]:
    notes = []
    waiting = [one for one in outcomes if one.standing is Standing.OPEN]
    if waiting:
        notes.append(f"Not final: {len(waiting)} of {len(outcomes)} jobs are open; numbers will change.")
    lost = [one for one in outcomes if one.standing is Standing.LOST]
    if lost:
        reasons = ", ".join(sorted({one.reason or one.state for one in lost}))
        notes.append(f"{len(lost)} jobs are left out, because they were cancelled or lost ({reasons}).")
    classes = sorted({one.device_class for one in outcomes if one.device_class})
    if len(classes) > 1:
        notes.append(f"Jobs ran on several classes of devices ({', '.join(classes)}); only pairs on one are compared.")
    devices = sorted({one.device for one in outcomes if one.device})
    if devices:
        notes.append(f"Measured on {', '.join(devices)}.")
    loads = [one.load_average for one in outcomes if one.load_average is not None]
    if loads:
        notes.append(
            f"Load average of the machine when jobs began: {min(loads):.1f} to {max(loads):.1f}."
            " Speedups are ratios of interleaved timings; absolute times and wall times suffer from other load."
        )
    few = [arm.name for arm in experiment.arms if len(_finished(_of(outcomes, arm.name))) < MIN_SAMPLES]
    if few:
        notes.append(f"Too few finished jobs (below {MIN_SAMPLES}) for any interval: {', '.join(few)}.")
    if len(experiment.seeds) < MIN_SAMPLES:
        notes.append(
            f"{len(experiment.seeds)} seeds a problem: medians of single problems have a range, no interval;"
            " only comparisons over all problems can have one."
        )
    return notes


def _text(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
