"""The sweep stage: tries other values of a kernel's tunables, once the kernel as given has passed the judge.

The points: for one tunable at a time every other choice, the nearest first and the tunables in turn, up to
the limit; then each tunable's best value together, where more than one of them helped. The points are built side by
side, timed in the warm judge for a few blocks against the same baseline, and the fastest is judged whole before it
may stand for the kernel. A point that fails is not chosen and rejects nothing; no time is reported that was only
screened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from cupilot.domain.errors import InvalidPlan
from cupilot.domain.evaluation import Evaluation, Failure, FailureKind, Interval, SweepPoint
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import Kernel, LaunchPlan
from cupilot.domain.problem import ProblemFacts
from cupilot.domain.roofline import NEAR_FLOOR
from gpu_worker.build import Builder, BuiltKernel
from gpu_worker.build_ahead import BuildAhead
from gpu_worker.judge_process import Interrupted, JudgingFailed
from gpu_worker.judging import Judging, order_of
from gpu_worker.messages.judge import Judged
from gpu_worker.runner_process import RunnerProcess
from gpu_worker.stages import Call, EvaluationInput, SweepResult, Variant
from gpu_worker.targets.base import HostTarget
from gpu_worker.verdict import below_floor
from gpu_worker.warm_judge import WarmJudge

HOPELESS = 0.2
"""Speedup below which no launch geometry helps a kernel enough."""

ROOM = 2.0
"""The caller's timeout must leave this many times what the evaluation has taken so far: one more whole judgement."""

SCREENING_SECONDS = 15.0
"""No further point is screened after this long; a point that hangs takes five."""

JUDGED_POINTS = 2
"""The second fastest gets its chance where the fastest does not pass."""

BUILDING, SCREENING, JUDGING = PHASES = "sweep_build", "sweep", "sweep_judge"
"""Names of phases: builds that were not made ahead, the screening of every point, the fastest's whole judgement."""

Values = dict[str, int]


def one_at_a_time(plan: LaunchPlan, limit: int) -> list[Values]:
    """Return points that differ from the plan's own values in one tunable, at most ``limit`` of them."""
    own = plan.values()
    ways = [_alternatives(name, plan) for name in sorted(plan.tunables)]
    turns = max((len(way) for way in ways), default=0)
    in_turn = [way[turn] for turn in range(turns) for way in ways if turn < len(way)]
    return [{**own, **change} for change in in_turn[:limit]]


def _alternatives(name: str, plan: LaunchPlan) -> list[Values]:
    tunable = plan.tunables[name]
    choices = sorted(set(tunable.choices))
    place = choices.index(tunable.value)
    others = sorted((value for value in choices if value != tunable.value), reverse=True)
    return [{name: value} for value in sorted(others, key=lambda value: abs(choices.index(value) - place))]


def combination(base: SweepPoint, points: Sequence[SweepPoint]) -> Values | None:
    """Return the best value of each tunable together; None where fewer than two of them helped."""
    best: dict[str, tuple[float, int]] = {}
    for point in points:
        changed = [name for name, value in point.tunables.items() if base.tunables[name] != value]
        if len(changed) == 1 and _faster(point.speedup, base.speedup):
            assert point.speedup is not None
            candidate = point.speedup.median, point.tunables[changed[0]]
            best[changed[0]] = max(best.get(changed[0], candidate), candidate)
    if len(best) < 2:
        return None
    return base.tunables | {name: value for name, (_, value) in best.items()}


def _key(values: Values) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(values.items()))


def _alone(plan: LaunchPlan, limit: int) -> int:
    """Return how many points change one tunable: all but one, which is for the combination where several can vary."""
    return limit - (sum(len(set(tunable.choices)) > 1 for tunable in plan.tunables.values()) > 1)


def can_vary(kernel: Kernel | ImportedKernel) -> bool:
    """Return whether a tunable has another choice."""
    if isinstance(kernel, ImportedKernel):
        return False
    return any(len(set(tunable.choices)) > 1 for tunable in kernel.plan.tunables.values())


@dataclass(frozen=True)
class _Trial:
    """A point that was built, or the failure to."""

    values: Values
    built: BuiltKernel | None
    failure: Failure | None


@dataclass(frozen=True)
class _Screening:
    """A point that was screened, or did not build."""

    trial: _Trial
    point: SweepPoint


