"""A whole local job with scripted agents and a scripted judge: its pipeline, its ends and its repeatability."""

# ruff: noqa: ARG002 - scripted players take every argument of their roles
from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from types import MappingProxyType

import pytest

from agents.interface import (
    Agents,
    Alignment,
    Attempt,
    Briefing,
    Diagnosis,
    InitialStrategy,
    NoTemplate,
    Revision,
    StrategySource,
)
from benchmarks.local_report import record, write_winner
from cupilot.domain.evaluation import (
    BuildReport,
    Evaluation,
    Failure,
    FailureKind,
    Preparation,
    PreparationResult,
    Tracing,
    Verdict,
)
from cupilot.domain.evolution.population import Member, Operator
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.hardware import Device, Environment, Peaks
from cupilot.domain.job import AgentKind, Budgets, JobSpec
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan
from cupilot.domain.pool import Lesson, PoolMatch
from cupilot.domain.problem import Problem, Target
from cupilot.domain.strategy import Strategy
from tests.unit.evolution.populations import interval, measured, placement
from tests.unit.storage.references import facts, strategy
from workers.local.candidates import Candidate
from workers.local.job import LocalJob
from workers.local.pool import LocalPool

TECHNIQUES = [f"technique_{letter}" for letter in "abcdefgh"]
PROBLEM = Problem(name="softmax", source="the reference")
Script = Callable[[Kernel], Evaluation]


def kernel_for(strategy: Strategy, note: str = "") -> Kernel:
    source = f"{' '.join(sorted(strategy.ids()))}{note}\n"
    return Kernel(target=Target.CPU, source=source, plan=LaunchPlan(launches=(Launch(kernel="f", args=("out",)),)))


class Players:
    """All four roles: random subsets of techniques, kernels that name their techniques."""

    def __init__(self) -> None:
        self.shown: list[PoolMatch] = []
        self.outcomes: Mapping[str, str] = {}
        self.improvements: list[str] = []
        """Text that each performance revision adds to the kernel's source."""

    def diagnose(self, briefing: Briefing, attempt: Attempt) -> Diagnosis:
        raise NotImplementedError

    def initial_strategies(
        self,
        briefing: Briefing,
        pool: Sequence[PoolMatch],
        count: int,
        seed: int,
        *,
        taken: Sequence[Strategy] = (),
        seeds: Sequence[Attempt] = (),
        outcomes: Mapping[str, str] = MappingProxyType({}),
    ) -> list[InitialStrategy]:
        self.shown += pool
        self.outcomes = outcomes
        rng = Random(seed)
        chosen = {tuple(sorted(rng.sample(TECHNIQUES, 2))) for _ in range(count)}
        return [InitialStrategy(strategy=strategy(*ids), source=StrategySource.IDEA) for ids in sorted(chosen)]

    def crossover(
        self,
        briefing: Briefing,
        first: Attempt,
        second: Attempt,
        taken: Sequence[Strategy],
        seed: int,
        *,
        outcomes: Mapping[str, str],
    ) -> Strategy:
        self.outcomes = outcomes
        genes = sorted({*first.strategy.ids(), *second.strategy.ids()})
        rng = Random(seed)
        return strategy(*(gene for gene in genes if rng.random() < 0.8))

    def translate(
        self,
        briefing: Briefing,
        strategy: Strategy,
        parents: Sequence[Attempt],
        seed: int,
        *,
        lessons: Sequence[Lesson] = (),
    ) -> Kernel:
        return kernel_for(strategy)

    def merge(self, briefing: Briefing, first: Attempt, second: Attempt, seed: int) -> Kernel:
        return kernel_for(strategy(*{*first.strategy.ids(), *second.strategy.ids()}), " merged")

    def align(self, briefing: Briefing, attempt: Attempt) -> Alignment:
        return Alignment(strategy=attempt.strategy, fidelity=1.0)

    def revise(
        self, briefing: Briefing, history: Sequence[Attempt], seed: int, *, lineage: Sequence[Attempt] = ()
    ) -> Revision | None:
        last = history[-1]
        return Revision(strategy=last.strategy, kernel=kernel_for(last.strategy, f" mended {len(history)}"), note="")

    def improve(self, briefing: Briefing, attempt: Attempt, history: Sequence[Attempt], seed: int) -> Revision | None:
        note = f" {self.improvements.pop(0)}" if self.improvements else ""
        return Revision(strategy=attempt.strategy, kernel=kernel_for(attempt.strategy, note), note=note)


