"""Report on an experiment from the outcomes of its jobs: medians, paired comparisons, convergence; and what they do not
show.

How each number is made, for readers: ``docs/experiments.md``. A job that ended without a proven kernel has no speedup:
it is a loss in the sign test against a matched job that has one, and is left out of medians and ratios.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from statistics import fmean, median

from cupilot.domain.counted import counted
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
from cupilot.reports.outcomes import JobOutcome, OutcomeState
from cupilot.reports.speeds import speed_summary
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
            _cell(name, problem, [outcome for outcome in _of(outcomes, name) if outcome.problem == problem])
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
    return [outcome for outcome in outcomes if outcome.arm == arm]


def _finished(outcomes: Iterable[JobOutcome]) -> list[JobOutcome]:
    return [outcome for outcome in outcomes if _is_finished(outcome)]


def _is_finished(outcome: JobOutcome) -> bool:
    return outcome.standing in (OutcomeState.SOLVED, OutcomeState.UNSOLVED)


def _speed(outcome: JobOutcome) -> float | None:
    return outcome.speedup.median if outcome.speedup and outcome.standing is OutcomeState.SOLVED else None


def _speeds(outcomes: Iterable[JobOutcome]) -> list[float]:
    return [speed for outcome in outcomes if (speed := _speed(outcome)) is not None]


def _arm(name: str, jobs: Sequence[JobOutcome]) -> ArmReport:
    done = _finished(jobs)
    judged = sum(job.judged for job in done)
    return ArmReport(
        arm=name,
        jobs=len(jobs),
        finished=len(done),
        solved=len(_speeds(done)),
        lost=sum(job.standing is OutcomeState.LOST for job in jobs),
        too_few=len(done) < MIN_SAMPLES,
        speeds=speed_summary(_speeds(done), len(done)),
        validity=sum(job.valid for job in done) / judged if judged else None,
        validity_interval=ratio_interval([(job.valid, job.judged) for job in done]),
        judged=judged,
        failures=dict(sorted(sum((Counter(job.failures) for job in done), Counter[str]()).items())),
        cost_usd=sum(job.cost_usd for job in done),
        prompt_tokens=sum(job.prompt_tokens for job in done),
        completion_tokens=sum(job.completion_tokens for job in done),
        gpu_seconds=sum(job.gpu_seconds for job in done),
        wall_seconds=sum(job.wall_seconds for job in done),
        wall_seconds_median=median(job.wall_seconds for job in done) if done else None,
        left_out_usd=sum(job.cost_usd for job in jobs if not _is_finished(job)),
        reserved_usd=sum(job.reserved_usd for job in jobs),
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
    compared = []
    for name in names:
        values = list(dict.fromkeys(_text(arm.method[name]) for arm in arms))
        if len(values) == 2:
            pairs = _switched(arms, name, values, outcomes)
            compared.append(_compare("switch", f"{name}={values[1]}", f"{name}={values[0]}", pairs))
    return _adjusted(compared)


def _switched(
    arms: Sequence[Arm], switch: str, values: Sequence[str], outcomes: Sequence[JobOutcome]
) -> list[tuple[float | None, float | None]]:
    """Return for each block the mean log speedup with the second value and with the first, over the other switches."""
    by_arm = {arm.name: _by_block(_of(outcomes, arm.name)) for arm in arms}
    rest = {arm.name: {key: value for key, value in arm.method.items() if key != switch} for arm in arms}
    twins = [
        (second.name, first.name)
        for first in arms
        for second in arms
        if rest[first.name] == rest[second.name]
        and [_text(second.method[switch]), _text(first.method[switch])] == [values[1], values[0]]
    ]
    sides: dict[Block, list[tuple[float | None, float | None]]] = {}
    for mine, other in twins:
        for block, pair in _matched_blocks(by_arm[mine], by_arm[other]).items():
            sides.setdefault(block, []).append(pair)
    whole = [pairs for pairs in sides.values() if len(pairs) == len(twins)]
    return [(_mean(mine for mine, _ in pairs), _mean(other for _, other in pairs)) for pairs in whole]


def _mean(logs: Iterable[float | None]) -> float | None:
    values = list(logs)
    return None if any(value is None for value in values) else fmean(value for value in values if value is not None)


def _by_block(outcomes: Iterable[JobOutcome]) -> dict[Block, JobOutcome]:
    return {(outcome.problem, outcome.seed): outcome for outcome in _finished(outcomes)}


def _matched_blocks(
    mine: Mapping[Block, JobOutcome], others: Mapping[Block, JobOutcome]
) -> dict[Block, tuple[float | None, float | None]]:
    """Return log speedups of both sides where both are finished on the same class of devices."""
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
    wins = sum(difference > 0 for difference in differences) + sum(
        mine is not None and other is None for mine, other in pairs
    )
    losses = sum(difference < 0 for difference in differences) + sum(
        mine is None and other is not None for mine, other in pairs
    )
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
    adjusted = holm([comparison.signed_rank_p for comparison in comparisons])
    return [
        comparison.model_copy(update={"adjusted_p": probability, "claim": _claim(comparison, probability)})
        for comparison, probability in zip(comparisons, adjusted, strict=True)
    ]


def _claim(comparison: ComparisonReport, adjusted: float) -> str:
    """Return what may be said.

    An interval that excludes 1, and a probability that holds beside the other comparisons. Both are of the pairs in
    which both sides have a kernel: a side that does not also win more pairs, all counted, is not called faster.
    """
    if comparison.interval is None:
        return "too few pairs to say"
    if adjusted <= 1 - CONFIDENCE and comparison.interval.low > 1:
        return "faster" if comparison.wins > comparison.losses else "faster in ratio; wins no more pairs than it loses"
    if adjusted <= 1 - CONFIDENCE and comparison.interval.high < 1:
        return "slower" if comparison.losses > comparison.wins else "slower in ratio; loses no more pairs than it wins"
    return "no difference shown"


def _convergence(arm: str, problem: str, outcomes: Sequence[JobOutcome]) -> list[ConvergencePoint]:
    """Return a point for each generation; a job that stopped early keeps its best."""
    lines = [outcome.best_by_generation for outcome in _finished(_of(outcomes, arm)) if outcome.problem == problem]
    points = []
    for number in range(max(map(len, lines), default=0)):
        values = [line[min(number, len(line) - 1)] for line in lines if line]
        speeds = [speed for speed in values if speed is not None]
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
    waiting = [outcome for outcome in outcomes if outcome.standing is OutcomeState.OPEN]
    if waiting:
        notes.append(f"Not final: {len(waiting)} of {counted(len(outcomes), 'job')} still open; numbers will change.")
    lost = [outcome for outcome in outcomes if outcome.standing is OutcomeState.LOST]
    if lost:
        reasons = ", ".join(sorted({outcome.reason or outcome.state for outcome in lost}))
        notes.append(f"Left out, because cancelled or lost: {counted(len(lost), 'job')} ({reasons}).")
    classes = sorted({outcome.device_class for outcome in outcomes if outcome.device_class})
    if len(classes) > 1:
        notes.append(f"Jobs ran on several classes of devices ({', '.join(classes)}); only pairs on one are compared.")
    devices = sorted({outcome.device for outcome in outcomes if outcome.device})
    if devices:
        notes.append(f"Measured on {', '.join(devices)}.")
    loads = [outcome.load_average for outcome in outcomes if outcome.load_average is not None]
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
            f"{counted(len(experiment.seeds), 'seed')} a problem: medians of single problems have a range, no interval;"
            " only comparisons over all problems can have one."
        )
    return notes


def _text(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