class Sweep:
    """Finds better tunable values for kernels on one device."""

    def __init__(
        self, host: HostTarget, builder: Builder, ahead: BuildAhead, judge: WarmJudge, judging: Judging, *, limit: int
    ) -> None:
        """Sweep over at most ``limit`` points beside the kernel as given; 0 for no sweep."""
        self._host = host
        self._builder = builder
        self._ahead = ahead
        self._judge = judge
        self._judging = judging
        self.limit = limit

    def build_ahead(self, subject: EvaluationInput, call: Call) -> None:
        """Begin to build the variants that :meth:`improve` will try for certain, if it comes to that."""
        kernel = subject.tuned()
        if self.limit > 0 and not call.thorough and isinstance(kernel, Kernel):
            points = one_at_a_time(kernel.plan, _alone(kernel.plan, self.limit))
            self._ahead.begin([kernel.tuned(values) for values in points], subject.preparation.facts)

    def chosen_build(self, known: Evaluation, kernel: Kernel, facts: ProblemFacts, limit: int) -> BuiltKernel | None:
        """Return the build of the point that another source's sweep chose, if this kernel's sweep would be the same.

        The two have one machine code as they are given, and the same tunables. Each point that was tried has to be the
        same code here, and each that was not has to be code that was tried at another: then every step of the sweep
        would see the same code. A point that did not build is taken for a difference.
        """
        tried = {_key(point.tunables): point.code for point in known.sweep}
        further = [point.tunables for point in known.sweep]
        first = one_at_a_time(kernel.plan, _alone(kernel.plan, limit))
        points = {_key(values): values for values in [*further, *first]}
        chosen: BuiltKernel | None = None
        for trial in self._build_all(kernel, [*points.values()], facts):
            code = trial.built.identity if trial.built is not None else None
            allowed = {tried[_key(trial.values)]} if _key(trial.values) in tried else set(tried.values())
            if code is None or code not in allowed:
                return None
            chosen = trial.built if trial.values == known.tunables else chosen
        return chosen

    def improve(self, subject: EvaluationInput, built: BuiltKernel, judged: Judged, call: Call) -> SweepResult:
        """Try up to ``limit`` points beside the kernel that was judged, and judge the fastest whole.

        A sweep that fails for the machine's sake leaves the kernel as it was judged.
        """
        if self.limit <= 0 or not is_worth_sweeping(subject, judged, call):
            return SweepResult()
        base = _point(subject, built, judged, whole=True)
        screenings: list[_Screening] = []
        whole: dict[int, SweepPoint] = {}
        chosen: Variant | None = None
        try:
            for screening in self._screen_all(subject, built, base, call):
                screenings.append(screening)
            call.phases.enter(JUDGING)
            for place in _fastest(base, [screening.point for screening in screenings]):
                if chosen is not None or self._judge.problem is None:
                    break
                whole[place], chosen = self._judge_whole(subject, screenings[place].trial, base, judged, call)
        except (JudgingFailed, OSError):
            self._judge.close()
        points = [whole.get(place, screening.point) for place, screening in enumerate(screenings)]
        return SweepResult((base, *points), chosen)

    def _screen_all(
        self, subject: EvaluationInput, built: BuiltKernel, base: SweepPoint, call: Call
    ) -> Iterator[_Screening]:
        """Screen the points that change one tunable, then the best value of each together."""
        assert isinstance(subject.kernel, Kernel)  # nothing else can vary
        plan = subject.kernel.plan
        end = time.monotonic() + SCREENING_SECONDS
        known = {built.identity}
        points: list[SweepPoint] = []
        for screening in self._screen(one_at_a_time(plan, _alone(plan, self.limit)), subject, known, call, end):
            points.append(screening.point)
            yield screening
        together = combination(base, points)
        if together is not None:
            known |= {point.code for point in points if point.code is not None}
            yield from self._screen([together], subject, known, call, end)

    def _screen(
        self, values: Sequence[Values], subject: EvaluationInput, known: Collection[str], call: Call, end: float
    ) -> Iterator[_Screening]:
        """Build the points, and time each that builds to machine code that is not known, until the time is up."""
        assert isinstance(subject.kernel, Kernel)
        call.phases.enter(BUILDING)
        trials = self._build_all(subject.kernel, values, subject.preparation.facts)
        call.phases.enter(SCREENING)
        if call.cancelled():
            raise Interrupted
        seen = set(known)
        runner: RunnerProcess | None = None
        try:
            for trial in trials:
                if trial.built is None:
                    yield _Screening(trial, SweepPoint(tunables=trial.values, failure=trial.failure))
                elif trial.built.identity not in seen and time.monotonic() < end and self._judge.problem is not None:
                    seen.add(trial.built.identity)
                    runner = runner or self._judge.runner()
                    point = self._screened(subject, trial.values, trial.built, runner, call)
                    yield _Screening(trial, point)
                    if point.failure is not None or not self._host.trusts_runner:
                        runner.close()
                        runner = None
        finally:
            if runner is not None:
                runner.close()

    def _build_all(self, kernel: Kernel, points: Sequence[Values], facts: ProblemFacts) -> list[_Trial]:
        """Build the points side by side: nothing is timed meanwhile."""

        def trial(values: Values) -> _Trial:
            try:
                built = self._builder.build_kernel(kernel.tuned(values), facts)
            except InvalidPlan as error:
                return _Trial(values, None, Failure(kind=FailureKind.INVALID_PLAN, message=error.message))
            return _Trial(values, built if built.failure is None else None, built.failure)

        with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "sweep-build") as pool:
            return list(pool.map(trial, points))

    def _screened(
        self, subject: EvaluationInput, values: Values, built: BuiltKernel, runner: RunnerProcess, call: Call
    ) -> SweepPoint:
        variant = replace(subject, tunables=values)
        order = order_of(variant, built, call).model_copy(update={"screening": True})
        return _point(variant, built, self._judging.ordered_in(runner, order, call), whole=False)

    def _judge_whole(
        self, subject: EvaluationInput, trial: _Trial, base: SweepPoint, judged: Judged, call: Call
    ) -> tuple[SweepPoint, Variant | None]:
        """Judge a point whole; return it, and the variant if it may stand for the kernel that was ``judged``."""
        assert trial.built is not None
        variant = replace(subject, tunables=trial.values)
        result = self._judging.ordered(order_of(variant, trial.built, call), call)
        point, eager = _point(variant, trial.built, result, whole=True), result.eager
        if result.failure is not None or eager is None or not _faster(eager.speedup, base.speedup):
            return point, None
        if judged.eager is None or eager.graphs is not judged.eager.graphs:
            return point, None  # not timed alike
        if below_floor(eager, subject.preparation.placement):
            message = f"{eager.kernel_us.median:.4g} us is faster than the device's roofline bound"
            failure = Failure(kind=FailureKind.BELOW_FLOOR, message=message)
            return SweepPoint(tunables=trial.values, failure=failure, code=trial.built.identity), None
        return point, Variant(trial.values, trial.built, result)