class ScriptedJudge:
    """More techniques are faster; kernels that ``broken`` picks are wrong until mended; confirmation by script."""

    def __init__(self, broken: str = "", confirm: Script | None = None) -> None:
        self.broken = broken
        self.confirm_script = confirm or self._measure
        self.evaluated: list[str] = []
        self.confirmed: list[str] = []
        self.faults = 0

    def prepare(self, problem: Problem, /) -> PreparationResult:
        return PreparationResult(preparation=preparation())

    def trace(self, problem: Problem, /) -> Tracing:
        raise NotImplementedError

    def evaluate(self, problem: Problem, preparation: Preparation, kernel: Kernel, /) -> Evaluation:
        self.evaluated.append(kernel.source)
        if self.faults:
            self.faults -= 1
            return failed(kernel, FailureKind.INFRASTRUCTURE)
        if self.broken and self.broken in kernel.source and "mended" not in kernel.source:
            return failed(kernel, FailureKind.WRONG_VALUE)
        return self._measure(kernel)

    def confirm(self, problem: Problem, preparation: Preparation, kernel: Kernel, /) -> Evaluation:
        self.confirmed.append(kernel.source)
        return self.confirm_script(kernel).model_copy(update={"kernel_hash": kernel.content_hash()})

    def _measure(self, kernel: Kernel) -> Evaluation:
        speedup = 1.0 + kernel.source.count("technique_")
        evaluation = measured(speedup, memory=50, kernel_us=100 / speedup)
        return evaluation.model_copy(update={"kernel_hash": kernel.content_hash()})


class Log:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def prepared(self, preparation: Preparation) -> None:
        self.lines.append("prepared")

    def finished(self, candidate: Candidate) -> None:
        assert candidate.end is not None
        self.lines.append(f"finished {candidate.id}")

    def generation(self, number: int, population: list[Member], survivors: tuple[str, ...]) -> None:
        self.lines.append(f"generation {number}: {' '.join(survivors)}")

    def confirmed(self, candidate: Candidate) -> None:
        self.lines.append(f"confirmed {candidate.id}")


def failed(kernel: Kernel, kind: FailureKind) -> Evaluation:
    return Evaluation(
        kernel_hash=kernel.content_hash(),
        problem_hash="problem",
        verdict=Verdict.REJECTED,
        failure=Failure(kind=kind, message="scripted"),
        build=BuildReport(ok=True, compiler="g++", seconds=0.1),
    )


def preparation() -> Preparation:
    device = Device(
        target=Target.CPU, uid="cpu", name="Scripted CPU", arch="x86-64", units=2, memory_bytes=1, cache_bytes=1
    )
    return Preparation(
        facts=facts("softmax"),
        placement=placement(floor_us=1.0),
        peaks=Peaks(device_uid="cpu", bandwidth=1e9, scalar_flops=1e9, measured_at="2026-01-01T00:00:00Z"),
        environment=Environment(device=device),
        baseline_us=interval(100.0),
        laws=("own",),
        tolerances={"own": 1e-6},
        admission={"zeros": True},
    )


def job(
    judge: ScriptedJudge, *, pool: LocalPool | None = None, seed: int = 3, wall: float = 600, **config: int
) -> LocalJob:
    players = Players()
    spec = JobSpec(
        problem=PROBLEM,
        target=Target.CPU,
        method=SceConfig(**{"population": 6, "generations": 3, **config}),  # type: ignore[arg-type]
        budgets=Budgets(wall_seconds=wall),
        seed=seed,
    )
    agents = Agents(prophet=players, manager=players, translator=players, revisor=players)
    return LocalJob(spec, judge, agents, pool or LocalPool(), Log())


def run(judge: ScriptedJudge, **options: int) -> LocalJob:
    one = job(judge, **options)
    one.run()
    return one


