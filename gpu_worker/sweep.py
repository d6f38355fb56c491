"""A bounded sweep over a kernel's tunables, once the kernel as given has passed the judge.

Which points are tried: for one tunable at a time every other choice, the nearest first and the tunables in turn, up to
the limit; then each tunable's best value together, where more than one of them helped. The points are built side by
side, timed in the warm judge for a few blocks against the same baseline, and the fastest is judged whole before it
may stand for the kernel. What fails is not chosen and rejects nothing; nothing is reported that was only screened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cupilot.domain.errors import InvalidPlan
from cupilot.domain.evaluation import Baseline, Comparison, Evaluation, Failure, FailureKind, Interval, SweepPoint
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import Kernel, LaunchPlan
from cupilot.domain.problem import ProblemFacts
from gpu_worker.build import Builder, BuiltKernel
from gpu_worker.judge_process import Interrupted
from gpu_worker.runner_process import RunnerProcess
from gpu_worker.targets.base import HostTarget
from gpu_worker.verdict import Measured, below_floor
from gpu_worker.warm_judge import Call, WarmJudge, order_of

HOPELESS = 0.2
"""A kernel that is certainly slower than this, as a speedup, is not helped enough by any launch geometry."""

NEAR_FLOOR = 0.95
"""Of the floor's speed: what is left to gain is not worth the card's time."""

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
    """Points that differ from the plan's own values in one tunable, at most ``limit`` of them."""
    given = plan.values()
    ways = [_alternatives(name, plan) for name in sorted(plan.tunables)]
    turns = max((len(way) for way in ways), default=0)
    in_turn = [way[turn] for turn in range(turns) for way in ways if turn < len(way)]
    return [{**given, **change} for change in in_turn[:limit]]


def _alternatives(name: str, plan: LaunchPlan) -> list[Values]:
    tunable = plan.tunables[name]
    choices = sorted(set(tunable.choices))
    place = choices.index(tunable.value)
    others = sorted((value for value in choices if value != tunable.value), reverse=True)
    return [{name: value} for value in sorted(others, key=lambda value: abs(choices.index(value) - place))]


def combination(given: SweepPoint, points: Sequence[SweepPoint]) -> Values | None:
    """The best value of each tunable together; None where fewer than two of them helped."""
    best: dict[str, tuple[float, int]] = {}
    for point in points:
        changed = [name for name, value in point.tunables.items() if given.tunables[name] != value]
        if len(changed) == 1 and _faster(point.speedup, given.speedup):
            assert point.speedup is not None
            found = point.speedup.median, point.tunables[changed[0]]
            best[changed[0]] = max(best.get(changed[0], found), found)
    if len(best) < 2:
        return None
    return given.tunables | {name: value for name, (_, value) in best.items()}


def _key(values: Values) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(values.items()))


def _alone(plan: LaunchPlan, limit: int) -> int:
    """How many points change one tunable: all but one, which is for the combination where several can vary."""
    return limit - (sum(len(set(tunable.choices)) > 1 for tunable in plan.tunables.values()) > 1)


def can_vary(kernel: Kernel | ImportedKernel) -> bool:
    """Whether a tunable has another choice."""
    if isinstance(kernel, ImportedKernel):
        return False
    return any(len(set(tunable.choices)) > 1 for tunable in kernel.plan.tunables.values())


@dataclass(frozen=True)
class _Trial:
    """A point that was built, or the failure to."""

    values: Values
    built: BuiltKernel | None
    failure: Failure | None