def is_worth_sweeping(subject: EvaluationInput, judged: Judged, call: Call) -> bool:
    """Return whether a kernel that was judged is to be swept."""
    eager = judged.eager
    if judged.failure is not None or eager is None or not can_vary(subject.kernel):
        return False
    slow = eager.speedup.high < HOPELESS
    done = subject.preparation.placement.floor_us > NEAR_FLOOR * eager.kernel_us.median
    return not slow and not done and call.remaining() > ROOM * call.phases.elapsed()


def _point(subject: EvaluationInput, built: BuiltKernel, judged: Judged, *, whole: bool) -> SweepPoint:
    """Return the point of a variant; ``whole``: it was verified on every input distribution, not only screened."""
    eager, values, code = judged.eager, subject.tuned().tunable_values(), built.identity
    if judged.failure is not None or eager is None:
        failure = judged.failure or Failure(kind=FailureKind.INFRASTRUCTURE, message="it was not timed")
        return SweepPoint(tunables=values, failure=failure, code=code)
    return SweepPoint(tunables=values, kernel_us=eager.kernel_us, speedup=eager.speedup, judged=whole, code=code)


def _fastest(base: SweepPoint, points: Sequence[SweepPoint]) -> list[int]:
    """Return the places of the points to judge whole: the fastest that are faster than the kernel as given."""
    faster = [place for place, point in enumerate(points) if _faster(point.speedup, base.speedup)]
    return sorted(faster, key=lambda place: _speed(points[place]), reverse=True)[:JUDGED_POINTS]


def _speed(point: SweepPoint) -> float:
    return point.speedup.median if point.speedup is not None else 0.0


def _faster(speedup: Interval | None, other: Interval | None) -> bool:
    """Return whether one is faster beyond noise: the 95 % intervals do not touch."""
    return speedup is not None and other is not None and speedup.low > other.high