def test_a_job_evolves_and_its_best_is_confirmed() -> None:
    done = run(ScriptedJudge(confirm=lambda _: measured(4.0).model_copy(update={"verdict": Verdict.REPRODUCED})))
    assert done.stop == "generations"
    assert done.best is not None
    assert done.best.latest is not None
    assert done.best.latest.verdict is Verdict.REPRODUCED
    first = max(
        candidate.evaluation.speedup or 0
        for candidate in done.candidates
        if candidate.generation == 0 and candidate.evaluation
    )
    last = max(candidate.evaluation.speedup or 0 for candidate in done.candidates if candidate.evaluation)
    assert last > first
    assert {candidate.proposal.operator for candidate in done.candidates if candidate.generation > 0} == {
        Operator.CROSSOVER
    }


def test_an_epoch_is_told_what_earlier_strategies_came_to() -> None:
    done = job(ScriptedJudge(), population=3, generations=1, elites=1, epochs=2)
    done.run()
    players = done.agents.manager
    assert isinstance(players, Players)
    first = [candidate for candidate in done.candidates if candidate.generation == 0]
    assert players.outcomes == {
        candidate.strategy.signature(): f"{candidate.evaluation.speedup:.2f}x"
        for candidate in first
        if candidate.strategy and candidate.evaluation
    }


def test_the_same_seed_evolves_alike_and_another_does_not() -> None:
    runs = [ScriptedJudge() for _ in range(3)]
    for judge, seed in zip(runs, (3, 3, 4), strict=True):
        run(judge, seed=seed)
    assert runs[0].evaluated == runs[1].evaluated
    assert runs[0].evaluated != runs[2].evaluated


def test_no_kernel_is_measured_twice() -> None:
    judge = ScriptedJudge()
    run(judge, generations=8)
    assert len(set(judge.evaluated)) == len(judge.evaluated)


def test_a_wrong_kernel_is_mended_and_counts() -> None:
    done = run(ScriptedJudge(broken="technique_a"))
    mended = [candidate for candidate in done.candidates if len(candidate.history) == 2]
    assert mended
    assert all(item.evaluation is not None and item.evaluation.verdict.counts for item in mended)
    assert all(item.history[0].evaluation.failure for item in mended if item.history[0].evaluation)


def test_a_speed_that_does_not_hold_makes_way_for_the_next_best() -> None:
    held: list[str] = []

    def script(kernel: Kernel) -> Evaluation:
        held.append(kernel.source)
        if len(held) == 1:
            return failed(kernel, FailureKind.WRONG_VALUE)
        return measured(20.0).model_copy(update={"verdict": Verdict.REPRODUCED})

    done = run(ScriptedJudge(confirm=script))
    assert len(held) == 2
    assert done.best is not None
    assert done.best.kernel is not None
    assert done.best.kernel.source == held[1]


def test_a_confirmed_speed_that_falls_below_anothers_bound_starts_the_race_again() -> None:
    raced: list[str] = []

    def script(kernel: Kernel) -> Evaluation:
        raced.append(kernel.source)
        speedup = 1.5 if len(raced) == 1 else 20.0
        return measured(speedup).model_copy(update={"verdict": Verdict.REPRODUCED})

    done = run(ScriptedJudge(confirm=script))
    assert len(raced) == 2
    assert done.best is not None
    assert done.best.kernel is not None
    assert done.best.kernel.source == raced[1]


def test_a_job_that_is_not_to_confirm_names_its_fastest() -> None:
    def never(kernel: Kernel) -> Evaluation:
        raise AssertionError(f"confirmed {kernel.content_hash()}")

    one = job(ScriptedJudge(confirm=never))
    one.confirms = False
    one.run()
    assert one.best is not None
    assert one.best.latest is not None
    assert one.best.latest.speedup == max(each.evaluation.speedup or 0 for each in one.candidates if each.evaluation)


def test_the_machines_faults_are_tried_again_and_never_held_against_a_kernel() -> None:
    judge = ScriptedJudge()
    judge.faults = 2
    done = run(judge)
    assert done.candidates[0].evaluation is not None
    assert done.candidates[0].evaluation.verdict.counts
    assert judge.evaluated[0] == judge.evaluated[1] == judge.evaluated[2]