class Sweep:
    """Finds better tunable values for kernels on one device."""

    def __init__(self, host: HostTarget, builder: Builder, judge: WarmJudge, enter: Callable[[str], None]) -> None:
        """``enter`` is told which of the :data:`PHASES` begins."""
        self._host = host
        self._builder = builder
        self._judge = judge
        self._enter = enter

    def first_points(self, kernel: Kernel, limit: int) -> list[Kernel]:
        """The variants that :meth:`improve` will try for certain, if it comes to that."""
        return [kernel.tuned(values) for values in one_at_a_time(kernel.plan, _alone(kernel.plan, limit))]

    def retraced(self, known: Evaluation, kernel: Kernel, facts: ProblemFacts, limit: int) -> BuiltKernel | None:
        """The build of the point that another source's sweep chose, where this kernel's would be no other; else None.

        The two have one machine code as they are given, and the same tunables. Each point that was tried has to be the
        same code here, and each that was not has to be code that was tried at another: then every step of the sweep
        would see what it saw. A point that did not build is held to differ.
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

    def improve(self, measured: Measured, built: BuiltKernel, call: Call, limit: int) -> BuiltKernel:
        """Try up to ``limit`` points beside the kernel that was judged; the build that stands for it in the end.

        ``measured`` is filled with what was tried, and adopts the point that was chosen.
        """
        assert isinstance(measured.kernel, Kernel)  # nothing else can vary
        plan = measured.kernel.plan
        given = _point(measured, built, judged=True)
        measured.sweep.append(given)
        known = {built.identity}
        found: dict[int, _Trial] = {}
        end = time.monotonic() + SCREENING_SECONDS
        for trial in self._screened(one_at_a_time(plan, _alone(plan, limit)), measured, known, call, end):
            found[len(measured.sweep) - 1] = trial
        together = combination(given, measured.sweep[1:])
        if together is not None:
            for trial in self._screened([together], measured, known, call, end):
                found[len(measured.sweep) - 1] = trial
        self._enter(JUDGING)
        return self._chosen(measured, given, found, call) or built

    def _screened(
        self, points: Iterable[Values], measured: Measured, known: set[str], call: Call, end: float
    ) -> Iterator[_Trial]:
        """Build the points and time each that builds; every one is entered in ``measured`` before it is given."""
        assert isinstance(measured.kernel, Kernel)
        self._enter(BUILDING)
        trials = self._build_all(measured.kernel, [*points], measured.preparation.facts)
        self._enter(SCREENING)
        if call.cancelled():
            raise Interrupted
        runner: RunnerProcess | None = None
        try:
            for trial in trials:
                if trial.built is None:
                    measured.sweep.append(SweepPoint(tunables=trial.values, failure=trial.failure))
                elif trial.built.identity not in known and time.monotonic() < end and self._judge.problem is not None:
                    known.add(trial.built.identity)
                    runner = runner or self._judge.fresh_runner()
                    point = self._screen(trial.values, trial.built, measured, runner, call)
                    measured.sweep.append(point)
                    yield trial
                    if point.failure is not None or not self._host.trusts_runner:
                        runner.close()
                        runner = None
        finally:
            if runner is not None:
                runner.close()

    def _build_all(self, kernel: Kernel, points: Sequence[Values], facts: ProblemFacts) -> list[_Trial]:
        """Side by side: nothing is timed meanwhile."""

        def trial(values: Values) -> _Trial:
            try:
                built = self._builder.build_kernel(kernel.tuned(values), facts)
            except InvalidPlan as error:
                return _Trial(values, None, Failure(kind=FailureKind.INVALID_PLAN, message=error.message))
            return _Trial(values, built if built.failure is None else None, built.failure)

        with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "sweep-build") as pool:
            return list(pool.map(trial, points))

    def _screen(
        self, values: Values, built: BuiltKernel, measured: Measured, runner: RunnerProcess, call: Call
    ) -> SweepPoint:
        variant = measured.variant(values, built.build.report, built.build.facts)
        order = order_of(variant, built.plan, built.binary, call, [Baseline.EAGER]) | {"screening": True}
        self._judge.judge_in(runner, variant, order, call)
        return _point(variant, built, judged=False)

    def _chosen(
        self, measured: Measured, given: SweepPoint, found: Mapping[int, _Trial], call: Call
    ) -> BuiltKernel | None:
        """Judge the fastest points whole, until one passes and is faster than the kernel as given."""
        faster = [place for place in found if _faster(measured.sweep[place].speedup, given.speedup)]
        for place in sorted(faster, key=lambda place: _speed(measured.sweep[place]), reverse=True)[:JUDGED_POINTS]:
            built = found[place].built
            if built is None or self._judge.problem is None:
                return None
            variant = measured.variant(found[place].values, built.build.report, built.build.facts)
            order = order_of(variant, built.plan, built.binary, call, [Baseline.EAGER])
            self._judge.judge(variant, order, call)
            measured.sweep[place] = _point(variant, built, judged=True)
            eager = variant.eager()
            if variant.failure is not None or eager is None or not _faster(eager.speedup, given.speedup):
                continue
            if eager.graphs is not measured.through_graphs():
                continue  # not timed alike
            if below_floor(eager, measured.preparation.placement):
                message = f"{eager.kernel_us.median:.4g} us is faster than the device's physical floor"
                failure = Failure(kind=FailureKind.BELOW_FLOOR, message=message)
                measured.sweep[place] = SweepPoint(tunables=variant.tunables, failure=failure, code=built.identity)
                continue
            measured.adopt(variant)
            return built
        return None


def worthwhile(measured: Measured, call: Call, spent: float) -> bool:
    """Whether a kernel that was judged is to be swept; ``spent`` is what its evaluation took so far, in seconds."""
    eager = measured.eager()
    if measured.failure is not None or eager is None or not can_vary(measured.kernel):
        return False
    slow = eager.speedup.high < HOPELESS
    done = measured.preparation.placement.floor_us > NEAR_FLOOR * eager.kernel_us.median
    return not slow and not done and call.remaining() > ROOM * spent


def _point(variant: Measured, built: BuiltKernel, *, judged: bool) -> SweepPoint:
    eager: Comparison | None = variant.eager()
    values, code = variant.tuned().tunable_values(), built.identity
    if variant.failure is not None or eager is None:
        failure = variant.failure or Failure(kind=FailureKind.INFRASTRUCTURE, message="it was not timed")
        return SweepPoint(tunables=values, failure=failure, code=code)
    return SweepPoint(tunables=values, kernel_us=eager.kernel_us, speedup=eager.speedup, judged=judged, code=code)


def _speed(point: SweepPoint) -> float:
    return point.speedup.median if point.speedup is not None else 0.0


def _faster(one: Interval | None, other: Interval | None) -> bool:
    """Beyond noise: the 95 % intervals do not touch."""
    return one is not None and other is not None and one.low > other.high