def test_a_machine_that_never_recovers_ends_candidates_without_evaluation() -> None:
    judge = ScriptedJudge()
    judge.faults = 10**6
    done = run(judge, generations=1)
    assert done.best is None
    assert {(candidate.end.ending.value, candidate.end.reason) for candidate in done.candidates if candidate.end} == {
        ("failed", "infrastructure")
    }


def test_a_job_out_of_time_begins_nothing_more() -> None:
    judge = ScriptedJudge()
    one = job(judge, wall=1e-9)
    one.run()
    assert (one.stop, judge.evaluated, one.best) == ("wall_seconds", [], None)


def test_a_problem_that_cannot_be_used_stops_at_once() -> None:
    judge = ScriptedJudge()
    refusal = Failure(kind=FailureKind.INVALID_PROBLEM, message="no")
    judge.prepare = lambda _: PreparationResult(failure=refusal)  # type: ignore[assignment, method-assign]
    done = run(judge)
    assert (done.stop, done.candidates) == ("invalid_problem", [])
    assert record(done)["failure"]["message"] == "no"


def test_agents_that_know_no_template_stop_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> list[InitialStrategy]:
        raise NoTemplate("nothing for this operator")

    monkeypatch.setattr(Players, "initial_strategies", refuse)
    done = run(ScriptedJudge())
    assert (done.stop, done.candidates, done.best) == ("no_template", [], None)


def test_a_later_problem_is_shown_what_an_earlier_one_learned() -> None:
    pool = LocalPool()
    first, second = job(ScriptedJudge(), pool=pool), job(ScriptedJudge(broken="technique_a"), pool=pool, seed=9)
    first.run()
    second.run()
    shown = second.agents.manager.shown  # type: ignore[attr-defined]
    assert shown
    assert [item.entry.verdict.counts for item in shown] == sorted(
        (item.entry.verdict.counts for item in shown), reverse=True
    )
    assert first.agents.manager.shown == []  # type: ignore[attr-defined]


def test_record_and_winner_say_everything(tmp_path: Path) -> None:
    done = run(ScriptedJudge(confirm=lambda _: measured(4.0).model_copy(update={"verdict": Verdict.REPRODUCED})))
    data = json.loads(json.dumps(record(done)))
    assert data["environment"]["device"]["name"] == "Scripted CPU"
    assert data["seed"] == 3
    assert len(data["candidates"]) == len(done.candidates)
    assert done.best is not None
    winner = next(candidate for candidate in data["candidates"] if candidate["id"] == data["best"])
    assert winner["confirmation"]["verdict"] == "reproduced"
    write_winner(done, tmp_path / "softmax")
    assert done.best.kernel is not None
    assert (tmp_path / "softmax/kernel.cpp").read_text() == done.best.kernel.source
    assert Evaluation.model_validate_json((tmp_path / "softmax/evaluation.json").read_text()) == done.best.latest
    assert LaunchPlan.model_validate_json((tmp_path / "softmax/plan.json").read_text()) == done.best.kernel.plan
    assert (tmp_path / "softmax/problem.py").read_text() == PROBLEM.source


def test_a_performance_revision_stays_only_where_it_is_faster() -> None:
    judge = ScriptedJudge(broken="wrong")
    one = job(judge, population=2, generations=1, elites=1, performance_rounds=3)
    one.spec = one.spec.model_copy(update={"agents": AgentKind.LLM})
    players = one.agents.revisor
    assert isinstance(players, Players)
    players.improvements = ["technique_x", "slower", "wrong"]
    one.run()
    improved = one.candidates[0]
    assert [trial.evaluation.verdict.counts for trial in improved.history if trial.evaluation] == [
        True,
        True,
        True,
        False,
    ]
    assert improved.standing == 1
    assert improved.kernel is not None
    assert improved.kernel.source.endswith("technique_x\n")
    assert improved.result == (4.0, None)
    assert improved.notes.repairs == (" technique_x", " slower", " wrong")
    assert one.candidates[1].standing == 0


def test_templates_are_not_improved() -> None:
    judge = ScriptedJudge()
    one = job(judge, population=2, generations=1, elites=1, performance_rounds=3)
    one.run()
    assert {len(candidate.history) for candidate in one.candidates} == {1}
